//! Reads the protobuf form in which `kubectl create …` and `kubectl auth` send some kinds.
//!
//! Answers are JSON, which those clients take. Kinds and fields that the table doesn't have are
//! refused instead of being lost.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// How a field is read.
#[derive(Clone, Copy)]
enum Field {
    Text,
    Bytes,
    Number,
    Flag,
    Message(&'static str),
    Texts,
    Messages(&'static str),
    TextMap,
    BytesMap,
    /// A number or a text.
    Either,
}

use Field::{Bytes, BytesMap, Either, Flag, Message, Messages, Number, Text, TextMap, Texts};

/// Field numbers from the `generated.proto` files of k8s.io/api.
fn fields(message: &str) -> &'static [(u64, &'static str, Field)] {
    match message {
        "Unknown" => &[
            (1, "typeMeta", Message("TypeMeta")),
            (2, "raw", Bytes),
            (3, "contentEncoding", Text),
            (4, "contentType", Text),
        ],
        "TypeMeta" => &[(1, "apiVersion", Text), (2, "kind", Text)],
        "ObjectMeta" => &[
            (1, "name", Text),
            (2, "generateName", Text),
            (3, "namespace", Text),
            (5, "uid", Text),
            (6, "resourceVersion", Text),
            (8, "creationTimestamp", Message("Time")),
            (11, "labels", TextMap),
            (12, "annotations", TextMap),
            (14, "finalizers", Texts),
        ],
        "Namespace" => &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "spec", Message("NamespaceSpec")),
            (3, "status", Message("Empty")),
        ],
        "NamespaceSpec" => &[(1, "finalizers", Texts)],
        "ConfigMap" => &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "data", TextMap),
            (3, "binaryData", BytesMap),
            (4, "immutable", Flag),
        ],
        "Secret" => &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "data", BytesMap),
            (3, "type", Text),
            (4, "stringData", TextMap),
            (5, "immutable", Flag),
        ],
        "ServiceAccount" => &[(1, "metadata", Message("ObjectMeta"))],
        "SelfSubjectAccessReview" => &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "spec", Message("AccessReviewSpec")),
            (3, "status", Message("AccessReviewStatus")),
        ],
        "AccessReviewSpec" => &[
            (1, "resourceAttributes", Message("ResourceAttributes")),
            (2, "nonResourceAttributes", Message("NonResourceAttributes")),
        ],
        "AccessReviewStatus" => {
            &[(1, "allowed", Flag), (2, "reason", Text), (3, "evaluationError", Text), (4, "denied", Flag)]
        }
        "ResourceAttributes" => &[
            (1, "namespace", Text),
            (2, "verb", Text),
            (3, "group", Text),
            (4, "version", Text),
            (5, "resource", Text),
            (6, "subresource", Text),
            (7, "name", Text),
        ],
        "NonResourceAttributes" => &[(1, "path", Text), (2, "verb", Text)],
        "SelfSubjectReview" => {
            &[(1, "metadata", Message("ObjectMeta")), (2, "status", Message("SelfSubjectReviewStatus"))]
        }
        "SelfSubjectReviewStatus" => &[(1, "userInfo", Message("Empty"))],
        "DeleteOptions" => &[
            (1, "gracePeriodSeconds", Number),
            (2, "preconditions", Message("Preconditions")),
            (3, "orphanDependents", Flag),
            (4, "propagationPolicy", Text),
            (5, "dryRun", Texts),
        ],
        "Preconditions" => &[(1, "uid", Text), (2, "resourceVersion", Text)],
        "Deployment" => &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "spec", Message("DeploymentSpec")),
            (3, "status", Message("Empty")),
        ],
        "DeploymentSpec" => &[
            (1, "replicas", Number),
            (2, "selector", Message("LabelSelector")),
            (3, "template", Message("PodTemplateSpec")),
            (4, "strategy", Message("DeploymentStrategy")),
            (5, "minReadySeconds", Number),
            (6, "revisionHistoryLimit", Number),
            (7, "paused", Flag),
            (9, "progressDeadlineSeconds", Number),
        ],
        "LabelSelector" => &[(1, "matchLabels", TextMap)],
        "DeploymentStrategy" => &[(1, "type", Text)],
        "PodTemplateSpec" => &[(1, "metadata", Message("ObjectMeta")), (2, "spec", Message("PodSpec"))],
        "Pod" => &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "spec", Message("PodSpec")),
            (3, "status", Message("Empty")),
        ],
        "PodSpec" => &[
            (2, "containers", Messages("Container")),
            (3, "restartPolicy", Text),
            (4, "terminationGracePeriodSeconds", Number),
            (6, "dnsPolicy", Text),
            (7, "nodeSelector", TextMap),
            (8, "serviceAccountName", Text),
            (9, "serviceAccount", Text),
            (10, "nodeName", Text),
            (11, "hostNetwork", Flag),
            (12, "hostPID", Flag),
            (13, "hostIPC", Flag),
            (14, "securityContext", Message("Empty")),
            (16, "hostname", Text),
            (17, "subdomain", Text),
            (19, "schedulerName", Text),
            (24, "priorityClassName", Text),
        ],
        "Container" => &[
            (1, "name", Text),
            (2, "image", Text),
            (3, "command", Texts),
            (4, "args", Texts),
            (5, "workingDir", Text),
            (6, "ports", Messages("ContainerPort")),
            (7, "env", Messages("EnvVar")),
            (8, "resources", Message("Empty")),
            (13, "terminationMessagePath", Text),
            (14, "imagePullPolicy", Text),
            (16, "stdin", Flag),
            (17, "stdinOnce", Flag),
            (18, "tty", Flag),
            (20, "terminationMessagePolicy", Text),
        ],
        "ContainerPort" => &[
            (1, "name", Text),
            (2, "hostPort", Number),
            (3, "containerPort", Number),
            (4, "protocol", Text),
            (5, "hostIP", Text),
        ],
        "EnvVar" => &[(1, "name", Text), (2, "value", Text)],
        "Service" => &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "spec", Message("ServiceSpec")),
            (3, "status", Message("ServiceStatus")),
        ],
        "ServiceStatus" => &[(1, "loadBalancer", Message("Empty"))],
        "ServiceSpec" => &[
            (1, "ports", Messages("ServicePort")),
            (2, "selector", TextMap),
            (3, "clusterIP", Text),
            (4, "type", Text),
            (7, "sessionAffinity", Text),
            (8, "loadBalancerIP", Text),
            (10, "externalName", Text),
            (11, "externalTrafficPolicy", Text),
            (12, "healthCheckNodePort", Number),
            (13, "publishNotReadyAddresses", Flag),
        ],
        "ServicePort" => &[
            (1, "name", Text),
            (2, "protocol", Text),
            (3, "port", Number),
            (4, "targetPort", Either),
            (5, "nodePort", Number),
        ],
        "ClusterRole" | "Role" => {
            &[(1, "metadata", Message("ObjectMeta")), (2, "rules", Messages("PolicyRule"))]
        }
        "PolicyRule" => &[
            (1, "verbs", Texts),
            (2, "apiGroups", Texts),
            (3, "resources", Texts),
            (4, "resourceNames", Texts),
            (5, "nonResourceURLs", Texts),
        ],
        "ClusterRoleBinding" | "RoleBinding" => &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "subjects", Messages("Subject")),
            (3, "roleRef", Message("RoleRef")),
        ],
        "Subject" => &[(1, "kind", Text), (2, "apiGroup", Text), (3, "name", Text), (4, "namespace", Text)],
        "RoleRef" => &[(1, "apiGroup", Text), (2, "kind", Text), (3, "name", Text)],
        _ => &[],
    }
}

/// Reads an object with its envelope; nothing when it has what the table doesn't know.
pub fn read(body: &[u8]) -> Option<Value> {
    let envelope = message(body.strip_prefix(b"k8s\0")?, "Unknown")?;
    let raw = STANDARD.decode(envelope["raw"].as_str().unwrap_or_default()).ok()?;
    let kind = envelope["typeMeta"]["kind"].as_str()?;
    if fields(kind).is_empty() {
        return None;
    }
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), envelope["typeMeta"]["apiVersion"].clone());
    object.insert("kind".to_owned(), json!(kind));
    if let Value::Object(read) = message(&raw, kind)? {
        object.extend(read);
    }
    Some(Value::Object(object))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// One field of a message: its number and its number or bytes.
fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Result<u64, &'a [u8]>)> {
    let tag = varint(bytes)?;
    match tag & 7 {
        0 => Some((tag >> 3, Ok(varint(bytes)?))),
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            let (content, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            Some((tag >> 3, Err(content)))
        }
        _ => None,
    }
}

fn text(content: &[u8]) -> Option<Value> {
    Some(json!(std::str::from_utf8(content).ok()?))
}

fn message(mut bytes: &[u8], name: &str) -> Option<Value> {
    let mut out = Map::new();
    while !bytes.is_empty() {
        let (number, content) = next(&mut bytes)?;
        let known = fields(name).iter().find(|(other, _, _)| *other == number);
        let Some((_, field, kind)) = known else {
            // Fields that say nothing may be unknown.
            if matches!(content, Ok(0) | Err([])) || name == "Time" {
                continue;
            }
            return None;
        };
        let value = match (*kind, content) {
            (Text, Err([])) => continue,
            // A pointer to zero says something only here; elsewhere zero is the absence of a number.
            (Number, Ok(0)) if *field != "replicas" => continue,
            (Flag, Ok(0)) => continue,
            (Text, Err(content)) => text(content)?,
            (Bytes, Err(content)) => json!(STANDARD.encode(content)),
            (Number, Ok(number)) => json!(number as i64),
            (Flag, Ok(number)) => json!(number != 0),
            (Message("Empty" | "Time"), Err(_)) => continue,
            (Message(inner), Err(content)) => message(content, inner)?,
            (Texts, Err(content)) => push(&mut out, field, text(content)?),
            (Messages(inner), Err(content)) => {
                let item = message(content, inner)?;
                push(&mut out, field, item)
            }
            (TextMap | BytesMap, Err(mut content)) => {
                let (mut key, mut value) = (json!(""), json!(""));
                while !content.is_empty() {
                    match next(&mut content)? {
                        (1, Err(part)) => key = text(part)?,
                        (2, Err(part)) if matches!(kind, BytesMap) => value = json!(STANDARD.encode(part)),
                        (2, Err(part)) => value = text(part)?,
                        _ => return None,
                    }
                }
                let mut map = out.get(*field).cloned().unwrap_or_else(|| json!({}));
                map[key.as_str()?] = value;
                map
            }
            (Either, Err(mut content)) => {
                let (mut is_text, mut number, mut words) = (false, 0, json!(""));
                while !content.is_empty() {
                    match next(&mut content)? {
                        (1, Ok(kind)) => is_text = kind == 1,
                        (2, Ok(value)) => number = value,
                        (3, Err(part)) => words = text(part)?,
                        _ => return None,
                    }
                }
                match (is_text, number) {
                    (true, _) => words,
                    (false, 0) => continue,
                    (false, number) => json!(number),
                }
            }
            _ => return None,
        };
        out.insert((*field).to_owned(), value);
    }
    Some(Value::Object(out))
}

fn push(out: &mut Map<String, Value>, field: &str, item: Value) -> Value {
    let mut list = out.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    list.push(item);
    Value::Array(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_out_of_their_envelope() {
        fn field(number: u8, content: &[u8]) -> Vec<u8> {
            [&[number << 3 | 2, content.len() as u8], content].concat()
        }
        let meta = [field(1, b"a"), field(11, &[field(1, b"x"), field(2, b"y")].concat())].concat();
        let object = [field(1, &meta), field(2, &[field(1, b"k"), field(2, b"v")].concat())].concat();
        let kind = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
        let body = [b"k8s\0".to_vec(), field(1, &kind), field(2, &object)].concat();
        assert_eq!(
            read(&body),
            Some(json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "a", "labels": {"x": "y"}}, "data": {"k": "v"}}))
        );
        let odd = [field(1, &meta), field(15, b"unknown")].concat();
        let body = [b"k8s\0".to_vec(), field(1, &kind), field(2, &odd)].concat();
        assert_eq!(read(&body), None);
    }
}
