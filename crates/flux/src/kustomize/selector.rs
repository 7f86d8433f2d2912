//! The target of a patch: which objects it is for.

use regex_lite::Regex;
use serde_json::Value;

use crate::object;

/// A parsed `target`.
pub(super) struct Selector {
    group: Option<Regex>,
    version: Option<Regex>,
    kind: Option<Regex>,
    name: Option<Regex>,
    namespace: Option<Regex>,
    labels: Vec<Requirement>,
    annotations: Vec<Requirement>,
}

impl Selector {
    /// Every text is a regular expression for the whole of its field.
    pub(super) fn new(target: &Value) -> Result<Selector, String> {
        let map = target.as_object().ok_or("it is not a mapping")?;
        for field in map.keys() {
            let known =
                ["group", "version", "kind", "name", "namespace", "labelSelector", "annotationSelector"];
            if !known.contains(&field.as_str()) {
                return Err(format!("{field} is not known"));
            }
        }
        let text = |field: &str| match map.get(field) {
            None | Some(Value::Null) => Ok(""),
            Some(Value::String(text)) => Ok(text.as_str()),
            Some(_) => Err(format!("{field} is not a text")),
        };
        let regex = |field: &str| match text(field)? {
            "" => Ok(None),
            pattern => Regex::new(&format!("^(?:{pattern})$"))
                .map(Some)
                .map_err(|error| format!("{field} is no regular expression: {error}")),
        };
        Ok(Selector {
            group: regex("group")?,
            version: regex("version")?,
            kind: regex("kind")?,
            name: regex("name")?,
            namespace: regex("namespace")?,
            labels: requirements(text("labelSelector")?)?,
            annotations: requirements(text("annotationSelector")?)?,
        })
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let fits =
            |regex: &Option<Regex>, text: &str| regex.as_ref().is_none_or(|regex| regex.is_match(text));
        let (group, version) = object::group_version(object);
        let metadata = &object["metadata"];
        fits(&self.group, group)
            && fits(&self.version, version)
            && fits(&self.kind, object::kind(object))
            && fits(&self.name, object::name(object))
            && fits(&self.namespace, object::effective_namespace(object))
            && self.labels.iter().all(|requirement| requirement.holds(&metadata["labels"]))
            && self.annotations.iter().all(|requirement| requirement.holds(&metadata["annotations"]))
    }
}

/// One part of a Kubernetes label selector.
#[derive(Debug, PartialEq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

impl Requirement {
    fn holds(&self, labels: &Value) -> bool {
        let value = |key: &str| labels.get(key).and_then(Value::as_str);
        match self {
            Requirement::In(key, values) => value(key).is_some_and(|v| values.iter().any(|w| w == v)),
            // A label that is not there differs from every value.
            Requirement::NotIn(key, values) => value(key).is_none_or(|v| values.iter().all(|w| w != v)),
            Requirement::Exists(key) => value(key).is_some(),
            Requirement::Missing(key) => value(key).is_none(),
        }
    }
}

/// `a=b,c!=d,e in (f,g),h notin (i),j,!k`
fn requirements(text: &str) -> Result<Vec<Requirement>, String> {
    let mut parts = Vec::new();
    let mut depth = 0;
    let mut start = 0;
    for (index, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    parts.into_iter().map(|part| requirement(part.trim())).collect()
}

fn requirement(part: &str) -> Result<Requirement, String> {
    let bad = || format!("{part:?} is no label selector");
    let key = |text: &str| {
        let text = text.trim();
        let good = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        if good { Ok(text.to_owned()) } else { Err(bad()) }
    };
    let one = |text: &str| vec![text.trim().to_owned()];
    if let Some(text) = part.strip_suffix(')') {
        let (head, list) = text.split_once('(').ok_or_else(bad)?;
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        let mut words = head.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(name), Some("in"), None) => Ok(Requirement::In(key(name)?, values)),
            (Some(name), Some("notin"), None) => Ok(Requirement::NotIn(key(name)?, values)),
            _ => Err(bad()),
        };
    }
    if let Some((name, value)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(key(name)?, one(value)));
    }
    if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Requirement::In(key(name)?, one(value)));
    }
    match part.strip_prefix('!') {
        Some(name) => Ok(Requirement::Missing(key(name)?)),
        None => Ok(Requirement::Exists(key(part)?)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn targets_choose_as_kustomize_does() {
        let object = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": "helm-controller",
                "namespace": "fluxcd",
                "labels": { "app.kubernetes.io/part-of": "flux", "tier": "a" },
            },
        });
        for (target, expected) in [
            (json!({}), true),
            (json!({"kind": "Deployment"}), true),
            (json!({"kind": "Deploy"}), false),
            (json!({"kind": "Deploy.*"}), true),
            (json!({"group": "apps", "version": "v1"}), true),
            (json!({"group": "batch"}), false),
            (json!({"name": "(kustomize-controller|helm-controller)"}), true),
            (json!({"name": "helm"}), false),
            (json!({"name": "helm-controller|x"}), true),
            (json!({"namespace": "fluxcd"}), true),
            (json!({"namespace": "flux"}), false),
            (json!({"labelSelector": "app.kubernetes.io/part-of=flux"}), true),
            (json!({"labelSelector": "app.kubernetes.io/part-of==flux, tier in (a,b)"}), true),
            (json!({"labelSelector": "tier notin (a,b)"}), false),
            (json!({"labelSelector": "tier!=b,!missing,tier"}), true),
            (json!({"labelSelector": "missing!=b"}), true),
            (json!({"annotationSelector": "x"}), false),
        ] {
            let selector = Selector::new(&target).expect("valid");
            assert_eq!(selector.matches(&object), expected, "{target}");
        }
        for target in [json!({"nmae": "x"}), json!({"name": "("}), json!({"labelSelector": "a b"}), json!([])]
        {
            assert!(Selector::new(&target).is_err(), "{target}");
        }
    }
}
