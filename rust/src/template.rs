//! Chat templates in the environment that transformers gives them.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use crate::{json, python};

const NAME: &str = "chat_template";
/// Bounds both the time of one rendering (about a second) and its memory (64 bytes a unit).
#[cfg(not(fuzzing))]
const FUEL: u64 = 8_000_000;
/// A fuzzer finds loops quickly, and would then do little else.
#[cfg(fuzzing)]
const FUEL: u64 = 2_000;
/// A variable that no template can name: the texts are written in private-use characters
/// (src/text/chat/taint.h).
const HIDDEN: &str = "hidden texts";
/// Bytes of a template: published ones have some 20,000. Bounds how deep an expression can be.
const MAX_SOURCE: usize = 128 << 10;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ok = 0,
    Syntax = 1,
    Raised = 2,
    Failed = 3,
    Limit = 4,
    Internal = 5,
}

#[derive(Debug)]
pub struct Failure {
    pub kind: Kind,
    pub message: String,
}

impl Failure {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Failure {
            kind,
            message: message.into(),
        }
    }
}

pub type StrftimeNow = Box<dyn Fn(&str) -> String + Send + Sync>;

/// Marks an error that the template itself raised, on its way through the engine.
#[derive(Debug)]
struct Raised(String);
impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl StdError for Raised {}

pub struct ChatTemplate {
    env: Environment<'static>,
}

impl ChatTemplate {
    pub fn new(source: &str) -> Result<Self, Failure> {
        if source.len() > MAX_SOURCE {
            let message = format!(
                "it has {} bytes; at most {MAX_SOURCE} are read",
                source.len()
            );
            return Err(Failure::new(Kind::Limit, message));
        }
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| Failure::new(Kind::Internal, e.to_string()))?;
        env.set_syntax(syntax);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.set_fuel(Some(FUEL));
        env.set_formatter(|out, state, value| {
            if value.is_undefined() {
                return Ok(());
            }
            match value.as_str() {
                Some(text) => out.write_str(text)?,
                None => out.write_str(&python::text(value, hidden(state))?)?,
            }
            Ok(())
        });
        env.add_filter("tojson", tojson);
        env.add_filter("string", string);
        env.add_filter("indent", indent);
        env.add_filter("length", length);
        env.add_filter("count", length);
        env.add_test("iterable", is_iterable);
        env.add_test("number", |value: &Value| python::is_number(value));
        env.add_test("float", |value: &Value| {
            python::is_number(value) && !value.is_integer()
        });
        env.add_function("raise_exception", raise_exception);
        env.add_template_owned(NAME, open_generation_blocks(source))
            .map_err(|e| Failure::new(Kind::Syntax, describe(&e)))?;
        Ok(ChatTemplate { env })
    }

    pub fn render(&self, context: &str, now: StrftimeNow) -> Result<String, Failure> {
        let context: serde_json::Map<String, serde_json::Value> = serde_json::from_str(context)
            .map_err(|e| Failure::new(Kind::Internal, format!("context: {e}")))?;
        let mut variables: BTreeMap<String, Value> = context
            .into_iter()
            .map(|(k, v)| (k, python::value(&v)))
            .collect();
        let strftime_now = Value::from_function(move |format: &str| now(format));
        variables.insert("strftime_now".into(), strftime_now);
        let template = self.env.get_template(NAME).map_err(|e| failure(&e))?;
        template
            .render(Value::from(variables))
            .map_err(|e| failure(&e))
    }
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception")
        .with_source(Raised(message.into())))
}

fn hidden(state: &State) -> bool {
    state.lookup(HIDDEN).is_some()
}

fn string(state: &State, value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Ok(String::new());
    }
    python::text(value, hidden(state))
}

/// As in Jinja2, which adds a line end before it splits, so that one at the end stays.
fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    args: Kwargs,
) -> Result<String, Error> {
    const MAX_WIDTH: usize = 1000;
    let width = width.map_or_else(|| args.get::<Option<Value>>("width"), |w| Ok(Some(w)))?;
    let first = first.map_or_else(|| args.get::<Option<bool>>("first"), |f| Ok(Some(f)))?;
    let blank = blank.map_or_else(|| args.get::<Option<bool>>("blank"), |b| Ok(Some(b)))?;
    args.assert_all_used()?;
    let indention = match width {
        None => "    ".to_string(),
        Some(width) => match width.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(
                usize::try_from(width)
                    .unwrap_or(MAX_WIDTH + 1)
                    .min(MAX_WIDTH + 1),
            ),
        },
    };
    if indention.len() > MAX_WIDTH {
        let message = format!("indent: at most {MAX_WIDTH} characters");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let ended = format!("{text}\n");
    let mut out = String::new();
    for (i, line) in python::split_lines(&ended).into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let indented = if i == 0 {
            first.unwrap_or(false)
        } else {
            blank.unwrap_or(false) || !line.is_empty()
        };
        if indented {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// As in Jinja2, where an undefined value is an empty sequence …
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        let message = format!("a value of type {} has no length", value.kind());
        Error::new(ErrorKind::InvalidOperation, message)
    })
}

/// … and none is not a sequence.
fn is_iterable(value: &Value) -> bool {
    !python::is_number(value) && !matches!(value.kind(), ValueKind::None | ValueKind::Bool)
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, as transformers
/// defines it.
fn tojson(state: &State, value: &Value, args: Kwargs) -> Result<Value, Error> {
    let options = json::Options {
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: json::Indent::from_value(args.get::<Option<Value>>("indent")?)?,
        separators: args.get::<Option<Vec<String>>>("separators")?,
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        hidden: hidden(state),
    };
    args.assert_all_used()?;
    json::dumps(value, &options).map(Value::from)
}

/// `{% generation %}…{% endgeneration %}` marks what a model wrote, for training masks; here its
/// content is just rendered. An `if true` keeps the tags' white-space control.
fn open_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let inner = &rest[start + 2..start + length];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(&rest[..start + 2]);
        match word {
            "generation" => out.push_str(&inner.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&inner.replacen("endgeneration", "endif", 1)),
            _ => {
                rest = &rest[start + 2..];
                continue;
            }
        }
        rest = &rest[start + length..];
    }
    out.push_str(rest);
    out
}

fn failure(error: &Error) -> Failure {
    let mut source: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(e) = source {
        if let Some(raised) = e.downcast_ref::<Raised>() {
            let line = error.line().map(|n| format!(" (in {NAME}:{n})"));
            return Failure::new(Kind::Raised, raised.0.clone() + &line.unwrap_or_default());
        }
        if e.downcast_ref::<Error>()
            .is_some_and(|e| e.kind() == ErrorKind::OutOfFuel)
        {
            return Failure::new(Kind::Limit, describe(error));
        }
        source = e.source();
    }
    Failure::new(Kind::Failed, describe(error))
}

/// The engine's message with its line, and the messages of what caused it.
fn describe(error: &Error) -> String {
    let mut out = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        out.push_str(": ");
        out.push_str(&e.to_string());
        source = e.source();
    }
    out
}
