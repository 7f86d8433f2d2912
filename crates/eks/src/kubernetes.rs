//! A client for objects of any kind, as JSON.
//!
//! Flux's manifests carry a dozen kinds, and a user's own may carry any. Typed clients for them
//! would all be the same four verbs, so there is one client over `serde_json::Value`.

use std::collections::HashMap;
use std::error::Error as _;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_config::SdkConfig;
use aws_credential_types::provider::ProvideCredentials;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Map, Value, json};
use step::clock::Clock;
use step::facts::Cluster;
use step::{Result, StepError};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use url::form_urlencoded;

use crate::token;

/// The field manager of `flux bootstrap` and `flux install`.
pub const FIELD_MANAGER: &str = "flux";
/// The field manager that Flux's documentation gives for annotations set from outside, which
/// kustomize-controller recognises.
const ANNOTATION_MANAGER: &str = "flux-client-side-apply";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a new access entry may be unknown to the Kubernetes API. Its propagation takes seconds;
/// within this time a refusal is taken for that, and the state machine tries again.
const ENTRY_SETTLES: time::Duration = time::Duration::minutes(5);

/// Names one object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// `v1`, `apps/v1`, …
    pub api_version: String,
    /// `Deployment`, …
    pub kind: String,
    /// The namespace, for kinds that have one.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl ObjectRef {
    /// A namespaced object.
    pub fn namespaced(api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        ObjectRef {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }
    }

    /// An object of the whole cluster.
    pub fn cluster(api_version: &str, kind: &str, name: &str) -> Self {
        ObjectRef {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: None,
            name: name.to_owned(),
        }
    }

    /// The name of a manifest's object.
    ///
    /// # Errors
    /// `InvalidInput`, where the manifest lacks version, kind or name.
    pub fn of(manifest: &Value) -> Result<Self> {
        let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        match (text("/apiVersion"), text("/kind"), text("/metadata/name")) {
            (Some(api_version), Some(kind), Some(name)) => {
                Ok(ObjectRef { api_version, kind, namespace: text("/metadata/namespace"), name })
            }
            _ => Err(StepError::invalid_input(
                "a Kubernetes manifest has no apiVersion, kind or metadata.name; correct the file it comes from",
            )),
        }
    }

    /// `namespace/name`, or the name alone.
    pub fn path(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.path())
    }
}

/// Whether a server-side apply is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Apply {
    /// It is.
    Real,
    /// The API says what would come of it, and stores nothing.
    DryRun,
}

/// How the API addresses a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kind {
    plural: String,
    namespaced: bool,
}

/// The kinds that Flux's manifests carry and those that are read along with them, so that the
/// discovery documents are asked for only when a user adds another.
const KNOWN_KINDS: [(&str, &str, &str, bool); 18] = [
    ("v1", "Namespace", "namespaces", false),
    ("v1", "ResourceQuota", "resourcequotas", true),
    ("v1", "ServiceAccount", "serviceaccounts", true),
    ("v1", "ConfigMap", "configmaps", true),
    ("v1", "Secret", "secrets", true),
    ("v1", "Service", "services", true),
    ("v1", "Pod", "pods", true),
    ("v1", "Event", "events", true),
    ("apps/v1", "Deployment", "deployments", true),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", true),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", true),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", true),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", false),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", false),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false),
    ("source.toolkit.fluxcd.io/v1", "GitRepository", "gitrepositories", true),
    ("kustomize.toolkit.fluxcd.io/v1", "Kustomization", "kustomizations", true),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
];

/// The Kubernetes API of one cluster.
#[derive(Clone)]
pub struct Kubernetes {
    client: kube::Client,
    cluster: String,
    endpoint: String,
    entry_created_at: Option<OffsetDateTime>,
    clock: Clock,
    kinds: Arc<Mutex<HashMap<(String, String), Kind>>>,
}

impl fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubernetes").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// Connects to the API of a cluster with a fresh token of the function's own role.
///
/// # Errors
/// `Internal`, where there are no credentials or the cluster's address or authority is unusable.
pub async fn connect(config: &SdkConfig, cluster: &Cluster, clock: Clock) -> Result<Kubernetes> {
    let provider = config
        .credentials_provider()
        .ok_or_else(|| StepError::internal("no AWS credentials are configured"))?;
    let credentials = provider
        .provide_credentials()
        .await
        .map_err(|_| StepError::internal("the AWS credentials could not be loaded"))?;
    let token = token::mint(&cluster.name, cluster.region(), cluster.partition(), credentials, clock.now())?;

    let unusable = |what: &str| {
        StepError::internal(format!(
            "{what} of cluster {} is not usable; start a new execution",
            cluster.name
        ))
    };
    let url = cluster.endpoint.parse().map_err(|_| unusable("the API address"))?;
    let mut kube_config = kube::Config::new(url);
    kube_config.root_cert = Some(
        authorities(&cluster.certificate_authority).ok_or_else(|| unusable("the certificate authority"))?,
    );
    kube_config.auth_info.token = Some(token);
    kube_config.connect_timeout = Some(CONNECT_TIMEOUT);
    kube_config.read_timeout = Some(READ_TIMEOUT);
    kube_config.write_timeout = Some(READ_TIMEOUT);
    kube_config.reset_reader_on_write = true;
    // kube's own retry goes on for longer than any function lives; retrying is the state machine's.
    kube_config.default_retry = false;
    let client = kube::Client::try_from(kube_config).map_err(|_| unusable("the API address"))?;
    Ok(Kubernetes::new(client, cluster, clock))
}

/// The certificates of a PEM bundle in base64, at least one.
fn authorities(base64: &str) -> Option<Vec<Vec<u8>>> {
    let pem = STANDARD.decode(base64.trim()).ok()?;
    let certificates: Vec<Vec<u8>> = CertificateDer::pem_slice_iter(&pem)
        .map(|certificate| certificate.map(|der| der.to_vec()))
        .collect::<std::result::Result<_, _>>()
        .ok()?;
    (!certificates.is_empty()).then_some(certificates)
}

impl Kubernetes {
    /// Over a client of the caller's.
    pub fn new(client: kube::Client, cluster: &Cluster, clock: Clock) -> Self {
        Kubernetes {
            client,
            cluster: cluster.name.clone(),
            endpoint: cluster.endpoint.clone(),
            entry_created_at: OffsetDateTime::parse(&cluster.access_entry_created_at, &Rfc3339).ok(),
            clock,
            kinds: Arc::default(),
        }
    }

    /// The cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The clock that the client was given.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Reads an object; `None` where it, its namespace or its kind does not exist.
    ///
    /// # Errors
    /// As every call: `Denied`, `Transient`, `Conflict` or `Internal`.
    pub async fn get(&self, object: &ObjectRef) -> Result<Option<Value>> {
        let Some(path) = self.path_of(object).await? else { return Ok(None) };
        self.call(Method::GET, &path, &[], None, &format!("get {object}")).await.or_else(missing_is_none)
    }

    /// Lists objects of a kind, in one namespace or in all; empty where the kind does not exist.
    ///
    /// # Errors
    /// As every call: `Denied`, `Transient`, `Conflict` or `Internal`.
    pub async fn list(
        &self,
        api_version: &str,
        kind: &str,
        namespace: Option<&str>,
        query: &[(&str, &str)],
    ) -> Result<Vec<Value>> {
        let Some(known) = self.kind(api_version, kind).await? else { return Ok(Vec::new()) };
        let root = root(api_version);
        let path = match namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{}", known.plural),
            None => format!("{root}/{}", known.plural),
        };
        let what = format!("list {}", known.plural);
        let list = self.call(Method::GET, &path, query, None, &what).await.or_else(missing_is_none)?;
        Ok(match list {
            Some(mut list) => match list.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            },
            None => Vec::new(),
        })
    }

    /// Applies a manifest by server-side apply as Flux does: field manager `flux`, by force.
    /// Answers with the object as it is afterwards, or would be.
    ///
    /// # Errors
    /// As every call; `Transient` too, where the kind or the namespace does not exist yet.
    pub async fn apply(&self, manifest: &Value, mode: Apply) -> Result<Value> {
        let object = ObjectRef::of(manifest)?;
        let what = format!("apply {object}");
        let path = self.path_of(&object).await?.ok_or_else(|| self.not_served(&object))?;
        let mut query = vec![("fieldManager", FIELD_MANAGER), ("force", "true")];
        if mode == Apply::DryRun {
            query.push(("dryRun", "All"));
        }
        let body = Some(("application/apply-patch+yaml", manifest));
        self.call(Method::PATCH, &path, &query, body, &what).await.map_err(Failure::into_error)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// As every call; `Transient` too, where somebody else has just created it.
    pub async fn create(&self, manifest: &Value) -> Result<Value> {
        let object = ObjectRef::of(manifest)?;
        let path = self.path_of(&object).await?.ok_or_else(|| self.not_served(&object))?;
        let collection = path.rsplit_once('/').map_or(path.as_str(), |(collection, _)| collection);
        let query = [("fieldManager", FIELD_MANAGER)];
        let body = Some(("application/json", manifest));
        self.call(Method::POST, collection, &query, body, &format!("create {object}"))
            .await
            .map_err(Failure::into_error)
    }

    /// Replaces an object; the manifest carries the `resourceVersion` that it was read at.
    ///
    /// # Errors
    /// As every call; `Transient` too, where somebody else has just changed it.
    pub async fn replace(&self, manifest: &Value) -> Result<Value> {
        let object = ObjectRef::of(manifest)?;
        let path = self.path_of(&object).await?.ok_or_else(|| self.not_served(&object))?;
        let query = [("fieldManager", FIELD_MANAGER)];
        let body = Some(("application/json", manifest));
        self.call(Method::PUT, &path, &query, body, &format!("update {object}"))
            .await
            .map_err(Failure::into_error)
    }

    /// Sets annotations, as `flux reconcile` does: by a merge patch of a manager of its own, which
    /// takes no part in what the manager `flux` applies.
    ///
    /// # Errors
    /// As every call; `Transient` too, where the object does not exist.
    pub async fn annotate(&self, object: &ObjectRef, annotations: &Map<String, Value>) -> Result<Value> {
        let path = self.path_of(object).await?.ok_or_else(|| self.not_served(object))?;
        let query = [("fieldManager", ANNOTATION_MANAGER)];
        let patch = json!({"metadata": {"annotations": annotations}});
        let body = Some(("application/merge-patch+json", &patch));
        self.call(Method::PATCH, &path, &query, body, &format!("annotate {object}"))
            .await
            .map_err(Failure::into_error)
    }

    fn not_served(&self, object: &ObjectRef) -> StepError {
        StepError::transient(format!(
            "cluster {} does not serve the kind {} of {} (yet), so {object} cannot be applied; \
             if this does not pass, install the definition of that kind",
            self.cluster, object.kind, object.api_version
        ))
    }

    /// The path of an object; `None` where its kind is not served.
    async fn path_of(&self, object: &ObjectRef) -> Result<Option<String>> {
        let Some(kind) = self.kind(&object.api_version, &object.kind).await? else { return Ok(None) };
        let root = root(&object.api_version);
        Ok(Some(match &object.namespace {
            Some(namespace) if kind.namespaced => {
                format!("{root}/namespaces/{namespace}/{}/{}", kind.plural, object.name)
            }
            None if kind.namespaced => format!("{root}/namespaces/default/{}/{}", kind.plural, object.name),
            _ => format!("{root}/{}/{}", kind.plural, object.name),
        }))
    }

    async fn kind(&self, api_version: &str, kind: &str) -> Result<Option<Kind>> {
        let known = KNOWN_KINDS.iter().find(|known| known.0 == api_version && known.1 == kind);
        if let Some((_, _, plural, namespaced)) = known {
            return Ok(Some(Kind { plural: (*plural).to_owned(), namespaced: *namespaced }));
        }
        let key = (api_version.to_owned(), kind.to_owned());
        let cached = self.kinds.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if cached.is_some() {
            return Ok(cached);
        }
        let what = format!("list the kinds of {api_version}");
        let list = self
            .call(Method::GET, &root(api_version), &[], None, &what)
            .await
            .or_else(missing_is_none)?
            .unwrap_or_default();
        let found = list["resources"].as_array().into_iter().flatten().find_map(|resource| {
            let name = resource["name"].as_str()?;
            (resource["kind"] == kind && !name.contains('/')).then(|| Kind {
                plural: name.to_owned(),
                namespaced: resource["namespaced"].as_bool().unwrap_or(true),
            })
        });
        if let Some(found) = &found {
            self.kinds.lock().unwrap_or_else(PoisonError::into_inner).insert(key, found.clone());
        }
        Ok(found)
    }

    async fn call<T: Reply>(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<(&str, &Value)>,
        what: &str,
    ) -> std::result::Result<T, Failure> {
        let internal = |text: &str| {
            Failure::Other(StepError::internal(format!("{what} on cluster {}: {text}", self.cluster)))
        };
        let mut uri = path.to_owned();
        if !query.is_empty() {
            let encoded = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
            uri = format!("{uri}?{encoded}");
        }
        let mut request =
            Request::builder().method(method).uri(uri).header(http::header::ACCEPT, "application/json");
        let mut bytes = Vec::new();
        if let Some((content_type, value)) = body {
            request = request.header(http::header::CONTENT_TYPE, content_type);
            bytes = serde_json::to_vec(value).map_err(|_| internal("the body is not JSON"))?;
        }
        let request = request.body(bytes).map_err(|_| internal("the request could not be built"))?;
        // kube logs the whole reply where it is not what it expects, which for a Secret would be
        // its contents; so the text is parsed here.
        match self.client.request_text(request).await {
            Ok(text) => {
                serde_json::from_str(&text).map(T::from_value).map_err(|_| internal("the reply is not JSON"))
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                Err(Failure::NotFound(self.refused(what, &status)))
            }
            Err(kube::Error::Api(status)) => Err(Failure::Other(self.refused(what, &status))),
            Err(error) => Err(Failure::Other(self.unreachable(what, &error))),
        }
    }

    /// Maps what the API answered to an error name.
    fn refused(&self, what: &str, status: &kube::core::Status) -> StepError {
        let cluster = &self.cluster;
        let text =
            format!("{what} on cluster {cluster}: HTTP {} {}", status.code, shortened(&status.message));
        let terminating = status
            .details
            .as_ref()
            .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"));
        // An admission webhook's or a quota's refusal is no question of the access entry.
        let admission = status.message.starts_with("admission webhook")
            || status.message.contains("exceeded quota")
            || status.message.contains("denied the request");
        match status.code {
            403 if terminating => StepError::transient(format!(
                "{text}. The namespace is being deleted; when it is gone it is made again. If it stays, \
                 `kubectl describe namespace` names what holds it, most often finalizers of Flux's own objects: \
                 take them off, and start a new execution"
            )),
            403 if admission => StepError::denied(format!(
                "{text}. A policy of the cluster refuses it; allow it for Flux's namespace and run again"
            )),
            401 | 403 if self.entry_settles() => StepError::transient(format!(
                "{text}. The access entry of the function's role was made a moment ago, and the API does not \
                 know it everywhere yet; the step is tried again"
            )),
            401 => StepError::denied(format!(
                "{text}. The cluster does not know the role that the function runs as. If the role was deleted \
                 and made again under the same name, delete its access entry and start a new execution"
            )),
            403 => StepError::denied(format!(
                "{text}. The access entry of the function's role needs AmazonEKSClusterAdminPolicy for the whole \
                 cluster; start a new execution to set it again"
            )),
            404 => StepError::transient(format!(
                "{text}. The namespace or the kind does not exist yet; the step is tried again"
            )),
            409 => StepError::transient(format!(
                "{text}. Somebody else changed it at the same moment; the step is tried again"
            )),
            422 => StepError::conflict(format!(
                "{text}. What is in the cluster cannot be changed into what is wanted; delete the object, or \
                 correct the manifest, and run again"
            )),
            code if code == 429 || code >= 500 => {
                StepError::transient(format!("{text}. This usually passes; the step is tried again"))
            }
            _ => StepError::internal(text),
        }
    }

    /// Maps a call without an answer to an error name.
    fn unreachable(&self, what: &str, error: &kube::Error) -> StepError {
        let chain = chain(error);
        let (cluster, endpoint) = (&self.cluster, &self.endpoint);
        if chain.contains("certificate") {
            return StepError::conflict(format!(
                "{what} on cluster {cluster}: {endpoint} shows a certificate that the cluster's own authority \
                 did not sign ({chain}). Something between the function and the cluster breaks TLS open, or the \
                 cluster was made again under the same name: start a new execution, and let the function's VPC \
                 reach the cluster directly"
            ));
        }
        StepError::transient(format!(
            "{what} on cluster {cluster}: no answer from {endpoint} ({chain}). If the API endpoint is private, \
             deploy the stack with the cluster's subnets and a security group that the cluster's own lets in on \
             443; if it is public, its allowed CIDRs must contain the function's address"
        ))
    }

    fn entry_settles(&self) -> bool {
        let now = OffsetDateTime::from(self.clock.now());
        self.entry_created_at.is_some_and(|created| now - created < ENTRY_SETTLES)
    }
}

/// What a reply is parsed into: the object, or the object where it exists.
trait Reply {
    fn from_value(value: Value) -> Self;
}

impl Reply for Value {
    fn from_value(value: Value) -> Self {
        value
    }
}

impl Reply for Option<Value> {
    fn from_value(value: Value) -> Self {
        Some(value)
    }
}

/// A failed call; whether "not found" is one is the caller's to say.
enum Failure {
    NotFound(StepError),
    Other(StepError),
}

impl Failure {
    fn into_error(self) -> StepError {
        match self {
            Failure::NotFound(error) | Failure::Other(error) => error,
        }
    }
}

fn missing_is_none(failure: Failure) -> Result<Option<Value>> {
    match failure {
        Failure::NotFound(_) => Ok(None),
        Failure::Other(error) => Err(error),
    }
}

fn root(api_version: &str) -> String {
    if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") }
}

/// The texts of an error and its sources, without those that only repeat the next one.
fn chain(error: &kube::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut source = error.source();
    while let Some(error) = source {
        let text = error.to_string();
        if texts.last().is_none_or(|last| !last.contains(&text)) {
            texts.push(text);
        }
        source = error.source();
    }
    if texts.is_empty() { "the connection failed".to_owned() } else { shortened(&texts.join(": ")) }
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 600;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    let cut: String = text.chars().take(LONGEST).collect();
    format!("{cut} …")
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use kube_replies::Cluster as Api;
    use replies::Replies;
    use step::ErrorName;

    use super::*;

    fn facts() -> Cluster {
        Cluster {
            name: "demo".to_owned(),
            arn: "arn:aws:eks:eu-west-1:123456789012:cluster/demo".to_owned(),
            endpoint: "https://demo.example".to_owned(),
            certificate_authority: String::new(),
            access_entry_created_at: "2026-01-02T03:00:00Z".to_owned(),
        }
    }

    /// A client whose clock stands `seconds` after the access entry was made.
    fn kubernetes(api: &Api, seconds: u64) -> Kubernetes {
        let created = OffsetDateTime::parse("2026-01-02T03:00:00Z", &Rfc3339).expect("time");
        let created = u64::try_from(created.unix_timestamp()).expect("after 1970");
        let now = UNIX_EPOCH + Duration::from_secs(created + seconds);
        Kubernetes::new(api.client(), &facts(), Clock::Fixed(now))
    }

    fn config_map() -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": "c"},
               "data": {"a": "1"}})
    }

    const PATH: &str = "/api/v1/namespaces/n/configmaps/c";

    #[tokio::test]
    async fn the_verbs_speak_as_kubectl_does() {
        let api = Api::new();
        let kubernetes = kubernetes(&api, 0);
        let object = ObjectRef::of(&config_map()).expect("names");
        assert_eq!(object.to_string(), "ConfigMap n/c");
        assert_eq!(kubernetes.get(&object).await, Ok(None));
        kubernetes.apply(&config_map(), Apply::DryRun).await.expect("dry run");
        assert_eq!(api.get(PATH), None);
        kubernetes.apply(&config_map(), Apply::Real).await.expect("applied");
        let mut stored = kubernetes.get(&object).await.expect("read").expect("is there");
        stored["data"] = json!({"b": "2"});
        kubernetes.replace(&stored).await.expect("replaced");
        let annotations = Map::from_iter([("k".to_owned(), json!("v"))]);
        kubernetes.annotate(&object, &annotations).await.expect("annotated");
        let listed = kubernetes.list("v1", "ConfigMap", Some("n"), &[]).await.expect("listed");
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0]["data"], json!({"b": "2"}));

        let lines: Vec<String> =
            api.calls().iter().map(|c| format!("{} {}", c.line(), c.content_type)).collect();
        assert_eq!(
            lines,
            [
                format!("GET {PATH} "),
                format!("PATCH {PATH}?fieldManager=flux&force=true&dryRun=All application/apply-patch+yaml"),
                format!("PATCH {PATH}?fieldManager=flux&force=true application/apply-patch+yaml"),
                format!("GET {PATH} "),
                format!("PUT {PATH}?fieldManager=flux application/json"),
                format!("PATCH {PATH}?fieldManager=flux-client-side-apply application/merge-patch+json"),
                "GET /api/v1/namespaces/n/configmaps ".to_owned(),
            ]
        );
    }

    #[tokio::test]
    async fn a_kind_that_is_not_known_is_discovered_once() {
        let api = Api::new();
        api.answer(
            "GET /apis/example.com/v1",
            200,
            &json!({"resources": [
                {"name": "widgets/status", "kind": "Widget", "namespaced": true},
                {"name": "widgets", "kind": "Widget", "namespaced": false}
            ]}),
        );
        let kubernetes = kubernetes(&api, 0);
        let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
        kubernetes.apply(&widget, Apply::Real).await.expect("applied");
        kubernetes.apply(&widget, Apply::Real).await.expect("applied");
        let lines: Vec<String> = api.calls().iter().map(kube_replies::Call::line).collect();
        assert_eq!(lines[0], "GET /apis/example.com/v1");
        assert_eq!(lines[1], "PATCH /apis/example.com/v1/widgets/w?fieldManager=flux&force=true");
        assert_eq!(lines.len(), 3);
        let gadget = json!({"apiVersion": "example.org/v1", "kind": "Gadget", "metadata": {"name": "g"}});
        let error = kubernetes.apply(&gadget, Apply::Real).await.expect_err("not served");
        assert_eq!(error.name, ErrorName::Transient);
        assert!(
            error.message.contains("does not serve the kind Gadget of example.org/v1"),
            "{}",
            error.message
        );
    }

    #[tokio::test]
    async fn refusals_have_names() {
        let young = 299;
        let old = 300;
        let webhook = "admission webhook \"x\" denied the request: no";
        for (seconds, status, reason, message, expected, text) in [
            (young, 401, "Unauthorized", "Unauthorized", ErrorName::Transient, "made a moment ago"),
            (old, 401, "Unauthorized", "Unauthorized", ErrorName::Denied, "delete its access entry"),
            (young, 403, "Forbidden", "cannot patch", ErrorName::Transient, "made a moment ago"),
            (old, 403, "Forbidden", "cannot patch", ErrorName::Denied, "AmazonEKSClusterAdminPolicy"),
            (young, 403, "Forbidden", webhook, ErrorName::Denied, "A policy of the cluster"),
            (old, 404, "NotFound", "namespaces \"n\" not found", ErrorName::Transient, "does not exist yet"),
            (old, 409, "Conflict", "modified", ErrorName::Transient, "Somebody else"),
            (old, 422, "Invalid", "field is immutable", ErrorName::Conflict, "field is immutable"),
            (old, 429, "TooManyRequests", "slow", ErrorName::Transient, "slow"),
            (
                old,
                500,
                "InternalError",
                "failed calling webhook",
                ErrorName::Transient,
                "failed calling webhook",
            ),
            (old, 400, "BadRequest", "strange", ErrorName::Internal, "strange"),
        ] {
            let api = Api::new();
            api.refuse(&format!("PATCH {PATH}"), status, reason, message);
            let error =
                kubernetes(&api, seconds).apply(&config_map(), Apply::Real).await.expect_err("refused");
            assert_eq!(error.name, expected, "{status} {}", error.message);
            assert!(error.message.contains(text), "{status} {}", error.message);
            assert!(error.message.contains("apply ConfigMap n/c on cluster demo"), "{}", error.message);
        }
    }

    #[tokio::test]
    async fn a_namespace_that_is_being_deleted_is_waited_for() {
        let api = Api::new();
        api.answer(
            &format!("PATCH {PATH}"),
            403,
            &json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
                    "message": "unable to create new content in namespace n because it is being terminated",
                    "details": {"causes": [{"reason": "NamespaceTerminating", "message": "…"}]}}),
        );
        let error = kubernetes(&api, 10_000).apply(&config_map(), Apply::Real).await.expect_err("refused");
        assert_eq!(error.name, ErrorName::Transient);
        assert!(error.message.contains("being deleted"), "{}", error.message);
        // Flux that was deleted through its own Kustomization stays so.
        assert!(error.message.contains("finalizers"), "{}", error.message);
    }

    #[tokio::test]
    async fn no_answer_says_what_to_look_at() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A port that was free a moment ago answers with a refused connection.
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("address").port();
        let mut cluster = facts();
        cluster.endpoint = format!("https://127.0.0.1:{port}");
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("certificate");
        cluster.certificate_authority = STANDARD.encode(made.cert.pem());
        let replies = Replies::new([]);
        let kubernetes = connect(&replies.config(), &cluster, Clock::System).await.expect("client");
        let error = kubernetes.get(&ObjectRef::cluster("v1", "Namespace", "n")).await.expect_err("no server");
        assert_eq!(error.name, ErrorName::Transient);
        for text in ["get Namespace n on cluster demo", "If the API endpoint is private", "refused"] {
            assert!(error.message.contains(text), "{}", error.message);
        }
        replies.finish();
    }

    #[tokio::test]
    async fn an_authority_that_is_none_is_refused() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let replies = Replies::new([]);
        for authority in ["", "!", "bm8gUEVN"] {
            let mut cluster = facts();
            cluster.certificate_authority = authority.to_owned();
            let error = connect(&replies.config(), &cluster, Clock::System).await.expect_err("refused");
            assert_eq!(error.name, ErrorName::Internal);
            assert!(error.message.contains("certificate authority of cluster demo"), "{}", error.message);
        }
    }

    /// An API server that answers one request with `{}` over TLS and hands out what it was sent,
    /// with its certificate as PEM.
    async fn api_over_tls() -> (u16, String, tokio::task::JoinHandle<String>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("certificate");
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("key");
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("configuration");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("address").port();
        let served = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("accept");
            let Ok(mut stream) = acceptor.accept(stream).await else { return String::new() };
            let mut seen = Vec::new();
            while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
                let mut chunk = [0; 4096];
                let count = stream.read(&mut chunk).await.expect("read");
                seen.extend_from_slice(&chunk[..count]);
            }
            let reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(reply).await.expect("write");
            stream.shutdown().await.ok();
            String::from_utf8_lossy(&seen).into_owned()
        });
        (port, made.cert.pem(), served)
    }

    #[tokio::test]
    async fn the_token_goes_to_the_clusters_own_server_only() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let replies = Replies::new([]);
        let namespace = ObjectRef::cluster("v1", "Namespace", "n");

        let (port, pem, served) = api_over_tls().await;
        let mut cluster = facts();
        cluster.endpoint = format!("https://127.0.0.1:{port}");
        cluster.certificate_authority = STANDARD.encode(pem);
        let kubernetes = connect(&replies.config(), &cluster, Clock::System).await.expect("client");
        assert_eq!(kubernetes.get(&namespace).await, Ok(Some(json!({}))));
        let seen = served.await.expect("served").to_lowercase();
        assert!(seen.starts_with("get /api/v1/namespaces/n http/1.1"), "{seen}");
        assert!(seen.contains("authorization: bearer k8s-aws-v1."), "{seen}");

        let (port, _, served) = api_over_tls().await;
        cluster.endpoint = format!("https://127.0.0.1:{port}");
        let kubernetes = connect(&replies.config(), &cluster, Clock::System).await.expect("client");
        let error = kubernetes.get(&namespace).await.expect_err("another server");
        assert_eq!(error.name, ErrorName::Conflict, "{}", error.message);
        assert!(error.message.contains("did not sign"), "{}", error.message);
        assert_eq!(served.await.expect("served"), "");
        replies.finish();
    }
}
