//! GitRepositories and Kustomizations, from a Git repository over HTTP.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http_body_util::BodyExt;
use sandbox::kubernetes::ApiServer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::help::{PATIENCE, client, condition, definition, deployment, ok, quick, start, until};

const SOURCE: (&str, &str, &str, &str) = ("source.toolkit.fluxcd.io/v1", "GitRepository", "fluxcd", "fluxcd");
const SYNC: (&str, &str, &str, &str) =
    ("kustomize.toolkit.fluxcd.io/v1", "Kustomization", "fluxcd", "fluxcd");
/// `user:sesame` in Base64.
const AUTHORIZATION: &str = "Basic dXNlcjpzZXNhbWU=";

/// A repository served by `git http-backend`, which wants a password and answers 403 without, like CodeCommit.
struct Repository {
    folder: TempDir,
    url: String,
    asked: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Server {
    root: PathBuf,
    asked: Arc<AtomicUsize>,
}

async fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(arguments)
        .current_dir(folder)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

async fn serve(State(server): State<Server>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    server.asked.fetch_add(1, Ordering::SeqCst);
    let header = |name: &str| {
        head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    if header("authorization") != AUTHORIZATION {
        return Response::builder().status(403).body(Body::empty()).unwrap();
    }
    let body = body.collect().await.unwrap().to_bytes();
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &server.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", head.uri.path())
        .env("QUERY_STRING", head.uri.query().unwrap_or_default())
        .env("REQUEST_METHOD", head.method.as_str())
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let feed = async move {
        let _ = input.write_all(&body).await;
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    let output = output.unwrap().stdout;
    let split = output.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let mut response = Response::builder();
    for line in String::from_utf8_lossy(&output[..split]).lines() {
        let (name, value) = line.split_once(": ").unwrap();
        response = match name {
            "Status" => response.status(value.split(' ').next().unwrap().parse::<u16>().unwrap()),
            name => response.header(name, value),
        };
    }
    response.body(Body::from(output[split + 4..].to_vec())).unwrap()
}

impl Repository {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "--quiet", "--bare", "repo.git"]).await;
        git(folder.path(), &["init", "--quiet", "-b", "main", "work"]).await;
        let asked = Arc::new(AtomicUsize::new(0));
        let server = Server { root: folder.path().to_owned(), asked: asked.clone() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/repo.git", listener.local_addr().unwrap());
        let app = axum::Router::new().fallback(serve).with_state(server);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Repository { folder, url, asked }
    }

    /// Writes files (an empty one is removed) and pushes; the commit's id.
    async fn commit(&self, files: &[(&str, &str)]) -> String {
        let work = self.folder.path().join("work");
        for (name, content) in files {
            let path = work.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            if content.is_empty() {
                std::fs::remove_file(path).unwrap();
            } else {
                std::fs::write(path, content).unwrap();
            }
        }
        git(&work, &["add", "--all"]).await;
        git(&work, &["commit", "--quiet", "-m", "Change the cluster\n\nMore."]).await;
        git(&work, &["push", "--quiet", "../repo.git", "main"]).await;
        git(&work, &["rev-parse", "HEAD"]).await
    }
}

fn config_map(name: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: default}}\ndata: {{x: '{value}'}}\n"
    )
}

/// A cluster with Flux's kinds and Deployments.
async fn with_flux() -> ApiServer {
    let server = start(quick()).await;
    server
        .apply("flux", &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fluxcd"}}))
        .unwrap();
    for (group, kind, plural) in [
        ("source.toolkit.fluxcd.io", "GitRepository", "gitrepositories"),
        ("kustomize.toolkit.fluxcd.io", "Kustomization", "kustomizations"),
    ] {
        server.apply("flux", &definition(group, kind, plural)).unwrap();
        let name = format!("{plural}.{group}");
        until(&server, ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", &name), |live| {
            condition(live, "Established")["status"] == "True"
        })
        .await;
    }
    for name in ["source-controller", "kustomize-controller"] {
        server.apply("flux", &deployment("fluxcd", name, "flux:1")).unwrap();
    }
    server
}

fn source(url: &str) -> Value {
    json!({"apiVersion": SOURCE.0, "kind": SOURCE.1, "metadata": {"name": "fluxcd", "namespace": "fluxcd"},
        "spec": {"interval": "1h", "url": url, "ref": {"branch": "main"}, "secretRef": {"name": "flux-system"}}})
}

fn sync() -> Value {
    json!({"apiVersion": SYNC.0, "kind": SYNC.1, "metadata": {"name": "fluxcd", "namespace": "fluxcd"},
        "spec": {"interval": "10m0s", "path": "./apps", "prune": true,
                 "sourceRef": {"kind": "GitRepository", "name": "fluxcd"}}})
}

fn secret(password: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "flux-system", "namespace": "fluxcd"},
        "stringData": {"username": "user", "password": password}})
}

/// Asks for a reconciliation as `flux reconcile` does.
fn request(server: &ApiServer, mut object: Value, at: &str) {
    object["metadata"]["annotations"] = json!({"reconcile.fluxcd.io/requestedAt": at});
    server.apply("flux", &object).unwrap();
}

fn ready(live: &Value, reason: &str) -> bool {
    condition(live, "Ready")["reason"] == reason
}

fn message(live: &Value) -> String {
    condition(live, "Ready")["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_commit_arrives_in_the_cluster() {
    let repository = Repository::new().await;
    let first = repository
        .commit(&[("apps/a.yaml", &config_map("a", "1")), ("apps/sub/b.yaml", &config_map("b", "1"))])
        .await;
    let server = with_flux().await;
    for object in [secret("sesame"), source(&repository.url), sync()] {
        server.apply("flux", &object).unwrap();
    }
    let live = until(&server, SOURCE, |live| ready(live, "Succeeded")).await;
    let revision = format!("main@sha1:{first}");
    assert_eq!(message(&live), format!("stored artifact for revision '{revision}'"));
    assert_eq!(live["status"]["artifact"]["revision"], revision);
    assert_eq!(live["status"]["observedGeneration"], live["metadata"]["generation"]);
    assert_eq!(condition(&live, "Reconciling"), Value::Null);
    assert_eq!(live["metadata"]["finalizers"], json!(["finalizers.fluxcd.io"]));

    let live = until(&server, SYNC, |live| ready(live, "ReconciliationSucceeded")).await;
    assert_eq!(message(&live), format!("Applied revision: {revision}"));
    assert_eq!(live["status"]["lastAppliedRevision"], revision);
    assert_eq!(
        live["status"]["inventory"]["entries"],
        json!([{"id": "default_a__ConfigMap", "v": "v1"}, {"id": "default_b__ConfigMap", "v": "v1"}])
    );
    let made = server.get("v1", "ConfigMap", "default", "a").unwrap();
    assert_eq!(
        made["metadata"]["labels"],
        json!({"kustomize.toolkit.fluxcd.io/name": "fluxcd", "kustomize.toolkit.fluxcd.io/namespace": "fluxcd"})
    );
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "kustomize-controller");

    // A commit that changes one object and drops the other, asked for as `flux reconcile` does.
    let second = repository.commit(&[("apps/a.yaml", &config_map("a", "2")), ("apps/sub/b.yaml", "")]).await;
    request(&server, source(&repository.url), "now");
    until(&server, SYNC, |live| live["status"]["lastAppliedRevision"] == format!("main@sha1:{second}")).await;
    let live = until(&server, SOURCE, |live| live["status"]["lastHandledReconcileAt"] == "now").await;
    assert!(ready(&live, "Succeeded"));
    assert_eq!(server.get("v1", "ConfigMap", "default", "a").unwrap()["data"]["x"], "2");
    assert!(server.get("v1", "ConfigMap", "default", "b").is_none());

    // What somebody changes by hand comes back with the next reconciliation.
    let admin = client(&server, "master").await;
    ok(
        &admin,
        "PATCH:merge /api/v1/namespaces/default/configmaps/a?fieldManager=kubectl-edit",
        json!({"data": {"x": "mine", "more": "mine"}}),
    )
    .await;
    request(&server, sync(), "again");
    until(&server, ("v1", "ConfigMap", "default", "a"), |live| live["data"] == json!({"x": "2"})).await;
    until(&server, SYNC, |live| live["status"]["lastHandledReconcileAt"] == "again").await;

    let reasons: Vec<Value> =
        server.list("v1", "Event", Some("fluxcd")).iter().map(|event| event["reason"].clone()).collect();
    for reason in ["NewArtifact", "Progressing", "ReconciliationSucceeded"] {
        assert!(reasons.contains(&json!(reason)), "{reason} in {reasons:?}");
    }

    // Deleting the Kustomization prunes what it made.
    server.delete(SYNC.0, SYNC.1, SYNC.2, SYNC.3).unwrap();
    let gone = |server: &ApiServer| {
        server.get(SYNC.0, SYNC.1, SYNC.2, SYNC.3).is_none()
            && server.get("v1", "ConfigMap", "default", "a").is_none()
    };
    assert!(server.wait_until(PATIENCE, gone).await);
}

#[tokio::test]
async fn nothing_is_reconciled_while_flux_does_not_run() {
    let repository = Repository::new().await;
    repository.commit(&[("apps/a.yaml", &config_map("a", "1"))]).await;
    let server = with_flux().await;
    server.delete("apps/v1", "Deployment", "fluxcd", "source-controller").unwrap();
    until(&server, ("apps/v1", "Deployment", "fluxcd", "kustomize-controller"), |live| {
        live["status"]["readyReplicas"] == 1
    })
    .await;
    for object in [secret("sesame"), source(&repository.url), sync()] {
        server.apply("flux", &object).unwrap();
    }
    let live = until(&server, SYNC, |live| ready(live, "ArtifactFailed")).await;
    assert_eq!(message(&live), "Source artifact not found, retrying in 30s");
    assert_eq!(server.get(SOURCE.0, SOURCE.1, SOURCE.2, SOURCE.3).unwrap()["status"], Value::Null);
    assert_eq!(repository.asked.load(Ordering::SeqCst), 0);
    server.apply("flux", &deployment("fluxcd", "source-controller", "flux:1")).unwrap();
    until(&server, SYNC, |live| ready(live, "ReconciliationSucceeded")).await;
}

#[tokio::test]
async fn failures_of_the_source_read_as_flux_writes_them() {
    let repository = Repository::new().await;
    let server = with_flux().await;
    let url = repository.url.clone();
    let fails = async |reason: &str, text: String| {
        let live = until(&server, SOURCE, |live| ready(live, reason) && message(live) == text).await;
        assert_eq!(condition(&live, "Ready")["status"], "False");
        assert_eq!(condition(&live, "FetchFailed")["message"], text.as_str());
        assert_eq!(condition(&live, "Reconciling")["reason"], "ProgressingWithRetry");
    };
    server.apply("flux", &source(&url)).unwrap();
    fails(
        "AuthenticationFailed",
        "failed to get secret 'fluxcd/flux-system': failed to get secret 'fluxcd/flux-system': secrets \"flux-system\" not found"
            .to_owned(),
    )
    .await;
    server.apply("flux", &secret("wrong")).unwrap();
    fails(
        "GitOperationFailed",
        format!("failed to checkout and determine revision: unable to clone '{url}': authorization failed"),
    )
    .await;
    server.apply("flux", &secret("sesame")).unwrap();
    fails("EmptyGitRepository", "git repository is empty".to_owned()).await;
    repository.commit(&[("apps/a.yaml", &config_map("a", "1"))]).await;
    until(&server, SOURCE, |live| ready(live, "Succeeded")).await;
    let mut other = source(&url);
    other["spec"]["ref"]["branch"] = json!("other");
    server.apply("flux", &other).unwrap();
    fails(
        "GitOperationFailed",
        format!("failed to checkout and determine revision: unable to clone '{url}': couldn't find remote ref \"refs/heads/other\""),
    )
    .await;
}

#[tokio::test]
async fn failures_of_the_kustomization_read_as_flux_writes_them() {
    let repository = Repository::new().await;
    repository.commit(&[("apps/a.yaml", "a: b\n")]).await;
    let server = with_flux().await;
    for object in [secret("sesame"), source(&repository.url), sync()] {
        server.apply("flux", &object).unwrap();
    }
    let live = until(&server, SYNC, |live| ready(live, "BuildFailed")).await;
    assert!(
        message(&live).starts_with("failed to decode Kubernetes YAML from apps/a.yaml:"),
        "{}",
        message(&live)
    );
    assert_eq!(live["status"]["lastAppliedRevision"], Value::Null);

    let mut number = 0;
    let mut push = async |content: &str| {
        number += 1;
        repository.commit(&[("apps/a.yaml", content)]).await;
        request(&server, source(&repository.url), &number.to_string());
    };
    push("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: none}\n").await;
    let live = until(&server, SYNC, |live| ready(live, "ReconciliationFailed")).await;
    assert_eq!(message(&live).trim(), "ConfigMap/none/a not found: namespaces \"none\" not found");
    push("apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: a}\n").await;
    let text = "Thing/a dry-run failed: no matches for kind \"Thing\" in version \"example.org/v1\"";
    until(&server, SYNC, |live| message(live).trim() == text).await;

    let mut moved = sync();
    moved["spec"]["path"] = json!("./nowhere");
    server.apply("flux", &moved).unwrap();
    let live = until(&server, SYNC, |live| ready(live, "ArtifactFailed")).await;
    assert_eq!(
        message(&live),
        "kustomization path not found: stat /tmp/kustomization/nowhere: no such file or directory"
    );
    // A suspended one stays as it is, whatever is asked.
    moved["spec"]["suspend"] = json!(true);
    moved["spec"]["path"] = json!("./apps");
    server.apply("flux", &moved).unwrap();
    push(&config_map("a", "1")).await;
    until(&server, SOURCE, |live| live["status"]["lastHandledReconcileAt"] == number_text(3)).await;
    assert!(ready(&server.get(SYNC.0, SYNC.1, SYNC.2, SYNC.3).unwrap(), "ArtifactFailed"));
    server.apply("flux", &sync()).unwrap();
    until(&server, SYNC, |live| ready(live, "ReconciliationSucceeded")).await;
}

fn number_text(number: u32) -> String {
    number.to_string()
}

#[tokio::test]
async fn a_kustomization_that_waits_tells_health() {
    let repository = Repository::new().await;
    let web = |image: &str| {
        let mut web = deployment("default", "web", image);
        web["spec"]["progressDeadlineSeconds"] = json!(600);
        web.to_string()
    };
    repository.commit(&[("apps/web.yaml", &web("registry.invalid/nginx"))]).await;
    let server = with_flux().await;
    let mut waits = sync();
    waits["spec"]["wait"] = json!(true);
    waits["spec"]["timeout"] = json!("200ms");
    for name in ["source-controller", "kustomize-controller"] {
        until(&server, ("apps/v1", "Deployment", "fluxcd", name), |live| {
            live["status"]["readyReplicas"] == 1
        })
        .await;
    }
    // Without a profile for its pods the Deployment never becomes ready.
    server.set_fargate(Vec::new());
    for object in [secret("sesame"), source(&repository.url), waits] {
        server.apply("flux", &object).unwrap();
    }
    let live = until(&server, SYNC, |live| ready(live, "HealthCheckFailed")).await;
    assert!(
        message(&live).contains("timeout waiting for: [Deployment/default/web status: 'InProgress']"),
        "{}",
        message(&live)
    );
    assert_eq!(condition(&live, "Healthy")["status"], "False");
}
