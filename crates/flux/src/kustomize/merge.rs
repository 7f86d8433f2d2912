//! Strategic merge, as kustomize does it: mappings merge, `null` removes, lists of Kubernetes' own
//! types merge by the key that their schema names, all other lists are replaced, and `$patch` says
//! otherwise.

use serde_json::{Map, Value};

use crate::object;

const DIRECTIVE: &str = "$patch";

type Outcome<T> = Result<T, String>;

/// Merges a patch into an object; `None`, where the patch deletes it. Kind, name and namespace stay.
pub(super) fn strategic(target: &Value, patch: &Value) -> Outcome<Option<Value>> {
    let schema = Schema::of(target);
    let Some(mut merged) = merge(Some(target), patch, schema)? else { return Ok(None) };
    for field in ["apiVersion", "kind"] {
        restore(&mut merged, target, field);
    }
    if let (Some(to), Some(from)) = (merged.get_mut("metadata"), target.get("metadata")) {
        restore(to, from, "name");
        restore(to, from, "namespace");
    }
    Ok(Some(merged))
}

fn restore(to: &mut Value, from: &Value, field: &str) {
    let Some(map) = to.as_object_mut() else { return };
    match from.get(field) {
        Some(value) => {
            map.insert(field.to_owned(), value.clone());
        }
        None => {
            map.remove(field);
        }
    }
}

/// What kind of thing a node is, as far as its lists need to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Schema {
    /// Nothing is known; lists are replaced.
    Unknown,
    /// An object of Kubernetes' own, by its kind.
    Object(Kind),
    Metadata,
    Spec(Kind),
    /// A template with metadata and a pod's spec.
    PodTemplate,
    /// The template of a CronJob's jobs.
    JobTemplate,
    PodSpec,
    Container,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pod,
    /// Has a pod template in its spec.
    Workload,
    CronJob,
    Service,
    ServiceAccount,
    Webhooks,
    Other,
}

impl Schema {
    fn of(object: &Value) -> Schema {
        let (group, _) = object::group_version(object);
        let builtin = group.is_empty() || !group.contains('.') || group.ends_with(".k8s.io");
        if !builtin {
            return Schema::Unknown;
        }
        Schema::Object(match object::kind(object) {
            "Pod" => Kind::Pod,
            "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" | "ReplicationController" => {
                Kind::Workload
            }
            "CronJob" => Kind::CronJob,
            "Service" => Kind::Service,
            "ServiceAccount" => Kind::ServiceAccount,
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => Kind::Webhooks,
            _ => Kind::Other,
        })
    }

    /// The schema of a field, or of the elements where it is a list.
    fn field(self, name: &str) -> Schema {
        match (self, name) {
            (Schema::Object(_) | Schema::PodTemplate | Schema::JobTemplate, "metadata") => Schema::Metadata,
            (Schema::Object(Kind::Pod) | Schema::PodTemplate, "spec") => Schema::PodSpec,
            (Schema::Object(kind), "spec") => Schema::Spec(kind),
            (Schema::JobTemplate, "spec") => Schema::Spec(Kind::Workload),
            (Schema::Spec(Kind::Workload), "template") => Schema::PodTemplate,
            (Schema::Spec(Kind::CronJob), "jobTemplate") => Schema::JobTemplate,
            (Schema::PodSpec, "containers" | "initContainers" | "ephemeralContainers") => Schema::Container,
            _ => Schema::Unknown,
        }
    }

    /// By which of their fields the elements of a list are told apart; empty for a list of texts
    /// that is a set; `None` for a list that is replaced.
    fn merge_keys(self, name: &str) -> Option<&'static [&'static str]> {
        Some(match (self, name) {
            (Schema::Metadata, "finalizers") => &[],
            (Schema::Metadata, "ownerReferences") => &["uid"],
            (
                Schema::PodSpec,
                "containers" | "initContainers" | "ephemeralContainers" | "imagePullSecrets" | "volumes",
            )
            | (Schema::Object(Kind::ServiceAccount), "secrets")
            | (Schema::Object(Kind::Webhooks), "webhooks")
            | (Schema::Container, "env") => &["name"],
            (Schema::PodSpec, "hostAliases") => &["ip"],
            (Schema::PodSpec, "topologySpreadConstraints") => &["topologyKey", "whenUnsatisfiable"],
            (Schema::Container, "ports") => &["containerPort", "protocol"],
            (Schema::Container, "volumeMounts") => &["mountPath"],
            (Schema::Container, "volumeDevices") => &["devicePath"],
            (Schema::Spec(Kind::Service), "ports") => &["port", "protocol"],
            _ => return None,
        })
    }
}

/// Merges a patch's value into what is there; `None` removes it.
fn merge(target: Option<&Value>, patch: &Value, schema: Schema) -> Outcome<Option<Value>> {
    let Value::Object(patch) = patch else {
        return Ok((!patch.is_null()).then(|| patch.clone()));
    };
    let (directive, patch) = directive(patch)?;
    match directive {
        Directive::Delete => return Ok(None),
        Directive::Replace => return Ok(Some(Value::Object(patch))),
        Directive::Merge => {}
    }
    let mut merged = match target {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(_) => return Err("a mapping is to be merged into something that is none".to_owned()),
    };
    for (name, value) in &patch {
        let old = merged.get(name).filter(|old| !old.is_null());
        let new = match (value, schema.merge_keys(name)) {
            (Value::Array(items), Some(keys)) => merge_list(name, old, items, keys, schema.field(name))?,
            (value, _) => {
                if let Some(old) = old.filter(|_| !value.is_null())
                    && !same_shape(old, value)
                {
                    return Err(format!("{name} is of another type"));
                }
                merge(old, value, schema.field(name))?
            }
        };
        match new {
            Some(new) => {
                merged.insert(name.clone(), new);
            }
            None => {
                merged.remove(name);
            }
        }
    }
    Ok(Some(Value::Object(merged)))
}

fn same_shape(a: &Value, b: &Value) -> bool {
    a.is_object() == b.is_object() && a.is_array() == b.is_array()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Directive {
    Merge,
    Replace,
    Delete,
}

fn directive(map: &Map<String, Value>) -> Outcome<(Directive, Map<String, Value>)> {
    let mut rest = map.clone();
    let directive = match rest.shift_remove(DIRECTIVE) {
        None => Directive::Merge,
        Some(value) => match value.as_str() {
            Some("merge") => Directive::Merge,
            Some("replace") => Directive::Replace,
            Some("delete") => Directive::Delete,
            _ => return Err(format!("{DIRECTIVE}: {value} is not known")),
        },
    };
    Ok((directive, rest))
}

/// The patch's elements come first, in its order, each merged with the one of the same key; what the
/// patch does not mention follows. `null` stands for a key that an element lacks.
fn merge_list(
    name: &str,
    old: Option<&Value>,
    patch: &[Value],
    keys: &[&str],
    schema: Schema,
) -> Outcome<Option<Value>> {
    let old = match old {
        None => &[] as &[Value],
        Some(Value::Array(items)) => items,
        Some(_) => return Err(format!("{name} is of another type")),
    };
    let mut left: Vec<&Value> = old.iter().collect();
    let mut merged = Vec::new();
    if keys.is_empty() {
        for item in patch {
            left.retain(|other| *other != item);
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        merged.extend(left.into_iter().cloned());
        return Ok(Some(Value::Array(merged)));
    }
    // An element that is nothing but a directive speaks for the whole list.
    let mut patch = patch.to_vec();
    if let Some(at) = patch
        .iter()
        .position(|item| item.as_object().is_some_and(|map| map.len() == 1 && map.contains_key(DIRECTIVE)))
    {
        let whole = patch.remove(at);
        match directive(whole.as_object().unwrap_or(&Map::new()))?.0 {
            Directive::Delete => return Ok(None),
            Directive::Replace => return Ok(Some(Value::Array(patch))),
            Directive::Merge => {}
        }
    }
    // A second key counts only where some element has it.
    let keys: Vec<&str> = keys
        .iter()
        .copied()
        .filter(|key| old.iter().chain(&patch).any(|item| !item[*key].is_null()))
        .collect();
    let mut replaced: Vec<Option<Value>> = old.iter().cloned().map(Some).collect();
    for item in &patch {
        let found = old.iter().position(|other| keys.iter().all(|key| other[*key] == item[*key]));
        if keys.len() > 1 && found.is_none() && old.iter().any(|other| overlap(other, item, &keys)) {
            // Kustomize loses an element that leaves out a key which its counterpart has.
            continue;
        }
        let new = merge(found.map(|index| &old[index]), item, schema)?;
        let new = new.filter(|value| value.as_object().is_none_or(|map| !map.is_empty()));
        match found {
            // With two keys the elements stay where they are.
            Some(index) if keys.len() > 1 => replaced[index] = new,
            Some(index) => {
                replaced[index] = None;
                merged.extend(new);
            }
            None => merged.extend(new),
        }
    }
    merged.extend(replaced.into_iter().flatten());
    Ok(Some(Value::Array(merged)))
}

/// Whether two elements have a key in common and differ in none that both have.
fn overlap(a: &Value, b: &Value, keys: &[&str]) -> bool {
    let both = |key: &&&str| !a[**key].is_null() && !b[**key].is_null();
    let mut shared = keys.iter().filter(both).peekable();
    shared.peek().is_some() && shared.all(|key| a[*key] == b[*key])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(pod: Value) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": {"template": {"spec": pod}}})
    }

    #[test]
    fn pods_merge_by_the_keys_of_their_schema() {
        for (target, patch, expected) in [
            (
                json!({"containers": [{"name": "a", "image": "i"}, {"name": "b"}]}),
                json!({"containers": [{"name": "b", "image": "j"}]}),
                json!({"containers": [{"name": "b", "image": "j"}, {"name": "a", "image": "i"}]}),
            ),
            (
                json!({"containers": [{"name": "a"}, {"name": "b"}]}),
                json!({"containers": [{"name": "a", "$patch": "delete"}]}),
                json!({"containers": [{"name": "b"}]}),
            ),
            (
                json!({"containers": [{"name": "a"}]}),
                json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
                json!({"containers": [{"name": "c"}]}),
            ),
            (
                json!({"containers": [{"name": "a", "args": ["1", "2"], "env": [{"name": "E", "value": "1"}]}]}),
                json!({"containers": [{"name": "a", "args": ["3"], "env": [{"name": "F", "value": "2"}]}]}),
                json!({"containers": [{"name": "a", "args": ["3"], "env": [{"name": "F", "value": "2"}, {"name": "E", "value": "1"}]}]}),
            ),
            (
                json!({"tolerations": [{"key": "a"}], "nodeSelector": {"x": "1", "y": "2"}}),
                json!({"tolerations": [{"key": "b"}], "nodeSelector": {"x": null, "z": "3"}}),
                json!({"tolerations": [{"key": "b"}], "nodeSelector": {"y": "2", "z": "3"}}),
            ),
            (
                json!({"containers": [{"name": "a", "ports": [{"containerPort": 1, "protocol": "TCP"}]}]}),
                json!({"containers": [{"name": "a", "ports": [{"containerPort": 2}, {"containerPort": 1, "protocol": "TCP", "name": "p"}]}]}),
                json!({"containers": [{"name": "a", "ports": [{"containerPort": 2}, {"containerPort": 1, "protocol": "TCP", "name": "p"}]}]}),
            ),
            (
                json!({"securityContext": {"a": 1}}),
                json!({"securityContext": {"$patch": "replace", "b": 2}}),
                json!({"securityContext": {"b": 2}}),
            ),
        ] {
            let merged = strategic(&deployment(target), &deployment(patch)).expect("merges");
            assert_eq!(merged, Some(deployment(expected)));
        }
    }

    #[test]
    fn a_patch_may_delete_the_whole_object_and_never_renames_it() {
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}});
        let delete = json!({"$patch": "delete", "kind": "ConfigMap", "metadata": {"name": "a"}});
        assert_eq!(strategic(&object, &delete), Ok(None));
        let rename =
            json!({"kind": "Secret", "metadata": {"name": "b", "namespace": "m"}, "data": {"k": "v"}});
        let merged = strategic(&object, &rename).expect("merges").expect("stays");
        assert_eq!(merged["kind"], "ConfigMap");
        assert_eq!(merged["metadata"], json!({"name": "a", "namespace": "n"}));
        assert_eq!(merged["data"], json!({"k": "v"}));
    }

    #[test]
    fn lists_of_foreign_kinds_are_replaced() {
        let object = json!({"apiVersion": "x.example.com/v1", "kind": "X", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "a"}]}});
        let patch = json!({"spec": {"containers": [{"name": "b"}]}});
        let merged = strategic(&object, &patch).expect("merges").expect("stays");
        assert_eq!(merged["spec"]["containers"], json!([{"name": "b"}]));
        assert!(strategic(&object, &json!({"spec": []})).is_err());
    }
}
