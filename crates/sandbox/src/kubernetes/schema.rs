//! How values of a kind merge: which lists have keys, which maps are replaced as one.
//!
//! For built-in kinds a small table says it, taken from the markers in Kubernetes' API types
//! (`+listType`, `+listMapKey`, `+structType`); for custom kinds the definition's own schema does.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

use super::fields::{Element, Set, sorted};

/// How a value merges.
#[derive(Debug, Clone)]
pub enum Type {
    /// A scalar, or a list or object that is replaced as one.
    Atomic,
    /// An object with known fields; fields not listed are of the last type.
    Struct(BTreeMap<String, Arc<Type>>, Arc<Type>),
    /// An object whose names are data, like labels.
    Map(Arc<Type>),
    /// A list of scalars in which each value is an item of its own.
    Set,
    /// A list whose items are told apart by these fields (with default values).
    Keyed(Vec<(String, Option<Value>)>, Arc<Type>),
    /// An object of a built-in kind of which no more need be said: fields one by one, lists as one.
    Open,
    /// A value without a schema: objects merge name by name, lists are replaced as one.
    Deduced,
}

static OPEN: LazyLock<Arc<Type>> = LazyLock::new(|| Arc::new(Type::Open));
static ATOMIC: LazyLock<Arc<Type>> = LazyLock::new(|| Arc::new(Type::Atomic));
static DEDUCED: LazyLock<Arc<Type>> = LazyLock::new(|| Arc::new(Type::Deduced));

impl Type {
    /// A field's type, and whether the schema names the field (a label's name is data and isn't).
    pub fn field(&self, name: &str) -> (Arc<Type>, bool) {
        match self {
            Type::Struct(fields, rest) => match fields.get(name) {
                Some(kind) => (kind.clone(), true),
                None => (rest.clone(), !matches!(**rest, Type::Deduced)),
            },
            Type::Map(element) => (element.clone(), false),
            Type::Open => (OPEN.clone(), true),
            Type::Deduced => (DEDUCED.clone(), false),
            _ => (ATOMIC.clone(), false),
        }
    }

    /// The type of a list's items.
    pub fn item(&self) -> Arc<Type> {
        match self {
            Type::Keyed(_, element) => element.clone(),
            _ => ATOMIC.clone(),
        }
    }

    /// Whether an object of this type merges name by name.
    fn granular(&self) -> bool {
        matches!(self, Type::Struct(..) | Type::Map(_) | Type::Open | Type::Deduced)
    }

    /// Names the items of a list, when they have names; an error is a doubled or missing key.
    pub fn items(&self, list: &[Value]) -> Option<Vec<Element>> {
        match self {
            Type::Set => Some(list.iter().map(|item| Element::Value(item.to_string())).collect()),
            Type::Keyed(keys, _) => list.iter().map(|item| key_of(keys, item)).collect(),
            _ => None,
        }
    }
}

/// The name of an item by its keys; nothing when it isn't an object or lacks a key.
fn key_of(keys: &[(String, Option<Value>)], item: &Value) -> Option<Element> {
    let item = item.as_object()?;
    let mut out = Map::new();
    for (name, default) in keys {
        match item.get(name).filter(|value| !value.is_null()).or(default.as_ref()) {
            Some(value) => {
                out.insert(name.clone(), value.clone());
            }
            // A key may be missing when others are there, as `protocol` may.
            None if keys.len() > 1 => {}
            None => return None,
        }
    }
    (!out.is_empty()).then(|| Element::Key(sorted(&out)))
}

/// Every field that a configuration sets.
pub fn set_of(value: &Value, kind: &Type) -> Set {
    let mut out = Set::default();
    collect(value, kind, &mut Vec::new(), &mut out);
    out
}

fn collect(value: &Value, kind: &Type, path: &mut Vec<Element>, out: &mut Set) {
    match value {
        Value::Object(object) if kind.granular() => {
            for (name, child) in object {
                let (child_kind, named) = kind.field(name);
                path.push(Element::Field(name.clone()));
                collect(child, &child_kind, path, out);
                let empty = child.is_null() || child.as_object().is_some_and(Map::is_empty);
                if empty || !named {
                    out.insert(path);
                }
                path.pop();
            }
        }
        Value::Array(list) => match kind.items(list) {
            Some(names) => {
                for (item, name) in list.iter().zip(names) {
                    path.push(name);
                    collect(item, &kind.item(), path, out);
                    out.insert(path);
                    path.pop();
                }
            }
            None => out.insert(path),
        },
        _ => out.insert(path),
    }
}

/// The first list item that occurs twice, as `.spec.containers: duplicate entries for key [name="a"]`.
pub fn duplicate(value: &Value, kind: &Type, path: &str) -> Option<String> {
    match value {
        Value::Object(object) if kind.granular() => object
            .iter()
            .find_map(|(name, child)| duplicate(child, &kind.field(name).0, &format!("{path}.{name}"))),
        Value::Array(list) => {
            let names = kind.items(list)?;
            let mut seen = Set::default();
            for (item, name) in list.iter().zip(&names) {
                if seen.has(name) {
                    let mut one = Set::default();
                    one.insert(std::slice::from_ref(name));
                    return Some(format!("{path}: duplicate entries for key {}", one.paths().concat()));
                }
                seen.insert(std::slice::from_ref(name));
                if let Some(found) = duplicate(item, &kind.item(), path) {
                    return Some(found);
                }
            }
            None
        }
        _ => None,
    }
}

/// Lays a configuration over a live object.
pub fn merge(live: &Value, config: &Value, kind: &Type) -> Value {
    match (live, config) {
        (Value::Object(live), Value::Object(config)) if kind.granular() => {
            let mut out = live.clone();
            for (name, value) in config {
                let merged = match live.get(name) {
                    Some(old) => merge(old, value, &kind.field(name).0),
                    None => value.clone(),
                };
                out.insert(name.clone(), merged);
            }
            Value::Object(out)
        }
        (Value::Array(live), Value::Array(config)) => {
            let (Some(left), Some(right)) = (kind.items(live), kind.items(config)) else {
                return Value::Array(config.clone());
            };
            let element = kind.item();
            let mut out = Vec::new();
            // Items that the configuration doesn't name keep their place before the next shared one.
            let mut done = vec![false; live.len()];
            let mut next = 0;
            for (item, name) in config.iter().zip(&right) {
                while next < live.len() && (done[next] || !right.contains(&left[next])) {
                    if !done[next] {
                        out.push(live[next].clone());
                        done[next] = true;
                    }
                    next += 1;
                }
                match left.iter().position(|other| other == name) {
                    Some(at) => {
                        out.push(merge(&live[at], item, &element));
                        done[at] = true;
                    }
                    None => out.push(item.clone()),
                }
            }
            out.extend(live.iter().zip(&done).filter(|(_, done)| !**done).map(|(item, _)| item.clone()));
            Value::Array(out)
        }
        _ => config.clone(),
    }
}

/// What a change did.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Fields that are new.
    pub added: Set,
    /// Fields with another value.
    pub modified: Set,
    /// Fields that are gone.
    pub removed: Set,
}

/// Compares two states of an object.
pub fn compare(old: &Value, new: &Value, kind: &Type) -> Comparison {
    let mut out = Comparison::default();
    differ(Some(old), Some(new), kind, &mut Vec::new(), &mut out);
    out
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(object)) => object.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    }
}

fn differ(
    old: Option<&Value>,
    new: Option<&Value>,
    kind: &Type,
    path: &mut Vec<Element>,
    out: &mut Comparison,
) {
    fn leaf(old: Option<&Value>, new: Option<&Value>, path: &[Element], out: &mut Comparison) {
        match (old, new) {
            (None, _) => out.added.insert(path),
            (_, None) => out.removed.insert(path),
            (Some(old), Some(new)) if old != new => out.modified.insert(path),
            _ => {}
        }
    }
    let objects = |value: Option<&Value>| value.is_none_or(Value::is_object);
    let lists = |value: Option<&Value>| value.is_none_or(Value::is_array);
    if is_empty(old) && is_empty(new) {
        leaf(old, new, path, out);
    } else if kind.granular() && objects(old) && objects(new) {
        let nothing = Map::new();
        let left = old.and_then(Value::as_object).unwrap_or(&nothing);
        let right = new.and_then(Value::as_object).unwrap_or(&nothing);
        let added = right.keys().filter(|name| !left.contains_key(*name));
        for name in left.keys().chain(added) {
            path.push(Element::Field(name.clone()));
            differ(left.get(name), right.get(name), &kind.field(name).0, path, out);
            path.pop();
        }
        bound(old, new, path, out);
    } else if lists(old) && lists(new) {
        let left = old.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let right = new.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        match (kind.items(left), kind.items(right)) {
            (Some(left_names), Some(right_names)) => {
                let find = |names: &[Element], name: &Element| names.iter().position(|other| other == name);
                let added = right_names.iter().filter(|name| !left_names.contains(name));
                for name in left_names.iter().chain(added) {
                    let before = find(&left_names, name).map(|at| &left[at]);
                    let after = find(&right_names, name).map(|at| &right[at]);
                    path.push(name.clone());
                    differ(before, after, &kind.item(), path, out);
                    path.pop();
                }
                bound(old, new, path, out);
            }
            _ => leaf(old, new, path, out),
        }
    } else {
        leaf(old, new, path, out);
    }

    /// An object or list that appears or goes is a member itself.
    fn bound(old: Option<&Value>, new: Option<&Value>, path: &[Element], out: &mut Comparison) {
        match (old, new) {
            (None, _) => out.added.insert(path),
            (_, None) => out.removed.insert(path),
            _ => {}
        }
    }
}

/// Takes fields out of an object; nothing is left when all are gone.
pub fn remove(value: &Value, gone: &Set, kind: &Type) -> Option<Value> {
    match value {
        Value::Object(object) if kind.granular() => {
            let mut out = Map::new();
            for (name, child) in object {
                let element = Element::Field(name.clone());
                if gone.has(&element) {
                    continue;
                }
                let kept = match gone.below(&element) {
                    Some(below) => remove(child, below, &kind.field(name).0),
                    None => Some(child.clone()),
                };
                if let Some(kept) = kept {
                    out.insert(name.clone(), kept);
                }
            }
            (!out.is_empty() || object.is_empty()).then_some(Value::Object(out))
        }
        Value::Array(list) => {
            let Some(names) = kind.items(list) else { return Some(value.clone()) };
            let mut out = Vec::new();
            for (item, name) in list.iter().zip(&names) {
                if gone.has(name) {
                    continue;
                }
                let kept = match gone.below(name) {
                    Some(below) => remove(item, below, &kind.item()),
                    None => Some(item.clone()),
                };
                out.extend(kept);
            }
            (!out.is_empty() || list.is_empty()).then_some(Value::Array(out))
        }
        _ => Some(value.clone()),
    }
}

fn open() -> Arc<Type> {
    OPEN.clone()
}

fn atomic() -> Arc<Type> {
    ATOMIC.clone()
}

fn map() -> Arc<Type> {
    Arc::new(Type::Map(atomic()))
}

fn keyed(keys: &[&str], element: Arc<Type>) -> Arc<Type> {
    let keys =
        keys.iter().map(|key| (key.to_string(), (*key == "protocol").then(|| Value::from("TCP")))).collect();
    Arc::new(Type::Keyed(keys, element))
}

fn record<const N: usize>(fields: [(&str, Arc<Type>); N]) -> Arc<Type> {
    let fields = fields.into_iter().map(|(name, kind)| (name.to_owned(), kind)).collect();
    Arc::new(Type::Struct(fields, open()))
}

fn meta() -> Arc<Type> {
    record([
        ("labels", map()),
        ("annotations", map()),
        ("finalizers", Arc::new(Type::Set)),
        ("ownerReferences", keyed(&["uid"], atomic())),
        ("managedFields", atomic()),
    ])
}

fn conditions() -> Arc<Type> {
    record([("conditions", keyed(&["type"], open()))])
}

fn container() -> Arc<Type> {
    let source = record([
        ("fieldRef", atomic()),
        ("resourceFieldRef", atomic()),
        ("configMapKeyRef", atomic()),
        ("secretKeyRef", atomic()),
    ]);
    record([
        ("ports", keyed(&["containerPort", "protocol"], open())),
        ("env", keyed(&["name"], record([("valueFrom", source)]))),
        ("volumeMounts", keyed(&["mountPath"], open())),
        ("volumeDevices", keyed(&["devicePath"], open())),
        ("resources", record([("limits", map()), ("requests", map()), ("claims", keyed(&["name"], open()))])),
    ])
}

fn pod_spec() -> Arc<Type> {
    let spread = record([("labelSelector", atomic())]);
    record([
        ("containers", keyed(&["name"], container())),
        ("initContainers", keyed(&["name"], container())),
        ("ephemeralContainers", keyed(&["name"], container())),
        ("volumes", keyed(&["name"], open())),
        ("imagePullSecrets", keyed(&["name"], open())),
        ("hostAliases", keyed(&["ip"], open())),
        ("topologySpreadConstraints", keyed(&["topologyKey", "whenUnsatisfiable"], spread)),
        ("resourceClaims", keyed(&["name"], open())),
        ("schedulingGates", keyed(&["name"], open())),
        ("nodeSelector", atomic()),
        ("overhead", map()),
    ])
}

fn template() -> Arc<Type> {
    record([("metadata", meta()), ("spec", pod_spec())])
}

fn object<const N: usize>(fields: [(&str, Arc<Type>); N]) -> Arc<Type> {
    let mut all: BTreeMap<String, Arc<Type>> =
        fields.into_iter().map(|(name, kind)| (name.to_owned(), kind)).collect();
    all.insert("metadata".to_owned(), meta());
    all.entry("status".to_owned()).or_insert_with(conditions);
    Arc::new(Type::Struct(all, open()))
}

/// The type of a built-in kind.
pub fn builtin(kind: &str) -> Arc<Type> {
    let workload = || ("spec", record([("selector", atomic()), ("template", template())]));
    match kind {
        "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet" | "Job" => object([workload()]),
        "CronJob" => {
            let job = record([
                ("metadata", meta()),
                ("spec", record([("selector", atomic()), ("template", template())])),
            ]);
            object([("spec", record([("jobTemplate", job)]))])
        }
        "Pod" => object([("spec", pod_spec())]),
        "PodTemplate" => object([("template", template())]),
        "Service" => {
            let ports = keyed(&["port", "protocol"], open());
            object([("spec", record([("ports", ports), ("selector", atomic())]))])
        }
        "ConfigMap" => object([("data", map()), ("binaryData", map())]),
        "Secret" => object([("data", map()), ("stringData", map())]),
        "ServiceAccount" => object([("secrets", keyed(&["name"], open()))]),
        "ResourceQuota" => object([
            ("spec", record([("hard", map()), ("scopeSelector", atomic())])),
            ("status", record([("hard", map()), ("used", map())])),
        ]),
        "NetworkPolicy" | "PodDisruptionBudget" => {
            object([("spec", record([("podSelector", atomic()), ("selector", atomic())]))])
        }
        "RoleBinding" | "ClusterRoleBinding" => object([("roleRef", atomic()), ("subjects", atomic())]),
        "Event" => object([("involvedObject", open())]),
        "PersistentVolumeClaim" => object([(
            "spec",
            record([("selector", atomic()), ("resources", record([("limits", map()), ("requests", map())]))]),
        )]),
        "StorageClass" => object([("parameters", map())]),
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
            let hook = record([("namespaceSelector", atomic()), ("objectSelector", atomic())]);
            object([("webhooks", keyed(&["name"], hook))])
        }
        _ => object([]),
    }
}

/// The type of a custom kind, from its definition's `openAPIV3Schema`.
pub fn custom(schema: &Value) -> Arc<Type> {
    let root = from_schema(schema);
    let (mut fields, rest) = match &*root {
        Type::Struct(fields, rest) => (fields.clone(), rest.clone()),
        _ => (BTreeMap::new(), DEDUCED.clone()),
    };
    fields.insert("metadata".to_owned(), meta());
    for name in ["apiVersion", "kind"] {
        fields.insert(name.to_owned(), atomic());
    }
    Arc::new(Type::Struct(fields, rest))
}

fn from_schema(schema: &Value) -> Arc<Type> {
    let keeps = schema["x-kubernetes-preserve-unknown-fields"] == true;
    if schema["x-kubernetes-int-or-string"] == true {
        return atomic();
    }
    match schema["type"].as_str() {
        Some("object") if schema["x-kubernetes-map-type"] == "atomic" => atomic(),
        Some("object") => match (schema["properties"].as_object(), &schema["additionalProperties"]) {
            (Some(properties), _) => {
                let fields =
                    properties.iter().map(|(name, schema)| (name.clone(), from_schema(schema))).collect();
                Arc::new(Type::Struct(fields, if keeps { DEDUCED.clone() } else { atomic() }))
            }
            (None, more @ Value::Object(_)) => Arc::new(Type::Map(from_schema(more))),
            _ => DEDUCED.clone(),
        },
        Some("array") => match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Arc::new(Type::Set),
            Some("map") => {
                let items = &schema["items"];
                let keys = schema["x-kubernetes-list-map-keys"].as_array();
                let keys = keys.into_iter().flatten().filter_map(Value::as_str).map(|key| {
                    let default = items["properties"][key].get("default").cloned();
                    (key.to_owned(), default)
                });
                Arc::new(Type::Keyed(keys.collect(), from_schema(items)))
            }
            _ => atomic(),
        },
        None if keeps => DEDUCED.clone(),
        _ => atomic(),
    }
}
