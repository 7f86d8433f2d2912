//! The kinds that the API serves: a table of built-in ones, and those that definitions add.

use std::sync::Arc;

use serde_json::{Value, json};

use super::schema::{self, Type};

/// A kind, in all its versions.
#[derive(Debug, Clone)]
pub struct Kind {
    /// Empty for the core group.
    pub group: String,
    /// `Deployment`
    pub kind: String,
    /// `DeploymentList`
    pub list_kind: String,
    /// `deployments`
    pub plural: String,
    /// `deployment`
    pub singular: String,
    /// `deploy`
    pub short_names: Vec<String>,
    /// `all`
    pub categories: Vec<String>,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Served versions, the preferred one first.
    pub versions: Vec<Version>,
    /// Whether a definition made it.
    pub custom: bool,
    /// Whether changes of the specification are counted in `metadata.generation`.
    pub counted: bool,
}

/// One version of a kind.
#[derive(Debug, Clone)]
pub struct Version {
    /// `v1`
    pub name: String,
    /// How its values merge.
    pub types: Arc<Type>,
    /// A definition's `openAPIV3Schema`.
    pub schema: Value,
    /// A definition's `additionalPrinterColumns`.
    pub columns: Vec<Value>,
    /// Whether it has the status subresource.
    pub status: bool,
    /// Whether it has the scale subresource.
    pub scale: bool,
}

impl Kind {
    /// `apps/v1`
    pub fn api_version(&self, version: &str) -> String {
        api_version(&self.group, version)
    }

    /// A version by its name.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.name == name)
    }
}

/// `apps/v1`, or `v1` for the core group.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

const STATUS: u8 = 1;
const COUNTED: u8 = 2;
const SCALE: u8 = 4;
const ALL: u8 = 8;
const CLUSTER: u8 = 16;

/// Group, version, kind, plural, short names, traits.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str, u8);

const BUILTIN: &[Row] = &[
    ("", "v1", "Namespace", "namespaces", "ns", CLUSTER | STATUS),
    ("", "v1", "Node", "nodes", "no", CLUSTER | STATUS),
    ("", "v1", "PersistentVolume", "persistentvolumes", "pv", CLUSTER | STATUS),
    ("", "v1", "Pod", "pods", "po", STATUS | ALL | COUNTED),
    ("", "v1", "Service", "services", "svc", STATUS | ALL),
    ("", "v1", "ServiceAccount", "serviceaccounts", "sa", 0),
    ("", "v1", "Secret", "secrets", "", 0),
    ("", "v1", "ConfigMap", "configmaps", "cm", 0),
    ("", "v1", "Endpoints", "endpoints", "ep", 0),
    ("", "v1", "Event", "events", "ev", 0),
    ("", "v1", "LimitRange", "limitranges", "limits", 0),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", STATUS),
    ("", "v1", "PodTemplate", "podtemplates", "", 0),
    ("", "v1", "ReplicationController", "replicationcontrollers", "rc", STATUS | ALL | COUNTED | SCALE),
    ("", "v1", "ResourceQuota", "resourcequotas", "quota", STATUS),
    ("apps", "v1", "Deployment", "deployments", "deploy", STATUS | ALL | COUNTED | SCALE),
    ("apps", "v1", "ReplicaSet", "replicasets", "rs", STATUS | ALL | COUNTED | SCALE),
    ("apps", "v1", "StatefulSet", "statefulsets", "sts", STATUS | ALL | COUNTED | SCALE),
    ("apps", "v1", "DaemonSet", "daemonsets", "ds", STATUS | ALL | COUNTED),
    ("batch", "v1", "Job", "jobs", "", STATUS | ALL | COUNTED),
    ("batch", "v1", "CronJob", "cronjobs", "cj", STATUS | ALL | COUNTED),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", STATUS | ALL),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "netpol", COUNTED),
    ("networking.k8s.io", "v1", "Ingress", "ingresses", "ing", STATUS | COUNTED),
    ("networking.k8s.io", "v1", "IngressClass", "ingressclasses", "", CLUSTER | COUNTED),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", STATUS | COUNTED),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "", CLUSTER),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", "", CLUSTER),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles", "", 0),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "", 0),
    (
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "crd,crds",
        CLUSTER | STATUS | COUNTED,
    ),
    ("coordination.k8s.io", "v1", "Lease", "leases", "", 0),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "pc", CLUSTER | COUNTED),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses", "sc", CLUSTER),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "", COUNTED),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        "",
        CLUSTER | COUNTED,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        "",
        CLUSTER | COUNTED,
    ),
];

/// The built-in kinds.
pub fn builtin() -> Vec<Kind> {
    let split = |text: &str| -> Vec<String> {
        text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let one = |&(group, version, kind, plural, short, traits): &Row| Kind {
        group: group.to_owned(),
        kind: kind.to_owned(),
        list_kind: format!("{kind}List"),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        short_names: split(short),
        categories: if traits & ALL == 0 { Vec::new() } else { vec!["all".to_owned()] },
        namespaced: traits & CLUSTER == 0,
        versions: vec![Version {
            name: version.to_owned(),
            types: schema::builtin(kind),
            schema: Value::Null,
            columns: Vec::new(),
            status: traits & STATUS != 0,
            scale: traits & SCALE != 0,
        }],
        custom: false,
        counted: traits & COUNTED != 0,
    };
    BUILTIN.iter().map(one).collect()
}

/// The kind that a definition adds.
pub fn custom(definition: &Value) -> Kind {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut versions: Vec<Version> = Vec::new();
    for version in spec["versions"].as_array().into_iter().flatten() {
        if version["served"] != true {
            continue;
        }
        let schema = &version["schema"]["openAPIV3Schema"];
        versions.push(Version {
            name: text(&version["name"]),
            types: schema::custom(schema),
            schema: schema.clone(),
            columns: version["additionalPrinterColumns"].as_array().cloned().unwrap_or_default(),
            status: version["subresources"]["status"].is_object(),
            scale: false,
        });
    }
    versions.sort_by_key(|version| std::cmp::Reverse(rank(&version.name)));
    Kind {
        group: text(&spec["group"]),
        kind: text(&names["kind"]),
        list_kind: names["listKind"]
            .as_str()
            .map_or_else(|| format!("{}List", text(&names["kind"])), str::to_owned),
        plural: text(&names["plural"]),
        singular: names["singular"]
            .as_str()
            .map_or_else(|| text(&names["kind"]).to_lowercase(), str::to_owned),
        short_names: list(&names["shortNames"]),
        categories: list(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        versions,
        custom: true,
        counted: true,
    }
}

/// Order of versions: stable over beta over alpha, then the greater number.
fn rank(version: &str) -> (u8, u32, u32) {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    let rest = version.trim_start_matches('v');
    match (rest.split_once("beta"), rest.split_once("alpha")) {
        (Some((major, minor)), _) => (1, number(major), number(minor)),
        (_, Some((major, minor))) => (0, number(major), number(minor)),
        _ => (2, number(rest), 0),
    }
}

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// `/api/v1` and `/apis/GROUP/VERSION`: an `APIResourceList`.
pub fn resource_list(kinds: &[Arc<Kind>], group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for kind in kinds.iter().filter(|kind| kind.group == group) {
        let Some(served) = kind.version(version) else { continue };
        let mut entry = json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced,
            "kind": kind.kind, "verbs": VERBS,
        });
        if !kind.short_names.is_empty() {
            entry["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            entry["categories"] = json!(kind.categories);
        }
        resources.push(entry);
        let sub = |name: &str| {
            json!({"name": format!("{}/{name}", kind.plural), "singularName": "",
                   "namespaced": kind.namespaced, "kind": kind.kind, "verbs": ["get", "patch", "update"]})
        };
        if served.status {
            resources.push(sub("status"));
        }
        if served.scale {
            let mut scale = sub("scale");
            scale["kind"] = json!("Scale");
            scale["group"] = json!("autoscaling");
            scale["version"] = json!("v1");
            resources.push(scale);
        }
    }
    for (name, kind, own_group) in REVIEWS {
        if *own_group == group && version == "v1" {
            resources.push(json!({"name": name, "singularName": kind.to_lowercase(), "namespaced": false,
                                  "kind": kind, "verbs": ["create"]}));
        }
    }
    if resources.is_empty() {
        return None;
    }
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1",
                "groupVersion": api_version(group, version), "resources": resources}))
}

/// Reviews that every user may ask for: who am I, may I.
pub const REVIEWS: &[(&str, &str, &str)] = &[
    ("selfsubjectaccessreviews", "SelfSubjectAccessReview", "authorization.k8s.io"),
    ("selfsubjectreviews", "SelfSubjectReview", "authentication.k8s.io"),
];

/// Groups with their versions, the preferred one first.
pub fn groups(kinds: &[Arc<Kind>]) -> Vec<(String, Vec<String>)> {
    let mut out: Vec<(String, Vec<String>)> = Vec::new();
    let reviews = REVIEWS.iter().map(|(_, _, group)| (group.to_string(), "v1".to_owned()));
    let served = kinds
        .iter()
        .flat_map(|kind| kind.versions.iter().map(|version| (kind.group.clone(), version.name.clone())));
    for (group, version) in served.chain(reviews) {
        match out.iter_mut().find(|(other, _)| *other == group) {
            Some((_, versions)) if versions.contains(&version) => {}
            Some((_, versions)) => versions.push(version),
            None => out.push((group, vec![version])),
        }
    }
    for (_, versions) in &mut out {
        versions.sort_by_key(|version| std::cmp::Reverse(rank(version)));
    }
    out
}

/// An `APIGroup`.
pub fn group(name: &str, versions: &[String]) -> Value {
    let version = |version: &String| json!({"groupVersion": api_version(name, version), "version": version});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": name,
           "versions": versions.iter().map(version).collect::<Vec<_>>(),
           "preferredVersion": version(&versions[0])})
}

/// The aggregated form of discovery: everything in one answer.
pub fn aggregated(kinds: &[Arc<Kind>], core: bool) -> Value {
    let mut items = Vec::new();
    for (group, versions) in groups(kinds) {
        if group.is_empty() != core {
            continue;
        }
        let mut entries = Vec::new();
        for version in &versions {
            let list = resource_list(kinds, &group, version).unwrap_or_default();
            let mut resources: Vec<Value> = Vec::new();
            for resource in list["resources"].as_array().into_iter().flatten() {
                let name = resource["name"].as_str().unwrap_or_default();
                let gvk = json!({
                    "group": resource["group"].as_str().unwrap_or(&group),
                    "version": resource["version"].as_str().unwrap_or(version),
                    "kind": resource["kind"],
                });
                if let Some((_, sub)) = name.split_once('/') {
                    if let Some(parent) = resources.last_mut() {
                        let entry =
                            json!({"subresource": sub, "responseKind": gvk, "verbs": resource["verbs"]});
                        match parent["subresources"].as_array_mut() {
                            Some(all) => all.push(entry),
                            None => parent["subresources"] = json!([entry]),
                        }
                    }
                    continue;
                }
                let scope = if resource["namespaced"] == true { "Namespaced" } else { "Cluster" };
                let mut entry = json!({"resource": name, "responseKind": gvk, "scope": scope,
                    "singularResource": resource["singularName"], "verbs": resource["verbs"]});
                for field in ["shortNames", "categories"] {
                    if !resource[field].is_null() {
                        entry[field] = resource[field].clone();
                    }
                }
                resources.push(entry);
            }
            entries.push(json!({"version": version, "resources": resources, "freshness": "Current"}));
        }
        items.push(json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": entries}));
    }
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}
