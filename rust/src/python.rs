//! How Python writes values as text: what `{{ x }}` and `x|string` show.

use std::fmt::{self, Write};
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Serde, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// As deep as a value may be nested that is written out.
const MAX_DEPTH: usize = 128;

/// A float whose digits Python writes with an exponent. `~` and `join` write values by themselves, so
/// that it has to be the value that knows. It cannot be calculated with.
#[derive(Debug)]
struct ExponentFloat(f64);

impl Object for ExponentFloat {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&float_repr(self.0))
    }
    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// The float that a value is, if it is one.
pub fn as_float(value: &Value) -> Option<f64> {
    match value.downcast_object_ref::<ExponentFloat>() {
        Some(float) => Some(float.0),
        None if value.kind() == ValueKind::Number && !value.is_integer() => {
            f64::try_from(value.clone()).ok()
        }
        None => None,
    }
}

pub fn is_number(value: &Value) -> bool {
    value.kind() == ValueKind::Number || as_float(value).is_some()
}

fn has_exponent(json: &serde_json::Value) -> bool {
    match json {
        serde_json::Value::Number(n) => {
            n.is_f64() && float_repr(n.as_f64().unwrap_or(0.0)).contains('e')
        }
        serde_json::Value::Array(items) => items.iter().any(has_exponent),
        serde_json::Value::Object(map) => map.values().any(has_exponent),
        _ => false,
    }
}

/// A JSON value as templates see it.
pub fn value(json: &serde_json::Value) -> Value {
    if !has_exponent(json) {
        return Value::from(Serde(json));
    }
    match json {
        serde_json::Value::Array(items) => items.iter().map(value).collect(),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(k, v)| (k.clone(), value(v))))
        }
        other => Value::from_object(ExponentFloat(other.as_f64().unwrap_or(0.0))),
    }
}

/// `str(value)`. `hidden`: private-use characters stand for others and are written as they are.
pub fn text(value: &Value, hidden: bool) -> Result<String, Error> {
    let mut out = String::new();
    match value.as_str() {
        Some(text) => out.push_str(text),
        None => repr(&mut out, value, hidden, 0)?,
    }
    Ok(out)
}

fn repr(out: &mut String, value: &Value, hidden: bool, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        let message = format!("a value is nested deeper than {MAX_DEPTH}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    match value.kind() {
        ValueKind::String => string_repr(out, value.as_str().unwrap_or_default(), hidden),
        ValueKind::Number | ValueKind::Plain => match as_float(value) {
            Some(f) => out.push_str(&float_repr(f)),
            None => out.push_str(&value.to_string()),
        },
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, &item, hidden, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, &key, hidden, depth + 1)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, hidden, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn string_repr(out: &mut String, text: &str, hidden: bool) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) || (hidden && is_private(c)) => out.push(c),
            c => {
                let _ = match c as u32 {
                    code @ 0..=0xFF => write!(out, "\\x{code:02x}"),
                    code @ 0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Rust's own escaping asks the same question as Python's `str.isprintable`, but that it also escapes
/// a mark at the beginning.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let mut text = String::from("a");
    text.push(c);
    text.escape_debug().nth(1) == Some(c)
}

/// The characters that a hidden text is written in (src/text/chat/taint.cc).
pub fn is_private(c: char) -> bool {
    matches!(c as u32, 0xE000..=0xF8FF | 0x40000..=0xDFFFD | 0xF0000..=0xFFFFD | 0x100000..=0x10FFFD)
}

/// Python's repr of a float: the shortest digits that read back, with an exponent below 1e-4 and
/// from 1e16 on.
pub fn float_repr(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let magnitude = f.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{f:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let text = format!("{f}");
    if text.contains('.') {
        text
    } else {
        text + ".0"
    }
}

/// `str.splitlines`: at every line end that Python knows, and nothing after the last one.
pub fn split_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let mut end = at + c.len_utf8();
        match c {
            '\r' => {
                if let Some(&(next, '\n')) = chars.peek() {
                    end = next + 1;
                    chars.next();
                }
            }
            '\n' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}' => {
            }
            _ => continue,
        }
        lines.push(&text[start..at]);
        start = end;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}
