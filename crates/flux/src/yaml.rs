//! YAML as Flux's tools read and write it.
//!
//! Kustomize turns every object into JSON and hands that to `sigs.k8s.io/yaml`, which writes it with
//! Go's `yaml.v2`. What comes out is therefore a function of the value alone: keys in that library's
//! order, sequences flush with their key, strings plain wherever YAML 1.1 reads them back as
//! strings, text with line breaks as a literal block, and other text folded at the first space past
//! column 80. [`write`] follows the same rules, so that a value gives the same bytes.

use std::cmp::Ordering;
use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// Past this column a plain or quoted scalar breaks at its next space.
const BEST_WIDTH: usize = 80;
/// Longer keys are written in the `? key` form.
const SIMPLE_KEY_BYTES: usize = 128;

/// Deeper nesting, and more nodes through aliases than this, no manifest has.
const MAX_DEPTH: usize = 200;
const MAX_ALIASED_NODES: usize = 100_000;

/// Reads all documents of a file; empty ones are left out.
///
/// What a plain scalar means is Go's `yaml.v3` to say, with which kustomize reads: `0644` is an
/// octal number, `1_000` a number and `yes` a text.
///
/// # Errors
/// The parser's message with line and column.
pub fn read(text: &str) -> Result<Vec<Value>, String> {
    let mut reader = Reader::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| error.to_string())?;
        reader.event(event).map_err(|what| {
            format!("{what} at line {} column {}", span.start.line(), span.start.col() + 1)
        })?;
    }
    Ok(reader.documents)
}

/// A collection that has not ended yet.
enum Open {
    Sequence(Vec<Value>),
    Mapping {
        map: Map<String, Value>,
        /// The key whose value comes next, and whether it is the merge key.
        key: Option<(String, bool)>,
        merged: Vec<Value>,
    },
}

#[derive(Default)]
struct Reader {
    documents: Vec<Value>,
    open: Vec<(Open, usize)>,
    anchors: HashMap<usize, Value>,
    aliased: usize,
}

impl Reader {
    fn event(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::DocumentStart(_) => self.anchors.clear(),
            Event::Scalar(text, style, anchor, tag) => {
                let core =
                    tag.as_ref().filter(|tag| tag.is_yaml_core_schema()).map(|tag| tag.suffix.as_str());
                let plain = match core {
                    Some("str") => false,
                    Some("int" | "float" | "bool" | "null") => true,
                    _ => style == ScalarStyle::Plain,
                };
                if self.expects_key() {
                    return self.key(text.into_owned(), plain);
                }
                let value = if plain { resolved(&text)? } else { Value::String(text.into_owned()) };
                self.value(value, anchor)?;
            }
            Event::SequenceStart(anchor, _) => self.start(Open::Sequence(Vec::new()), anchor)?,
            Event::MappingStart(anchor, _) => {
                self.start(Open::Mapping { map: Map::new(), key: None, merged: Vec::new() }, anchor)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some((open, anchor)) = self.open.pop() else { return Ok(()) };
                let value = match open {
                    Open::Sequence(items) => Value::Array(items),
                    Open::Mapping { mut map, merged, .. } => {
                        // What the mapping says itself wins, and then the first that is merged into it.
                        for source in merged {
                            merge_into(&mut map, source)?;
                        }
                        Value::Object(map)
                    }
                };
                self.value(value, anchor)?;
            }
            Event::Alias(anchor) => {
                if self.expects_key() {
                    return Err("an alias is used as a key".to_owned());
                }
                let value = self.anchors.get(&anchor).cloned().ok_or("an alias points into itself")?;
                self.aliased += nodes(&value);
                if self.aliased > MAX_ALIASED_NODES {
                    return Err("its aliases unfold to too much".to_owned());
                }
                self.value(value, 0)?;
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some((Open::Mapping { key: None, .. }, _)))
    }

    fn key(&mut self, text: String, plain: bool) -> Result<(), String> {
        if let Some((Open::Mapping { map, key, .. }, _)) = self.open.last_mut() {
            if map.contains_key(&text) {
                return Err(format!("the key {text:?} is there twice"));
            }
            let merge = plain && text == "<<";
            *key = Some((text, merge));
        }
        Ok(())
    }

    fn start(&mut self, open: Open, anchor: usize) -> Result<(), String> {
        if self.expects_key() {
            return Err("a key is no text".to_owned());
        }
        if self.open.len() >= MAX_DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        self.open.push((open, anchor));
        Ok(())
    }

    fn value(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        if anchor != 0 {
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut() {
            None if value.is_null() => {}
            None => self.documents.push(value),
            Some((Open::Sequence(items), _)) => items.push(value),
            Some((Open::Mapping { map, key, merged }, _)) => match key.take() {
                Some((_, true)) => match value {
                    Value::Array(sources) => merged.extend(sources),
                    source => merged.push(source),
                },
                Some((key, false)) => {
                    map.insert(key, value);
                }
                None => return Err("a value has no key".to_owned()),
            },
        }
        Ok(())
    }
}

fn merge_into(map: &mut Map<String, Value>, source: Value) -> Result<(), String> {
    let Value::Object(source) = source else {
        return Err("<< merges something that is no mapping".to_owned());
    };
    for (key, value) in source {
        map.entry(key).or_insert(value);
    }
    Ok(())
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(map) => map.values().map(nodes).sum(),
        _ => 0,
    }
}

/// What a plain scalar means.
fn resolved(text: &str) -> Result<Value, String> {
    let string = || Value::String(text.to_owned());
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf"
        | "-.Inf" | "-.INF" => return Err(format!("{text} is no number that JSON knows")),
        _ if text.starts_with('.') && is_go_float(text) => number(text).unwrap_or_else(string),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-') => {
            if let Some(time) = is_timestamp(text).then(|| parse_timestamp(text)).flatten() {
                return Ok(Value::String(time));
            }
            let plain = text.replace('_', "");
            if let Some(integer) = parse_integer(&plain) {
                Value::Number(integer)
            } else if is_go_float(&plain) {
                number(&plain).unwrap_or_else(string)
            } else {
                string()
            }
        }
        _ => string(),
    })
}

/// A float; a whole one becomes an integer on its way through JSON.
fn number(text: &str) -> Option<Value> {
    let float: f64 = text.parse().ok()?;
    if float.fract() == 0.0 && float.abs() < 9.2e18 {
        return format!("{float:.0}").parse::<i64>().ok().map(Value::from);
    }
    Number::from_f64(float).map(Value::Number)
}

/// Writes one document, without `---`.
pub fn write(value: &Value) -> String {
    let mut writer = Writer { out: String::new(), column: 0, whitespace: true, indention: true };
    writer.node(value, -1, Context::Root);
    writer.write_indent(-1);
    writer.out
}

/// Where a node stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    Root,
    Item,
    Value,
    SimpleKey,
    LongKey,
}

/// How a scalar is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

/// The state of the output line, in the words of libyaml, whose emitter `yaml.v2` is a port of.
struct Writer {
    out: String,
    /// Characters since the last line break.
    column: usize,
    /// Whether the last character was a space or nothing is on the line.
    whitespace: bool,
    /// Whether the line holds nothing but indentation and `-`, `?` or `:`.
    indention: bool,
}

impl Writer {
    fn put(&mut self, c: char) {
        self.out.push(c);
        self.column += 1;
    }

    fn put_break(&mut self, c: char) {
        self.out.push(c);
        self.column = 0;
    }

    fn write_indent(&mut self, indent: i32) {
        let indent = usize::try_from(indent).unwrap_or(0);
        if !self.indention || self.column > indent || (self.column == indent && !self.whitespace) {
            self.put_break('\n');
        }
        while self.column < indent {
            self.put(' ');
        }
        self.whitespace = true;
        self.indention = true;
    }

    fn indicator(&mut self, text: &str, need_whitespace: bool, is_whitespace: bool, is_indention: bool) {
        if need_whitespace && !self.whitespace {
            self.put(' ');
        }
        self.out.push_str(text);
        self.column += text.chars().count();
        self.whitespace = is_whitespace;
        self.indention = self.indention && is_indention;
    }

    /// `indent` is that of the enclosing node, -1 at the root.
    fn node(&mut self, value: &Value, indent: i32, context: Context) {
        match value {
            Value::Null => self.scalar("null", Style::Plain, indent, context),
            Value::Bool(true) => self.scalar("true", Style::Plain, indent, context),
            Value::Bool(false) => self.scalar("false", Style::Plain, indent, context),
            Value::Number(number) => self.scalar(&number_text(number), Style::Plain, indent, context),
            Value::String(text) => self.scalar(text, preferred_style(text), indent, context),
            Value::Array(items) if items.is_empty() => {
                self.indicator("[", true, true, false);
                self.indicator("]", false, false, false);
            }
            Value::Array(items) => {
                let mapping = matches!(context, Context::Value | Context::LongKey);
                let inner = deeper(indent, mapping && !self.indention);
                for item in items {
                    self.write_indent(inner);
                    self.indicator("-", true, false, true);
                    self.node(item, inner, Context::Item);
                }
            }
            Value::Object(map) if map.is_empty() => {
                self.indicator("{", true, true, false);
                self.indicator("}", false, false, false);
            }
            Value::Object(map) => self.mapping(map, indent),
        }
    }

    fn mapping(&mut self, map: &Map<String, Value>, indent: i32) {
        let inner = deeper(indent, false);
        for (key, value) in sorted(map) {
            self.write_indent(inner);
            if is_simple_key(key) {
                self.scalar(key, preferred_style(key), inner, Context::SimpleKey);
                self.indicator(":", false, false, false);
            } else {
                self.indicator("?", true, false, true);
                self.scalar(key, preferred_style(key), inner, Context::LongKey);
                self.write_indent(inner);
                self.indicator(":", true, false, true);
            }
            self.node(value, inner, Context::Value);
        }
    }

    fn scalar(&mut self, text: &str, wanted: Style, indent: i32, context: Context) {
        let simple_key = context == Context::SimpleKey;
        let indent = if indent < 0 { 2 } else { indent + 2 };
        match allowed_style(text, wanted, simple_key) {
            Style::Plain => {
                if !self.whitespace {
                    self.put(' ');
                }
                self.folded(text, indent, !simple_key, false);
            }
            Style::Single => {
                self.indicator("'", true, false, false);
                self.folded(text, indent, !simple_key, true);
                self.indicator("'", false, false, false);
            }
            Style::Double => self.double_quoted(text, indent, !simple_key),
            Style::Literal => {
                self.literal(text, indent);
                return;
            }
        }
        self.whitespace = false;
        self.indention = false;
    }

    /// The inside of a plain or single-quoted scalar.
    fn folded(&mut self, text: &str, indent: i32, allow_breaks: bool, quoted: bool) {
        let mut spaces = false;
        let mut breaks = false;
        let mut rest = text.char_indices().peekable();
        while let Some((at, c)) = rest.next() {
            if c == ' ' {
                let next_is_space = matches!(rest.peek(), Some((_, ' ')));
                // Inside quotes the first and the last character stay where they are.
                let inside = !quoted || (at > 0 && at + 1 < text.len());
                if allow_breaks && !spaces && self.column > BEST_WIDTH && inside && !next_is_space {
                    self.write_indent(indent);
                } else {
                    self.put(' ');
                }
                spaces = true;
            } else if is_break(c) {
                if !breaks && c == '\n' {
                    self.put_break('\n');
                }
                self.put_break(c);
                self.indention = true;
                breaks = true;
            } else {
                if breaks {
                    self.write_indent(indent);
                }
                if quoted && c == '\'' {
                    self.put('\'');
                }
                self.put(c);
                self.indention = false;
                spaces = false;
                breaks = false;
            }
        }
    }

    fn double_quoted(&mut self, text: &str, indent: i32, allow_breaks: bool) {
        self.indicator("\"", true, false, false);
        let mut spaces = false;
        let mut rest = text.char_indices().peekable();
        while let Some((at, c)) = rest.next() {
            if !is_printable(c) || is_break(c) || c == '"' || c == '\\' {
                let escape = escaped(c);
                self.out.push_str(&escape);
                self.column += escape.len();
                spaces = false;
            } else if c == ' ' {
                if allow_breaks && !spaces && self.column > BEST_WIDTH && at > 0 && at + 1 < text.len() {
                    self.write_indent(indent);
                    if matches!(rest.peek(), Some((_, ' '))) {
                        self.put('\\');
                    }
                } else {
                    self.put(' ');
                }
                spaces = true;
            } else {
                self.put(c);
                spaces = false;
            }
        }
        self.indicator("\"", false, false, false);
    }

    fn literal(&mut self, text: &str, indent: i32) {
        self.indicator("|", true, false, false);
        if text.starts_with([' ', '\n']) || text.starts_with(is_break) {
            self.indicator("2", false, false, false);
        }
        let mut last = text.chars().rev();
        match (last.next().is_some_and(is_break), last.next()) {
            (false, _) => self.indicator("-", false, false, false),
            (true, before) if before.is_none_or(is_break) => {
                self.indicator("+", false, false, false);
            }
            (true, _) => {}
        }
        self.put_break('\n');
        self.indention = true;
        self.whitespace = true;
        let mut breaks = true;
        for c in text.chars() {
            if is_break(c) {
                self.put_break(c);
                self.indention = true;
                breaks = true;
            } else {
                if breaks {
                    self.write_indent(indent);
                }
                self.put(c);
                self.indention = false;
                breaks = false;
            }
        }
    }
}

fn deeper(indent: i32, indentless: bool) -> i32 {
    match indent {
        ..0 => 0,
        _ if indentless => indent,
        _ => indent + 2,
    }
}

fn is_simple_key(key: &str) -> bool {
    key.len() <= SIMPLE_KEY_BYTES && !key.contains(is_break)
}

fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// What `yaml.v2` writes without an escape: nothing beyond the basic plane, no tab.
fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

fn escaped(c: char) -> String {
    let short = match c {
        '\0' => '0',
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\u{b}' => 'v',
        '\u{c}' => 'f',
        '\r' => 'r',
        '\u{1b}' => 'e',
        '"' => '"',
        '\\' => '\\',
        '\u{85}' => 'N',
        '\u{a0}' => '_',
        '\u{2028}' => 'L',
        '\u{2029}' => 'P',
        _ => {
            let code = u32::from(c);
            return match code {
                0..=0xff => format!("\\x{code:02X}"),
                0x100..=0xffff => format!("\\u{code:04X}"),
                _ => format!("\\U{code:08X}"),
            };
        }
    };
    format!("\\{short}")
}

fn preferred_style(text: &str) -> Style {
    if text.contains('\n') {
        Style::Literal
    } else if reads_as_string(text) {
        Style::Plain
    } else {
        Style::Double
    }
}

/// The style that the text allows, starting from the one that is wanted.
fn allowed_style(text: &str, wanted: Style, simple_key: bool) -> Style {
    let allowed = Allowed::of(text);
    let mut style = wanted;
    if simple_key && allowed.multiline {
        style = Style::Double;
    }
    if style == Style::Plain && (!allowed.plain || (text.is_empty() && simple_key)) {
        style = Style::Single;
    }
    if style == Style::Single && !allowed.single {
        style = Style::Double;
    }
    if style == Style::Literal && (!allowed.block || simple_key) {
        style = Style::Double;
    }
    style
}

struct Allowed {
    multiline: bool,
    plain: bool,
    single: bool,
    block: bool,
}

impl Allowed {
    fn of(text: &str) -> Allowed {
        if text.is_empty() {
            return Allowed { multiline: false, plain: true, single: true, block: false };
        }
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let mut special = false;
        let mut line_breaks = false;
        let mut break_space = false;
        let mut space_break = false;
        let mut previous = None;
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            let blank_follows = rest.peek().is_none_or(|next| matches!(next, ' ' | '\t'));
            indicators |= match previous {
                None => "#,[]{}&*!|>'\"%@`".contains(c) || (matches!(c, '?' | ':' | '-') && blank_follows),
                Some(before) => {
                    (c == ':' && blank_follows)
                        || (c == '#' && (matches!(before, ' ' | '\t' | '\0') || is_break(before)))
                }
            };
            special |= !is_printable(c);
            line_breaks |= is_break(c);
            break_space |= c == ' ' && previous.is_some_and(is_break);
            space_break |= is_break(c) && previous == Some(' ');
            previous = Some(c);
        }
        let edge = |c: char| c == ' ' || is_break(c);
        let edges = text.starts_with(edge) || text.ends_with(edge);
        let hard = space_break || special;
        Allowed {
            multiline: line_breaks,
            plain: !(edges || break_space || hard || line_breaks || indicators),
            single: !(break_space || hard),
            block: !(text.ends_with(' ') || hard),
        }
    }
}

/// The map's entries in the order of `yaml.v2`: what is no letter before letters, runs of digits by
/// their number.
fn sorted(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<(&String, &Value)> = Vec::with_capacity(map.len());
    // The order need not be a total one, which the standard library's sort insists on.
    for entry in map {
        let at = entries
            .iter()
            .rposition(|other| compare_keys(other.0, entry.0) != Ordering::Greater)
            .map_or(0, |i| i + 1);
        entries.insert(at, entry);
    }
    entries
}

fn compare_keys(a: &str, b: &str) -> Ordering {
    if a.is_ascii() && b.is_ascii() {
        // The common prefix decides nothing unless a digit ends it.
        let same = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
        if let (Some(x), Some(y)) = (a.as_bytes().get(same), b.as_bytes().get(same))
            && x.is_ascii_alphabetic()
            && y.is_ascii_alphabetic()
        {
            return x.cmp(y);
        }
    }
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let Some(at) = a.iter().zip(&b).position(|(x, y)| x != y) else {
        return a.len().cmp(&b.len());
    };
    match (a[at].is_alphabetic(), b[at].is_alphabetic()) {
        (true, true) => return a[at].cmp(&b[at]),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // Zeros in front count only where the number has not begun yet.
    let mut start = 0i64;
    if a[at] == '0' || b[at] == '0' {
        let begun = a[..at].iter().rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
        start = i64::from(begun);
    }
    let number = |text: &[char]| {
        let digits: Vec<i64> = text[at..].iter().map_while(|c| c.to_digit(10)).map(i64::from).collect();
        let value = digits.iter().fold(start, |n, d| n.wrapping_mul(10).wrapping_add(*d));
        (value, digits.len())
    };
    number(&a).cmp(&number(&b)).then(a[at].cmp(&b[at]))
}

/// A number as Go writes it after the way through JSON.
fn number_text(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else {
        return number.to_string();
    };
    if float.fract() == 0.0 {
        // JSON has no mark for a float, so a whole number comes back as an integer.
        if float.abs() < 9.2e18 {
            return format!("{float:.0}").replace("-0", "0");
        }
        if float > 0.0 && float < 1.8e19 {
            return format!("{float:.0}");
        }
    }
    let text = format!("{float:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Go's shortest %g takes the exponent form from the seventh digit before the point on.
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    format!("{float}")
}

/// Whether YAML 1.1, as `yaml.v2` reads it, takes the plain text for a string.
pub fn reads_as_string(text: &str) -> bool {
    let Some(first) = text.bytes().next() else { return false };
    match first {
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~' => !is_word(text),
        b'.' => !is_word(text) && !is_go_float(text),
        b'0'..=b'9' | b'+' | b'-' => {
            !is_word(text) && !is_timestamp(text) && !is_number(text) && !is_base60(text)
        }
        _ => true,
    }
}

fn is_word(text: &str) -> bool {
    matches!(
        text,
        "y" | "Y"
            | "yes"
            | "Yes"
            | "YES"
            | "n"
            | "N"
            | "no"
            | "No"
            | "NO"
            | "on"
            | "On"
            | "ON"
            | "off"
            | "Off"
            | "OFF"
            | "true"
            | "True"
            | "TRUE"
            | "false"
            | "False"
            | "FALSE"
            | "~"
            | "null"
            | "Null"
            | "NULL"
            | ".nan"
            | ".NaN"
            | ".NAN"
            | ".inf"
            | ".Inf"
            | ".INF"
            | "+.inf"
            | "+.Inf"
            | "+.INF"
            | "-.inf"
            | "-.Inf"
            | "-.INF"
    )
}

fn is_number(text: &str) -> bool {
    let plain = text.replace('_', "");
    parse_integer(&plain).is_some() || (has_float_form(&plain) && is_go_float(&plain))
}

/// What Go's `strconv` reads as a 64-bit integer of any base, signed or not.
fn parse_integer(text: &str) -> Option<Number> {
    let body = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (base, digits) = match body.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &body[2..]),
        [b'0', b'o' | b'O', ..] => (8, &body[2..]),
        [b'0', b'b' | b'B', ..] => (2, &body[2..]),
        [b'0', _, ..] => (8, &body[1..]),
        _ => (10, body),
    };
    // A second sign is none of Go's.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let value = u64::from_str_radix(digits, base).ok()?;
    match text.as_bytes().first() {
        Some(b'-') => 0i64.checked_sub_unsigned(value).map(Number::from),
        // Unsigned numbers take no sign in Go.
        Some(b'+') => i64::try_from(value).ok().map(Number::from),
        _ => Some(Number::from(value)),
    }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn has_float_form(text: &str) -> bool {
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match body.find(['e', 'E']) {
        Some(at) => (&body[..at], Some(&body[at + 1..])),
        None => (body, None),
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let mantissa_good = match mantissa.split_once('.') {
        Some(("", after)) => !after.is_empty() && digits(after),
        Some((before, after)) => digits(before) && digits(after),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    let exponent_good = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['+', '-']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    mantissa_good && exponent_good
}

/// Decimal text that Go's `ParseFloat` takes; one that is out of range it refuses.
fn is_go_float(text: &str) -> bool {
    has_float_form(text) && text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// `[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?`
fn is_base60(text: &str) -> bool {
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, fraction) = body.split_once('.').unwrap_or((body, ""));
    let mut parts = whole.split(':');
    let first = parts.next().unwrap_or_default();
    let digit_or_line = |s: &str| s.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let mut count = 0;
    let rest_good = parts.all(|part| {
        count += 1;
        match part.as_bytes() {
            [b] => b.is_ascii_digit(),
            [a, b] => (b'0'..=b'5').contains(a) && b.is_ascii_digit(),
            _ => false,
        }
    });
    first.starts_with(|c: char| c.is_ascii_digit())
        && digit_or_line(first)
        && rest_good
        && count > 0
        && digit_or_line(fraction)
}

/// The four forms of a time that `yaml.v2` knows: a date, with a time of day behind `T`, `t` (and
/// then a zone) or a space (and then none).
fn is_timestamp(text: &str) -> bool {
    if text.len() < 5 || !text.as_bytes()[..4].iter().all(u8::is_ascii_digit) || text.as_bytes()[4] != b'-' {
        return false;
    }
    parse_timestamp(text).is_some()
}

/// The time as JSON has it, RFC 3339 with as many digits as needed.
fn parse_timestamp(text: &str) -> Option<String> {
    let year: u32 = text.get(..4)?.parse().ok()?;
    let (month, rest) = one_or_two(&text[5..])?;
    let (day, rest) = one_or_two(rest.strip_prefix('-')?)?;
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days).contains(&day) {
        return None;
    }
    let date = format!("{year:04}-{month:02}-{day:02}");
    if rest.is_empty() {
        return Some(format!("{date}T00:00:00Z"));
    }
    let zoned = !rest.starts_with(' ');
    let (hour, rest) = one_or_two(rest.strip_prefix(['T', 't', ' '])?)?;
    let (minute, rest) = one_or_two(rest.strip_prefix(':')?)?;
    let (second, mut rest) = one_or_two(rest.strip_prefix(':')?)?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut time = format!("{date}T{hour:02}:{minute:02}:{second:02}");
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return None;
        }
        let kept = fraction[..digits.min(9)].trim_end_matches('0');
        if !kept.is_empty() {
            time = format!("{time}.{kept}");
        }
        rest = &fraction[digits..];
    }
    if !zoned {
        return rest.is_empty().then(|| format!("{time}Z"));
    }
    if rest == "Z" || rest == "+00:00" {
        return Some(format!("{time}Z"));
    }
    let (hours, minutes) = rest.strip_prefix(['+', '-'])?.split_once(':')?;
    let two = |s: &str| (s.len() == 2).then(|| s.parse::<u32>().ok()).flatten();
    (two(hours)? <= 24 && two(minutes)? < 60).then(|| format!("{time}{rest}"))
}

fn one_or_two(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take(2).take_while(u8::is_ascii_digit).count();
    Some((text.get(..digits)?.parse().ok()?, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What `sigs.k8s.io/yaml` writes for a string behind a key.
    #[test]
    fn strings_are_written_as_go_writes_them() {
        for (text, written) in [
            ("plain text", "plain text"),
            ("", "\"\""),
            ("true", "\"true\""),
            ("y", "\"y\""),
            ("Off", "\"Off\""),
            ("null", "\"null\""),
            ("~", "\"~\""),
            ("<<", "<<"),
            ("=", "="),
            ("1", "\"1\""),
            ("-0b11", "\"-0b11\""),
            ("017", "\"017\""),
            ("089", "\"089\""),
            ("1_000", "\"1_000\""),
            ("0x_1", "\"0x_1\""),
            ("_1", "_1"),
            ("1e3", "\"1e3\""),
            ("1e999", "1e999"),
            ("1e", "1e"),
            ("5.", "\"5.\""),
            (".5", "\".5\""),
            ("..5", "..5"),
            ("+.INF", "\"+.INF\""),
            ("18446744073709551616", "\"18446744073709551616\""),
            ("2020-1-1", "\"2020-1-1\""),
            ("2020-02-30", "2020-02-30"),
            ("2020-01-01 10:00:00Z", "2020-01-01 10:00:00Z"),
            ("2020-01-01T00:00:00Z", "\"2020-01-01T00:00:00Z\""),
            ("1:30", "\"1:30\""),
            ("1:60", "1:60"),
            ("v2.9.4", "v2.9.4"),
            ("1000m", "1000m"),
            ("- a", "'- a'"),
            ("-a", "-a"),
            ("a: b", "'a: b'"),
            ("a:b", "a:b"),
            ("a #b", "'a #b'"),
            ("a#b", "a#b"),
            ("?", "'?'"),
            ("'a", "'''a'"),
            ("it's", "it's"),
            (" a", "' a'"),
            ("a ", "'a '"),
            ("*", "'*'"),
            ("%a", "'%a'"),
            ("a,b]", "a,b]"),
            ("---", "'---'"),
            ("a\tb", "\"a\\tb\""),
            ("\u{1b}", "\"\\e\""),
            ("\u{1F600}", "\"\\U0001F600\""),
            ("\u{e9}", "\u{e9}"),
            ("a\nb", "|-\n  a\n  b"),
            ("a\nb\n", "|\n  a\n  b"),
            ("a\n\nb\n\n", "|+\n  a\n\n  b\n"),
            (" a\nb", "|2-\n   a\n  b"),
            ("a \nb", "\"a \\nb\""),
            ("\n", "|2+\n"),
        ] {
            assert_eq!(write(&json!({ "k": text })), format!("k: {written}\n"), "{text:?}");
        }
    }

    #[test]
    fn long_text_breaks_at_the_first_space_past_column_80() {
        let text = "abcdefghi ".repeat(10);
        let eight = "abcdefghi ".repeat(8);
        let expected = format!("k: {}\n  abcdefghi abcdefghi\n", eight.trim_end());
        assert_eq!(write(&json!({ "k": text.trim_end() })), expected);
        // The trailing space of a quoted text stays where it is.
        assert_eq!(
            write(&json!({ "k": text })),
            format!("k: '{}\n  abcdefghi abcdefghi '\n", eight.trim_end())
        );
        let key = "k".repeat(129);
        assert_eq!(write(&json!({ key.clone(): [1] })), format!("? {key}\n: - 1\n"));
    }

    #[test]
    fn keys_are_sorted_and_sequences_stand_flush() {
        let value = json!({
            "k10": 1, "k9": 2, "b": [], "a": {}, "$ref": null, "B": [[1, 2], {"y": true, "x": 1.5}],
            "1": [], "a-b": "x", "ab": "y", "a01": 1, "a1": 1,
        });
        let expected = "$ref: null\n\"1\": []\nB:\n- - 1\n  - 2\n- x: 1.5\n  \"y\": true\na: {}\na-b: x\na1: 1\na01: 1\nab: \"y\"\nb: []\nk9: 2\nk10: 1\n";
        assert_eq!(write(&value), expected);
    }

    #[test]
    fn numbers_are_written_as_go_writes_them() {
        for (number, written) in [
            (json!(0), "0"),
            (json!(-5), "-5"),
            (json!(u64::MAX), "18446744073709551615"),
            (json!(1.5), "1.5"),
            (json!(3.0), "3"),
            (json!(-0.0), "0"),
            (json!(123_456.5), "123456.5"),
            (json!(1_234_567.5), "1.2345675e+06"),
            (json!(0.0001), "0.0001"),
            (json!(0.000_012_34), "1.234e-05"),
            (json!(1e20), "1e+20"),
            (json!(1e300), "1e+300"),
        ] {
            assert_eq!(write(&json!({ "k": number })), format!("k: {written}\n"));
        }
    }

    #[test]
    fn what_was_written_reads_back() {
        let value = json!({
            "a": ["x: y", "", "\n", " a\n", {"b": null, "c": [{}], "017": "0x1"}],
            "long": "ab ".repeat(90),
        });
        assert_eq!(read(&write(&value)), Ok(vec![value]));
        assert_eq!(read("---\n---\na: 1\n---\n# nothing\n"), Ok(vec![json!({"a": 1})]));
        assert!(read("a: [").is_err());
    }

    #[test]
    fn plain_scalars_are_read_as_kustomize_reads_them() {
        for (text, value) in [
            ("0644", json!(420)),
            ("0o644", json!(420)),
            ("0x1f", json!(31)),
            ("0b11", json!(3)),
            ("1_000", json!(1000)),
            ("089", json!(89)),
            ("-5", json!(-5)),
            ("+5", json!(5)),
            ("1e3", json!(1000)),
            ("-0.0", json!(0)),
            ("1e30", json!(1e30)),
            (".5", json!(0.5)),
            ("18446744073709551615", json!(u64::MAX)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("2020-01-01", json!("2020-01-01T00:00:00Z")),
            ("2020-1-1t1:2:3.50+02:00", json!("2020-01-01T01:02:03.5+02:00")),
            ("yes", json!("yes")),
            ("on", json!("on")),
            ("1:30", json!("1:30")),
            ("v1.2", json!("v1.2")),
            ("TRUE", json!(true)),
            ("~", json!(null)),
            ("\"0644\"", json!("0644")),
            ("'true'", json!("true")),
            ("!!str 5", json!("5")),
            ("!!int \"5\"", json!(5)),
        ] {
            assert_eq!(read(&format!("k: {text}\n")), Ok(vec![json!({ "k": value })]), "{text}");
        }
        assert!(read("k: .inf").is_err());
    }

    #[test]
    fn anchors_and_merges_are_unfolded_with_limits() {
        let text = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: *a, y: 5}\nd: {y: 6, <<: [*a, *b]}\ne: *a\n\"<<\": 1\n";
        let read_back = read(text).expect("reads").remove(0);
        assert_eq!(read_back["c"], json!({"x": 1, "y": 5}));
        assert_eq!(read_back["d"], json!({"x": 1, "y": 6, "z": 4}));
        assert_eq!(read_back["e"], json!({"x": 1, "y": 2}));
        assert_eq!(read_back["<<"], 1);
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let before = level - 1;
            bomb += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 10].join(", "));
        }
        for bad in
            [bomb.as_str(), "a: 1\na: 2\n", "? [a]\n: 1\n", "a: &a [*a]\n", &"[".repeat(500), "<<: 1\n"]
        {
            assert!(read(bad).is_err(), "{:.40}", bad);
        }
    }
}
