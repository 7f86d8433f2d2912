//! What a custom kind's schema does to its objects: unknown fields go, defaults come, errors are told.

use serde_json::{Map, Value, json};

use super::failure::Cause;

/// Removes fields that the schema doesn't know.
pub fn prune(object: &mut Value, schema: &Value) {
    prune_value(object, schema, true);
}

fn prune_value(value: &mut Value, schema: &Value, root: bool) {
    match value {
        Value::Object(object) => {
            let keeps = schema["x-kubernetes-preserve-unknown-fields"] == true;
            let properties = schema["properties"].as_object();
            let more = &schema["additionalProperties"];
            let meta = root || schema["x-kubernetes-embedded-resource"] == true;
            let own = |name: &str| meta && matches!(name, "apiVersion" | "kind" | "metadata");
            if properties.is_none() && (more.is_object() || more == true) {
                object.values_mut().for_each(|child| prune_value(child, more, false));
                return;
            }
            if !keeps && schema["type"] == "object" {
                object.retain(|name, _| {
                    own(name) || properties.is_some_and(|properties| properties.contains_key(name))
                });
            }
            for (name, child) in object.iter_mut() {
                if let Some(schema) = properties.and_then(|properties| properties.get(name))
                    && !own(name)
                {
                    prune_value(child, schema, false);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| prune_value(item, &schema["items"], false)),
        _ => {}
    }
}

/// Fills in the schema's defaults.
pub fn default(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(object) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(fallback) = schema.get("default")
                    && object.get(name).is_none_or(|value| value.is_null() && schema["nullable"] != true)
                {
                    object.insert(name.clone(), fallback.clone());
                }
                if let Some(child) = object.get_mut(name) {
                    default(child, schema);
                }
            }
            let more = &schema["additionalProperties"];
            if more.is_object() {
                object.values_mut().for_each(|child| default(child, more));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| default(item, &schema["items"])),
        _ => {}
    }
}

/// What is wrong with an object, by its schema: types, required fields, enumerations, limits.
pub fn validate(object: &Value, schema: &Value) -> Vec<Cause> {
    let mut out = Vec::new();
    check(object, schema, "", &mut out);
    out
}

fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn check(value: &Value, schema: &Value, path: &str, out: &mut Vec<Cause>) {
    if value.is_null() && (schema["nullable"] == true || path.is_empty()) {
        return;
    }
    let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let found = kind_name(value);
    let either = schema["x-kubernetes-int-or-string"] == true && matches!(found, "integer" | "string");
    if let Some(wanted) = schema["type"].as_str()
        && !either
        && wanted != found
        && !(wanted == "number" && found == "integer")
    {
        let why = format!("{path} in body must be of type {wanted}: {found:?}");
        let shown = if value.is_object() || value.is_array() { json!(found) } else { value.clone() };
        out.push(Cause { reason: "FieldValueTypeInvalid", ..Cause::invalid(path, &shown, &why) });
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let list: Vec<String> = allowed.iter().map(Value::to_string).collect();
        out.push(Cause::unsupported(path, value, &list.join(", ")));
    }
    match value {
        Value::String(text) => {
            if let Some(pattern) = schema["pattern"].as_str()
                && regex_lite::Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(text))
            {
                out.push(Cause::invalid(path, value, &format!("{path} in body should match '{pattern}'")));
            }
            let length = text.chars().count() as u64;
            if let Some(most) = schema["maxLength"].as_u64().filter(|most| length > *most) {
                out.push(Cause {
                    reason: "FieldValueTooLong",
                    field: path.to_owned(),
                    message: format!("Too long: may not be more than {most} bytes"),
                });
            }
            if let Some(least) = schema["minLength"].as_u64().filter(|least| length < *least) {
                let why = format!("{path} in body should be at least {least} chars long");
                out.push(Cause::invalid(path, value, &why));
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            if let Some(least) = schema["minimum"].as_f64().filter(|least| number < *least) {
                let why = format!("{path} in body should be greater than or equal to {least}");
                out.push(Cause::invalid(path, value, &why));
            }
            if let Some(most) = schema["maximum"].as_f64().filter(|most| number > *most) {
                let why = format!("{path} in body should be less than or equal to {most}");
                out.push(Cause::invalid(path, value, &why));
            }
        }
        Value::Array(list) => {
            for (index, item) in list.iter().enumerate() {
                check(item, &schema["items"], &format!("{path}[{index}]"), out);
            }
        }
        Value::Object(object) => {
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !object.contains_key(name) {
                    out.push(Cause::required(&join(name), ""));
                }
            }
            let nothing = Map::new();
            let properties = schema["properties"].as_object().unwrap_or(&nothing);
            for (name, child) in object {
                if path.is_empty() && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    continue;
                }
                match properties.get(name) {
                    Some(schema) => check(child, schema, &join(name), out),
                    None if schema["additionalProperties"].is_object() => {
                        check(child, &schema["additionalProperties"], &join(name), out);
                    }
                    None => {}
                }
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_pruned_filled_and_checked() {
        let schema = json!({"type": "object", "properties": {
            "metadata": {"type": "object"},
            "spec": {"type": "object", "required": ["url"], "properties": {
                "url": {"type": "string", "pattern": "^(http|https|ssh)://.*$"},
                "provider": {"type": "string", "enum": ["generic", "aws"], "default": "generic"},
                "count": {"type": "integer", "minimum": 1},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
            }}
        }});
        let mut object = json!({"metadata": {"name": "a"}, "more": 1,
            "spec": {"url": "http://x", "odd": 1, "free": {"any": 1}}});
        prune(&mut object, &schema);
        default(&mut object, &schema);
        assert_eq!(
            object,
            json!({"metadata": {"name": "a"},
                   "spec": {"url": "http://x", "free": {"any": 1}, "provider": "generic"}})
        );
        for (spec, expected) in [
            (json!({}), "spec.url: Required value"),
            (
                json!({"url": "x"}),
                "spec.url: Invalid value: \"x\": spec.url in body should match '^(http|https|ssh)://.*$'",
            ),
            (
                json!({"url": "http://x", "provider": "y"}),
                "spec.provider: Unsupported value: \"y\": supported values: \"generic\", \"aws\"",
            ),
            (
                json!({"url": "http://x", "count": "y"}),
                "spec.count: Invalid value: \"y\": spec.count in body must be of type integer: \"string\"",
            ),
        ] {
            let causes = validate(&json!({"spec": spec}), &schema);
            let texts: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
            assert_eq!(texts, [expected]);
        }
    }
}
