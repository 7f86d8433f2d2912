//! Patches other than server-side apply: merge patch, JSON patch and strategic merge patch.

use serde_json::{Map, Value};

use super::failure::{Failure, Result};
use super::schema::Type;

/// JSON merge patch (RFC 7386).
pub fn merge(target: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut out = target.as_object().cloned().unwrap_or_default();
    for (name, value) in patch {
        if value.is_null() {
            out.shift_remove(name);
        } else {
            let old = out.get(name).cloned().unwrap_or(Value::Null);
            out.insert(name.clone(), merge(&old, value));
        }
    }
    Value::Object(out)
}

/// JSON patch (RFC 6902).
pub fn json(target: &Value, patch: &Value) -> Result<Value> {
    let patch: json_patch::Patch =
        serde_json::from_value(patch.clone()).map_err(|error| Failure::bad_request(error.to_string()))?;
    let mut out = target.clone();
    json_patch::patch(&mut out, &patch).map_err(|error| Failure {
        code: 422,
        reason: "Invalid",
        message: format!("the server rejected our request due to an error in our request: {error}"),
        details: Value::Null,
    })?;
    Ok(out)
}

/// Strategic merge patch: lists with keys merge item by item, `$patch` and its relatives are obeyed.
pub fn strategic(target: &Value, patch: &Value, kind: &Type) -> Result<Value> {
    match (target, patch) {
        (_, Value::Object(patch)) => {
            let old = target.as_object().cloned().unwrap_or_default();
            strategic_object(old, patch, kind).map(Value::Object)
        }
        (_, patch) => Ok(patch.clone()),
    }
}

fn strategic_object(
    old: Map<String, Value>,
    patch: &Map<String, Value>,
    kind: &Type,
) -> Result<Map<String, Value>> {
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            let mut out = patch.clone();
            out.shift_remove("$patch");
            return Ok(out);
        }
        Some("delete") => return Ok(Map::new()),
        Some("merge") | None => {}
        Some(other) => {
            return Err(Failure::bad_request(format!("unknown patch type: {other}")));
        }
    }
    let mut out = old;
    for (name, value) in patch {
        if name == "$patch" {
            continue;
        }
        if name == "$retainKeys" {
            let keep: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            out.retain(|name, _| keep.contains(&name.as_str()));
            continue;
        }
        if name.starts_with("$setElementOrder/") {
            continue;
        }
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(items)), Value::Array(gone)) = (out.get_mut(list), value) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if value.is_null() {
            out.shift_remove(name);
            continue;
        }
        // A selector is one value to server-side apply, and still merges here.
        let child = kind.field(name).0;
        let child =
            if value.is_object() && matches!(*child, Type::Atomic) { Type::Open.into() } else { child };
        let merged = match (out.get(name), value) {
            (Some(Value::Object(old)), Value::Object(patch)) => {
                Value::Object(strategic_object(old.clone(), patch, &child)?)
            }
            (None, Value::Object(patch)) => Value::Object(strategic_object(Map::new(), patch, &child)?),
            (old, Value::Array(patch)) => {
                let nothing = Vec::new();
                let old = old.and_then(Value::as_array).unwrap_or(&nothing);
                Value::Array(strategic_list(old, patch, &child)?)
            }
            (_, value) => value.clone(),
        };
        out.insert(name.clone(), merged);
    }
    // The order that the client wants, for lists that it has named.
    for (name, order) in patch {
        let Some(list) = name.strip_prefix("$setElementOrder/") else { continue };
        let (child, _) = kind.field(list);
        if let (Some(Value::Array(items)), Some(order)) = (out.get_mut(list), order.as_array()) {
            reorder(items, order, &child);
        }
    }
    Ok(out)
}

/// The field by which strategic merge patch tells items apart: the first key.
fn merge_key(kind: &Type) -> Option<&str> {
    match kind {
        Type::Keyed(keys, _) => keys.first().map(|(name, _)| name.as_str()),
        _ => None,
    }
}

fn strategic_list(old: &[Value], patch: &[Value], kind: &Type) -> Result<Vec<Value>> {
    if matches!(kind, Type::Set) {
        let mut out = old.to_vec();
        out.extend(patch.iter().filter(|item| !old.contains(item)).cloned());
        return Ok(out);
    }
    let Some(key) = merge_key(kind) else { return Ok(patch.to_vec()) };
    let directive = |item: &Value| item["$patch"].as_str().map(str::to_owned);
    if patch.iter().any(|item| directive(item).as_deref() == Some("replace")) {
        return Ok(patch.iter().filter(|item| directive(item).is_none()).cloned().collect());
    }
    let element = kind.item();
    let mut out = old.to_vec();
    for item in patch {
        let name = &item[key];
        if name.is_null() {
            return Err(Failure::bad_request(format!(
                "map: {item} does not contain declared merge key: {key}"
            )));
        }
        if directive(item).as_deref() == Some("delete") {
            out.retain(|other| &other[key] != name);
            continue;
        }
        match out.iter_mut().find(|other| &other[key] == name) {
            Some(other) => *other = strategic(other, item, &element)?,
            None => out.push(strategic(&Value::Null, item, &element)?),
        }
    }
    Ok(out)
}

fn reorder(items: &mut [Value], order: &[Value], kind: &Type) {
    let place = |item: &Value| {
        let same = |wanted: &Value| match merge_key(kind) {
            Some(key) => wanted[key] == item[key],
            None => wanted == item,
        };
        order.iter().position(same)
    };
    // Items that the client doesn't know keep their place behind their neighbour.
    let mut last = 0;
    let mut places = Vec::with_capacity(items.len());
    for item in items.iter() {
        last = place(item).unwrap_or(last);
        places.push((last, place(item).is_none()));
    }
    let mut numbered: Vec<((usize, bool), Value)> = places.into_iter().zip(items.iter().cloned()).collect();
    numbered.sort_by_key(|(place, _)| *place);
    for (slot, (_, item)) in items.iter_mut().zip(numbered) {
        *slot = item;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kubernetes::schema;

    #[test]
    fn strategic_merge() {
        let pod = |containers: Value| json!({"spec": {"containers": containers}});
        let rows = [
            (
                "items merge by name",
                pod(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}])),
                pod(json!([{"name": "b", "image": "2"}])),
                pod(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}])),
            ),
            (
                "an item can be deleted",
                pod(json!([{"name": "a"}, {"name": "b"}])),
                pod(json!([{"name": "a", "$patch": "delete"}])),
                pod(json!([{"name": "b"}])),
            ),
            (
                "the list can be replaced",
                pod(json!([{"name": "a"}, {"name": "b"}])),
                pod(json!([{"name": "c"}, {"$patch": "replace"}])),
                pod(json!([{"name": "c"}])),
            ),
            (
                "the order is the client's",
                pod(json!([{"name": "a"}])),
                json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                                "containers": [{"name": "b"}]}}),
                pod(json!([{"name": "b"}, {"name": "a"}])),
            ),
            (
                "lists without keys are replaced",
                json!({"spec": {"tolerations": [{"key": "a"}]}}),
                json!({"spec": {"tolerations": [{"key": "b"}]}}),
                json!({"spec": {"tolerations": [{"key": "b"}]}}),
            ),
            (
                "null removes, and kept keys are kept",
                json!({"spec": {"hostNetwork": true, "x": {"a": 1, "b": 2}}}),
                json!({"spec": {"hostNetwork": null, "x": {"$retainKeys": ["b"], "b": 3}}}),
                json!({"spec": {"x": {"b": 3}}}),
            ),
            (
                "finalizers are a set",
                json!({"metadata": {"finalizers": ["a", "b"]}}),
                json!({"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}}),
                json!({"metadata": {"finalizers": ["b", "c"]}}),
            ),
        ];
        for (name, target, patch, expected) in rows {
            assert_eq!(strategic(&target, &patch, &schema::builtin("Pod")).unwrap(), expected, "{name}");
        }
    }
}
