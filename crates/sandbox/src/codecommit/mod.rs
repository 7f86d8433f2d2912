//! CodeCommit: its API, and its Git endpoint over smart HTTP, in front of real bare repositories.
//!
//! Each repository is a folder below [`Settings::root`] that any Git can read, with the service's own
//! facts about it in `codecommit.json` inside. Nothing is kept in memory alone, so a world that is
//! started again over the same folder finds its repositories. All work on them is done by the plumbing of
//! the `git` program; `update-ref` with the old value decides races between API calls and pushes.
//!
//! # What the Git endpoint answers to a stranger
//! CodeCommit is known for a bare `403` where other hosts challenge with `401` (akuity/kargo#6794), and a
//! client that holds credentials does best to send them unasked. Yet the stock `git` program never does,
//! not even with a user name and password in the URL: it offers them to libcurl as "any method", and
//! libcurl then waits for a challenge to learn which. Since `git clone https://git-codecommit…` does ask
//! for a user name and a password and only then ends in `403` when they are wrong (rkt/rkt#3749), the
//! service must challenge a request that has no `Authorization` header at all. So does this one: no
//! header → `401` with a `Basic` challenge; a header that is not accepted → bare `403`, which is final.
//! [`CodeCommit::challenge`] turns the challenge off, for clients that have to work without it; then stock
//! `git` gets in only with `-c http.extraHeader="Authorization: Basic …"`.
//!
//! # What it does not imitate
//! Pull requests, merges, comments, approval rules, triggers and file history are unknown operations.
//! Contents are stored in clear: a key only decides whether the repository answers. Error texts are
//! those of the API's documentation, as far as the service's own are not known.

mod branches;
mod commits;
mod names;
mod plumbing;
mod reading;
mod refusal;
mod repositories;
mod smart;
mod tags;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::OffsetDateTime;

use self::plumbing::{Git, NO_OBJECT};
use self::refusal::{Answer, refuse, refuse_with};
pub use self::repositories::managed_key;
use crate::wire::{ApiError, Call, Caller, EventSink, GitAuthority, Reply};

/// Where the emulator lives.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder that holds the repositories; made when it doesn't exist.
    pub root: PathBuf,
    /// What stands before `/v1/repos/<name>` in a clone URL, without a slash at the end.
    pub base_url: String,
    /// The region in ARNs and events.
    pub region: String,
    /// The twelve digits in ARNs and events.
    pub account: String,
}

/// What KMS says of a key that a repository is to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyState {
    /// Usable; the key's ARN, which is what the API shows from then on.
    Enabled(String),
    /// Disabled.
    Disabled,
    /// No such key or alias.
    NotFound,
    /// Waiting for its deletion, or for key material.
    Unavailable,
    /// Usable, but not by this caller.
    AccessDenied,
    /// Not a symmetric key for encryption.
    InvalidUsage,
}

/// Looks keys up: the edge, which can ask KMS.
pub trait KeyCheck: Send + Sync {
    /// The state of a key, given by id, ARN, alias or alias ARN.
    fn state<'a>(&'a self, key: &'a str) -> BoxFuture<'a, KeyState>;
}

/// Takes every key for an enabled one.
struct AnyKey {
    prefix: String,
}

impl KeyCheck for AnyKey {
    fn state<'a>(&'a self, key: &'a str) -> BoxFuture<'a, KeyState> {
        let arn = match key {
            arn if arn.starts_with("arn:") => arn.to_owned(),
            alias if alias.starts_with("alias/") => format!("{}{alias}", self.prefix),
            id => format!("{}key/{id}", self.prefix),
        };
        Box::pin(std::future::ready(KeyState::Enabled(arn)))
    }
}

/// The service's own facts about a repository.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Metadata {
    id: String,
    name: String,
    description: Option<String>,
    /// Nothing for the key that AWS manages.
    key: Option<String>,
    tags: BTreeMap<String, String>,
    /// Milliseconds since 1970.
    created: i64,
    modified: i64,
}

/// A repository.
struct Repository {
    git: Git,
    metadata: Mutex<Metadata>,
    /// Held while a reference changes and what follows from the change (HEAD of a repository that was
    /// empty) is done.
    references: tokio::sync::Mutex<()>,
}

impl Repository {
    fn metadata(&self) -> Metadata {
        self.metadata.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Metadata)) -> Answer<()> {
        let mut metadata = self.metadata.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut metadata);
        metadata.modified = now();
        save(&self.git, &metadata).map_err(|error| plumbing::Problem::from(error).into())
    }

    /// The default branch, which an empty repository doesn't have.
    async fn default_branch(&self) -> Answer<Option<String>> {
        let head = self.git.head().await?;
        let exists = self.git.resolve(&head, "commit").await?.is_some();
        Ok(head.strip_prefix("refs/heads/").filter(|_| exists).map(str::to_owned))
    }

    /// The head of a branch.
    async fn tip(&self, branch: &str) -> Answer<Option<String>> {
        Ok(self.git.resolve(&format!("refs/heads/{branch}"), "commit").await?)
    }

    /// Makes this branch the default when there is no default yet, as the first branch of a repository
    /// becomes its default.
    async fn adopt_default(&self, branch: &str) -> Answer<()> {
        if self.default_branch().await?.is_none() {
            self.git.set_head(&format!("refs/heads/{branch}")).await?;
        }
        Ok(())
    }

    /// The commit that a commit specifier names: a full id, `HEAD` or nothing, a full reference, a
    /// branch or a tag. Git's own richer syntax stays closed.
    async fn commit(&self, specifier: Option<&str>) -> Answer<String> {
        let unknown = || refuse("CommitDoesNotExistException");
        let specifier = specifier.unwrap_or("HEAD");
        if names::is_object_id(specifier) {
            return self.git.resolve(specifier, "commit").await?.ok_or_else(unknown);
        }
        if specifier == "HEAD" {
            let head = self.git.head().await?;
            return self.git.resolve(&head, "commit").await?.ok_or_else(unknown);
        }
        if !names::is_reference(specifier) {
            return Err(refuse("InvalidCommitException"));
        }
        if specifier.starts_with("refs/") {
            return self.git.resolve(specifier, "commit").await?.ok_or_else(unknown);
        }
        for folder in ["refs/heads", "refs/tags"] {
            if let Some(id) = self.git.resolve(&format!("{folder}/{specifier}"), "commit").await? {
                return Ok(id);
            }
        }
        Err(unknown())
    }
}

/// The emulator.
pub struct CodeCommit {
    settings: Settings,
    authority: Arc<dyn GitAuthority>,
    events: Arc<dyn EventSink>,
    keys: Arc<dyn KeyCheck>,
    repositories: RwLock<BTreeMap<String, Arc<Repository>>>,
    throttled: AtomicU32,
    git_throttled: AtomicU32,
    challenges: AtomicBool,
    closed: AtomicBool,
    page: AtomicUsize,
}

impl std::fmt::Debug for CodeCommit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CodeCommit").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl CodeCommit {
    /// The emulator over what its folder holds.
    pub fn new(settings: Settings, authority: Arc<dyn GitAuthority>, events: Arc<dyn EventSink>) -> Self {
        let prefix = format!("arn:aws:kms:{}:{}:", settings.region, settings.account);
        let repositories = load(&settings);
        CodeCommit {
            settings,
            authority,
            events,
            keys: Arc::new(AnyKey { prefix }),
            repositories: RwLock::new(repositories),
            throttled: AtomicU32::new(0),
            git_throttled: AtomicU32::new(0),
            challenges: AtomicBool::new(true),
            closed: AtomicBool::new(false),
            page: AtomicUsize::new(100),
        }
    }

    /// The same with keys looked up. Without, every key counts as enabled.
    pub fn with_keys(mut self, keys: Arc<dyn KeyCheck>) -> Self {
        self.keys = keys;
        self
    }

    /// Lets the next API calls fail as CodeCommit fails when it is asked too often: status 400 with an
    /// XML body, although the API speaks JSON (hashicorp/terraform#22686).
    pub fn throttle(&self, calls: u32) {
        self.throttled.store(calls, Ordering::SeqCst);
    }

    /// Lets the next requests to the Git endpoint fail with 429.
    pub fn throttle_git(&self, requests: u32) {
        self.git_throttled.store(requests, Ordering::SeqCst);
    }

    /// Whether the Git endpoint answers a request without credentials by a challenge (401, the default)
    /// or by a bare 403.
    pub fn challenge(&self, challenge: bool) {
        self.challenges.store(challenge, Ordering::SeqCst);
    }

    /// Whether CreateRepository is refused, as it is in accounts that CodeCommit is closed to.
    pub fn closed(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }

    /// The number of entries on a page of a list (100 by default).
    pub fn page_size(&self, entries: usize) {
        self.page.store(entries.max(1), Ordering::SeqCst);
    }

    /// The customer-managed key of a repository: nothing for the key that AWS manages, which asks no rights
    /// of a Git user, and for a repository that doesn't exist.
    pub fn key(&self, repository: &str) -> Option<String> {
        self.find(repository)?.metadata().key
    }

    /// Whether a path belongs to the Git endpoint.
    pub fn is_git(path: &str) -> bool {
        path.starts_with("/v1/repos/")
    }

    /// Answers a call of the API.
    pub async fn call(&self, call: &Call) -> Reply {
        if take(&self.throttled) {
            return reply(
                400,
                "application/xml",
                "<ThrottlingException>\n  <Message>Rate exceeded</Message>\n</ThrottlingException>\n",
            );
        }
        match self.dispatch(&call.action, call.request.body(), &call.caller).await {
            Ok(value) => {
                let body = if value.is_null() { String::new() } else { value.to_string() };
                reply(200, JSON, body)
            }
            Err(error) => {
                let body = json!({"__type": error.code, "message": error.message});
                let mut reply = reply(error.status, JSON, body.to_string());
                if let Ok(code) = http::HeaderValue::from_str(&error.code) {
                    reply.headers_mut().insert("x-amzn-errortype", code);
                }
                reply
            }
        }
    }

    async fn dispatch(&self, action: &str, body: &[u8], caller: &Caller) -> Answer<Value> {
        match action {
            "CreateRepository" => self.create_repository(read(body)?).await,
            "GetRepository" => self.get_repository(read(body)?).await,
            "ListRepositories" => self.list_repositories(read(body)?),
            "BatchGetRepositories" => self.batch_get_repositories(read(body)?).await,
            "DeleteRepository" => self.delete_repository(read(body)?).await,
            "UpdateRepositoryName" => self.update_repository_name(read(body)?),
            "UpdateRepositoryDescription" => self.update_repository_description(read(body)?).await,
            "UpdateRepositoryEncryptionKey" => self.update_repository_encryption_key(read(body)?).await,
            "TagResource" => self.tag_resource(read(body)?),
            "UntagResource" => self.untag_resource(read(body)?),
            "ListTagsForResource" => self.list_tags_for_resource(read(body)?),
            "CreateBranch" => self.create_branch(read(body)?, caller).await,
            "GetBranch" => self.get_branch(read(body)?).await,
            "ListBranches" => self.list_branches(read(body)?).await,
            "DeleteBranch" => self.delete_branch(read(body)?, caller).await,
            "UpdateDefaultBranch" => self.update_default_branch(read(body)?).await,
            "CreateCommit" => self.create_commit(read(body)?, caller).await,
            "PutFile" => self.put_file(read(body)?, caller).await,
            "DeleteFile" => self.delete_file(read(body)?, caller).await,
            "GetFile" => self.get_file(read(body)?).await,
            "GetFolder" => self.get_folder(read(body)?).await,
            "GetBlob" => self.get_blob(read(body)?).await,
            "GetCommit" => self.get_commit(read(body)?).await,
            "BatchGetCommits" => self.batch_get_commits(read(body)?).await,
            "GetDifferences" => self.get_differences(read(body)?).await,
            other => Err(refuse_with(
                "UnknownOperationException",
                format!("{other} is not an operation of the sandbox's CodeCommit"),
            )),
        }
    }

    fn find(&self, name: &str) -> Option<Arc<Repository>> {
        self.repositories.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The repository that a request names.
    fn named(&self, name: Option<&str>) -> Answer<Arc<Repository>> {
        let name = names::repository(name)?;
        self.find(name)
            .ok_or_else(|| refuse_with("RepositoryDoesNotExistException", format!("{name} does not exist")))
    }

    /// The same, when its key lets it be read.
    async fn open(&self, name: Option<&str>) -> Answer<Arc<Repository>> {
        let repository = self.named(name)?;
        self.unlock(&repository).await?;
        Ok(repository)
    }

    async fn unlock(&self, repository: &Repository) -> Answer<()> {
        match repository.metadata().key {
            Some(key) => self.usable(&key).await.map(drop),
            None => Ok(()),
        }
    }

    /// A key's ARN, or the error of a key that can't be used.
    async fn usable(&self, key: &str) -> Answer<String> {
        let code = match self.keys.state(key).await {
            KeyState::Enabled(arn) => return Ok(arn),
            KeyState::Disabled => "EncryptionKeyDisabledException",
            KeyState::NotFound => "EncryptionKeyNotFoundException",
            KeyState::Unavailable => "EncryptionKeyUnavailableException",
            KeyState::AccessDenied => "EncryptionKeyAccessDeniedException",
            KeyState::InvalidUsage => "EncryptionKeyInvalidUsageException",
        };
        Err(refuse(code))
    }

    fn arn(&self, name: &str) -> String {
        arn(&self.settings, name)
    }

    fn announce(&self, metadata: &Metadata, reference: &str, old: &str, new: &str, caller: &str) {
        self.herald().announce(metadata, reference, old, new, caller);
    }

    fn herald(&self) -> Herald {
        Herald { settings: self.settings.clone(), events: self.events.clone() }
    }

    /// Cuts the page that a token asks for out of a list, with the token for the next one.
    fn paginate<T>(
        &self,
        kind: &str,
        all: Vec<T>,
        token: Option<&str>,
        limit: Option<usize>,
    ) -> Answer<(Vec<T>, Option<String>)> {
        let start = match token {
            Some(token) => detoken(kind, token)
                .and_then(|offset| offset.parse().ok())
                .filter(|offset| *offset <= all.len())
                .ok_or_else(|| refuse("InvalidContinuationTokenException"))?,
            None => 0,
        };
        let size = limit.unwrap_or_else(|| self.page.load(Ordering::SeqCst));
        let end = all.len().min(start.saturating_add(size));
        let next = (end < all.len()).then(|| entoken(kind, &end.to_string()));
        Ok((all.into_iter().skip(start).take(size).collect(), next))
    }
}

fn arn(settings: &Settings, name: &str) -> String {
    format!("arn:aws:codecommit:{}:{}:{name}", settings.region, settings.account)
}

/// Tells EventBridge of changed references, also after the request that changed them has gone.
#[derive(Clone)]
struct Herald {
    settings: Settings,
    events: Arc<dyn EventSink>,
}

impl Herald {
    /// A reference went from `old` to `new`, either of which may be [`NO_OBJECT`].
    fn announce(&self, metadata: &Metadata, reference: &str, old: &str, new: &str, caller: &str) {
        let (kind, short) =
            match (reference.strip_prefix("refs/heads/"), reference.strip_prefix("refs/tags/")) {
                (Some(branch), _) => ("branch", branch),
                (_, Some(tag)) => ("tag", tag),
                _ => return,
            };
        let event = match (old, new) {
            (NO_OBJECT, _) => "referenceCreated",
            (_, NO_OBJECT) => "referenceDeleted",
            _ => "referenceUpdated",
        };
        let mut detail = json!({
            "event": event,
            "repositoryName": metadata.name,
            "repositoryId": metadata.id,
            "referenceType": kind,
            "referenceName": short,
            "referenceFullName": reference,
            "callerUserArn": caller,
        });
        if new != NO_OBJECT {
            detail["commitId"] = json!(new);
        }
        if old != NO_OBJECT {
            detail["oldCommitId"] = json!(old);
        }
        let resources = vec![arn(&self.settings, &metadata.name)];
        self.events.publish("aws.codecommit", "CodeCommit Repository State Change", resources, detail);
    }
}

const JSON: &str = "application/x-amz-json-1.1";

fn read<T: DeserializeOwned>(body: &[u8]) -> Answer<T> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| refuse_with("SerializationException", error.to_string()))
}

fn reply(status: u16, kind: &'static str, body: impl Into<Body>) -> Reply {
    let mut reply = Reply::new(body.into());
    *reply.status_mut() =
        http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = reply.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    if let Ok(id) = http::HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()) {
        headers.insert("x-amzn-requestid", id);
    }
    reply
}

fn take(counter: &AtomicU32) -> bool {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

fn entoken(kind: &str, position: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{kind} {position}"))
}

fn detoken(kind: &str, token: &str) -> Option<String> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    text.strip_prefix(kind)?.strip_prefix(' ').map(str::to_owned)
}

/// Milliseconds since 1970.
fn now() -> i64 {
    i64::try_from(OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000).unwrap_or_default()
}

const METADATA: &str = "codecommit.json";

fn save(git: &Git, metadata: &Metadata) -> std::io::Result<()> {
    let fresh = git.folder().join(format!("{METADATA}.new"));
    std::fs::write(&fresh, serde_json::to_vec_pretty(metadata)?)?;
    std::fs::rename(fresh, git.folder().join(METADATA))
}

fn load(settings: &Settings) -> BTreeMap<String, Arc<Repository>> {
    let mut repositories = BTreeMap::new();
    let Ok(folders) = std::fs::read_dir(&settings.root) else { return repositories };
    for folder in folders.flatten() {
        let Ok(bytes) = std::fs::read(folder.path().join(METADATA)) else { continue };
        match serde_json::from_slice::<Metadata>(&bytes) {
            Ok(metadata) => {
                let git = Git::new(folder.path(), smart::hooks(&settings.root));
                repositories.insert(metadata.name.clone(), Arc::new(repository(git, metadata)));
            }
            Err(error) => {
                tracing::warn!(folder = %folder.path().display(), %error, "not a repository of the sandbox");
            }
        }
    }
    repositories
}

fn repository(git: Git, metadata: Metadata) -> Repository {
    Repository { git, metadata: Mutex::new(metadata), references: tokio::sync::Mutex::new(()) }
}

/// An error that says nothing but its code, for lists of errors inside a reply.
fn pair(error: &ApiError) -> (Value, Value) {
    (json!(error.code), json!(error.message))
}
