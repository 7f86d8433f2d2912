//! The objects that tie the cluster to the repository: the Secret with the Git credentials, the
//! GitRepository and the Kustomization; and whether Flux has caught up with the branch's head.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use eks::{Kubernetes, ObjectRef};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use step::{Change, Result, StepError};

use crate::apply::condition;
use crate::detect::{KUSTOMIZE, SOURCE};
use crate::readiness::{cut, time_of};

/// Asks a controller to reconcile at once; it answers in `status.lastHandledReconcileAt`.
const REQUESTED_AT: &str = "reconcile.fluxcd.io/requestedAt";
/// How many of an object's events a message carries.
const EVENTS: usize = 3;

/// What time does about a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outlook {
    /// It passes: the controller tries again, and so do we.
    Heals,
    /// It stays until a person changes something; the text says what.
    Stays(&'static str),
}

/// The reasons of `Ready=False`, as Flux's controllers spell them (source-controller
/// `api/v1/condition_types.go` and `gitrepository_types.go`, fluxcd/pkg `apis/meta/conditions.go`),
/// and what is to be done. The second column is a part of the message: some reasons have causes
/// that only their text tells apart. The first line that fits counts; a reason without a line heals,
/// since a wrong wait only costs time, and ends with the object's own message.
const REASONS: [(&str, &str, Outlook); 21] = [
    // go-git's and fluxcd/pkg/git's words for a branch that is not there.
    (
        "GitOperationFailed",
        "couldn't find remote ref",
        Outlook::Stays("make the branch or correct repository.branch"),
    ),
    (
        "GitOperationFailed",
        "reference not found",
        Outlook::Stays("make the branch or correct repository.branch"),
    ),
    (
        "GitOperationFailed",
        "repository not found",
        Outlook::Stays("make the repository again by a new execution"),
    ),
    // IAM knows a new credential, and KMS a new policy, after seconds.
    ("GitOperationFailed", "", Outlook::Heals),
    ("AuthenticationFailed", "", Outlook::Heals),
    ("EmptyGitRepository", "", Outlook::Heals),
    ("URLInvalid", "", Outlook::Stays("correct the repository's address")),
    ("InvalidPath", "", Outlook::Stays("correct the ignore or sparse-checkout rules of the GitRepository")),
    (
        "VerificationError",
        "",
        Outlook::Stays("sign the commits, or take the verification out of the GitRepository"),
    ),
    ("InvalidProviderConfiguration", "", Outlook::Stays("correct spec.provider of the GitRepository")),
    // kustomize-controller
    ("ArtifactFailed", "path not found", Outlook::Stays("commit that folder, or correct flux.path")),
    ("ArtifactFailed", "", Outlook::Heals),
    ("BuildFailed", "", Outlook::Stays("correct the manifests in the repository and commit")),
    (
        "ReconciliationFailed",
        "dry-run failed (Invalid)",
        Outlook::Stays("correct the manifest in the repository and commit"),
    ),
    (
        "ReconciliationFailed",
        "dry-run failed: failed to create typed patch",
        Outlook::Stays("correct the manifest in the repository and commit"),
    ),
    ("ReconciliationFailed", "", Outlook::Heals),
    ("InvalidCELExpression", "", Outlook::Stays("correct the expression in the Kustomization")),
    ("AccessDenied", "", Outlook::Stays("keep the Kustomization and its source in one namespace")),
    ("DependencyNotReady", "", Outlook::Heals),
    ("HealthCheckFailed", "", Outlook::Heals),
    ("PruneFailed", "", Outlook::Heals),
];

fn outlook(reason: &str, message: &str) -> Outlook {
    REASONS
        .iter()
        .find(|(known, part, _)| *known == reason && message.contains(part))
        .map_or(Outlook::Heals, |(_, _, outlook)| *outlook)
}

/// The two objects of `gotk-sync.yaml`.
#[derive(Debug, Clone, PartialEq)]
pub struct SyncObjects {
    /// The GitRepository.
    pub git_repository: Value,
    /// The Kustomization.
    pub kustomization: Value,
}

/// Whether an object is one of the two, which are named as the namespace.
pub fn is_sync(object: &Value, namespace: &str) -> bool {
    let metadata = &object["metadata"];
    [(SOURCE, "GitRepository"), (KUSTOMIZE, "Kustomization")]
        .iter()
        .any(|(api_version, kind)| object["apiVersion"] == *api_version && object["kind"] == *kind)
        && metadata["name"] == namespace
        && metadata["namespace"] == namespace
}

/// Picks the two out of the folder's objects, where both are named as the namespace.
///
/// # Errors
/// `Conflict`, where the folder's `kustomization.yaml` leaves them out.
pub fn objects(built: &[Value], namespace: &str) -> Result<SyncObjects> {
    let find = |kind: &str| {
        built
            .iter()
            .find(|object| object["kind"] == kind && is_sync(object, namespace))
            .cloned()
            .ok_or_else(|| {
                StepError::conflict(format!(
                    "the kustomization.yaml beside gotk-sync.yaml does not give {kind} {namespace}/{namespace}; \
                     list gotk-sync.yaml among its resources, without a prefix or another namespace, and run again"
                ))
            })
    };
    Ok(SyncObjects { git_repository: find("GitRepository")?, kustomization: find("Kustomization")? })
}

/// Git credentials for the in-cluster Secret.
#[derive(Debug, Clone)]
pub struct GitCredentials {
    /// The service-specific credential's user name.
    pub username: String,
    /// Its password.
    pub password: SecretString,
}

/// The in-cluster Secret after [`ensure_secret`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretState {
    /// What was done.
    pub change: Change,
    /// Changes whenever the contents do.
    pub resource_version: String,
}

/// Makes sure that the Secret holds exactly these credentials. It is compared first and written
/// only where it differs; a key that is neither `username` nor `password` is removed, since Flux
/// would prefer a stale `bearerToken` to both.
///
/// # Errors
/// Those of [`Kubernetes`].
pub async fn ensure_secret(
    kubernetes: &Kubernetes,
    namespace: &str,
    name: &str,
    credentials: &GitCredentials,
) -> Result<SecretState> {
    let object = ObjectRef::namespaced("v1", "Secret", namespace, name);
    let data = json!({
        "username": STANDARD.encode(&credentials.username),
        "password": STANDARD.encode(credentials.password.expose_secret()),
    });
    let state = |change, stored: &Value| SecretState {
        change,
        resource_version: stored["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned(),
    };
    match kubernetes.get(&object).await? {
        None => {
            let manifest = json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                "metadata": {"name": name, "namespace": namespace}, "data": data,
            });
            Ok(state(Change::Created, &kubernetes.create(&manifest).await?))
        }
        Some(existing) if existing["data"] == data => Ok(state(Change::Unchanged, &existing)),
        Some(mut existing) => {
            existing["apiVersion"] = json!("v1");
            existing["kind"] = json!("Secret");
            existing["data"] = data;
            Ok(state(Change::Updated, &kubernetes.replace(&existing).await?))
        }
    }
}

/// A sync object as Flux reports on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncState {
    /// `GitRepository` or `Kustomization`.
    pub kind: String,
    /// `namespace/name`
    pub name: String,
    /// Whether it is Ready at the branch's head.
    pub ready: bool,
    /// The reason of its Ready condition; empty where it has none yet.
    pub reason: String,
    /// The message of its Ready condition, or what is waited for.
    pub message: String,
    /// The revision that it has fetched or applied; empty where there is none yet.
    pub revision: String,
}

/// What the two objects say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// GitRepository, Kustomization.
    pub objects: Vec<SyncState>,
    /// Why not both are ready; empty when they are.
    pub because: String,
}

/// The revision of a commit as Flux writes it, `<branch>@sha1:<commit>`.
pub fn revision(branch: &str, commit: &str) -> String {
    format!("{branch}@sha1:{commit}")
}

/// Looks whether both objects are Ready at a revision. Where one lags behind or is between two
/// attempts, a reconcile is requested, once for each value of `token`.
///
/// # Errors
/// `NotReady`, where an object fails for a reason that time does not heal, with the object's own
/// message and its recent events; `Conflict`, where it is suspended; else those of [`Kubernetes`].
pub async fn follow(kubernetes: &Kubernetes, namespace: &str, revision: &str, token: &str) -> Result<Synced> {
    let source_ref = ObjectRef::namespaced(SOURCE, "GitRepository", namespace, namespace);
    let kustomization_ref = ObjectRef::namespaced(KUSTOMIZE, "Kustomization", namespace, namespace);
    let (source, kustomization) =
        futures::try_join!(kubernetes.get(&source_ref), kubernetes.get(&kustomization_ref))?;
    let mut objects = Vec::new();
    let mut because = Vec::new();

    let source_at_head = at(source.as_ref(), "/status/artifact/revision") == revision;
    for (reference, object) in [(&source_ref, source), (&kustomization_ref, kustomization)] {
        let is_source = reference.kind == "GitRepository";
        let fetched = if is_source { "/status/artifact/revision" } else { "/status/lastAppliedRevision" };
        let object = object.unwrap_or_default();
        let ready = condition(&object, "Ready").cloned().unwrap_or_default();
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
        let mut state = SyncState {
            kind: reference.kind.clone(),
            name: reference.path(),
            ready: false,
            reason: text("reason"),
            message: text("message"),
            revision: at(Some(&object), fetched),
        };
        // A failure of the Kustomization counts only at the head: an older commit's is history. An
        // attempt that did not get as far as building leaves its revision unrecorded.
        let attempted = at(Some(&object), "/status/lastAttemptedRevision");
        let concerns_head = is_source || source_at_head && (attempted == revision || attempted.is_empty());
        match judge(&object, &ready, &state, revision) {
            Verdict::Ready => state.ready = true,
            Verdict::Suspended => return Err(suspended(reference)),
            Verdict::Waits(what) => because.push(format!("{reference}: {what}")),
            Verdict::Lags => {
                because
                    .push(format!("{reference}: at {} and not at {revision} yet", or_none(&state.revision)));
                // kustomize-controller follows its source by itself.
                if is_source {
                    request(kubernetes, reference, &object, token).await?;
                }
            }
            Verdict::Fails => match outlook(&state.reason, &state.message) {
                Outlook::Stays(next) if concerns_head => {
                    return Err(failed(kubernetes, reference, &state, next).await);
                }
                _ => {
                    because.push(format!("{reference}: {}: {}", state.reason, cut(&state.message, 400)));
                    if concerns_head {
                        request(kubernetes, reference, &object, token).await?;
                    }
                }
            },
        }
        state.message = cut(&state.message, 500);
        objects.push(state);
    }
    Ok(Synced { objects, because: because.join("; ") })
}

enum Verdict {
    Ready,
    Suspended,
    /// The controller is at it.
    Waits(String),
    /// Ready at another revision.
    Lags,
    /// Ready=False at the current generation.
    Fails,
}

fn judge(object: &Value, ready: &Value, state: &SyncState, revision: &str) -> Verdict {
    if object["spec"]["suspend"] == true {
        return Verdict::Suspended;
    }
    let generation = object["metadata"]["generation"].as_i64();
    let observed = object["status"]["observedGeneration"].as_i64();
    // On a failure the controllers leave the object's observed generation where it was, and set
    // that of the condition.
    let seen = ready["observedGeneration"].as_i64().or(observed);
    match ready["status"].as_str() {
        _ if object.is_null() => Verdict::Waits("it does not exist yet".to_owned()),
        None => Verdict::Waits("its controller has not looked at it yet".to_owned()),
        Some("False") if seen == generation => Verdict::Fails,
        Some("True") if observed == generation && state.revision == revision => Verdict::Ready,
        Some("True") if observed == generation => Verdict::Lags,
        Some("True" | "False") => {
            Verdict::Waits("its controller has not seen the last change yet".to_owned())
        }
        Some(_) => Verdict::Waits(match (state.reason.as_str(), state.message.as_str()) {
            ("", "") => "in progress".to_owned(),
            (reason, message) => format!("{reason}: {}", cut(message, 400)),
        }),
    }
}

/// Requests a reconcile, unless this very one has been requested.
async fn request(kubernetes: &Kubernetes, reference: &ObjectRef, object: &Value, token: &str) -> Result<()> {
    if object["metadata"]["annotations"][REQUESTED_AT] == token {
        return Ok(());
    }
    let mut annotations = Map::new();
    annotations.insert(REQUESTED_AT.to_owned(), json!(token));
    kubernetes.annotate(reference, &annotations).await?;
    Ok(())
}

fn suspended(reference: &ObjectRef) -> StepError {
    let kind = if reference.kind == "GitRepository" { "source git" } else { "kustomization" };
    StepError::conflict(format!(
        "{reference} is suspended, so Flux does not follow the branch. Resume it with `flux resume {kind} {} -n {}` \
         and run again",
        reference.name,
        reference.namespace.as_deref().unwrap_or_default()
    ))
}

async fn failed(kubernetes: &Kubernetes, reference: &ObjectRef, state: &SyncState, next: &str) -> StepError {
    // The events only add to a message that is complete without them.
    let events = events(kubernetes, reference).await.unwrap_or_default();
    let events =
        if events.is_empty() { String::new() } else { format!(" Recent events: {}.", events.join("; ")) };
    StepError::not_ready(format!(
        "{reference} on cluster {}: {}: {}.{events} To go on: {next}, and run again",
        kubernetes.cluster(),
        state.reason,
        cut(state.message.trim_end_matches('.'), 1500)
    ))
}

/// The newest events of an object, oldest first, as `reason: message`, each text once.
///
/// # Errors
/// Those of [`Kubernetes`].
pub async fn events(kubernetes: &Kubernetes, reference: &ObjectRef) -> Result<Vec<String>> {
    let selector = format!("involvedObject.kind={},involvedObject.name={}", reference.kind, reference.name);
    let query = [("fieldSelector", selector.as_str())];
    let mut events = kubernetes.list("v1", "Event", reference.namespace.as_deref(), &query).await?;
    events.retain(|event| {
        event["involvedObject"]["kind"] == reference.kind.as_str()
            && event["involvedObject"]["name"] == reference.name.as_str()
    });
    events.sort_by_key(time_of);
    let mut texts: Vec<String> = Vec::new();
    for event in events.iter().rev() {
        let text = format!(
            "{}: {}",
            event["reason"].as_str().unwrap_or_default(),
            cut(event["message"].as_str().unwrap_or_default().trim(), 300)
        );
        if !texts.contains(&text) {
            texts.push(text);
        }
        if texts.len() == EVENTS {
            break;
        }
    }
    texts.reverse();
    Ok(texts)
}

fn at(object: Option<&Value>, pointer: &str) -> String {
    object.and_then(|object| object.pointer(pointer)?.as_str()).unwrap_or_default().to_owned()
}

fn or_none(revision: &str) -> &str {
    if revision.is_empty() { "no revision" } else { revision }
}

#[cfg(test)]
mod tests {
    use kube_replies::Cluster as Api;
    use step::ErrorName;

    use super::*;
    use crate::fixture;

    const SECRET: &str = "/api/v1/namespaces/fluxcd/secrets/flux-system";
    const SENTINEL: &str = "s3ntinel-passw0rd";
    const HEAD: &str = "flux-branch@sha1:2222222222222222222222222222222222222222";
    const OLD: &str = "flux-branch@sha1:1111111111111111111111111111111111111111";
    const GIT: &str = "/apis/source.toolkit.fluxcd.io/v1/namespaces/fluxcd/gitrepositories/fluxcd";
    const KS: &str = "/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/fluxcd/kustomizations/fluxcd";

    fn credentials(password: &str) -> GitCredentials {
        GitCredentials { username: "demo-at-123456789012".to_owned(), password: password.to_owned().into() }
    }

    #[tokio::test]
    async fn the_secret_follows_the_credential() {
        let api = Api::new();
        let kubernetes = fixture::kubernetes(&api);
        let ensure = |password: &'static str| {
            let kubernetes = kubernetes.clone();
            async move {
                ensure_secret(&kubernetes, "fluxcd", "flux-system", &credentials(password))
                    .await
                    .expect("ensured")
            }
        };
        let first = ensure("one").await;
        assert_eq!(first.change, Change::Created);
        let stored = api.get(SECRET).expect("is there");
        assert_eq!(stored["type"], "Opaque");
        assert_eq!(stored["data"], json!({"username": "ZGVtby1hdC0xMjM0NTY3ODkwMTI=", "password": "b25l"}));
        assert_eq!(stored["metadata"].get("labels"), None);

        api.forget_calls();
        let same = ensure("one").await;
        assert_eq!((same.change, &same.resource_version), (Change::Unchanged, &first.resource_version));
        assert_eq!(api.writes(), []);

        api.merge(
            SECRET,
            &json!({"data": {"bearerToken": "eA=="}, "metadata": {"labels": {"theirs": "yes"}}}),
        );
        let updated = ensure("two").await;
        assert_eq!(updated.change, Change::Updated);
        assert_ne!(updated.resource_version, first.resource_version);
        let stored = api.get(SECRET).expect("is there");
        assert_eq!(stored["data"], json!({"username": "ZGVtby1hdC0xMjM0NTY3ODkwMTI=", "password": "dHdv"}));
        assert_eq!(stored["metadata"]["labels"]["theirs"], "yes");
        assert_eq!(api.writes()[0].line(), format!("PUT {SECRET}?fieldManager=flux"));
    }

    #[tokio::test]
    async fn the_password_is_in_no_error_and_no_debug_text() {
        for (status, reason) in
            [(422, "Invalid"), (403, "Forbidden"), (500, "InternalError"), (409, "Conflict")]
        {
            let api = Api::new();
            api.refuse("POST /api/v1/namespaces/fluxcd/secrets", status, reason, "refused");
            let kubernetes = fixture::kubernetes(&api);
            let credentials = credentials(SENTINEL);
            let error =
                ensure_secret(&kubernetes, "fluxcd", "flux-system", &credentials).await.expect_err("refused");
            let shown = format!("{error} {error:?} {credentials:?} {kubernetes:?}");
            assert!(!shown.contains(SENTINEL) && !shown.contains(&STANDARD.encode(SENTINEL)), "{shown}");
        }
    }

    fn git(status: &str, reason: &str, message: &str, revision: &str) -> Value {
        json!({"apiVersion": SOURCE, "kind": "GitRepository",
               "metadata": {"namespace": "fluxcd", "name": "fluxcd", "generation": 1},
               "spec": {"url": "https://x"},
               "status": {"observedGeneration": 1, "artifact": {"revision": revision},
                          "conditions": [{"type": "Ready", "status": status, "reason": reason, "message": message,
                                          "observedGeneration": 1}]}})
    }

    fn kustomization(status: &str, reason: &str, message: &str, applied: &str, attempted: &str) -> Value {
        json!({"apiVersion": KUSTOMIZE, "kind": "Kustomization",
               "metadata": {"namespace": "fluxcd", "name": "fluxcd", "generation": 1},
               "spec": {"path": "./x"},
               "status": {"observedGeneration": 1, "lastAppliedRevision": applied, "lastAttemptedRevision": attempted,
                          "conditions": [{"type": "Ready", "status": status, "reason": reason, "message": message,
                                          "observedGeneration": 1}]}})
    }

    fn git_ready() -> Value {
        git("True", "Succeeded", "stored artifact", HEAD)
    }

    fn ks_ready() -> Value {
        kustomization("True", "ReconciliationSucceeded", "Applied revision", HEAD, HEAD)
    }

    async fn followed(git: Value, kustomization: Value) -> (Result<Synced>, Api) {
        let api = Api::new();
        for (path, object) in [(GIT, git), (KS, kustomization)] {
            if !object.is_null() {
                api.put(path, object);
            }
        }
        (follow(&fixture::kubernetes(&api), "fluxcd", HEAD, "2222.7").await, api)
    }

    #[tokio::test]
    async fn ready_at_the_head_needs_no_write() {
        let (synced, api) = followed(git_ready(), ks_ready()).await;
        let synced = synced.expect("followed");
        assert_eq!(synced.because, "");
        assert!(synced.objects.iter().all(|object| object.ready && object.revision == HEAD));
        assert_eq!(api.writes(), []);
    }

    #[tokio::test]
    async fn what_time_heals_is_waited_for() {
        let suspended_later = |mut object: Value| {
            object["metadata"]["generation"] = json!(2);
            object
        };
        let unauthorized = "failed to checkout and determine revision: authentication required";
        let cases = [
            ("missing", Value::Null, Value::Null, "GitRepository fluxcd/fluxcd: it does not exist yet", 0),
            (
                "unseen",
                json!({"kind": "GitRepository", "metadata": {"generation": 1}, "spec": {}}),
                ks_ready(),
                "its controller has not looked at it yet",
                0,
            ),
            ("older generation", suspended_later(git_ready()), ks_ready(), "has not seen the last change", 0),
            (
                "in progress",
                git("Unknown", "Progressing", "building artifact", ""),
                ks_ready(),
                "Progressing: building artifact",
                0,
            ),
            (
                "source lags",
                git("True", "Succeeded", "", OLD),
                ks_ready(),
                "and not at flux-branch@sha1:2222",
                1,
            ),
            (
                "kustomization lags",
                git_ready(),
                kustomization("True", "ReconciliationSucceeded", "", OLD, OLD),
                "Kustomization fluxcd/fluxcd: at flux-branch@sha1:1111",
                0,
            ),
            (
                "authentication",
                git("False", "GitOperationFailed", unauthorized, ""),
                ks_ready(),
                "GitOperationFailed: failed to checkout",
                1,
            ),
            ("secret", git("False", "AuthenticationFailed", "no password", ""), ks_ready(), "no password", 1),
            (
                "a failure of an older commit",
                git_ready(),
                kustomization("False", "BuildFailed", "broken", OLD, OLD),
                "BuildFailed: broken",
                0,
            ),
            (
                "ordering",
                git_ready(),
                kustomization("False", "ReconciliationFailed", "no matches for kind X", OLD, HEAD),
                "no matches for kind X",
                1,
            ),
            (
                "artifact",
                git_ready(),
                kustomization("False", "ArtifactFailed", "Source artifact not found", "", ""),
                "Source artifact not found",
                1,
            ),
            ("new reason", git("False", "NeverSeen", "hm", ""), ks_ready(), "NeverSeen: hm", 1),
        ];
        for (case, git, kustomization, because, requests) in cases {
            let (synced, api) = followed(git, kustomization).await;
            let synced = synced.expect(case);
            assert!(synced.because.contains(because), "{case}: {}", synced.because);
            assert_eq!(api.writes().len(), requests, "{case}");
            // Asking again with the same token asks Flux for nothing more.
            api.forget_calls();
            follow(&fixture::kubernetes(&api), "fluxcd", HEAD, "2222.7").await.expect(case);
            assert_eq!(api.writes(), [], "{case}");
        }
    }

    #[tokio::test]
    async fn a_reconcile_is_requested_as_the_cli_does() {
        let (_, api) = followed(git("True", "Succeeded", "", OLD), ks_ready()).await;
        let write = &api.writes()[0];
        assert_eq!(write.line(), format!("PATCH {GIT}?fieldManager=flux-client-side-apply"));
        assert_eq!(write.content_type, "application/merge-patch+json");
        assert_eq!(write.body, json!({"metadata": {"annotations": {REQUESTED_AT: "2222.7"}}}));
    }

    #[tokio::test]
    async fn what_stays_wrong_ends_with_fluxs_own_message() {
        let missing_branch = "failed to checkout: couldn't find remote ref \"refs/heads/x\"";
        let no_path = "kustomization path not found: stat /tmp/x: no such file or directory";
        let invalid = "Deployment/a dry-run failed (Invalid): spec.replicas";
        for (case, git, kustomization, text, next) in [
            (
                "branch",
                git("False", "GitOperationFailed", missing_branch, ""),
                Value::Null,
                missing_branch,
                "branch",
            ),
            ("url", git("False", "URLInvalid", "bad url", ""), Value::Null, "URLInvalid: bad url", "address"),
            (
                "path",
                git_ready(),
                kustomization("False", "ArtifactFailed", no_path, "", ""),
                no_path,
                "correct flux.path",
            ),
            (
                "build",
                git_ready(),
                kustomization("False", "BuildFailed", "kustomize build failed", OLD, HEAD),
                "BuildFailed: kustomize build failed",
                "correct the manifests",
            ),
            (
                "manifest",
                git_ready(),
                kustomization("False", "ReconciliationFailed", invalid, OLD, HEAD),
                invalid,
                "correct the manifest",
            ),
        ] {
            let (synced, api) = followed(git, kustomization).await;
            let error = synced.expect_err(case);
            assert_eq!(error.name, ErrorName::NotReady, "{case}");
            assert!(error.message.contains(text), "{case}: {}", error.message);
            assert!(error.message.contains(next), "{case}: {}", error.message);
            assert!(error.message.contains("on cluster demo"), "{case}: {}", error.message);
            assert_eq!(api.writes(), [], "{case}");
        }
    }

    #[tokio::test]
    async fn a_failure_carries_recent_events_of_its_own_object() {
        let api = Api::new();
        api.put(GIT, git("False", "URLInvalid", "bad url", ""));
        for (index, (name, message)) in [
            ("fluxcd", "first"),
            ("fluxcd", "second"),
            ("fluxcd", "third"),
            ("fluxcd", "fourth"),
            ("other", "not mine"),
        ]
        .into_iter()
        .enumerate()
        {
            api.put(
                &format!("/api/v1/namespaces/fluxcd/events/e{index}"),
                json!({"metadata": {"name": format!("e{index}")}, "reason": "R", "message": message,
                       "lastTimestamp": format!("2026-01-02T03:04:0{index}Z"),
                       "involvedObject": {"kind": "GitRepository", "name": name}}),
            );
        }
        let error = follow(&fixture::kubernetes(&api), "fluxcd", HEAD, "t").await.expect_err("fails");
        assert!(
            error.message.contains("Recent events: R: second; R: third; R: fourth."),
            "{}",
            error.message
        );
    }

    #[tokio::test]
    async fn a_suspended_object_is_a_conflict() {
        let mut git = git_ready();
        git["spec"]["suspend"] = json!(true);
        let (synced, _) = followed(git, ks_ready()).await;
        let error = synced.expect_err("suspended");
        assert_eq!(error.name, ErrorName::Conflict);
        assert!(error.message.contains("flux resume source git fluxcd -n fluxcd"), "{}", error.message);
    }

    #[test]
    fn the_sync_objects_are_picked_by_name() {
        let built = vec![json!({"kind": "Namespace"}), git_ready(), ks_ready()];
        let picked = objects(&built, "fluxcd").expect("both");
        assert_eq!(picked.kustomization, ks_ready());
        let error = objects(&built[..2], "fluxcd").expect_err("one");
        assert_eq!(error.name, ErrorName::Conflict);
        assert!(error.message.contains("does not give Kustomization fluxcd/fluxcd"), "{}", error.message);
    }
}
