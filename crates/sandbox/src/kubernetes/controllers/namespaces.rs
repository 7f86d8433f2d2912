//! Namespaces: what each one has from the start, and how it ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::super::cluster::{Cluster, Deletion, Resource, Write};
use super::{Seen, all, deleting, drive, meta, set_condition, sooner};

const MANAGER: &str = "kube-controller-manager";

/// Runs until the task is ended.
pub async fn run(cluster: Arc<Cluster>, delay: Duration, ca_pem: String) {
    let mut seen = Seen::default();
    drive(cluster, |cluster| pass(cluster, delay, &ca_pem, &mut seen)).await;
}

fn pass(cluster: &Cluster, delay: Duration, ca_pem: &str, seen: &mut Seen) -> Option<Duration> {
    let mut next = None;
    let (resource, namespaces) = all(cluster, "", "namespaces");
    let resource = resource?;
    for namespace in namespaces {
        let name = meta(&namespace, "name");
        if !deleting(&namespace) {
            furnish(cluster, name, ca_pem);
            continue;
        }
        match seen.left(meta(&namespace, "uid"), delay) {
            Some(left) => next = sooner(next, Some(left)),
            None => empty(cluster, &resource, name),
        }
    }
    next
}

/// The default account and the cluster's CA, which every namespace has.
fn furnish(cluster: &Cluster, namespace: &str, ca_pem: &str) {
    let objects = [
        ("serviceaccounts", json!({"metadata": {"name": "default"}})),
        (
            "configmaps",
            json!({"metadata": {"name": "kube-root-ca.crt", "annotations": {"kubernetes.io/description":
                "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."}},
                "data": {"ca.crt": ca_pem}}),
        ),
    ];
    for (plural, object) in objects {
        let Some(resource) = cluster.resource("", "v1", plural) else { continue };
        if cluster.get(&resource, namespace, meta(&object, "name")).is_err() {
            // Somebody else may have made it at the same moment.
            let _ = cluster.create(&resource, namespace, object, &Write::by(MANAGER));
        }
    }
}

/// Deletes what is in a namespace, and the namespace when nothing is left.
fn empty(cluster: &Cluster, resource: &Resource, name: &str) {
    let mut remaining: BTreeMap<String, usize> = BTreeMap::new();
    let mut finalizers: BTreeMap<String, usize> = BTreeMap::new();
    for kind in cluster.kinds() {
        if !kind.namespaced {
            continue;
        }
        let inner = Resource { kind: kind.clone(), version: kind.versions[0].name.clone() };
        for object in cluster.list(&inner, Some(name), &Default::default()).0 {
            if !deleting(&object) {
                let _ = cluster.delete(&inner, name, meta(&object, "name"), &Deletion::default());
            }
        }
        for object in cluster.list(&inner, Some(name), &Default::default()).0 {
            *remaining.entry(super::super::failure::qualified(&kind.plural, &kind.group)).or_default() += 1;
            for finalizer in object["metadata"]["finalizers"].as_array().into_iter().flatten() {
                *finalizers.entry(finalizer.as_str().unwrap_or_default().to_owned()).or_default() += 1;
            }
        }
    }
    let write = Write { subresource: "finalize".to_owned(), ..Write::by(MANAGER) };
    if remaining.is_empty() {
        let _ = cluster.modify(resource, "", name, &write, |namespace| namespace["spec"] = json!({}));
        return;
    }
    let told = |counts: &BTreeMap<String, usize>, word: &str| {
        let parts: Vec<String> =
            counts.iter().map(|(name, count)| format!("{name} {word} {count} resource instances")).collect();
        parts.join(", ")
    };
    let _ = cluster.modify(resource, "", name, &Write::status(MANAGER), |namespace| {
        let mut set = |kind: &str, status: bool, reason: &str, message: String| {
            let status = if status { "True" } else { "False" };
            set_condition(
                namespace,
                json!({"type": kind, "status": status, "reason": reason, "message": message}),
            );
        };
        set(
            "NamespaceContentRemaining",
            true,
            "SomeResourcesRemain",
            format!("Some resources are remaining: {}", told(&remaining, "has")),
        );
        set(
            "NamespaceFinalizersRemaining",
            !finalizers.is_empty(),
            if finalizers.is_empty() { "ContentHasNoFinalizers" } else { "SomeFinalizersRemain" },
            if finalizers.is_empty() {
                "All content-preserving finalizers finished".to_owned()
            } else {
                format!("Some content in the namespace has finalizers remaining: {}", told(&finalizers, "in"))
            },
        );
    });
}
