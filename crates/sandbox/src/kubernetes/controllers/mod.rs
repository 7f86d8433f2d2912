//! The controllers, as far as the demo needs them.
//!
//! Each is a task that looks at the cluster after every change and acts on what it finds; what takes
//! time in reality takes a settable time here.

mod definitions;
mod flux;
mod garbage;
mod git;
mod kustomizations;
mod namespaces;
mod sources;
mod workloads;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::clock;
use super::cluster::{Cluster, Resource, Write};
use super::{Delays, FargateSelector};

/// Which pods Fargate takes.
#[derive(Clone)]
pub struct Fargate(Arc<Mutex<Vec<FargateSelector>>>);

impl Fargate {
    /// With these selectors.
    pub fn new(selectors: Vec<FargateSelector>) -> Self {
        Fargate(Arc::new(Mutex::new(selectors)))
    }

    /// Other selectors.
    pub fn set(&self, selectors: Vec<FargateSelector>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = selectors;
    }

    /// The profile that takes a pod.
    pub fn profile(&self, namespace: &str, labels: &Value) -> Option<String> {
        let selectors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let takes = |selector: &&FargateSelector| {
            fits(&selector.namespace, namespace)
                && selector.labels.iter().all(|(name, value)| labels[name.as_str()] == value.as_str())
        };
        selectors.iter().find(takes).map(|selector| selector.profile.clone())
    }
}

/// Whether a pattern with `*` and `?` fits.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => {
            fits(&pattern[1..], text)
                || text.chars().next().is_some_and(|first| fits(pattern, &text[first.len_utf8()..]))
        }
        Some(wanted) => text.chars().next().is_some_and(|first| {
            (wanted == '?' || wanted == first)
                && fits(&pattern[wanted.len_utf8()..], &text[first.len_utf8()..])
        }),
    }
}

/// The objects that every cluster starts with.
pub fn populate(cluster: &Cluster) {
    let write = Write::by("kube-apiserver");
    let mut objects: Vec<Value> = ["default", "kube-system", "kube-public", "kube-node-lease"]
        .iter()
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        .collect();
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)]
    {
        objects.push(json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value}));
    }
    for name in ["cluster-admin", "admin", "edit", "view"] {
        objects.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}));
    }
    for object in objects {
        let of = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
        if let Some(resource) = cluster.resource_of(&of("apiVersion"), &of("kind")) {
            // They are the first objects of a new cluster, so nothing can be in their way.
            let _ = cluster.create(&resource, "", object, &write);
        }
    }
}

/// Starts them all.
pub fn start(
    cluster: &Arc<Cluster>,
    delays: &Delays,
    fargate: &Fargate,
    broken_images: &[String],
    ca_pem: &str,
) -> Vec<JoinHandle<()>> {
    let artifacts = sources::Artifacts::default();
    vec![
        tokio::spawn(definitions::run(cluster.clone(), delays.established)),
        tokio::spawn(namespaces::run(cluster.clone(), delays.namespace, ca_pem.to_owned())),
        tokio::spawn(garbage::run(cluster.clone())),
        tokio::spawn(workloads::run(
            cluster.clone(),
            delays.pod_start,
            fargate.clone(),
            broken_images.to_vec(),
        )),
        tokio::spawn(sources::run(cluster.clone(), delays.reconcile, artifacts.clone())),
        tokio::spawn(kustomizations::run(cluster.clone(), delays.reconcile, artifacts)),
    ]
}

/// Runs a controller's passes: one after every change of the cluster, and when the last one asked for it.
async fn drive(cluster: Arc<Cluster>, mut pass: impl FnMut(&Cluster) -> Option<Duration>) {
    let mut changes = cluster.changes();
    loop {
        changes.mark_unchanged();
        let pause = pass(&cluster).unwrap_or(Duration::from_secs(3600));
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = clock::sleep(pause) => {}
        }
    }
}

/// Remembers when something was first seen, for delays.
#[derive(Default)]
struct Seen(HashMap<String, Instant>);

impl Seen {
    /// How long it is still to wait since the first call for this name; nothing when it is over.
    fn left(&mut self, name: &str, delay: Duration) -> Option<Duration> {
        let since = self.0.entry(name.to_owned()).or_insert_with(Instant::now);
        let left = delay.saturating_sub(since.elapsed());
        (!left.is_zero()).then_some(left)
    }

    fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }
}

/// The sooner of two waits.
fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The objects of a built-in kind.
fn all(cluster: &Cluster, group: &str, plural: &str) -> (Option<Resource>, Vec<Arc<Value>>) {
    let version = if group == "autoscaling" { "v2" } else { "v1" };
    let Some(resource) = cluster.resource(group, version, plural) else { return (None, Vec::new()) };
    let (objects, _) = cluster.list(&resource, None, &Default::default());
    (Some(resource), objects)
}

fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

fn deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Sets a condition; its time changes only with its status.
fn set_condition(object: &mut Value, condition: Value) {
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    let status = &mut object["status"];
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(list) = status["conditions"].as_array_mut() else { return };
    let mut condition = condition;
    match list.iter_mut().find(|old| old["type"] == condition["type"]) {
        Some(old) => {
            let time = if old["status"] == condition["status"] {
                old["lastTransitionTime"].clone()
            } else {
                json!(clock::now())
            };
            condition["lastTransitionTime"] = time;
            *old = condition;
        }
        None => {
            condition["lastTransitionTime"] = json!(clock::now());
            list.push(condition);
        }
    }
}

fn remove_condition(object: &mut Value, kind: &str) {
    if let Some(list) = object["status"]["conditions"].as_array_mut() {
        list.retain(|condition| condition["type"] != kind);
    }
}

fn has_condition(object: &Value, kind: &str, status: &str) -> bool {
    let list = object["status"]["conditions"].as_array();
    list.into_iter().flatten().any(|condition| condition["type"] == kind && condition["status"] == status)
}

/// Takes a finalizer away.
fn release(cluster: &Cluster, resource: &Resource, object: &Value, manager: &str, finalizer: &str) {
    // When the object has gone meanwhile there is nothing to release.
    let _ = cluster.modify(
        resource,
        meta(object, "namespace"),
        meta(object, "name"),
        &Write::by(manager),
        |object| {
            if let Some(list) = object["metadata"]["finalizers"].as_array_mut() {
                list.retain(|name| name != finalizer);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fargate_selects_by_namespace_and_labels() {
        let fargate = Fargate::new(vec![
            FargateSelector::namespace("flux*"),
            FargateSelector {
                profile: "web".to_owned(),
                namespace: "app-?".to_owned(),
                labels: vec![("tier".to_owned(), "web".to_owned())],
            },
        ]);
        for (namespace, labels, expected) in [
            ("fluxcd", json!({}), Some("flux*")),
            ("flux", json!({}), Some("flux*")),
            ("app-1", json!({"tier": "web"}), Some("web")),
            ("app-1", json!({}), None),
            ("app-12", json!({"tier": "web"}), None),
            ("default", Value::Null, None),
        ] {
            assert_eq!(fargate.profile(namespace, &labels).as_deref(), expected, "{namespace}");
        }
    }
}
