//! Deployments, their replica sets and their pods, as EKS Fargate runs them.
//!
//! A pod starts when a Fargate profile selects its namespace and labels at the moment it is made;
//! a profile that comes later doesn't help it, as on EKS. Flux's controllers crash on Fargate when
//! their requests differ from their limits (fluxcd/flux2#3138), so they do here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::clock;
use super::super::cluster::{Cluster, Deletion, Resource, Write, owners, suffix};
use super::{Fargate, Seen, all, deleting, drive, has_condition, meta, set_condition, sooner};

const MANAGER: &str = "kube-controller-manager";
const KUBELET: &str = "kubelet";
/// What the container runtime says when a limit of CPU can't be set.
const START_ERROR: &str = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error setting cgroup config for procHooks process: failed to write \"100000\": write cpu.cfs_quota_us: invalid argument: unknown";

/// Runs until the task is ended.
pub async fn run(cluster: Arc<Cluster>, pod_start: Duration, fargate: Fargate, broken_images: Vec<String>) {
    let mut seen = Seen::default();
    let mut progress = Seen::default();
    drive(cluster, |cluster| {
        let next = deployments(cluster, &mut progress);
        replica_sets(cluster);
        sooner(next, pods(cluster, pod_start, &fargate, &broken_images, &mut seen))
    })
    .await;
}

fn owned_by<'a>(objects: &'a [Arc<Value>], owner: &Value) -> Vec<&'a Arc<Value>> {
    let uid = &owner["metadata"]["uid"];
    objects.iter().filter(|object| owners(object).any(|owner| owner["uid"] == *uid)).collect()
}

fn owner_reference(api_version: &str, kind: &str, owner: &Value) -> Value {
    json!([{"apiVersion": api_version, "kind": kind, "name": meta(owner, "name"), "uid": meta(owner, "uid"),
            "controller": true, "blockOwnerDeletion": true}])
}

/// A value as text that doesn't depend on the order of fields.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let ordered: BTreeMap<&String, String> =
                object.iter().map(|(name, value)| (name, canonical(value))).collect();
            format!("{ordered:?}")
        }
        Value::Array(list) => format!("{:?}", list.iter().map(canonical).collect::<Vec<_>>()),
        other => other.to_string(),
    }
}

/// Ten letters that stand for a pod template.
fn template_hash(template: &Value) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let hash = canonical(template)
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (0..10).map(|at| char::from(LETTERS[(hash >> (at * 6)) as usize % LETTERS.len()])).collect()
}

fn count(object: &Value, path: &[&str]) -> u64 {
    path.iter().fold(object, |value, name| &value[name]).as_u64().unwrap_or(0)
}

/// Numbers of a status: zeroes are left out, as typed clients do.
fn set_counts(object: &mut Value, counts: &[(&str, u64)]) {
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    let Some(status) = object["status"].as_object_mut() else { return };
    for (name, number) in counts {
        if *number == 0 {
            status.shift_remove(*name);
        } else {
            status.insert((*name).to_owned(), json!(number));
        }
    }
}

/// How many replicas may be missing while a rollout goes on.
fn may_miss(deployment: &Value, replicas: u64) -> u64 {
    match &deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] {
        Value::Number(number) => number.as_u64().unwrap_or(0),
        Value::String(percent) => percent.trim_end_matches('%').parse::<u64>().unwrap_or(0) * replicas / 100,
        _ => 0,
    }
}

fn deployments(cluster: &Cluster, progress: &mut Seen) -> Option<Duration> {
    let mut next = None;
    let (resource, deployments) = all(cluster, "apps", "deployments");
    let resource = resource?;
    for deployment in deployments.iter().filter(|deployment| !deleting(deployment)) {
        next = sooner(next, roll_out(cluster, &resource, deployment, progress));
    }
    next
}

fn roll_out(
    cluster: &Cluster,
    resource: &Resource,
    deployment: &Value,
    progress: &mut Seen,
) -> Option<Duration> {
    let (namespace, name) = (meta(deployment, "namespace"), meta(deployment, "name"));
    let wanted = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
    let template = &deployment["spec"]["template"];
    let hash = template_hash(template);
    let current = format!("{name}-{hash}");
    let (sets_resource, sets) = all(cluster, "apps", "replicasets");
    let sets_resource = sets_resource?;
    let sets = owned_by(&sets, deployment);
    let paused = deployment["spec"]["paused"] == true;
    let revision = |set: &Value| {
        let text = set["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str();
        text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    let mine = sets.iter().find(|set| meta(set, "name") == current);
    let write = Write::by(MANAGER);
    match mine {
        None if !paused => {
            let number = sets.iter().map(|set| revision(set)).max().unwrap_or(0) + 1;
            let mut template = template.clone();
            template["metadata"]["labels"]["pod-template-hash"] = json!(hash);
            let mut selector = deployment["spec"]["selector"].clone();
            selector["matchLabels"]["pod-template-hash"] = json!(hash);
            let set = json!({
                "metadata": {"name": current, "namespace": namespace,
                    "labels": template["metadata"]["labels"],
                    "annotations": {"deployment.kubernetes.io/revision": number.to_string()},
                    "ownerReferences": owner_reference("apps/v1", "Deployment", deployment)},
                "spec": {"replicas": wanted, "selector": selector, "template": template},
            });
            if cluster.create(&sets_resource, namespace, set, &write).is_ok() {
                let message = format!("Scaled up replica set {current} from 0 to {wanted}");
                cluster.event(deployment, "deployment-controller", "Normal", "ScalingReplicaSet", &message);
            }
            let _ = cluster.modify(resource, namespace, name, &write, |deployment| {
                if !deployment["metadata"]["annotations"].is_object() {
                    deployment["metadata"]["annotations"] = json!({});
                }
                deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] =
                    json!(number.to_string());
            });
            return None;
        }
        Some(set) if count(set, &["spec", "replicas"]) != wanted => {
            let _ = cluster.modify(&sets_resource, namespace, &current, &write, |set| {
                set["spec"]["replicas"] = json!(wanted);
            });
            return None;
        }
        _ => {}
    }
    let ready = mine.map_or(0, |set| count(set, &["status", "readyReplicas"]));
    let made = mine.map_or(0, |set| count(set, &["status", "replicas"]));
    // The old pods go when the new ones are there; with Recreate at once.
    let at_once = deployment["spec"]["strategy"]["type"] == "Recreate";
    for old in sets.iter().filter(|set| meta(set, "name") != current) {
        if count(old, &["spec", "replicas"]) > 0 && (at_once || ready >= wanted) && !paused {
            let _ = cluster.modify(&sets_resource, namespace, meta(old, "name"), &write, |set| {
                set["spec"]["replicas"] = json!(0);
            });
        }
    }
    let total: u64 = sets.iter().map(|set| count(set, &["status", "replicas"])).sum();
    let total_ready: u64 = sets.iter().map(|set| count(set, &["status", "readyReplicas"])).sum();
    let available = total_ready >= wanted.saturating_sub(may_miss(deployment, wanted));
    let complete = ready >= wanted && total == wanted;
    let patience = Duration::from_secs(deployment["spec"]["progressDeadlineSeconds"].as_u64().unwrap_or(600));
    let key = format!("{}/{hash}", meta(deployment, "uid"));
    let left = if complete { None } else { progress.left(&key, patience) };
    let late = !complete && left.is_none();
    if complete {
        progress.forget(&key);
    }
    let generation = deployment["metadata"]["generation"].clone();
    let outcome = cluster.modify(resource, namespace, name, &Write::status(MANAGER), |deployment| {
        set_counts(
            deployment,
            &[
                ("replicas", total),
                ("updatedReplicas", made),
                ("readyReplicas", total_ready),
                ("availableReplicas", total_ready),
                ("unavailableReplicas", wanted.saturating_sub(total_ready)),
            ],
        );
        deployment["status"]["observedGeneration"] = generation;
        let (status, reason, message) = if available {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        let told = |kind: &str, status: &str, reason: &str, message: String| {
            json!({"type": kind, "status": status, "reason": reason, "message": message, "lastUpdateTime": clock::now()})
        };
        update_condition(deployment, told("Available", status, reason, message.to_owned()));
        let (status, reason, message) = if complete {
            ("True", "NewReplicaSetAvailable", format!("ReplicaSet \"{current}\" has successfully progressed."))
        } else if late {
            ("False", "ProgressDeadlineExceeded", format!("ReplicaSet \"{current}\" has timed out progressing."))
        } else {
            ("True", "ReplicaSetUpdated", format!("ReplicaSet \"{current}\" is progressing."))
        };
        update_condition(deployment, told("Progressing", status, reason, message));
    });
    if let Err(failure) = outcome {
        tracing::debug!(%failure, name, "a deployment's status could not be written");
    }
    left
}

/// Sets a condition that also has the time of its last update, and only when something else changes.
fn update_condition(object: &mut Value, condition: Value) {
    let list = object["status"]["conditions"].as_array();
    let same = list.into_iter().flatten().any(|old| {
        ["type", "status", "reason", "message"].iter().all(|field| old[field] == condition[field])
    });
    if !same {
        set_condition(object, condition);
    }
}

fn replica_sets(cluster: &Cluster) {
    let (resource, sets) = all(cluster, "apps", "replicasets");
    let (pods_resource, pods) = all(cluster, "", "pods");
    let (Some(resource), Some(pods_resource)) = (resource, pods_resource) else { return };
    for set in sets.iter().filter(|set| !deleting(set)) {
        let (namespace, name) = (meta(set, "namespace"), meta(set, "name"));
        let wanted = count(set, &["spec", "replicas"]) as usize;
        let mine: Vec<&Arc<Value>> = owned_by(&pods, set).into_iter().filter(|pod| !deleting(pod)).collect();
        for _ in mine.len()..wanted {
            let mut pod = json!({"metadata": set["spec"]["template"]["metadata"], "spec": set["spec"]["template"]["spec"]});
            let full = format!("{name}-{}", suffix());
            pod["metadata"]["name"] = json!(full);
            pod["metadata"]["generateName"] = json!(format!("{name}-"));
            pod["metadata"]["namespace"] = json!(namespace);
            pod["metadata"]["ownerReferences"] = owner_reference("apps/v1", "ReplicaSet", set);
            match cluster.create(&pods_resource, namespace, pod, &Write::by(MANAGER)) {
                Ok(_) => {
                    let message = format!("Created pod: {full}");
                    cluster.event(set, "replicaset-controller", "Normal", "SuccessfulCreate", &message);
                }
                Err(failure) => {
                    let message = format!("Error creating: {failure}");
                    cluster.event(set, "replicaset-controller", "Warning", "FailedCreate", &message);
                }
            }
        }
        for pod in mine.iter().skip(wanted) {
            let _ = cluster.delete(&pods_resource, namespace, meta(pod, "name"), &Deletion::default());
        }
        let made = mine.len().min(wanted) as u64;
        let ready = mine.iter().take(wanted).filter(|pod| has_condition(pod, "Ready", "True")).count() as u64;
        let generation = set["metadata"]["generation"].clone();
        let _ = cluster.modify(&resource, namespace, name, &Write::status(MANAGER), |set| {
            set_counts(
                set,
                &[("fullyLabeledReplicas", made), ("readyReplicas", ready), ("availableReplicas", ready)],
            );
            set["status"]["replicas"] = json!(made);
            set["status"]["observedGeneration"] = generation;
        });
    }
}

fn pods(
    cluster: &Cluster,
    delay: Duration,
    fargate: &Fargate,
    broken_images: &[String],
    seen: &mut Seen,
) -> Option<Duration> {
    let mut next = None;
    let (resource, pods) = all(cluster, "", "pods");
    let resource = resource?;
    for pod in pods.iter().filter(|pod| !deleting(pod)) {
        let decided =
            has_condition(pod, "PodScheduled", "True") || has_condition(pod, "PodScheduled", "False");
        if !decided && pod["metadata"]["labels"]["eks.amazonaws.com/fargate-profile"].is_null() {
            schedule(cluster, &resource, pod, fargate);
            continue;
        }
        if !pod["status"]["containerStatuses"].is_null() || has_condition(pod, "PodScheduled", "False") {
            continue;
        }
        match seen.left(meta(pod, "uid"), delay) {
            Some(left) => next = sooner(next, Some(left)),
            None => {
                start(cluster, &resource, pod, broken_images);
                seen.forget(meta(pod, "uid"));
            }
        }
    }
    next
}

/// Decides where a new pod runs.
fn schedule(cluster: &Cluster, resource: &Resource, pod: &Value, fargate: &Fargate) {
    let (namespace, name) = (meta(pod, "namespace"), meta(pod, "name"));
    match fargate.profile(namespace, &pod["metadata"]["labels"]) {
        Some(profile) => {
            let _ = cluster.modify(resource, namespace, name, &Write::by("eks-fargate"), |pod| {
                if !pod["metadata"]["labels"].is_object() {
                    pod["metadata"]["labels"] = json!({});
                }
                pod["metadata"]["labels"]["eks.amazonaws.com/fargate-profile"] = json!(profile);
                pod["spec"]["schedulerName"] = json!("fargate-scheduler");
            });
        }
        None => {
            let message = "no nodes available to schedule pods";
            let outcome = cluster.modify(resource, namespace, name, &Write::status("kube-scheduler"), |pod| {
                set_condition(
                    pod,
                    json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}),
                );
            });
            if outcome.is_ok() {
                cluster.event(pod, "default-scheduler", "Warning", "FailedScheduling", message);
            }
        }
    }
}

/// Whether a container of Flux's would crash: its requests differ from its limits.
fn crashes(pod: &Value, container: &Value) -> bool {
    let resources = &container["resources"];
    pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "flux"
        && !resources["limits"].is_null()
        && resources["requests"] != resources["limits"]
}

fn start(cluster: &Cluster, resource: &Resource, pod: &Value, broken_images: &[String]) {
    let (namespace, name) = (meta(pod, "namespace"), meta(pod, "name"));
    let sum =
        meta(pod, "uid").bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let (third, fourth) = (sum / 250 % 250 + 1, sum % 250 + 2);
    let node = format!("fargate-ip-10-0-{third}-{fourth}");
    let mut statuses = Vec::new();
    let mut warnings = Vec::new();
    for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
        let (label, image) = (&container["name"], container["image"].as_str().unwrap_or_default());
        let label_text = label.as_str().unwrap_or_default();
        let mut status = json!({"name": label, "image": image, "imageID": image, "restartCount": 0,
            "ready": true, "started": true, "state": {"running": {"startedAt": clock::now()}}});
        if broken_images.iter().any(|broken| image.contains(broken.as_str())) {
            let message = format!("Back-off pulling image \"{image}\"");
            status["state"] = json!({"waiting": {"reason": "ImagePullBackOff", "message": message}});
            warnings.push(("Failed", format!("Failed to pull image \"{image}\": not found")));
            warnings.push(("BackOff", message));
        } else if crashes(pod, container) {
            let message = format!(
                "back-off 10s restarting failed container={label_text} pod={name}_{namespace}({})",
                meta(pod, "uid")
            );
            status["state"] = json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}});
            status["lastState"] = json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": START_ERROR,
                "startedAt": "1970-01-01T00:00:00Z", "finishedAt": clock::now()}});
            status["restartCount"] = json!(1);
            warnings.push(("Failed", format!("Error: {START_ERROR}")));
            warnings.push((
                "BackOff",
                format!(
                    "Back-off restarting failed container {label_text} in pod {name}_{namespace}({})",
                    meta(pod, "uid")
                ),
            ));
        }
        if !status["state"]["waiting"].is_null() {
            status["ready"] = json!(false);
            status["started"] = json!(false);
        }
        statuses.push(status);
    }
    let ready = statuses.iter().all(|status| status["ready"] == true);
    let pulling = statuses.iter().any(|status| status["state"]["waiting"]["reason"] == "ImagePullBackOff");
    let names: Vec<&str> = statuses
        .iter()
        .filter(|status| status["ready"] == false)
        .filter_map(|status| status["name"].as_str())
        .collect();
    let unready = format!("containers with unready status: [{}]", names.join(" "));
    let _ = cluster.modify(resource, namespace, name, &Write::by("eks-fargate"), |pod| {
        pod["spec"]["nodeName"] = json!(node);
    });
    let _ = cluster.modify(resource, namespace, name, &Write::status(KUBELET), |pod| {
        pod["status"]["phase"] = json!(if pulling { "Pending" } else { "Running" });
        pod["status"]["podIP"] = json!(format!("10.0.{third}.{fourth}"));
        pod["status"]["podIPs"] = json!([{"ip": format!("10.0.{third}.{fourth}")}]);
        pod["status"]["startTime"] = json!(clock::now());
        pod["status"]["containerStatuses"] = json!(statuses);
        for kind in ["PodScheduled", "Initialized"] {
            set_condition(pod, json!({"type": kind, "status": "True"}));
        }
        for kind in ["ContainersReady", "Ready"] {
            let mut condition = json!({"type": kind, "status": if ready { "True" } else { "False" }});
            if !ready {
                condition["reason"] = json!("ContainersNotReady");
                condition["message"] = json!(unready);
            }
            set_condition(pod, condition);
        }
    });
    let message = format!("Successfully assigned {namespace}/{name} to {node}");
    cluster.event(pod, "fargate-scheduler", "Normal", "Scheduled", &message);
    for (reason, message) in warnings {
        cluster.event(pod, KUBELET, "Warning", reason, &message);
    }
}
