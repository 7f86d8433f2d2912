//! What the emulation of Flux's controllers shares: when they run, and what they do when.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::clock;
use super::super::cluster::{Cluster, Resource, Write};
use super::{all, deleting, has_condition, meta, set_condition, sooner};

/// The finalizer of Flux's objects.
pub const FINALIZER: &str = "finalizers.fluxcd.io";

/// Where Flux's objects stand.
pub const REQUESTED: &str = "reconcile.fluxcd.io/requestedAt";

/// Which kind a controller reconciles.
pub struct Subject {
    /// The Deployment that must be available.
    pub deployment: &'static str,
    /// `source.toolkit.fluxcd.io`
    pub group: &'static str,
    /// `gitrepositories`
    pub plural: &'static str,
}

/// The namespaces that a running controller watches: nothing when none runs, an empty name for all.
fn scopes(cluster: &Cluster, deployment: &str) -> Vec<String> {
    let (_, deployments) = all(cluster, "apps", "deployments");
    let running = deployments
        .iter()
        .filter(|object| meta(object, "name") == deployment && has_condition(object, "Available", "True"));
    let scope = |object: &Arc<Value>| {
        let containers = object["spec"]["template"]["spec"]["containers"].as_array();
        let own = containers.into_iter().flatten().any(|container| {
            container["args"]
                .as_array()
                .is_some_and(|args| args.contains(&json!("--watch-all-namespaces=false")))
        });
        if own { meta(object, "namespace").to_owned() } else { String::new() }
    };
    running.map(scope).collect()
}

struct Job {
    token: String,
    due: Instant,
    running: bool,
}

/// Reconciles the objects of a kind: each when it changes, when it is asked for, and when its time has come.
///
/// `trigger` adds to what counts as a change; `work` reconciles one object and says when again.
pub async fn reconcile<F>(
    cluster: Arc<Cluster>,
    subject: Subject,
    delay: Duration,
    trigger: impl Fn(&Cluster, &Value) -> String,
    work: impl Fn(Resource, Arc<Value>) -> F,
) where
    F: Future<Output = Duration> + Send + 'static,
{
    let mut jobs: HashMap<String, Job> = HashMap::new();
    let mut running: JoinSet<(String, Duration)> = JoinSet::new();
    let mut changes = cluster.changes();
    loop {
        changes.mark_unchanged();
        let mut pause: Option<Duration> = None;
        let scopes = scopes(&cluster, subject.deployment);
        let resource = cluster.resource(subject.group, "v1", subject.plural);
        if let (Some(resource), false) = (resource, scopes.is_empty()) {
            for object in cluster.list(&resource, None, &Default::default()).0 {
                if !scopes.iter().any(|scope| scope.is_empty() || scope == meta(&object, "namespace")) {
                    continue;
                }
                let token = format!(
                    "{}/{}/{}/{}",
                    object["metadata"]["generation"],
                    object["metadata"]["annotations"][REQUESTED],
                    deleting(&object),
                    trigger(&cluster, &object)
                );
                let uid = meta(&object, "uid").to_owned();
                let now = Instant::now();
                let job = jobs.entry(uid.clone()).or_insert_with(|| Job {
                    token: String::new(),
                    due: now + delay,
                    running: false,
                });
                if job.running {
                    continue;
                }
                if job.token != token && !job.token.is_empty() {
                    job.due = job.due.min(now + delay);
                }
                if job.token != token || now >= job.due {
                    if now < job.due {
                        pause = sooner(pause, Some(job.due - now));
                        // What has changed is remembered by its old token until its time has come.
                        continue;
                    }
                    job.token = token;
                    job.running = true;
                    let future = work(resource.clone(), object);
                    running.spawn(async move { (uid, future.await) });
                } else {
                    pause = sooner(pause, Some(job.due - now));
                }
            }
        } else {
            // A controller that comes back starts anew.
            jobs.retain(|_, job| job.running);
        }
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            Some(done) = running.join_next() => {
                if let Ok((uid, next)) = done
                    && let Some(job) = jobs.get_mut(&uid)
                {
                    job.running = false;
                    job.due = Instant::now() + next;
                }
            }
            () = clock::sleep(pause.unwrap_or(Duration::from_secs(3600))) => {}
        }
    }
}

/// Makes sure that an object has Flux's finalizer.
pub fn hold(cluster: &Cluster, resource: &Resource, object: &Value, manager: &str) {
    let held = object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|list| list.iter().any(|name| name == FINALIZER));
    if held {
        return;
    }
    let (namespace, name) = (meta(object, "namespace"), meta(object, "name"));
    // When it has gone meanwhile there is nothing to hold.
    let _ = cluster.modify(resource, namespace, name, &Write::by(manager), |object| {
        match object["metadata"]["finalizers"].as_array_mut() {
            Some(list) => list.push(json!(FINALIZER)),
            None => object["metadata"]["finalizers"] = json!([FINALIZER]),
        }
    });
}

/// Writes an object's status.
pub fn status(
    cluster: &Cluster,
    resource: &Resource,
    object: &Value,
    manager: &str,
    change: impl FnOnce(&mut Value),
) {
    let (namespace, name) = (meta(object, "namespace"), meta(object, "name"));
    let outcome = cluster.modify(resource, namespace, name, &Write::status(manager), |live| {
        // A status is about one object: not about another that has taken its name.
        if live["metadata"]["uid"] == object["metadata"]["uid"] {
            change(live);
        }
    });
    if let Err(failure) = outcome {
        tracing::debug!(%failure, name, "a status could not be written");
    }
}

/// Sets a condition of the generation that was reconciled.
pub fn mark(live: &mut Value, generation: &Value, kind: &str, status: &str, reason: &str, message: &str) {
    set_condition(
        live,
        json!({"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": generation}),
    );
    // Flux writes Reconciling first, then Ready, then the rest.
    if let Some(list) = live["status"]["conditions"].as_array_mut() {
        list.sort_by_key(|condition| match condition["type"].as_str() {
            Some("Reconciling" | "Stalled") => 0,
            Some("Ready") => 1,
            _ => 2,
        });
    }
}

/// Notes that a request to reconcile has been handled.
pub fn handled(live: &mut Value, object: &Value) {
    if let Some(at) = object["metadata"]["annotations"][REQUESTED].as_str() {
        live["status"]["lastHandledReconcileAt"] = json!(at);
    }
}

/// A duration field of a specification.
pub fn duration(object: &Value, field: &str) -> Option<Duration> {
    object["spec"][field].as_str().and_then(clock::parse_go)
}
