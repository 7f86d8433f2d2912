//! What the tests share: a server, a client, some objects.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use sandbox::kubernetes::{ApiServer, Delays, Settings};
use sandbox::wire::{Authenticator, UserInfo};
use serde_json::{Value, json};

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Knows two tokens: one of an administrator by access entry, one of a role without a policy.
pub struct Tokens;

impl Authenticator for Tokens {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Option<UserInfo>> {
        let user = |name: &str, groups: &[&str]| UserInfo {
            username: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        };
        let found = match token {
            "master" => {
                Some(user("arn:aws:iam::111122223333:role/flux", &["system:authenticated", "system:masters"]))
            }
            "nobody" => Some(user("arn:aws:iam::111122223333:role/other", &["system:authenticated"])),
            _ => None,
        };
        Box::pin(async move { found })
    }
}

/// Settings in which nothing takes long.
pub fn quick() -> Settings {
    let short = Duration::from_millis(20);
    let delays = Delays { established: short, pod_start: short, namespace: short, reconcile: Duration::ZERO };
    Settings { delays, bookmarks: Duration::from_millis(50), ..Settings::default() }
}

/// A server.
pub async fn start(settings: Settings) -> ApiServer {
    ApiServer::start(settings, Arc::new(Tokens)).await.unwrap()
}

/// A client of the kube crate with a token.
pub async fn client(server: &ApiServer, token: &str) -> kube::Client {
    let mut kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig()).unwrap();
    let user = kubeconfig.auth_infos[0].auth_info.as_mut().unwrap();
    user.token = Some(token.to_owned().into());
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

/// A call: `PATCH:apply /path?query` and a body; the answer's status and body.
pub async fn call(client: &kube::Client, what: &str, body: Value) -> (u16, Value) {
    let (verb, path) = what.split_once(' ').unwrap();
    let (method, kind) = verb.split_once(':').unwrap_or((verb, "json"));
    let content = match kind {
        "apply" => "application/apply-patch+yaml",
        "merge" => "application/merge-patch+json",
        "jsonpatch" => "application/json-patch+json",
        "strategic" => "application/strategic-merge-patch+json",
        _ => "application/json",
    };
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .header("user-agent", "tests/1")
        .body(Body::from(bytes))
        .unwrap();
    let response = client.send(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes))))
}

/// The same for calls that must succeed.
pub async fn ok(client: &kube::Client, what: &str, body: Value) -> Value {
    let (status, answer) = call(client, what, body).await;
    assert!(status < 300, "{what}: {status} {answer}");
    answer
}

/// A Deployment with one container.
pub fn deployment(namespace: &str, name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": image}]},
            },
        },
    })
}

/// A definition of a custom kind with a status, whose specification takes anything.
pub fn definition(group: &str, kind: &str, plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
            }],
        },
    })
}

/// One condition of an object.
pub fn condition(object: &Value, kind: &str) -> Value {
    let list = object["status"]["conditions"].as_array();
    list.into_iter().flatten().find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

/// Waits until an object passes a test, and gives it.
pub async fn until(
    server: &ApiServer,
    (api_version, kind, namespace, name): (&str, &str, &str, &str),
    test: impl Fn(&Value) -> bool,
) -> Value {
    let get = |server: &ApiServer| server.get(api_version, kind, namespace, name);
    let held = server.wait_until(PATIENCE, |server| get(server).is_some_and(|object| test(&object))).await;
    assert!(held, "{kind}/{namespace}/{name} never came to be as expected: {:#?}", get(server));
    get(server).unwrap()
}
