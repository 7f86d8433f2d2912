//! A Kubernetes API server in miniature, with the controllers that the demo needs.
//!
//! It speaks HTTPS (HTTP/1.1 and 2) and does what clients of a bootstrapper rely on: discovery,
//! CRUD, lists with selectors, watches, server-side apply with field ownership and conflicts, the
//! other patches, status subresources, definitions that add kinds, namespaces that finalise, owner
//! references and finalizers. The controllers roll out Deployments as EKS Fargate would, and
//! reconcile Flux's GitRepository and Kustomization while Flux's own Deployments are available.

mod api;
mod clock;
mod cluster;
mod controllers;
mod crd;
mod defaults;
mod failure;
mod fields;
mod kinds;
mod kustomize;
mod managed;
mod patch;
mod protobuf;
mod quantity;
mod schema;
mod selector;
mod table;
mod tls;

use std::convert::Infallible;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::wire::{Authenticator, Reply};
use api::Api;
use cluster::{Cluster, Deletion, PatchKind, Resource, Write};
pub use failure::Failure;
use selector::Selector;

/// Which pods run on Fargate: those in namespaces that the pattern fits, with these labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FargateSelector {
    /// The profile's name.
    pub profile: String,
    /// A namespace; `*` stands for any run of characters, `?` for one.
    pub namespace: String,
    /// Labels that a pod must have.
    pub labels: Vec<(String, String)>,
}

impl FargateSelector {
    /// A profile of the same name as the pattern, without labels.
    pub fn namespace(pattern: &str) -> Self {
        FargateSelector { profile: pattern.to_owned(), namespace: pattern.to_owned(), labels: Vec::new() }
    }
}

/// How long things take.
#[derive(Debug, Clone)]
pub struct Delays {
    /// From a definition's creation to its condition Established.
    pub established: Duration,
    /// From a pod's creation to its start; a pod on Fargate takes a minute or two in reality.
    pub pod_start: Duration,
    /// From a namespace's deletion to the removal of its objects.
    pub namespace: Duration,
    /// From a wish to reconcile one of Flux's objects to its start.
    pub reconcile: Duration,
}

impl Default for Delays {
    fn default() -> Self {
        Delays {
            established: Duration::from_millis(200),
            pod_start: Duration::from_millis(500),
            namespace: Duration::from_millis(100),
            reconcile: Duration::ZERO,
        }
    }
}

/// How a server is started.
#[derive(Clone)]
pub struct Settings {
    /// The port on 127.0.0.1; 0 takes a free one.
    pub port: u16,
    /// The name of the cluster, for the kubeconfig.
    pub cluster: String,
    /// The version that it says it has: `1.34`.
    pub version: String,
    /// The token of a cluster administrator; without one it is made up.
    pub admin_token: Option<String>,
    /// Which pods are scheduled; can be changed later.
    pub fargate: Vec<FargateSelector>,
    /// Parts of image names that can't be pulled.
    pub broken_images: Vec<String>,
    /// How long things take.
    pub delays: Delays,
    /// The pause between a watch's bookmarks.
    pub bookmarks: Duration,
    /// How many writes a watch can go back.
    pub memory: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            port: 0,
            cluster: "demo".to_owned(),
            version: "1.34".to_owned(),
            admin_token: None,
            fargate: vec![FargateSelector::namespace("*")],
            broken_images: Vec::new(),
            delays: Delays::default(),
            bookmarks: Duration::from_secs(10),
            memory: 10_000,
        }
    }
}

/// The token stays out of logs.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("port", &self.port)
            .field("cluster", &self.cluster)
            .field("version", &self.version)
            .field("fargate", &self.fargate)
            .field("delays", &self.delays)
            .finish_non_exhaustive()
    }
}

/// One call of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The user's name; `system:anonymous` without a valid token.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The path without its query.
    pub path: String,
    /// Whether it was a dry run.
    pub dry_run: bool,
    /// The answer's HTTP status.
    pub status: u16,
}

impl Record {
    /// Whether it could have changed something: a write that is no dry run and was let through.
    pub fn is_write(&self) -> bool {
        let reads = matches!(self.verb.as_str(), "get" | "list" | "watch");
        let review = self.path.contains("/selfsubject");
        !reads && !review && !self.dry_run && self.status < 300
    }
}

/// A running API server.
pub struct ApiServer {
    api: Arc<Api>,
    address: SocketAddr,
    ca_pem: String,
    fargate: controllers::Fargate,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("endpoint", &self.endpoint()).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Starts a server and its controllers.
    pub async fn start(settings: Settings, authenticator: Arc<dyn Authenticator>) -> anyhow::Result<Self> {
        let identity = tls::identity()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.port))
            .await
            .with_context(|| format!("listening on port {} for the Kubernetes API", settings.port))?;
        let address = listener.local_addr()?;
        let admin_token =
            settings.admin_token.clone().unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        let cluster = Arc::new(Cluster::new(settings.memory));
        let fargate = controllers::Fargate::new(settings.fargate.clone());
        controllers::populate(&cluster);
        let api = Arc::new(Api {
            cluster: cluster.clone(),
            settings: settings.clone(),
            authenticator,
            admin_token,
            records: Mutex::new(Vec::new()),
        });
        let mut tasks = vec![tokio::spawn(serve(listener, TlsAcceptor::from(identity.server), api.clone()))];
        tasks.extend(controllers::start(
            &cluster,
            &settings.delays,
            &fargate,
            &settings.broken_images,
            &identity.ca_pem,
        ));
        Ok(ApiServer { api, address, ca_pem: identity.ca_pem, fargate, tasks: Mutex::new(tasks) })
    }

    /// `https://127.0.0.1:PORT`
    pub fn endpoint(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The certificate that signs the server's.
    pub fn ca_pem(&self) -> String {
        self.ca_pem.clone()
    }

    /// A kubeconfig with the administrator's token.
    pub fn kubeconfig(&self) -> String {
        let name = &self.api.settings.cluster;
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {name}\nclusters:\n- name: {name}\n  cluster:\n    server: {}\n    certificate-authority-data: {}\ncontexts:\n- name: {name}\n  context:\n    cluster: {name}\n    user: {name}-admin\nusers:\n- name: {name}-admin\n  user:\n    token: {}\n",
            self.endpoint(),
            STANDARD.encode(&self.ca_pem),
            self.api.admin_token
        )
    }

    /// The administrator's token.
    pub fn admin_token(&self) -> &str {
        &self.api.admin_token
    }

    /// The calls so far. What controllers do isn't among them.
    pub fn requests(&self) -> Vec<Record> {
        self.api.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets the calls so far.
    pub fn clear_requests(&self) {
        self.api.records.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Sets which pods are scheduled from now on. As in EKS, pods that exist already stay as they are.
    pub fn set_fargate(&self, selectors: Vec<FargateSelector>) {
        self.fargate.set(selectors);
    }

    /// Forgets the writes that watches could go back to, as a compaction does.
    pub fn compact(&self) {
        self.api.cluster.compact();
    }

    fn resource(&self, api_version: &str, kind: &str) -> anyhow::Result<Resource> {
        match self.api.cluster.resource_of(api_version, kind) {
            Some(resource) => Ok(resource),
            None => bail!("the cluster has no kind {kind} in {api_version}"),
        }
    }

    /// An object, without the wire; the namespace of cluster-wide kinds is empty.
    pub fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let resource = self.resource(api_version, kind).ok()?;
        let object = self.api.cluster.get(&resource, namespace, name).ok()?;
        Some(resource.show(&object))
    }

    /// The objects of a kind in one namespace or all, without the wire.
    pub fn list(&self, api_version: &str, kind: &str, namespace: Option<&str>) -> Vec<Value> {
        let Ok(resource) = self.resource(api_version, kind) else { return Vec::new() };
        let (objects, _) = self.api.cluster.list(&resource, namespace, &Selector::default());
        objects.iter().map(|object| resource.show(object)).collect()
    }

    /// Applies an object server-side with force, without the wire and its record.
    pub fn apply(&self, manager: &str, object: &Value) -> anyhow::Result<Value> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = self.resource(&text(&object["apiVersion"]), &text(&object["kind"]))?;
        let meta = &object["metadata"];
        let write = Write { force: true, ..Write::by(manager) };
        let (namespace, name) = (text(&meta["namespace"]), text(&meta["name"]));
        let applied =
            self.api.cluster.patch(&resource, &namespace, &name, PatchKind::Apply, object, &write)?;
        Ok(applied.0)
    }

    /// Deletes an object, without the wire and its record.
    pub fn delete(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> anyhow::Result<()> {
        let resource = self.resource(api_version, kind)?;
        self.api.cluster.delete(&resource, namespace, name, &Deletion::default())?;
        Ok(())
    }

    /// Waits until a test of the cluster's objects holds; false when it doesn't within the time.
    pub async fn wait_until(&self, patience: Duration, mut test: impl FnMut(&Self) -> bool) -> bool {
        let mut changes = self.api.cluster.changes();
        let wait = async {
            loop {
                changes.mark_unchanged();
                if test(self) {
                    return;
                }
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(patience, wait).await.is_ok()
    }

    /// Ends the server and its controllers; open watches end with it.
    pub fn stop(&self) {
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Accepts connections until the task is ended; the set of connections ends with it.
async fn serve(listener: TcpListener, tls: TlsAcceptor, api: Arc<Api>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (tls, api) = (tls.clone(), api.clone());
                    connections.spawn(async move {
                        // A client that doesn't trust us, or is gone, is no matter of ours.
                        let Ok(stream) = tls.accept(stream).await else { return };
                        let service = service_fn(move |request| answer(api.clone(), request));
                        let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the Kubernetes API can't accept a connection");
                    clock::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer(api: Arc<Api>, request: http::Request<Incoming>) -> Result<Reply, Infallible> {
    let (head, body) = request.into_parts();
    let reply = match body.collect().await {
        Ok(body) => api.handle(http::Request::from_parts(head, body.to_bytes())).await,
        Err(error) => {
            let failure = Failure::bad_request(error.to_string());
            http::Response::new(failure.to_value().to_string().into())
        }
    };
    Ok(reply)
}
