//! `json.dumps` as Python writes it.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use crate::python;

pub enum Indent {
    None,
    Text(String),
}

impl Indent {
    pub fn from_value(value: Option<Value>) -> Result<Self, Error> {
        let Some(value) = value.filter(|v| !v.is_none() && !v.is_undefined()) else {
            return Ok(Indent::None);
        };
        if let Some(text) = value.as_str() {
            return Ok(Indent::Text(text.into()));
        }
        let n =
            i64::try_from(value).map_err(|_| invalid("tojson: indent is a number or a string"))?;
        if n > 64 {
            return Err(invalid("tojson: indent is at most 64"));
        }
        Ok(Indent::Text(" ".repeat(n.max(0) as usize)))
    }
}

pub struct Options {
    pub ensure_ascii: bool,
    pub indent: Indent,
    pub separators: Option<Vec<String>>,
    pub sort_keys: bool,
    /// Private-use characters stand for others and are written as they are.
    pub hidden: bool,
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

pub fn dumps(value: &Value, options: &Options) -> Result<String, Error> {
    let (item, key) = match &options.separators {
        None => match options.indent {
            Indent::None => (", ".to_string(), ": ".to_string()),
            Indent::Text(_) => (",".to_string(), ": ".to_string()),
        },
        Some(pair) if pair.len() == 2 => (pair[0].clone(), pair[1].clone()),
        Some(_) => return Err(invalid("tojson: separators is a pair")),
    };
    let mut writer = Writer {
        out: String::new(),
        options,
        item,
        key,
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: String,
    options: &'a Options,
    item: String,
    key: String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > 128 {
            return Err(invalid("tojson: nested deeper than 128"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            _ if python::is_number(value) => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.block('[', ']', depth, items.len(), |w, i| {
                    w.value(&items[i], depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.options.sort_keys {
                    keys.sort();
                }
                self.block('{', '}', depth, keys.len(), |w, i| {
                    w.map_key(&keys[i])?;
                    let separator = w.key.clone();
                    w.out.push_str(&separator);
                    w.value(&value.get_item(&keys[i])?, depth + 1)
                })?;
            }
            kind => {
                return Err(invalid(format!(
                    "tojson: a value of type {kind} is not JSON"
                )))
            }
        }
        Ok(())
    }

    fn block(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        count: usize,
        mut item: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for i in 0..count {
            if i > 0 {
                let separator = self.item.clone();
                self.out.push_str(&separator);
            }
            self.new_line(depth + 1);
            item(self, i)?;
        }
        if count > 0 {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Indent::Text(indent) = &self.options.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    /// Python turns the keys that are not strings into strings.
    fn map_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            kind => return Err(invalid(format!("tojson: a key of type {kind} is not JSON"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            let _ = write!(self.out, "{value}");
        } else if let Some(f) = python::as_float(value) {
            self.out.push_str(&match f {
                f if f.is_nan() => "NaN".into(),
                f if f.is_infinite() && f > 0.0 => "Infinity".into(),
                f if f.is_infinite() => "-Infinity".into(),
                f => python::float_repr(f),
            });
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 => {
                    let _ = write!(self.out, "\\u{:04x}", c as u32);
                }
                c if self.options.hidden && python::is_private(c) => self.out.push(c),
                c if self.options.ensure_ascii && !c.is_ascii_graphic() && c != ' ' => {
                    let mut units = [0u16; 2];
                    for unit in c.encode_utf16(&mut units) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
