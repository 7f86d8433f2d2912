//! Label and field selectors of lists and watches.

use serde_json::Value;

use super::failure::{Failure, Result};

/// Which objects a list or watch is about.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    labels: Vec<Label>,
    fields: Vec<(String, bool, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Label {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

impl Selector {
    /// From the query's `labelSelector` and `fieldSelector`.
    pub fn parse(labels: &str, fields: &str) -> Result<Self> {
        let mut out = Selector::default();
        for part in split(labels) {
            out.labels.push(label(part).ok_or_else(|| {
                Failure::bad_request(format!(
                    "unable to parse requirement: couldn't parse the selector string {part:?}"
                ))
            })?);
        }
        for part in fields.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| {
                Failure::bad_request(format!("invalid selector: '{fields}'; can't understand '{part}'"))
            })?;
            let equal = !name.ends_with('!');
            let name = name.trim_end_matches('!');
            let value = value.trim_start_matches('=');
            out.fields.push((name.to_owned(), equal, value.to_owned()));
        }
        Ok(out)
    }

    /// Whether an object is selected.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let value = |name: &str| labels[name].as_str();
        self.labels.iter().all(|label| match label {
            Label::In(name, values) => value(name).is_some_and(|value| values.iter().any(|v| v == value)),
            Label::NotIn(name, values) => value(name).is_none_or(|value| !values.iter().any(|v| v == value)),
            Label::Exists(name) => value(name).is_some(),
            Label::Missing(name) => value(name).is_none(),
        }) && self.fields.iter().all(|(path, equal, wanted)| (field(object, path) == *wanted) == *equal)
    }
}

fn field(object: &Value, path: &str) -> String {
    let path = match path {
        "reportingComponent" => "source.component",
        other => other,
    };
    match path.split('.').fold(object, |value, name| &value[name]) {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Splits at commas outside brackets.
fn split(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, char) in text.char_indices() {
        match char {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn label(part: &str) -> Option<Label> {
    let values = |text: &str| -> Option<Vec<String>> {
        let inner = text.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some(inner.split(',').map(|value| value.trim().to_owned()).collect())
    };
    if let Some((name, list)) = part.split_once(" notin ") {
        return Some(Label::NotIn(name.trim().to_owned(), values(list)?));
    }
    if let Some((name, list)) = part.split_once(" in ") {
        return Some(Label::In(name.trim().to_owned(), values(list)?));
    }
    if let Some((name, value)) = part.split_once("!=") {
        return Some(Label::NotIn(name.trim().to_owned(), vec![value.trim().to_owned()]));
    }
    if let Some((name, value)) = part.split_once('=') {
        let value = value.trim_start_matches('=').trim();
        return Some(Label::In(name.trim().to_owned(), vec![value.to_owned()]));
    }
    let (name, missing) = match part.strip_prefix('!') {
        Some(name) => (name.trim(), true),
        None => (part.trim(), false),
    };
    if name.is_empty() || name.contains(char::is_whitespace) {
        return None;
    }
    Some(if missing { Label::Missing(name.to_owned()) } else { Label::Exists(name.to_owned()) })
}

/// Whether labels fit a `LabelSelector` object (`matchLabels`, `matchExpressions`).
pub fn fits(selector: &Value, labels: &Value) -> bool {
    let all = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .all(|(name, value)| &labels[name.as_str()] == value);
    all && selector["matchExpressions"].as_array().into_iter().flatten().all(|rule| {
        let value = &labels[rule["key"].as_str().unwrap_or_default()];
        let listed = rule["values"].as_array().is_some_and(|values| values.contains(value));
        match rule["operator"].as_str() {
            Some("In") => listed,
            Some("NotIn") => !listed,
            Some("Exists") => !value.is_null(),
            Some("DoesNotExist") => value.is_null(),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_select() {
        let object = json!({"metadata": {"name": "a", "labels": {"app": "x", "tier": "web"}},
                            "involvedObject": {"kind": "Pod"}});
        for (labels, fields, expected) in [
            ("", "", true),
            ("app=x", "", true),
            ("app==x,tier!=db", "", true),
            ("app in (x, y),tier", "", true),
            ("app notin (x,y)", "", false),
            ("!app", "", false),
            ("!other", "", true),
            ("", "metadata.name=a", true),
            ("", "metadata.name!=a", false),
            ("", "involvedObject.kind=Pod,metadata.name=a", true),
            ("", "involvedObject.kind=Service", false),
        ] {
            let selector = Selector::parse(labels, fields).unwrap();
            assert_eq!(selector.matches(&object), expected, "{labels} {fields}");
        }
        assert!(Selector::parse("a b", "").is_err());
    }
}
