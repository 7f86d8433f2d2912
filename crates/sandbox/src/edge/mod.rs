//! The edge: the one port through which everybody reaches the local AWS.
//!
//! It reads who signed a request and for which service, answers the services that are played here
//! (CodeCommit, EC2, EKS, IAM's Git credentials) and hands everything else to MiniStack, streaming.
//! Because every call passes, this is also where calls are recorded, delayed and made to fail.
//!
//! # Who may call
//! A signature of a role or a user is checked against the secret of its key, as STS would. The account's
//! root (`test`) is taken at its word, as MiniStack takes it. A call that MiniStack answers is handed on
//! as the root's once its signature is right: MiniStack's own policy evaluation denies what AWS allows
//! (users below a path, aliases, VPC endpoints). STS gets every request as it came, since the caller is
//! what it is asked about.

mod calls;
mod protocol;
mod rules;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use self::calls::{Filter, Record};
pub use self::protocol::Protocol;
pub use self::rules::{Answer, Rule};

use self::calls::{Calls, Name};
use self::rules::Rules;
use crate::clock;
use crate::codecommit::CodeCommit;
use crate::ec2::Ec2;
use crate::eks::Eks;
use crate::iam::Iam;
use crate::ministack::{Credential, Upstream, root_authorization, whole};
use crate::sigv4::{Signature, sha256_hex};
use crate::wire::{ApiError, Call, Caller, Reply};

/// Bodies up to this size are read before they are handed on, so that the call can be named.
const READABLE: u64 = 4 << 20;
/// No call of a service played here is larger.
const LARGEST: usize = 64 << 20;

/// A service that is played here.
pub trait Service: Send + Sync {
    /// Answers a call, or leaves it to MiniStack.
    fn answer<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Option<Reply>>;
}

/// What stands behind the edge.
pub struct Backends {
    /// Everything that is not played here.
    pub upstream: Upstream,
    /// Repositories and their Git endpoint.
    pub codecommit: Arc<CodeCommit>,
    /// Networks.
    pub ec2: Arc<Ec2>,
    /// Clusters.
    pub eks: Arc<Eks>,
    /// Git credentials.
    pub iam: Arc<Iam>,
}

/// The edge. Clones share one.
#[derive(Clone)]
pub struct Edge {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: Arc<OnceLock<Task>>,
}

struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Default)]
struct Shared {
    backends: OnceLock<Backends>,
    calls: Calls,
    rules: Rules,
}

/// A port that is taken but not yet answered on: its address is needed to start what stands behind.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Takes a port on 127.0.0.1; 0 takes a free one.
    ///
    /// # Errors
    /// Where the port is taken.
    pub async fn take(port: u16) -> anyhow::Result<Bound> {
        let listener = TcpListener::bind(("127.0.0.1", port))
            .await
            .with_context(|| format!("port {port} of 127.0.0.1 cannot be taken"))?;
        let address = listener.local_addr()?;
        Ok(Bound { listener, address })
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Begins to answer.
    pub fn serve(self, backends: Backends) -> Edge {
        let shared = Arc::new(Shared::default());
        // The cell was made in the line above.
        let _ = shared.backends.set(backends);
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let listener = self.listener;
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(error = %error, "the edge ended");
            }
        });
        let edge = Edge { address: self.address, shared, task: Arc::default() };
        let _ = edge.task.set(Task(task));
        edge
    }
}

impl Edge {
    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every call so far, in the order in which they came.
    pub fn calls(&self) -> Vec<Record> {
        self.shared.calls.list(&Filter::default())
    }

    /// Those calls that a filter lets through.
    pub fn calls_where(&self, filter: &Filter) -> Vec<Record> {
        self.shared.calls.list(filter)
    }

    /// The number of the latest call: a mark to list later calls from.
    pub fn mark(&self) -> u64 {
        self.shared.calls.latest()
    }

    /// Replaces all rules.
    pub fn set_rules(&self, rules: Vec<Rule>) {
        self.shared.rules.set(rules);
    }

    /// Adds a rule behind the others.
    pub fn add_rule(&self, rule: Rule) {
        self.shared.rules.add(rule);
    }

    /// Stops answering.
    pub fn stop(&self) {
        if let Some(task) = self.task.get() {
            task.0.abort();
        }
    }
}

impl std::fmt::Debug for Edge {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Edge").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What `POST /_sandbox/settings` takes; what is left out stays.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Settings {
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Vec<Rule>>,
    /// How long a new Git credential stays unusable.
    #[serde(skip_serializing_if = "Option::is_none")]
    credential_delay_seconds: Option<f64>,
    /// Factor on the waits and retry pauses of state machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_scale: Option<f64>,
}

async fn answer(State(shared): State<Arc<Shared>>, request: http::Request<Body>) -> Reply {
    let (parts, body) = request.into_parts();
    let Some(backends) = shared.backends.get() else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "The local world is starting.");
    };
    if let Some(path) = parts.uri.path().strip_prefix("/_sandbox/") {
        return control(&shared, backends, path.to_owned(), &parts, body).await;
    }
    let began = Instant::now();
    let at = clock::now();
    let sequence = shared.calls.next();
    let (incoming, content) = match Incoming::read(backends, parts, body).await {
        Ok(read) => read,
        Err(reply) => return reply,
    };
    let ruling =
        shared.rules.rule(&incoming.name, incoming.caller.as_ref().map(|caller| caller.arn.as_str()));
    if let Some(delay) = ruling.delay {
        clock::sleep(delay).await;
    }
    let mut reply = match &ruling.answer {
        Some(Answer::Error { status, code, message }) => incoming.protocol.error(&ApiError {
            status: *status,
            code: code.clone(),
            message: message.clone(),
        }),
        Some(Answer::Raw { status, content_type, body }) => raw(*status, content_type, body),
        Some(Answer::Lost) | None => incoming.dispatch(backends, content).await,
    };
    let Incoming { name, caller, .. } = incoming;
    if !reply.headers().contains_key("x-amzn-requestid") {
        let id = uuid::Uuid::new_v4().to_string();
        if let Ok(id) = HeaderValue::from_str(&id) {
            reply.headers_mut().insert("x-amzn-requestid", id);
        }
    }
    shared.calls.add(Record {
        sequence,
        time: clock::rfc3339(at),
        milliseconds: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        caller: caller.map(|caller| caller.arn),
        service: name.service,
        action: name.action,
        resource: name.resource,
        status: reply.status().as_u16(),
        write: name.write,
        ruled: ruling.any(),
    });
    if matches!(ruling.answer, Some(Answer::Lost)) {
        // The call has acted; its reply never arrives in full.
        let cut = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("reply lost")) });
        *reply.body_mut() = Body::from_stream(cut);
    }
    reply
}

/// A request as far as it had to be read to know what it is.
struct Incoming {
    name: Name,
    protocol: Protocol,
    signature: Option<Signature>,
    /// Known where the signature is right.
    caller: Option<Caller>,
    refusal: Option<ApiError>,
    parts: Parts,
    kind: Kind,
}

enum Content {
    Whole(Bytes),
    Streaming(Body),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Git,
    CodeCommit,
    Ec2,
    Eks,
    Iam,
    Other,
}

impl Incoming {
    async fn read(backends: &Backends, parts: Parts, body: Body) -> Result<(Incoming, Content), Reply> {
        let host = parts.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
        if CodeCommit::is_git(parts.uri.path()) || host.starts_with("git-codecommit") {
            let name = Name::of_git(&parts.uri);
            let repository = name.resource.clone().unwrap_or_default();
            let caller = backends.iam.caller_of(&parts.headers, &repository).await;
            let incoming = Incoming {
                name,
                protocol: Protocol::Plain,
                signature: None,
                caller,
                refusal: None,
                parts,
                kind: Kind::Git,
            };
            return Ok((incoming, Content::Streaming(body)));
        }
        let signature = Signature::of(&parts.uri, &parts.headers);
        let service = signature.as_ref().map(|signature| signature.service.clone()).unwrap_or_default();
        let kind = match service.as_str() {
            "codecommit" => Kind::CodeCommit,
            "ec2" => Kind::Ec2,
            "eks" => Kind::Eks,
            "iam" => Kind::Iam,
            _ => Kind::Other,
        };
        let (bytes, content) = if kind != Kind::Other || readable(&parts) {
            match axum::body::to_bytes(body, LARGEST).await {
                Ok(bytes) => (bytes.clone(), Content::Whole(bytes)),
                Err(_) => return Err(plain(StatusCode::PAYLOAD_TOO_LARGE, "The body cannot be read.")),
            }
        } else {
            (Bytes::new(), Content::Streaming(body))
        };
        let name = Name::of(&service, &parts, &bytes);
        let protocol = Protocol::of(&service, &parts.headers);
        let (caller, refusal) = match &signature {
            None => (None, Some(protocol.unsigned())),
            Some(signature) => match identify(&backends.upstream, signature, &parts, &bytes).await {
                Ok(credential) => (Some(Caller { arn: credential.arn, account: credential.account }), None),
                Err(error) => (None, Some(protocol.refusal(&error))),
            },
        };
        Ok((Incoming { name, protocol, signature, caller, refusal, parts, kind }, content))
    }

    async fn dispatch(&self, backends: &Backends, body: Content) -> Reply {
        if self.kind == Kind::Git {
            let body = match body {
                Content::Whole(bytes) => Body::from(bytes),
                Content::Streaming(body) => body,
            };
            return backends.codecommit.git(http::Request::from_parts(self.parts.clone(), body)).await;
        }
        if self.kind != Kind::Other {
            let (Content::Whole(bytes), Some(caller)) = (&body, &self.caller) else {
                let unsigned = self.protocol.unsigned();
                return self.protocol.error(self.refusal.as_ref().unwrap_or(&unsigned));
            };
            let call = Call {
                service: self.name.service.clone(),
                action: self.name.action.clone(),
                region: self.signature.as_ref().map(|s| s.region.clone()).unwrap_or_default(),
                caller: caller.clone(),
                request: http::Request::from_parts(self.parts.clone(), bytes.clone()),
            };
            // The body may be a stream, which cannot be shared; from here on it is at hand.
            let bytes = bytes.clone();
            let reply = match self.kind {
                Kind::CodeCommit => Some(backends.codecommit.call(&call).await),
                Kind::Ec2 => Some(backends.ec2.call(&call).await),
                Kind::Eks => Some(backends.eks.call(&call).await),
                _ => backends.iam.answer(&call).await,
            };
            return match reply {
                Some(reply) => reply,
                None => self.hand_on(&backends.upstream, whole(bytes)).await,
            };
        }
        let body = match body {
            Content::Whole(bytes) => whole(bytes),
            Content::Streaming(body) => reqwest::Body::wrap_stream(body.into_data_stream()),
        };
        self.hand_on(&backends.upstream, body).await
    }

    async fn hand_on(&self, upstream: &Upstream, body: reqwest::Body) -> Reply {
        let mut headers = self.parts.headers.clone();
        if let (Some(signature), Some(caller)) = (&self.signature, &self.caller)
            && !signature.presigned
            && signature.service != "sts"
            && !caller.arn.ends_with(":root")
        {
            headers.insert("authorization", root_authorization(&signature.region, &signature.service));
            headers.remove("x-amz-security-token");
        }
        let path = self.parts.uri.path_and_query().map_or("/", |path| path.as_str());
        upstream.forward(self.parts.method.clone(), path, &headers, body).await
    }
}

/// Why a signature does not make a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unidentified {
    /// The key is unknown, inactive or expired, or its session token is missing or wrong.
    Key,
    /// The signature is wrong.
    Signature,
    /// The signature is old.
    Time,
}

async fn identify(
    upstream: &Upstream,
    signature: &Signature,
    parts: &Parts,
    body: &[u8],
) -> Result<Credential, Unidentified> {
    let credential = upstream.credential(&signature.access_key).await.ok_or(Unidentified::Key)?;
    if credential.arn.ends_with(":root") {
        return Ok(credential);
    }
    if credential.session_token != signature.session_token {
        return Err(Unidentified::Key);
    }
    let hash = sha256_hex(body);
    let secret = &credential.secret_access_key;
    signature.verify(secret, &parts.method, &parts.uri, &parts.headers, &hash, clock::now()).map_err(
        |refusal| match refusal {
            crate::sigv4::Refusal::Mismatch => Unidentified::Signature,
            crate::sigv4::Refusal::NotCurrent => Unidentified::Time,
        },
    )?;
    Ok(credential)
}

/// Whether a request is one of those whose name or resource stands in its body.
fn readable(parts: &Parts) -> bool {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let length = text("content-length").and_then(|length| length.parse::<u64>().ok());
    let kind = text("content-type").unwrap_or_default();
    let empty = length.unwrap_or(0) == 0 && !parts.headers.contains_key("transfer-encoding");
    empty
        || (length.is_some_and(|length| length <= READABLE)
            && (kind.contains("json") || kind.contains("x-www-form-urlencoded")))
}

async fn control(shared: &Shared, backends: &Backends, path: String, parts: &Parts, body: Body) -> Reply {
    match (parts.method.as_str(), path.as_str()) {
        ("GET", "calls") => {
            let filter = Filter::of_query(parts.uri.query().unwrap_or_default());
            json_reply(StatusCode::OK, &json!({ "calls": shared.calls.list(&filter) }))
        }
        ("GET", "settings") => {
            let settings = Settings {
                rules: Some(shared.rules.all()),
                credential_delay_seconds: Some(backends.iam.delay().as_secs_f64()),
                wait_scale: None,
            };
            json_reply(StatusCode::OK, &json!(settings))
        }
        ("POST", "settings") => {
            let bytes = axum::body::to_bytes(body, LARGEST).await.unwrap_or_default();
            let settings: Settings = match serde_json::from_slice(&bytes) {
                Ok(settings) => settings,
                Err(error) => {
                    return json_reply(StatusCode::BAD_REQUEST, &json!({ "message": error.to_string() }));
                }
            };
            if let Some(rules) = settings.rules {
                shared.rules.set(rules);
            }
            if let Some(seconds) = settings.credential_delay_seconds {
                match Duration::try_from_secs_f64(seconds) {
                    Ok(delay) => backends.iam.set_delay(delay),
                    Err(error) => {
                        return json_reply(StatusCode::BAD_REQUEST, &json!({ "message": error.to_string() }));
                    }
                }
            }
            if let Some(scale) = settings.wait_scale
                && let Err(error) = backends.upstream.set_wait_scale(scale).await
            {
                return json_reply(StatusCode::BAD_GATEWAY, &json!({ "message": error.to_string() }));
            }
            json_reply(StatusCode::OK, &json!({}))
        }
        _ => json_reply(StatusCode::NOT_FOUND, &json!({ "message": format!("no /_sandbox/{path}") })),
    }
}

fn json_reply(status: StatusCode, body: &Value) -> Reply {
    raw(status.as_u16(), "application/json", &body.to_string())
}

fn plain(status: StatusCode, text: &str) -> Reply {
    raw(status.as_u16(), "text/plain", text)
}

fn raw(status: u16, content_type: &str, body: &str) -> Reply {
    let mut reply = Reply::new(Body::from(body.to_owned()));
    *reply.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Ok(value) = HeaderValue::from_str(content_type) {
        reply.headers_mut().insert("content-type", value);
    }
    reply
}
