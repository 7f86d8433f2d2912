//! Objects whose owners are gone go too.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::super::cluster::{Cluster, Deletion, Key, Resource, owners};
use super::{deleting, drive, meta, release};

/// Runs until the task is ended.
pub async fn run(cluster: Arc<Cluster>) {
    drive(cluster, |cluster| {
        pass(cluster);
        None
    })
    .await;
}

fn pass(cluster: &Cluster) {
    let everything = cluster.everything();
    let alive: HashSet<&str> = everything.iter().map(|(_, object)| meta(object, "uid")).collect();
    let foreground = |object: &Value| {
        let list = object["metadata"]["finalizers"].as_array();
        deleting(object) && list.is_some_and(|list| list.iter().any(|name| name == "foregroundDeletion"))
    };
    let going: HashSet<&str> = everything
        .iter()
        .filter(|(_, object)| foreground(object))
        .map(|(_, object)| meta(object, "uid"))
        .collect();
    let uid = |owner: &Value| owner["uid"].as_str().unwrap_or_default().to_owned();
    let mut waited_for: HashSet<String> = HashSet::new();
    for (key, object) in &everything {
        let mut any = false;
        let mut orphaned = true;
        for owner in owners(object) {
            any = true;
            let uid = uid(owner);
            if alive.contains(uid.as_str()) && !going.contains(uid.as_str()) {
                orphaned = false;
            }
            if going.contains(uid.as_str()) {
                waited_for.insert(uid);
            }
        }
        if any && orphaned && !deleting(object) {
            delete(cluster, key, object);
        }
    }
    for (key, object) in &everything {
        let uid = meta(object, "uid");
        if going.contains(uid)
            && !waited_for.contains(uid)
            && let Some(resource) = resource(cluster, key)
        {
            release(cluster, &resource, object, "kube-controller-manager", "foregroundDeletion");
        }
    }
}

fn resource(cluster: &Cluster, key: &Key) -> Option<Resource> {
    let kind = cluster.kinds().into_iter().find(|kind| kind.group == key.0 && kind.plural == key.1)?;
    let version = kind.versions[0].name.clone();
    Some(Resource { kind, version })
}

fn delete(cluster: &Cluster, key: &Key, object: &Value) {
    if let Some(resource) = resource(cluster, key) {
        // The uid makes sure that it is still the same object.
        let deletion = Deletion { uid: Some(meta(object, "uid").to_owned()), ..Deletion::default() };
        let _ = cluster.delete(&resource, meta(object, "namespace"), meta(object, "name"), &deletion);
    }
}
