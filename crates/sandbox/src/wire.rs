//! The seams between the parts of the local world.

use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::Value;

/// A reply on the wire.
pub type Reply = http::Response<Body>;

/// Who makes a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// As STS names it: `arn:aws:sts::…:assumed-role/ROLE/SESSION`, a user, or the account's root.
    pub arn: String,
    /// Twelve digits.
    pub account: String,
}

/// A call of an AWS API, read as far as routing needs it.
#[derive(Debug, Clone)]
pub struct Call {
    /// The signing name: `codecommit`, `ec2`, `iam`, `eks` …
    pub service: String,
    /// The operation: `CreateCommit`; for REST services empty.
    pub action: String,
    /// The region it was signed for.
    pub region: String,
    /// Who signed it.
    pub caller: Caller,
    /// Method, path, headers and body as they came.
    pub request: http::Request<Bytes>,
}

/// An error as a service's API gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// The service's own code.
    pub code: String,
    /// The service's own text.
    pub message: String,
}

impl ApiError {
    /// An error with status 400, as most are.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        ApiError { status: 400, code: code.to_owned(), message: message.into() }
    }

    /// The same with another status.
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }
}

/// Decides who may use a Git repository: the IAM emulator, for the Git server.
pub trait GitAuthority: Send + Sync {
    /// Whether this user name and password, issued as a service-specific credential, may pull from
    /// (or with `write` push to) the repository.
    fn allows<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        repository: &'a str,
        write: bool,
    ) -> BoxFuture<'a, bool>;
}

/// Takes events for EventBridge's default bus: the edge, for CodeCommit.
pub trait EventSink: Send + Sync {
    /// Publishes one event: `source`, `detail-type`, `resources`, `detail`.
    fn publish(&self, source: &str, detail_type: &str, resources: Vec<String>, detail: Value);
}

/// A user as Kubernetes sees one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInfo {
    /// The role's ARN.
    pub username: String,
    /// `system:authenticated`, and `system:masters` where the cluster admin policy is associated.
    pub groups: Vec<String>,
}

/// Checks bearer tokens: the EKS emulator, for the Kubernetes API.
pub trait Authenticator: Send + Sync {
    /// The user behind a token, or nothing (401).
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Option<UserInfo>>;
}

/// The value of `NO_PROXY` with which programs reach this machine, whatever proxy leads to others.
pub fn no_proxy() -> String {
    let mut hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    hosts.extend(
        ["NO_PROXY", "no_proxy"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok())
            .filter(|named| !named.is_empty()),
    );
    hosts.join(",")
}
