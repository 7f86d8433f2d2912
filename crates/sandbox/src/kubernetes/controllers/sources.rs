//! GitRepositories, as source-controller reconciles them.
//!
//! Reasons, messages and the order of things follow source-controller 1.9
//! (`internal/controller/gitrepository_controller.go`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::super::clock;
use super::super::cluster::{Cluster, Resource};
use super::flux::{self, FINALIZER, Subject};
use super::git::{self, Credentials, Fetched, Reference};
use super::{deleting, meta, release, remove_condition};

const CONTROLLER: &str = "source-controller";
/// The field manager of Flux's statuses.
const MANAGER: &str = "gotk-source-controller";

/// The files that GitRepositories have fetched, by namespace and name.
#[derive(Clone, Default)]
pub struct Artifacts(Arc<Mutex<HashMap<(String, String), Artifact>>>);

/// Fetched files at a revision.
#[derive(Clone)]
pub struct Artifact {
    /// `branch@sha1:…`
    pub revision: String,
    /// The files; they stay as long as somebody reads them.
    pub files: Arc<TempDir>,
}

impl Artifacts {
    /// The files of a GitRepository.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Artifact> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn set(&self, namespace: &str, name: &str, artifact: Option<Artifact>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (namespace.to_owned(), name.to_owned());
        match artifact {
            Some(artifact) => all.insert(key, artifact),
            None => all.remove(&key),
        };
    }
}

/// Runs until the task is ended.
pub async fn run(cluster: Arc<Cluster>, delay: Duration, artifacts: Artifacts) {
    let subject =
        Subject { deployment: CONTROLLER, group: "source.toolkit.fluxcd.io", plural: "gitrepositories" };
    let failures: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let inner = cluster.clone();
    flux::reconcile(
        cluster,
        subject,
        delay,
        |_, _| String::new(),
        move |resource, object| {
            let (cluster, artifacts, failures) = (inner.clone(), artifacts.clone(), failures.clone());
            async move {
                let uid = meta(&object, "uid").to_owned();
                let interval = flux::duration(&object, "interval").unwrap_or(Duration::from_secs(60));
                let good = one(&cluster, &resource, &object, &artifacts).await;
                let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                if good {
                    failures.remove(&uid);
                    return interval;
                }
                // Failures are retried after 750 ms, then ever later, as Flux's rate limiter has it.
                let count = failures.entry(uid).or_default();
                *count += 1;
                let pause = Duration::from_millis(750 * (1u64 << (*count - 1).min(10)));
                pause.min(Duration::from_secs(900))
            }
        },
    )
    .await;
}

/// Why a fetch failed: reason and message.
struct Failed(&'static str, String);

/// Reconciles one GitRepository; whether it went well.
async fn one(cluster: &Cluster, resource: &Resource, object: &Value, artifacts: &Artifacts) -> bool {
    let (namespace, name) = (meta(object, "namespace"), meta(object, "name"));
    if deleting(object) {
        artifacts.set(namespace, name, None);
        release(cluster, resource, object, CONTROLLER, FINALIZER);
        return true;
    }
    flux::hold(cluster, resource, object, CONTROLLER);
    if object["spec"]["suspend"] == true {
        return true;
    }
    let generation = &object["metadata"]["generation"];
    let stored = artifacts.get(namespace, name);
    let old = object["status"]["artifact"]["revision"].as_str();
    let kept = stored.as_ref().filter(|stored| Some(stored.revision.as_str()) == old);
    let progress = |message: &str| {
        flux::status(cluster, resource, object, MANAGER, |live| {
            flux::mark(live, generation, "Reconciling", "True", "Progressing", message);
            flux::mark(live, generation, "Ready", "Unknown", "Progressing", message);
        });
    };
    if kept.is_none() {
        progress("building artifact");
    }
    match fetch(cluster, object, kept.map(|kept| kept.revision.as_str())).await {
        Ok((reference, Fetched::New { commit, message, files })) => {
            let revision = reference.revision(&commit);
            progress(&format!("building artifact: new upstream revision '{revision}'"));
            let (digest, size) = measure(files.path());
            let path = format!("gitrepository/{namespace}/{name}/{commit}.tar.gz");
            let artifact = json!({
                "digest": format!("sha256:{digest}"), "lastUpdateTime": clock::now(), "path": path,
                "revision": revision, "size": size,
                "url": format!("http://source-controller.{namespace}.svc.cluster.local./{path}"),
            });
            artifacts.set(
                namespace,
                name,
                Some(Artifact { revision: revision.clone(), files: Arc::new(files) }),
            );
            flux::status(cluster, resource, object, MANAGER, |live| {
                live["status"]["artifact"] = artifact;
                succeed(live, object, &revision);
            });
            cluster.event(
                object,
                CONTROLLER,
                "Normal",
                "NewArtifact",
                &format!("stored artifact for commit '{message}'"),
            );
            true
        }
        Ok((_, Fetched::Same)) => {
            let revision = kept.map(|kept| kept.revision.clone()).unwrap_or_default();
            flux::status(cluster, resource, object, MANAGER, |live| succeed(live, object, &revision));
            let message = format!("no changes since last reconcilation: observed revision '{revision}'");
            cluster.event(object, CONTROLLER, "Normal", "GitOperationSucceeded", &message);
            true
        }
        Ok((_, Fetched::Empty)) => {
            fail(
                cluster,
                resource,
                object,
                &Failed("EmptyGitRepository", "git repository is empty".to_owned()),
            );
            false
        }
        Err(failed) => {
            fail(cluster, resource, object, &failed);
            false
        }
    }
}

fn succeed(live: &mut Value, object: &Value, revision: &str) {
    let generation = &object["metadata"]["generation"];
    let message = format!("stored artifact for revision '{revision}'");
    for gone in ["Reconciling", "FetchFailed", "ArtifactOutdated", "Stalled"] {
        remove_condition(live, gone);
    }
    flux::mark(live, generation, "Ready", "True", "Succeeded", &message);
    flux::mark(live, generation, "ArtifactInStorage", "True", "Succeeded", &message);
    live["status"]["observedGeneration"] = generation.clone();
    flux::handled(live, object);
}

fn fail(cluster: &Cluster, resource: &Resource, object: &Value, Failed(reason, message): &Failed) {
    let generation = &object["metadata"]["generation"];
    flux::status(cluster, resource, object, MANAGER, |live| {
        // The observed generation stays what it was: this one has not been reconciled.
        let old = live["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == "Reconciling")
            .and_then(|condition| condition["message"].as_str())
            .unwrap_or("building artifact")
            .to_owned();
        flux::mark(live, generation, "Reconciling", "True", "ProgressingWithRetry", &old);
        flux::mark(live, generation, "Ready", "False", reason, message);
        flux::mark(live, generation, "FetchFailed", "True", reason, message);
        flux::handled(live, object);
    });
    cluster.event(object, CONTROLLER, "Warning", reason, message);
}

fn reference(object: &Value) -> Result<Reference, Failed> {
    let spec = &object["spec"]["ref"];
    let text = |field: &str| spec[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    if let Some(name) = text("name") {
        return Ok(Reference::Name(name));
    }
    if let Some(commit) = text("commit") {
        return Ok(Reference::Commit(commit, text("branch")));
    }
    if text("semver").is_some() {
        let message = "failed to checkout and determine revision: the sandbox resolves no semver ranges";
        return Err(Failed("GitOperationFailed", message.to_owned()));
    }
    Ok(text("tag")
        .map(Reference::Tag)
        .unwrap_or_else(|| Reference::Branch(text("branch").unwrap_or_else(|| "master".to_owned()))))
}

async fn fetch(
    cluster: &Cluster,
    object: &Value,
    known: Option<&str>,
) -> Result<(Reference, Fetched), Failed> {
    let credentials = credentials(cluster, object)?;
    let reference = reference(object)?;
    let url = object["spec"]["url"].as_str().unwrap_or_default();
    let patience = flux::duration(object, "timeout").unwrap_or(Duration::from_secs(60));
    let fetched = git::fetch(url, &reference, &credentials, known, patience).await.map_err(|text| {
        Failed("GitOperationFailed", format!("failed to checkout and determine revision: {text}"))
    })?;
    Ok((reference, fetched))
}

fn credentials(cluster: &Cluster, object: &Value) -> Result<Credentials, Failed> {
    let namespace = meta(object, "namespace");
    let provider = object["spec"]["provider"].as_str().unwrap_or("generic");
    if provider != "generic" {
        let message = format!(
            "failed to configure authentication options: the sandbox has no credentials of provider {provider}"
        );
        return Err(Failed("AuthenticationFailed", message));
    }
    let Some(name) = object["spec"]["secretRef"]["name"].as_str() else { return Ok(None) };
    let secret = cluster
        .resource("", "v1", "secrets")
        .ok_or_else(|| "secrets are not served".to_owned())
        .and_then(|secrets| cluster.get(&secrets, namespace, name).map_err(|failure| failure.message));
    // The reconciler and the function that reads the secret both say where it failed.
    let secret = secret.map_err(|text| {
        let place = format!("failed to get secret '{namespace}/{name}'");
        Failed("AuthenticationFailed", format!("{place}: {place}: {text}"))
    })?;
    let part = |field: &str| {
        let encoded = secret["data"][field].as_str().unwrap_or_default();
        String::from_utf8(STANDARD.decode(encoded).unwrap_or_default()).unwrap_or_default()
    };
    let (user, password) = (part("username"), part("password"));
    let missing = match (user.is_empty(), password.is_empty()) {
        (true, true) => return Ok(None),
        (true, false) => "'username' is required when 'password' is set",
        (false, true) => "'password' is required when 'username' is set",
        (false, false) => return Ok(Some((user, password))),
    };
    Err(Failed(
        "AuthenticationFailed",
        format!(
            "failed to configure authentication options: invalid '{}' auth option: {missing}",
            scheme(object)
        ),
    ))
}

fn scheme(object: &Value) -> &str {
    object["spec"]["url"].as_str().and_then(|url| url.split("://").next()).unwrap_or_default()
}

/// A digest over all files, and their size together.
fn measure(folder: &Path) -> (String, u64) {
    let mut files = Vec::new();
    collect(folder, &mut files);
    files.sort();
    let mut hash = Sha256::new();
    let mut size = 0;
    for file in files {
        let content = std::fs::read(&file).unwrap_or_default();
        size += content.len() as u64;
        hash.update(file.strip_prefix(folder).unwrap_or(&file).to_string_lossy().as_bytes());
        hash.update([0]);
        hash.update(&content);
    }
    let digest = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    (digest, size)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() && !path.is_symlink() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
