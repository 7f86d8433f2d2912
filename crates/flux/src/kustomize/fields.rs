//! Labels and annotations: which fields of which kinds they go to.

use serde_json::{Map, Value};

use crate::object;

/// How far labels reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Labels {
    /// The object itself.
    Metadata,
    /// The object and its templates.
    Templates,
    /// The object, its templates and every selector, as `commonLabels` does.
    Selectors,
}

/// A field that labels go to: of which group, version and kind (empty: any), where, and whether it
/// is made when it is not there. `[]` in a path means each element; lists without it are walked, too.
struct Field {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    path: &'static str,
    create: bool,
}

const fn field(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    path: &'static str,
    create: bool,
) -> Field {
    Field { group, version, kind, path, create }
}

const TEMPLATES: [Field; 9] = [
    field("", "v1", "ReplicationController", "spec/template/metadata/", true),
    field("", "", "Deployment", "spec/template/metadata/", true),
    field("", "", "ReplicaSet", "spec/template/metadata/", true),
    field("", "", "DaemonSet", "spec/template/metadata/", true),
    field("apps", "", "StatefulSet", "spec/template/metadata/", true),
    field("batch", "", "Job", "spec/template/metadata/", true),
    field("batch", "", "CronJob", "spec/jobTemplate/metadata/", true),
    field("batch", "", "CronJob", "spec/jobTemplate/spec/template/metadata/", true),
    // Labels only: annotations leave claims alone.
    field("apps", "", "StatefulSet", "spec/volumeClaimTemplates[]/metadata/", true),
];

const SELECTORS: [Field; 12] = [
    field("", "v1", "Service", "spec/selector", true),
    field("", "v1", "ReplicationController", "spec/selector", true),
    field("", "", "Deployment", "spec/selector/matchLabels", true),
    field("", "", "ReplicaSet", "spec/selector/matchLabels", true),
    field("", "", "DaemonSet", "spec/selector/matchLabels", true),
    field("apps", "", "StatefulSet", "spec/selector/matchLabels", true),
    field("batch", "", "Job", "spec/selector/matchLabels", false),
    field("batch", "", "CronJob", "spec/jobTemplate/spec/selector/matchLabels", false),
    field("policy", "", "PodDisruptionBudget", "spec/selector/matchLabels", false),
    field("networking.k8s.io", "", "NetworkPolicy", "spec/podSelector/matchLabels", false),
    field("networking.k8s.io", "", "NetworkPolicy", "spec/ingress/from/podSelector/matchLabels", false),
    field("networking.k8s.io", "", "NetworkPolicy", "spec/egress/to/podSelector/matchLabels", false),
];

/// In the pod templates of these, in addition.
const SPREAD_KINDS: [&str; 2] = ["Deployment", "StatefulSet"];
const SPREAD: [&str; 5] = [
    "spec/template/spec/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution/podAffinityTerm/labelSelector/matchLabels",
    "spec/template/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/labelSelector/matchLabels",
    "spec/template/spec/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/podAffinityTerm/labelSelector/matchLabels",
    "spec/template/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/labelSelector/matchLabels",
    "spec/template/spec/topologySpreadConstraints/labelSelector/matchLabels",
];

/// Adds labels.
pub(super) fn label(objects: &mut [Value], pairs: &[(String, String)], reach: Labels) {
    if pairs.is_empty() {
        return;
    }
    for object in objects {
        set(object, "metadata/labels", true, pairs);
        if reach == Labels::Metadata {
            continue;
        }
        for field in TEMPLATES.iter().filter(|field| field.is_for(object)).collect::<Vec<_>>() {
            set(object, &format!("{}labels", field.path), field.create, pairs);
        }
        if reach == Labels::Templates {
            continue;
        }
        for field in SELECTORS.iter().filter(|field| field.is_for(object)).collect::<Vec<_>>() {
            set(object, field.path, field.create, pairs);
        }
        if object::group_version(object).0 == "apps" && SPREAD_KINDS.contains(&object::kind(object)) {
            for path in SPREAD {
                set(object, path, false, pairs);
            }
        }
    }
}

/// Adds annotations to objects and their templates.
pub(super) fn annotate(objects: &mut [Value], pairs: &[(String, String)]) {
    if pairs.is_empty() {
        return;
    }
    for object in objects {
        set(object, "metadata/annotations", true, pairs);
        for field in TEMPLATES.iter().filter(|field| field.is_for(object)).collect::<Vec<_>>() {
            if !field.path.contains("[]") {
                set(object, &format!("{}annotations", field.path), field.create, pairs);
            }
        }
    }
}

impl Field {
    fn is_for(&self, object: &Value) -> bool {
        let (group, version) = object::group_version(object);
        let fits = |wanted: &str, actual: &str| wanted.is_empty() || wanted == actual;
        fits(self.group, group) && fits(self.version, version) && fits(self.kind, object::kind(object))
    }
}

fn set(value: &mut Value, path: &str, create: bool, pairs: &[(String, String)]) {
    if let Value::Array(items) = value {
        items.iter_mut().for_each(|item| set(item, path, create, pairs));
        return;
    }
    let (part, rest) = path.split_once('/').unwrap_or((path, ""));
    let name = part.strip_suffix("[]").unwrap_or(part);
    let Some(map) = value.as_object_mut() else { return };
    if create && name == part && map.get(name).is_none_or(Value::is_null) {
        map.insert(name.to_owned(), Value::Object(Map::new()));
    }
    let Some(inner) = map.get_mut(name) else { return };
    if !rest.is_empty() {
        set(inner, rest, create, pairs);
    } else if let Some(target) = inner.as_object_mut() {
        for (key, value) in pairs {
            target.insert(key.clone(), Value::String(value.clone()));
        }
    }
}
