//! Flux Kustomizations, as kustomize-controller reconciles them.
//!
//! Reasons, messages and the order of things follow kustomize-controller 1.9
//! (`internal/controller/kustomization_controller.go`) and fluxcd/pkg/ssa.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::clock;
use super::super::cluster::{Cluster, Deletion, PatchKind, Resource, Write, split_version};
use super::super::failure::Failure;
use super::super::kustomize::{self, Additions};
use super::super::managed;
use super::flux::{self, FINALIZER, Subject};
use super::sources::Artifacts;
use super::{deleting, has_condition, meta, release, remove_condition};

const CONTROLLER: &str = "kustomize-controller";
/// The field manager of Flux's statuses.
const MANAGER: &str = "gotk-kustomize-controller";
const GROUP: &str = "kustomize.toolkit.fluxcd.io";
/// After this time dependencies and missing artifacts are looked for again.
const DEPENDENCY: Duration = Duration::from_secs(30);

/// Runs until the task is ended.
pub async fn run(cluster: Arc<Cluster>, delay: Duration, artifacts: Artifacts) {
    let subject = Subject { deployment: CONTROLLER, group: GROUP, plural: "kustomizations" };
    let inner = cluster.clone();
    let noticed: Arc<Mutex<HashMap<String, String>>> = Arc::default();
    flux::reconcile(cluster, subject, delay, revision_of_source, move |resource, object| {
        let run = Run {
            cluster: inner.clone(),
            artifacts: artifacts.clone(),
            resource,
            object,
            started: Instant::now(),
            noticed: noticed.clone(),
        };
        async move { run.one().await }
    })
    .await;
}

fn source(cluster: &Cluster, object: &Value) -> Result<Arc<Value>, Failure> {
    let reference = &object["spec"]["sourceRef"];
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let namespace = reference["namespace"].as_str().unwrap_or(meta(object, "namespace"));
    let plural = match text("kind") {
        "GitRepository" => "gitrepositories",
        "OCIRepository" => "ocirepositories",
        "Bucket" => "buckets",
        "ExternalArtifact" => "externalartifacts",
        kind => {
            let text = format!("source `{}` kind '{kind}' not supported", text("name"));
            return Err(Failure::internal(text));
        }
    };
    let missing = || Failure::not_found("source.toolkit.fluxcd.io", plural, text("name"));
    let resource = cluster.resource("source.toolkit.fluxcd.io", "v1", plural).ok_or_else(missing)?;
    cluster.get(&resource, namespace, text("name"))
}

/// A new artifact of the source counts as a change.
fn revision_of_source(cluster: &Cluster, object: &Value) -> String {
    let source = source(cluster, object);
    let revision = source.as_ref().ok().and_then(|source| source["status"]["artifact"]["revision"].as_str());
    revision.unwrap_or_default().to_owned()
}

/// Why a reconciliation failed: the reason of the condition, its message, and what the event says.
struct Failed {
    reason: &'static str,
    message: String,
    event: Option<String>,
}

impl Failed {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Failed { reason, message: message.into(), event: None }
    }
}

/// What became of an object.
struct Change {
    object: Value,
    action: &'static str,
}

/// One reconciliation.
struct Run {
    cluster: Arc<Cluster>,
    artifacts: Artifacts,
    resource: Resource,
    object: Arc<Value>,
    started: Instant,
    /// What the last event of an object said, so that the same failure isn't counted every time.
    noticed: Arc<Mutex<HashMap<String, String>>>,
}

impl Run {
    async fn one(&self) -> Duration {
        let object = &self.object;
        if deleting(object) {
            self.finalize();
            return Duration::from_secs(3600);
        }
        flux::hold(&self.cluster, &self.resource, object, CONTROLLER);
        if object["spec"]["suspend"] == true {
            return Duration::from_secs(3600);
        }
        let interval = flux::duration(object, "interval").unwrap_or(Duration::from_secs(600));
        let retry = flux::duration(object, "retryInterval").unwrap_or(interval);
        let source = match source(&self.cluster, object) {
            Ok(source) => source,
            Err(failure) => {
                self.not_ready("ArtifactFailed", &failure.message);
                return retry;
            }
        };
        if source["status"]["artifact"]["revision"].is_null() {
            let message = format!("Source artifact not found, retrying in {}", clock::format_go(DEPENDENCY));
            self.not_ready("ArtifactFailed", &message);
            return DEPENDENCY;
        }
        if let Err(message) = self.dependencies(&source) {
            self.not_ready("DependencyNotReady", &message);
            let message = format!(
                "Dependencies do not meet ready condition, retrying in {}",
                clock::format_go(DEPENDENCY)
            );
            self.event("Normal", "DependencyNotReady", &message);
            return DEPENDENCY;
        }
        match self.reconcile(&source).await {
            Ok(()) => {
                let message = format!(
                    "Reconciliation finished in {}ms, next run in {}",
                    self.started.elapsed().as_millis(),
                    clock::format_go(interval)
                );
                self.event("Normal", "ReconciliationSucceeded", &message);
                interval
            }
            Err(failed) => {
                self.not_ready(failed.reason, &failed.message);
                self.event("Warning", failed.reason, failed.event.as_deref().unwrap_or(&failed.message));
                retry
            }
        }
    }

    fn event(&self, kind: &str, reason: &str, message: &str) {
        // The time that it took differs from run to run; what it says is the same.
        let short = message.split(" in ").next().unwrap_or(message).to_owned();
        let mut noticed = self.noticed.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = meta(&self.object, "uid").to_owned();
        if short.starts_with("Reconciliation finished") && noticed.get(&uid) == Some(&short) {
            return;
        }
        noticed.insert(uid, short);
        drop(noticed);
        self.cluster.event(&self.object, CONTROLLER, kind, reason, message);
    }

    fn status(&self, change: impl FnOnce(&mut Value)) {
        flux::status(&self.cluster, &self.resource, &self.object, MANAGER, change);
    }

    fn generation(&self) -> &Value {
        &self.object["metadata"]["generation"]
    }

    fn not_ready(&self, reason: &str, message: &str) {
        self.status(|live| {
            let mut all = live["status"]["conditions"].as_array().into_iter().flatten();
            let running = all.find(|condition| condition["type"] == "Reconciling");
            let old = running.and_then(|condition| condition["message"].as_str()).map(str::to_owned);
            if let Some(old) = old {
                flux::mark(live, self.generation(), "Reconciling", "True", "ProgressingWithRetry", &old);
            }
            flux::mark(live, self.generation(), "Ready", "False", reason, message);
            flux::handled(live, &self.object);
        });
    }

    fn progress(&self, message: &str, change: impl FnOnce(&mut Value)) {
        self.status(|live| {
            flux::mark(live, self.generation(), "Reconciling", "True", "Progressing", message);
            flux::mark(
                live,
                self.generation(),
                "Ready",
                "Unknown",
                "Progressing",
                "Reconciliation in progress",
            );
            change(live);
        });
    }

    fn dependencies(&self, source: &Value) -> Result<(), String> {
        let revision = &source["status"]["artifact"]["revision"];
        for dependency in self.object["spec"]["dependsOn"].as_array().into_iter().flatten() {
            let name = dependency["name"].as_str().unwrap_or_default();
            let namespace = dependency["namespace"].as_str().unwrap_or(meta(&self.object, "namespace"));
            let shown = format!("{namespace}/{name}");
            let found = self
                .cluster
                .get(&self.resource, namespace, name)
                .map_err(|failure| format!("dependency '{shown}' not found: {failure}"))?;
            let observed = found["status"]["observedGeneration"] == found["metadata"]["generation"];
            if !observed || !has_condition(&found, "Ready", "True") {
                return Err(format!("dependency '{shown}' is not ready"));
            }
            let same = found["spec"]["sourceRef"]["name"] == self.object["spec"]["sourceRef"]["name"]
                && found["spec"]["sourceRef"]["kind"] == self.object["spec"]["sourceRef"]["kind"];
            if same && found["status"]["lastAppliedRevision"] != *revision {
                return Err(format!("dependency '{shown}' revision is not up to date"));
            }
        }
        Ok(())
    }

    fn timeout(&self) -> Duration {
        let interval = flux::duration(&self.object, "interval").unwrap_or(Duration::from_secs(600));
        let usual = interval.saturating_sub(Duration::from_secs(30)).max(Duration::from_secs(30));
        flux::duration(&self.object, "timeout").unwrap_or(usual)
    }

    async fn reconcile(&self, source: &Value) -> Result<(), Failed> {
        let object = &self.object;
        let artifact = &source["status"]["artifact"];
        let revision = artifact["revision"].as_str().unwrap_or_default().to_owned();
        let limit = clock::format_go(self.timeout());
        let during = |what: &str| format!("{what} for revision {revision} with a timeout of {limit}");
        self.progress(&during("Fetching manifests"), |_| {});
        let stored = self.artifacts.get(meta(source, "namespace"), meta(source, "name"));
        let Some(stored) = stored.filter(|stored| stored.revision == revision) else {
            let message = format!(
                "Source is not ready, artifact not found, retrying in {}",
                clock::format_go(DEPENDENCY)
            );
            return Err(Failed::new("ArtifactFailed", message));
        };
        let root = stored.files.path();
        let path = object["spec"]["path"].as_str().unwrap_or("./");
        let folder = inside(root, path);
        if !folder.exists() {
            let message =
                format!("kustomization path not found: stat {}: no such file or directory", shown(path));
            return Err(Failed::new("ArtifactFailed", message));
        }
        self.progress(&during("Building manifests"), |live| {
            live["status"]["lastAttemptedRevision"] = json!(revision);
        });
        let mut objects = kustomize::build(root, &folder, &self.additions())
            .map_err(|text| Failed::new("BuildFailed", text))?;
        self.prepare(&mut objects);
        self.progress(&during("Detecting drift"), |_| {});
        let changes = self.apply_all(objects).await?;
        let told: Vec<String> = changes
            .iter()
            .filter(|change| matches!(change.action, "created" | "configured"))
            .map(|change| format!("{} {}", subject(&change.object), change.action))
            .collect();
        if !told.is_empty() {
            self.event("Normal", "Progressing", &told.join("\n"));
        }
        let entries: Vec<Value> = changes.iter().map(|change| entry(&change.object)).collect();
        let before = object["status"]["inventory"]["entries"].as_array().cloned().unwrap_or_default();
        let stale: Vec<Value> =
            before.into_iter().filter(|old| !entries.iter().any(|new| new["id"] == old["id"])).collect();
        self.status(|live| live["status"]["inventory"] = json!({"entries": entries}));
        if object["spec"]["prune"] == true {
            let gone = self.delete(&stale);
            if !gone.is_empty() {
                self.event("Normal", "Progressing", &gone.join("\n"));
            }
        }
        self.check_health(&changes, &during("Running health checks")).await?;
        self.status(|live| {
            live["status"]["lastAppliedRevision"] = json!(revision);
            live["status"]["lastAttemptedRevision"] = json!(revision);
            live["status"]["observedGeneration"] = self.generation().clone();
            remove_condition(live, "Reconciling");
            let message = format!("Applied revision: {revision}");
            flux::mark(live, self.generation(), "Ready", "True", "ReconciliationSucceeded", &message);
            flux::handled(live, object);
        });
        Ok(())
    }

    fn additions(&self) -> Additions {
        let spec = &self.object["spec"];
        let list = |field: &str| spec[field].as_array().cloned().unwrap_or_default();
        let text = |field: &str| spec[field].as_str().map(str::to_owned);
        let kinds = self.cluster.kinds();
        Additions {
            namespace: text("targetNamespace"),
            patches: list("patches"),
            images: list("images"),
            components: list("components"),
            prefix: text("namePrefix"),
            suffix: text("nameSuffix"),
            cluster_kinds: kinds
                .iter()
                .filter(|kind| !kind.namespaced)
                .map(|kind| kind.kind.clone())
                .collect(),
        }
    }

    /// Common metadata, and the labels by which Flux knows its own.
    fn prepare(&self, objects: &mut [Value]) {
        let (namespace, name) = (meta(&self.object, "namespace"), meta(&self.object, "name"));
        for object in objects {
            for part in ["labels", "annotations"] {
                for (field, value) in
                    self.object["spec"]["commonMetadata"][part].as_object().into_iter().flatten()
                {
                    object["metadata"][part][field] = value.clone();
                }
            }
            object["metadata"]["labels"][format!("{GROUP}/name")] = json!(name);
            object["metadata"]["labels"][format!("{GROUP}/namespace")] = json!(namespace);
        }
    }

    /// Cluster definitions first, then the rest, as fluxcd/pkg/ssa stages them.
    async fn apply_all(&self, mut objects: Vec<Value>) -> Result<Vec<Change>, Failed> {
        objects.sort_by_key(|object| (rank(object), subject(object)));
        let first: Vec<Value> = objects.iter().filter(|object| is_definition(object)).cloned().collect();
        let rest: Vec<Value> = objects.into_iter().filter(|object| !is_definition(object)).collect();
        let mut changes = Vec::new();
        self.stage(first, &mut changes)?;
        self.established(&changes).await?;
        self.stage(rest, &mut changes)?;
        Ok(changes)
    }

    fn stage(&self, objects: Vec<Value>, changes: &mut Vec<Change>) -> Result<(), Failed> {
        let fail = |message: String, changes: &[Change]| {
            let done: Vec<String> = changes
                .iter()
                .filter(|change| matches!(change.action, "created" | "configured"))
                .map(|change| format!("{} {}\n", subject(&change.object), change.action))
                .collect();
            Failed::new("ReconciliationFailed", format!("{message}\n{}", done.concat()))
        };
        let mut planned = Vec::new();
        for object in objects {
            planned.push(self.plan(&object).map_err(|message| fail(message, changes))?);
        }
        for (resource, object, action) in planned {
            if matches!(action, "created" | "configured") {
                let write = Write { force: true, ..Write::by(CONTROLLER) };
                let (namespace, name) = (meta(&object, "namespace"), meta(&object, "name"));
                self.cluster.patch(&resource, namespace, name, PatchKind::Apply, &object, &write).map_err(
                    |failure| fail(format!("{} apply failed: {failure}", subject(&object)), changes),
                )?;
            }
            changes.push(Change { object, action });
        }
        Ok(())
    }

    /// What applying an object would do, by a dry run.
    fn plan(&self, object: &Value) -> Result<(Resource, Value, &'static str), String> {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let Some(resource) = self.cluster.resource_of(text("apiVersion"), text("kind")) else {
            return Err(format!(
                "{} dry-run failed: no matches for kind \"{}\" in version \"{}\"",
                subject(object),
                text("kind"),
                text("apiVersion")
            ));
        };
        let mut object = object.clone();
        if !resource.kind.namespaced {
            if let Some(meta) = object["metadata"].as_object_mut() {
                meta.shift_remove("namespace");
            }
        } else if meta(&object, "namespace").is_empty() {
            object["metadata"]["namespace"] = json!("default");
        }
        let annotation = |name: &str| {
            let key = format!("{GROUP}/{name}");
            object["metadata"]["annotations"][&key].as_str().unwrap_or_default().to_lowercase()
        };
        let (namespace, name) = (meta(&object, "namespace"), meta(&object, "name"));
        let live = self.cluster.get(&resource, namespace, name).ok();
        let on_live = live.as_ref().map(|live| {
            let key = |name: &str| {
                live["metadata"]["annotations"][format!("{GROUP}/{name}")]
                    .as_str()
                    .unwrap_or_default()
                    .to_lowercase()
            };
            (key("reconcile"), key("ssa"))
        });
        let (reconcile, mode) = on_live.unwrap_or_default();
        let skipped = annotation("reconcile") == "disabled"
            || annotation("ssa") == "ignore"
            || reconcile == "disabled"
            || mode == "ignore"
            || (annotation("ssa") == "ifnotpresent" && live.is_some());
        if skipped {
            return Ok((resource, object, "skipped"));
        }
        if let Some(live) = &live {
            self.take_back(&resource, live);
        }
        let write = Write { force: true, dry_run: true, ..Write::by(CONTROLLER) };
        let outcome = self.cluster.patch(&resource, namespace, name, PatchKind::Apply, &object, &write);
        let (new, made) = outcome.map_err(|failure| dry_run_error(&object, &failure))?;
        let action = match live {
            None => "created",
            Some(_) if made => "created",
            Some(live) if bare(&resource.show(&live)) == bare(&new) => "unchanged",
            Some(_) => "configured",
        };
        Ok((resource, object, action))
    }

    /// Takes over what kubectl owns of an object, so that changes by hand don't outlive the next apply.
    fn take_back(&self, resource: &Resource, live: &Value) {
        const KEPT: &str = "kubectl.kubernetes.io/last-applied-configuration";
        let kubectl = |name: &str| name.starts_with("kubectl") || name == "before-first-apply";
        let Some(managers) = managed::hand_over(live, kubectl, CONTROLLER) else { return };
        let (namespace, name) = (meta(live, "namespace"), meta(live, "name"));
        // When the object goes at this moment, the apply says so.
        let _ = self.cluster.modify(resource, namespace, name, &Write::by(CONTROLLER), |live| {
            live["metadata"]["managedFields"] = managers;
            if let Some(annotations) = live["metadata"]["annotations"].as_object_mut() {
                annotations.shift_remove(KEPT);
            }
        });
    }

    /// Waits until the definitions of a stage are served.
    async fn established(&self, changes: &[Change]) -> Result<(), Failed> {
        let Some(resource) = self.cluster.resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        else {
            return Ok(());
        };
        let mut watch = self.cluster.changes();
        let waiting = || {
            changes.iter().find(|change| {
                change.object["kind"] == "CustomResourceDefinition"
                    && !self
                        .cluster
                        .get(&resource, "", meta(&change.object, "name"))
                        .is_ok_and(|live| has_condition(&live, "Established", "True"))
            })
        };
        let wait = async {
            loop {
                watch.mark_unchanged();
                if waiting().is_none() || watch.changed().await.is_err() {
                    return;
                }
            }
        };
        let limit = Duration::from_secs(60);
        if tokio::time::timeout(limit, wait).await.is_ok() {
            return Ok(());
        }
        let name = waiting().map(|change| subject(&change.object)).unwrap_or_default();
        Err(Failed::new(
            "ReconciliationFailed",
            format!("timeout waiting for: [{name} status: 'InProgress']: context deadline exceeded"),
        ))
    }

    /// Deletes what the inventory has and Flux still owns; what was deleted, in words.
    fn delete(&self, entries: &[Value]) -> Vec<String> {
        let owner = (meta(&self.object, "name"), meta(&self.object, "namespace"));
        let mut gone = Vec::new();
        for entry in entries.iter().rev() {
            let Some((resource, namespace, name)) = self.located(entry) else { continue };
            let Ok(live) = self.cluster.get(&resource, &namespace, &name) else { continue };
            let label = |field: &str| {
                live["metadata"]["labels"][format!("{GROUP}/{field}")].as_str().unwrap_or_default()
            };
            let annotation = |field: &str| {
                live["metadata"]["annotations"][format!("{GROUP}/{field}")].as_str().unwrap_or_default()
            };
            let kept = annotation("prune") == "disabled" || annotation("reconcile") == "disabled";
            if (label("name"), label("namespace")) != owner || kept {
                continue;
            }
            let deletion = Deletion { propagation: "Background".to_owned(), ..Deletion::default() };
            if self.cluster.delete(&resource, &namespace, &name, &deletion).is_ok() {
                gone.push(format!("{} deleted", subject(&live)));
            }
        }
        gone
    }

    /// The object that an inventory entry names: `namespace_name_group_kind`.
    fn located(&self, entry: &Value) -> Option<(Resource, String, String)> {
        let id = entry["id"].as_str()?;
        let mut parts = id.rsplitn(3, '_');
        let (kind, group, rest) = (parts.next()?, parts.next()?, parts.next()?);
        let (namespace, name) = rest.split_once('_')?;
        let version = entry["v"].as_str()?;
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let resource = self.cluster.resource_of(&api_version, kind)?;
        Some((resource, namespace.to_owned(), name.replace("__", ":")))
    }

    async fn check_health(&self, changes: &[Change], message: &str) -> Result<(), Failed> {
        let spec = &self.object["spec"];
        let own = (meta(&self.object, "namespace").to_owned(), meta(&self.object, "name").to_owned());
        let mut checked: Vec<(Resource, String, String)> = Vec::new();
        if spec["wait"] == true {
            for change in changes.iter().filter(|change| change.action != "skipped") {
                checked.extend(self.located(&entry(&change.object)));
            }
        } else {
            for check in spec["healthChecks"].as_array().into_iter().flatten() {
                let text = |field: &str| check[field].as_str().unwrap_or_default();
                if let Some(resource) = self.cluster.resource_of(text("apiVersion"), text("kind")) {
                    checked.push((resource, text("namespace").to_owned(), text("name").to_owned()));
                }
            }
        }
        checked.retain(|(resource, namespace, name)| {
            resource.kind.plural != "kustomizations" || (namespace, name) != (&own.0, &own.1)
        });
        if checked.is_empty() {
            self.status(|live| remove_condition(live, "Healthy"));
            return Ok(());
        }
        self.progress(message, |live| {
            flux::mark(live, self.generation(), "Healthy", "Unknown", "Progressing", message);
        });
        let started = Instant::now();
        let mut watch = self.cluster.changes();
        let unhealthy = || -> Vec<String> {
            let state = |(resource, namespace, name): &(Resource, String, String)| {
                let live = self.cluster.get(resource, namespace, name).ok();
                let state = live.as_ref().map_or("NotFound", |live| health(live));
                (state != "Current").then(|| {
                    let place = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
                    format!("{}/{place}{name} status: '{state}'", resource.kind.kind)
                })
            };
            checked.iter().filter_map(state).collect()
        };
        let wait = async {
            loop {
                watch.mark_unchanged();
                if unhealthy().is_empty() || watch.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(self.timeout(), wait).await.is_err() {
            let text = format!("timeout waiting for: [{}]", unhealthy().join(", "));
            self.status(|live| {
                flux::mark(live, self.generation(), "Healthy", "False", "HealthCheckFailed", &text);
            });
            let message =
                format!("health check failed after {}: {text}", clock::format_go(started.elapsed()));
            return Err(Failed { event: Some(message.clone()), ..Failed::new("HealthCheckFailed", message) });
        }
        let message = format!("Health check passed in {}", clock::format_go(started.elapsed()));
        self.status(|live| {
            flux::mark(live, self.generation(), "Healthy", "True", "Succeeded", &message);
        });
        Ok(())
    }

    /// Ends a Kustomization that is being deleted: its objects first, when it prunes.
    fn finalize(&self) {
        let object = &self.object;
        let spec = &object["spec"];
        let deletes = match spec["deletionPolicy"].as_str() {
            None | Some("MirrorPrune") => spec["prune"] == true,
            Some("Orphan") => false,
            Some(_) => true,
        };
        if deletes && spec["suspend"] != true {
            let entries = object["status"]["inventory"]["entries"].as_array().cloned().unwrap_or_default();
            let gone = self.delete(&entries);
            if !gone.is_empty() {
                self.event("Normal", "Progressing", &gone.join("\n"));
            }
        }
        release(&self.cluster, &self.resource, object, CONTROLLER, FINALIZER);
    }
}

/// A path below a folder; steps out of it lead nowhere.
fn inside(root: &Path, path: &str) -> std::path::PathBuf {
    let mut out = root.to_path_buf();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if out != root {
                    out.pop();
                }
            }
            part => out.push(part),
        }
    }
    out
}

fn shown(path: &str) -> String {
    format!("/tmp/kustomization/{}", path.trim_start_matches("./").trim_matches('/'))
}

/// An object as Flux names it: `Deployment/default/nginx`.
fn subject(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default();
    match meta(object, "namespace") {
        "" => format!("{kind}/{}", meta(object, "name")),
        namespace => format!("{kind}/{namespace}/{}", meta(object, "name")),
    }
}

fn entry(object: &Value) -> Value {
    let (group, version) = split_version(object["apiVersion"].as_str().unwrap_or_default());
    let id = format!(
        "{}_{}_{group}_{}",
        meta(object, "namespace"),
        meta(object, "name").replace(':', "__"),
        object["kind"].as_str().unwrap_or_default()
    );
    json!({"id": id, "v": version})
}

fn is_definition(object: &Value) -> bool {
    matches!(object["kind"].as_str(), Some("CustomResourceDefinition" | "Namespace" | "ClusterRole"))
}

/// The order in which fluxcd/pkg/ssa applies kinds.
fn rank(object: &Value) -> usize {
    const FIRST: [&str; 22] = [
        "CustomResourceDefinition",
        "Namespace",
        "ClusterClass",
        "RuntimeClass",
        "PriorityClass",
        "StorageClass",
        "VolumeSnapshotClass",
        "IngressClass",
        "GatewayClass",
        "ResourceQuota",
        "ServiceAccount",
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
        "ConfigMap",
        "Secret",
        "Service",
        "LimitRange",
        "Deployment",
        "StatefulSet",
        "CronJob",
    ];
    const LAST: [&str; 3] =
        ["PodDisruptionBudget", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
    let kind = object["kind"].as_str().unwrap_or_default();
    match (FIRST.iter().position(|other| *other == kind), LAST.iter().position(|other| *other == kind)) {
        (Some(at), _) => at,
        (_, Some(at)) => FIRST.len() + 1 + at,
        _ => FIRST.len(),
    }
}

fn dry_run_error(object: &Value, failure: &Failure) -> String {
    if failure.code == 404 {
        return format!("{} not found: {failure}", subject(object));
    }
    format!("{} dry-run failed ({}): {failure}", subject(object), failure.reason)
}

/// An object without what changes by itself.
fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object["metadata"].as_object_mut() {
        for field in ["managedFields", "resourceVersion", "generation"] {
            meta.shift_remove(field);
        }
    }
    object
}

/// An object's health in one word, as kstatus has it.
fn health(object: &Value) -> &'static str {
    if deleting(object) {
        return "Terminating";
    }
    let generation = &object["metadata"]["generation"];
    let observed = &object["status"]["observedGeneration"];
    if observed.is_number() && observed != generation {
        return "InProgress";
    }
    let current = |good: bool| if good { "Current" } else { "InProgress" };
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    match object["kind"].as_str() {
        Some("Deployment") => {
            if has_condition(object, "Progressing", "False") {
                return "Failed";
            }
            let wanted = object["spec"]["replicas"].as_u64().unwrap_or(1);
            let status = &object["status"];
            current(
                observed.is_number()
                    && number(&status["updatedReplicas"]) >= wanted
                    && number(&status["readyReplicas"]) >= wanted
                    && number(&status["replicas"]) == wanted
                    && has_condition(object, "Available", "True"),
            )
        }
        Some("CustomResourceDefinition") => current(has_condition(object, "Established", "True")),
        Some("Pod") => current(has_condition(object, "Ready", "True")),
        Some("Namespace") => current(object["status"]["phase"] == "Active"),
        _ if has_condition(object, "Ready", "False") => "InProgress",
        _ if has_condition(object, "Reconciling", "True") => "InProgress",
        _ if has_condition(object, "Stalled", "True") => "Failed",
        _ => "Current",
    }
}
