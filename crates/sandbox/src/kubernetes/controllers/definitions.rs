//! Definitions of custom kinds: established after a while, and cleaned up before they go.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::cluster::{CLEANUP, Cluster, Deletion, Resource, Write};
use super::{Seen, all, deleting, drive, has_condition, meta, release, set_condition, sooner};

const MANAGER: &str = "kube-apiserver";

/// Runs until the task is ended.
pub async fn run(cluster: Arc<Cluster>, delay: Duration) {
    let mut seen = Seen::default();
    drive(cluster, |cluster| pass(cluster, delay, &mut seen)).await;
}

fn pass(cluster: &Cluster, delay: Duration, seen: &mut Seen) -> Option<Duration> {
    let mut next = None;
    let (resource, definitions) = all(cluster, "apiextensions.k8s.io", "customresourcedefinitions");
    let resource = resource?;
    for definition in definitions {
        if deleting(&definition) {
            clean(cluster, &resource, &definition);
        } else if !has_condition(&definition, "Established", "True") {
            match seen.left(meta(&definition, "uid"), delay) {
                Some(left) => next = sooner(next, Some(left)),
                None => establish(cluster, &resource, &definition),
            }
        }
    }
    next
}

fn establish(cluster: &Cluster, resource: &Resource, definition: &Value) {
    let name = meta(definition, "name");
    let outcome = cluster.modify(resource, "", name, &Write::status(MANAGER), |definition| {
        set_condition(
            definition,
            json!({"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"}),
        );
        set_condition(
            definition,
            json!({"type": "Established", "status": "True", "reason": "InitialNamesAccepted",
                   "message": "the initial names have been accepted"}),
        );
        definition["status"]["acceptedNames"] = definition["spec"]["names"].clone();
        let stored: Vec<Value> = definition["spec"]["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|version| version["storage"] == true)
            .map(|version| version["name"].clone())
            .collect();
        definition["status"]["storedVersions"] = json!(stored);
    });
    if let Err(failure) = outcome {
        tracing::debug!(%failure, name, "a definition could not be established");
    }
}

/// Deletes a definition's objects, and lets the definition go when none is left.
fn clean(cluster: &Cluster, resource: &Resource, definition: &Value) {
    let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (part(&definition["spec"]["group"]), part(&definition["spec"]["names"]["plural"]));
    let versions = definition["spec"]["versions"].as_array();
    let served = versions.into_iter().flatten().find_map(|version| {
        let name = version["name"].as_str()?;
        cluster.resource(&group, name, &plural)
    });
    let mut left = 0;
    if let Some(custom) = served {
        let (objects, _) = cluster.list(&custom, None, &Default::default());
        for object in objects {
            if !deleting(&object) {
                let _ = cluster.delete(
                    &custom,
                    meta(&object, "namespace"),
                    meta(&object, "name"),
                    &Deletion::default(),
                );
            }
        }
        left = cluster.list(&custom, None, &Default::default()).0.len();
    }
    if left == 0 {
        release(cluster, resource, definition, MANAGER, CLEANUP);
        return;
    }
    let _ = cluster.modify(resource, "", meta(definition, "name"), &Write::status(MANAGER), |definition| {
        set_condition(
            definition,
            json!({"type": "Terminating", "status": "True", "reason": "InstanceDeletionInProgress",
                   "message": "CustomResource deletion is in progress"}),
        );
    });
}
