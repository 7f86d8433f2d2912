//! Small looks at Kubernetes objects as JSON, and changes of single fields.

use serde_json::{Map, Value, json};

/// Kinds of Kubernetes' own that live outside namespaces. Everything else, custom kinds among them,
/// counts as namespaced, as it does for kustomize.
const CLUSTER_SCOPED: [&str; 22] = [
    "APIService",
    "CSIDriver",
    "CSINode",
    "CertificateSigningRequest",
    "ClusterRole",
    "ClusterRoleBinding",
    "ComponentStatus",
    "CustomResourceDefinition",
    "FlowSchema",
    "IngressClass",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "NodeProxyOptions",
    "PersistentVolume",
    "PodSecurityPolicy",
    "PriorityClass",
    "PriorityLevelConfiguration",
    "RuntimeClass",
    "StorageClass",
    "ValidatingWebhookConfiguration",
    "VolumeAttachment",
];

/// `kind`, empty where there is none.
pub(crate) fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

/// `metadata.name`, empty where there is none.
pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// `metadata.namespace`, empty where there is none.
pub(crate) fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// Group and version of `apiVersion`; the core group is empty.
pub(crate) fn group_version(object: &Value) -> (&str, &str) {
    let text = object["apiVersion"].as_str().unwrap_or_default();
    text.split_once('/').unwrap_or(("", text))
}

/// Whether the object lives outside namespaces.
pub(crate) fn is_cluster_scoped(object: &Value) -> bool {
    let (group, _) = group_version(object);
    let builtin = group.is_empty() || !group.contains('.') || group.ends_with(".k8s.io");
    builtin && CLUSTER_SCOPED.contains(&kind(object))
}

/// The namespace as kustomize counts it: `default` where none is named, and for what lives outside
/// namespaces a text that is none.
pub(crate) fn effective_namespace(object: &Value) -> &str {
    match namespace(object) {
        _ if is_cluster_scoped(object) => "_non_namespaceable_",
        "" => "default",
        namespace => namespace,
    }
}

/// Puts a namespaced object into the namespace.
pub(crate) fn set_namespace(object: &mut Value, namespace: &str) {
    if !is_cluster_scoped(object) {
        set(object, &["metadata", "namespace"], json!(namespace));
    }
}

/// Sets a field, making the objects on the way to it.
pub(crate) fn set(object: &mut Value, path: &[&str], value: Value) {
    let mut at = object;
    for part in path {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[*part];
    }
    *at = value;
}

/// Sets one entry of a map that may not be there yet.
pub(crate) fn merge(object: &mut Map<String, Value>, field: &str, key: &str, value: Value) {
    let inner = object.entry(field).or_insert_with(|| json!({}));
    if let Some(inner) = inner.as_object_mut() {
        inner.insert(key.to_owned(), value);
    }
}
