//! A Kubernetes API for unit tests, which remembers objects and every call.
//!
//! It does what the steps rely on: get, list with label selectors, create, replace, server-side
//! apply with and without dry run, JSON merge patch. A test puts objects in, may set the answer to
//! one call ([`Cluster::answer`]), and asserts on [`Cluster::calls`] and [`Cluster::writes`].

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use serde_json::{Map, Value, json};

/// A call as it came over the wire.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// `GET`, `PATCH`, …
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query as it was sent; empty where there is none.
    pub query: String,
    /// The body's type; empty where there is no body.
    pub content_type: String,
    /// The body, or null.
    pub body: Value,
}

impl Call {
    /// `PATCH /path?query`
    pub fn line(&self) -> String {
        let mark = if self.query.is_empty() { "" } else { "?" };
        format!("{} {}{mark}{}", self.method, self.path, self.query)
    }

    /// Whether the call changes what is stored.
    pub fn is_write(&self) -> bool {
        self.method != "GET" && !self.query.contains("dryRun=All")
    }
}

#[derive(Debug, Clone)]
struct Answer {
    call: String,
    status: u16,
    body: String,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Value>,
    calls: Vec<Call>,
    answers: VecDeque<Answer>,
    versions: u64,
    crds_stay_pending: bool,
}

/// The API server. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct Cluster(Arc<Mutex<State>>);

impl Cluster {
    /// Without any object.
    pub fn new() -> Self {
        Cluster::default()
    }

    /// A client that talks to it.
    pub fn client(&self) -> kube::Client {
        let cluster = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let cluster = cluster.clone();
            async move { Ok::<_, Infallible>(cluster.serve(request).await) }
        });
        kube::Client::new(service, "default")
    }

    /// Stores an object at its path, as if it had always been there.
    pub fn put(&self, path: &str, object: Value) {
        let mut state = self.lock();
        let stored = stored(&mut state, object);
        state.objects.insert(path.to_owned(), stored);
    }

    /// The object at a path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.lock().objects.get(path).cloned()
    }

    /// Merges into the object at a path, such as a status that a controller would write.
    ///
    /// # Panics
    /// Where there is no such object.
    pub fn merge(&self, path: &str, patch: &Value) {
        let mut state = self.lock();
        let object = state.objects.get_mut(path).unwrap_or_else(|| panic!("no object at {path}"));
        merge(object, patch);
    }

    /// Removes the object at a path.
    pub fn remove(&self, path: &str) {
        self.lock().objects.remove(path);
    }

    /// The paths of all objects.
    pub fn paths(&self) -> Vec<String> {
        self.lock().objects.keys().cloned().collect()
    }

    /// Gives this answer to the next call of this method and path (`GET /api/v1/…`).
    pub fn answer(&self, call: &str, status: u16, body: &Value) {
        let body =
            if body.is_string() { body.as_str().unwrap_or_default().to_owned() } else { body.to_string() };
        self.lock().answers.push_back(Answer { call: call.to_owned(), status, body });
    }

    /// Gives a `Status` as answer to the next call of this method and path.
    pub fn refuse(&self, call: &str, status: u16, reason: &str, message: &str) {
        self.answer(call, status, &failure(status, reason, message));
    }

    /// Definitions that are applied from now on do not become Established.
    pub fn leave_definitions_pending(&self, pending: bool) {
        self.lock().crds_stay_pending = pending;
    }

    /// Every call so far.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// The calls so far that changed something.
    pub fn writes(&self) -> Vec<Call> {
        self.calls().into_iter().filter(Call::is_write).collect()
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&self) {
        self.lock().calls.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self, request: Request<Body>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let call = Call {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            content_type: parts
                .headers
                .get(http::header::CONTENT_TYPE)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        };
        let mut state = self.lock();
        state.calls.push(call.clone());
        let key = format!("{} {}", call.method, call.path);
        let (status, body) = match state.answers.iter().position(|answer| answer.call == key) {
            Some(at) => {
                let answer = state.answers.remove(at).unwrap_or_else(|| unreachable!("found above"));
                (answer.status, answer.body)
            }
            None => {
                let (status, body) = respond(&mut state, &parts.method, &call);
                (status, body.to_string())
            }
        };
        Response::builder()
            .status(status)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap_or_default()
    }
}

fn failure(status: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
           "message": message, "reason": reason, "code": status})
}

fn not_found(path: &str) -> (u16, Value) {
    (404, failure(404, "NotFound", &format!("{path} not found")))
}

/// The parts of a path behind `/api/v1` or `/apis/<group>/<version>`.
fn parts(path: &str) -> (String, Vec<String>) {
    let all: Vec<&str> = path.trim_matches('/').split('/').collect();
    let root = if all.first() == Some(&"api") { 2 } else { 3 };
    let cut = root.min(all.len());
    (format!("/{}", all[..cut].join("/")), all[cut..].iter().map(|part| (*part).to_owned()).collect())
}

fn respond(state: &mut State, method: &Method, call: &Call) -> (u16, Value) {
    let (root, rest) = parts(&call.path);
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let query: BTreeMap<String, String> =
        url::form_urlencoded::parse(call.query.as_bytes()).into_owned().collect();
    let list = match rest.as_slice() {
        [plural] => Some((None, *plural)),
        ["namespaces", namespace, plural] => Some((Some(*namespace), *plural)),
        _ => None,
    };
    match (method, list) {
        (&Method::GET, Some((namespace, plural))) => {
            let selector = query.get("labelSelector").cloned().unwrap_or_default();
            let items: Vec<Value> = state
                .objects
                .iter()
                .filter(|(path, object)| {
                    let (its_root, its_rest) = parts(path);
                    let its: Vec<&str> = its_rest.iter().map(String::as_str).collect();
                    let here = match its.as_slice() {
                        [kind, _] => namespace.is_none() && *kind == plural,
                        ["namespaces", ns, kind, _] => {
                            namespace.is_none_or(|wanted| wanted == *ns) && *kind == plural
                        }
                        _ => false,
                    };
                    its_root == root && here && selected(object, &selector)
                })
                .map(|(_, object)| object.clone())
                .collect();
            (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}))
        }
        (&Method::GET, None) => match state.objects.get(&call.path) {
            Some(object) => (200, object.clone()),
            None => not_found(&call.path),
        },
        (&Method::POST, Some(_)) => {
            let name = call.body.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            let path = format!("{}/{name}", call.path);
            if state.objects.contains_key(&path) {
                return (409, failure(409, "AlreadyExists", &format!("{path} already exists")));
            }
            let object = stored(state, call.body.clone());
            state.objects.insert(path, object.clone());
            (201, object)
        }
        (&Method::PUT, None) => {
            let Some(old) = state.objects.get(&call.path).cloned() else { return not_found(&call.path) };
            if old["metadata"]["resourceVersion"] != call.body["metadata"]["resourceVersion"] {
                return (409, failure(409, "Conflict", "the object has been modified"));
            }
            let object = changed(state, &old, call.body.clone());
            state.objects.insert(call.path.clone(), object.clone());
            (200, object)
        }
        (&Method::PATCH, None) => {
            let applies = call.content_type == "application/apply-patch+yaml";
            let old = state.objects.get(&call.path).cloned();
            let object = match old {
                None if !applies => return not_found(&call.path),
                None => stored(state, call.body.clone()),
                Some(old) => {
                    let mut new = old.clone();
                    merge(&mut new, &call.body);
                    changed(state, &old, new)
                }
            };
            if query.get("dryRun").map(String::as_str) != Some("All") {
                state.objects.insert(call.path.clone(), object.clone());
            }
            (200, object)
        }
        _ => (405, failure(405, "MethodNotAllowed", "not played here")),
    }
}

fn selected(object: &Value, selector: &str) -> bool {
    selector.split(',').filter(|part| !part.is_empty()).all(|part| {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        object["metadata"]["labels"][key] == value
    })
}

/// A new object, with what the server adds.
fn stored(state: &mut State, mut object: Value) -> Value {
    state.versions += 1;
    let version = state.versions;
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("uid".to_owned(), json!(format!("uid-{version}")));
        metadata.insert("resourceVersion".to_owned(), json!(version.to_string()));
        metadata.entry("generation").or_insert(json!(1));
    }
    if kind == "CustomResourceDefinition" && !state.crds_stay_pending {
        let established = json!({"type": "Established", "status": "True"});
        merge(&mut object, &json!({"status": {"conditions": [established]}}));
    }
    object
}

/// An object after a write: the version goes up where anything changed, the generation where the
/// specification did.
fn changed(state: &mut State, old: &Value, mut new: Value) -> Value {
    if *old == new {
        return new;
    }
    state.versions += 1;
    let generation = old["metadata"]["generation"].as_u64().unwrap_or(1);
    let next = if old["spec"] == new["spec"] { generation } else { generation + 1 };
    if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("uid".to_owned(), old["metadata"]["uid"].clone());
        metadata.insert("resourceVersion".to_owned(), json!(state.versions.to_string()));
        metadata.insert("generation".to_owned(), json!(next));
    }
    new
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(target) = target {
        for (key, value) in patch {
            if value.is_null() {
                target.remove(key);
            } else {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }
}
