//! Answers in the form of a `Table`, which kubectl prints.

use serde_json::{Value, json};

use super::clock;
use super::cluster::Resource;

/// The form in which a client wants objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As they are.
    Object,
    /// Only their metadata.
    Metadata,
    /// As rows of a table.
    Table,
}

impl Form {
    /// From the `Accept` header: the first form that we know.
    pub fn of(accept: &str) -> Form {
        for part in accept.split(',') {
            if part.contains("as=Table") {
                return Form::Table;
            }
            if part.contains("as=PartialObjectMetadata") {
                return Form::Metadata;
            }
            if part.trim_start().starts_with("application/json") && !part.contains("as=") {
                return Form::Object;
            }
        }
        Form::Object
    }
}

/// An object's metadata alone.
pub fn metadata(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

struct Column {
    name: String,
    kind: String,
    priority: u64,
    path: Path,
}

enum Path {
    /// Found by a path in the object.
    Json(String),
    /// Worked out.
    Word(fn(&Value) -> Value),
}

/// Objects as a table; `include` is the query's `includeObject`.
pub fn table(resource: &Resource, objects: &[Value], include: &str, list_meta: Value) -> Value {
    let columns = columns(resource);
    let definitions: Vec<Value> = columns
        .iter()
        .map(|column| {
            let format = if column.name == "Name" { "name" } else { "" };
            json!({"name": column.name, "type": column.kind, "format": format, "description": "",
                   "priority": column.priority})
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let cells: Vec<Value> = columns.iter().map(|column| cell(column, object)).collect();
            let mut row = json!({"cells": cells});
            match include {
                "None" => {}
                "Object" => row["object"] = object.clone(),
                _ => row["object"] = metadata(object),
            }
            row
        })
        .collect();
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_meta,
           "columnDefinitions": definitions, "rows": rows})
}

fn cell(column: &Column, object: &Value) -> Value {
    let value = match &column.path {
        Path::Word(work) => return work(object),
        Path::Json(path) => find(object, path),
    };
    match (&value, column.kind.as_str()) {
        (Value::String(at), "date") => json!(age(at)),
        (Value::Null | Value::String(_) | Value::Number(_) | Value::Bool(_), _) => value,
        _ => json!(value.to_string()),
    }
}

/// The small part of JSONPath that printer columns use: `.a.b[?(@.type=="Ready")].c`, `.a[0]`, `['b']`.
pub fn find(object: &Value, path: &str) -> Value {
    let mut value = object.clone();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let Some((inside, after)) = inner.split_once(']') else { return Value::Null };
            rest = after;
            let step = inside.trim();
            if let Some(test) = step.strip_prefix("?(@.").and_then(|test| test.strip_suffix(')')) {
                let Some((name, wanted)) = test.split_once("==") else { return Value::Null };
                let wanted = wanted.trim().trim_matches(['"', '\'']);
                let list = value.as_array().cloned().unwrap_or_default();
                let found = list.into_iter().find(|item| find(item, &format!(".{}", name.trim())) == wanted);
                value = found.unwrap_or_default();
            } else if let Ok(index) = step.parse::<usize>() {
                value = value.get(index).cloned().unwrap_or_default();
            } else {
                value = value[step.trim_matches(['"', '\''])].clone();
            }
        } else {
            rest = rest.strip_prefix('.').unwrap_or(rest);
            // A dot in a name is written with a backslash.
            let bytes = rest.as_bytes();
            let mut end = 0;
            while end < bytes.len()
                && (end > 0 && bytes[end - 1] == b'\\' || !matches!(bytes[end], b'.' | b'['))
            {
                end += 1;
            }
            let name = rest[..end].replace('\\', "");
            rest = &rest[end..];
            if !name.is_empty() {
                value = value[name.as_str()].clone();
            }
        }
    }
    value
}

/// How long ago a moment is, as kubectl writes it: `5s`, `3m12s`, `2d`.
fn age(at: &str) -> String {
    let Some(then) = clock::parse(at) else { return "<unknown>".to_owned() };
    let seconds = (clock::unix() - then).max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 != 0 => format!("{minutes}m{}s", seconds % 60),
        120..10800 => format!("{minutes}m"),
        10800..28800 if minutes % 60 != 0 => format!("{hours}h{}m", minutes % 60),
        10800..172_800 => format!("{hours}h"),
        172_800..691_200 if hours % 24 != 0 => format!("{days}d{}h", hours % 24),
        _ => format!("{days}d"),
    }
}

fn json_column(name: &str, path: &str) -> Column {
    Column {
        name: name.to_owned(),
        kind: "string".to_owned(),
        priority: 0,
        path: Path::Json(path.to_owned()),
    }
}

fn word(name: &str, work: fn(&Value) -> Value) -> Column {
    Column { name: name.to_owned(), kind: "string".to_owned(), priority: 0, path: Path::Word(work) }
}

fn wide(mut column: Column) -> Column {
    column.priority = 1;
    column
}

fn number(object: &Value, path: &str) -> i64 {
    find(object, path).as_i64().unwrap_or(0)
}

fn ready_of(object: &Value) -> Value {
    json!(format!("{}/{}", number(object, ".status.readyReplicas"), number(object, ".spec.replicas")))
}

fn length(value: &Value) -> usize {
    value.as_object().map_or(0, serde_json::Map::len)
}

fn images(object: &Value) -> Value {
    let list = find(object, ".spec.template.spec.containers");
    let images: Vec<&str> =
        list.as_array().into_iter().flatten().filter_map(|c| c["image"].as_str()).collect();
    json!(images.join(","))
}

/// A pod's state in one word, as kubectl has it.
fn pod_status(object: &Value) -> Value {
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return json!("Terminating");
    }
    let states = object["status"]["containerStatuses"].as_array();
    let waiting = states.into_iter().flatten().find_map(|status| {
        let state = &status["state"];
        state["waiting"]["reason"].as_str().or(state["terminated"]["reason"].as_str())
    });
    let phase = object["status"]["phase"].as_str().unwrap_or("Pending");
    json!(waiting.unwrap_or(phase))
}

fn pod_ready(object: &Value) -> Value {
    let all = object["spec"]["containers"].as_array().map_or(0, Vec::len);
    let states = object["status"]["containerStatuses"].as_array();
    let ready = states.into_iter().flatten().filter(|status| status["ready"] == true).count();
    json!(format!("{ready}/{all}"))
}

fn pod_restarts(object: &Value) -> Value {
    let states = object["status"]["containerStatuses"].as_array();
    let restarts: i64 = states.into_iter().flatten().filter_map(|s| s["restartCount"].as_i64()).sum();
    json!(restarts.to_string())
}

fn service_ports(object: &Value) -> Value {
    let ports = object["spec"]["ports"].as_array();
    let texts: Vec<String> = ports
        .into_iter()
        .flatten()
        .map(|port| format!("{}/{}", port["port"], port["protocol"].as_str().unwrap_or("TCP")))
        .collect();
    json!(if texts.is_empty() { "<none>".to_owned() } else { texts.join(",") })
}

fn pairs(value: &Value) -> Value {
    let pairs: Vec<String> = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    json!(if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") })
}

fn event_object(object: &Value) -> Value {
    let about = &object["involvedObject"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    json!(format!("{}/{}", text(&about["kind"]).to_lowercase(), text(&about["name"])))
}

fn last_seen(object: &Value) -> Value {
    json!(object["lastTimestamp"].as_str().map_or_else(|| "<unknown>".to_owned(), age))
}

fn columns(resource: &Resource) -> Vec<Column> {
    let name = || json_column("Name", ".metadata.name");
    let age = || Column { kind: "date".to_owned(), ..json_column("Age", ".metadata.creationTimestamp") };
    if resource.kind.custom {
        let version = resource.kind.version(&resource.version);
        let own = version.map(|version| version.columns.as_slice()).unwrap_or_default();
        let mut out = vec![name()];
        for column in own {
            let text = |field: &str| column[field].as_str().unwrap_or_default().to_owned();
            out.push(Column {
                name: text("name"),
                kind: text("type"),
                priority: column["priority"].as_u64().unwrap_or(0),
                path: Path::Json(text("jsonPath")),
            });
        }
        if own.is_empty() {
            out.push(age());
        }
        return out;
    }
    match resource.kind.kind.as_str() {
        "Pod" => vec![
            name(),
            word("Ready", pod_ready),
            word("Status", pod_status),
            word("Restarts", pod_restarts),
            age(),
            wide(json_column("IP", ".status.podIP")),
            wide(json_column("Node", ".spec.nodeName")),
        ],
        "Deployment" => vec![
            name(),
            word("Ready", ready_of),
            word("Up-to-date", |object| json!(number(object, ".status.updatedReplicas"))),
            word("Available", |object| json!(number(object, ".status.availableReplicas"))),
            age(),
            wide(word("Images", images)),
        ],
        "ReplicaSet" => vec![
            name(),
            word("Desired", |object| json!(number(object, ".spec.replicas"))),
            word("Current", |object| json!(number(object, ".status.replicas"))),
            word("Ready", |object| json!(number(object, ".status.readyReplicas"))),
            age(),
        ],
        "StatefulSet" => vec![name(), word("Ready", ready_of), age()],
        "Namespace" => vec![name(), json_column("Status", ".status.phase"), age()],
        "Node" => vec![name(), age()],
        "Service" => vec![
            name(),
            json_column("Type", ".spec.type"),
            json_column("Cluster-IP", ".spec.clusterIP"),
            word("External-IP", |_| json!("<none>")),
            word("Port(s)", service_ports),
            age(),
            wide(word("Selector", |object| pairs(&object["spec"]["selector"]))),
        ],
        "ConfigMap" => vec![name(), word("Data", |object| json!(length(&object["data"]))), age()],
        "Secret" => vec![
            name(),
            json_column("Type", ".type"),
            word("Data", |object| json!(length(&object["data"]))),
            age(),
        ],
        "ServiceAccount" => vec![name(), word("Secrets", |_| json!(0)), age()],
        "ResourceQuota" => vec![name(), word("Request", |object| pairs(&object["spec"]["hard"])), age()],
        "NetworkPolicy" => vec![
            name(),
            word("Pod-Selector", |object| pairs(&object["spec"]["podSelector"]["matchLabels"])),
            age(),
        ],
        "Event" => vec![
            word("Last Seen", last_seen),
            json_column("Type", ".type"),
            json_column("Reason", ".reason"),
            word("Object", event_object),
            json_column("Message", ".message"),
            wide(name()),
        ],
        "ClusterRole" | "Role" | "CustomResourceDefinition" => {
            vec![name(), json_column("Created At", ".metadata.creationTimestamp")]
        }
        "ClusterRoleBinding" | "RoleBinding" => vec![
            name(),
            word("Role", |object| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                json!(format!("{}/{}", text(&object["roleRef"]["kind"]), text(&object["roleRef"]["name"])))
            }),
            age(),
        ],
        "PriorityClass" => vec![name(), json_column("Value", ".value"), age()],
        "Lease" => vec![name(), json_column("Holder", ".spec.holderIdentity"), age()],
        _ => vec![name(), age()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_printer_columns() {
        let object = json!({"spec": {"url": "u", "list": [1, 2]}, "metadata": {"annotations": {"a.b/c": "x"}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "message": "all [good]"}]}});
        for (path, expected) in [
            (".spec.url", json!("u")),
            (".spec.list[1]", json!(2)),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type==\"Ready\")].message", json!("all [good]")),
            (".status.conditions[?(@.type==\"Other\")].message", Value::Null),
            (".metadata.annotations.a\\.b/c", json!("x")),
            (".metadata.annotations['a.b/c']", json!("x")),
        ] {
            assert_eq!(find(&object, path), expected, "{path}");
        }
    }
}
