//! CodeCommit as the steps use it: a branch's head, its files, and commits that are safe to repeat.
//!
//! CodeCommit's API has no client token, so safety comes from reading first: files are compared by
//! their Git blob ids with what the branch holds, and nothing is sent when nothing differs. A
//! commit names its parent; when the branch has moved on, or the answer was lost and the commit
//! may or may not have landed, the head is read again and the difference is computed anew.
//!
//! ```no_run
//! # async fn example(config: &aws_config::SdkConfig) -> step::Result<()> {
//! use codecommit::{Client, Commit, File, Overwrite};
//! let client = Client::new(config);
//! let repo = client.repo("demo-fluxcd");
//! let commit = Commit::new("flux-branch", "Add Flux sync manifests")
//!     .file(File::new("clusters/demo/sync.yaml", "kind: List\n", Overwrite::Always));
//! let done = repo.commit_files(&commit).await?;
//! println!("{:?} at {}", done.change, done.commit_id);
//! # Ok(())
//! # }
//! ```

mod commit;
mod error;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_codecommit::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_codecommit::types::FileModeTypeEnum;
use step::clock::Clock;
use step::error::is_xml_throttling;
use step::{Result, StepError};

pub use commit::{BRANCH, Change, Commit, Committed, File, NewBranch, Overwrite, blob_id};
pub use error::{code, error, is_key_settling};

/// How often a key is given time to settle; with the pauses about 20 s.
const KEY_ATTEMPTS: u32 = 8;
/// How often a throttled call is made before the state machine takes over.
const THROTTLED_ATTEMPTS: u32 = 3;

/// A client for the region of its configuration.
#[derive(Debug, Clone)]
pub struct Client {
    sdk: aws_sdk_codecommit::Client,
    clock: Clock,
}

impl Client {
    /// Makes the client; once, in `main`.
    pub fn new(config: &SdkConfig) -> Self {
        Client { sdk: aws_sdk_codecommit::Client::new(config), clock: Clock::System }
    }

    /// Takes the pauses between attempts from this clock.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The SDK's client, for calls that have no place here.
    pub fn sdk(&self) -> &aws_sdk_codecommit::Client {
        &self.sdk
    }

    /// The clock between attempts.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Makes a call again while CodeCommit says that it cannot use the key yet, for about 20 s, and
    /// while it throttles in XML, which the SDK does not know for throttling, a few times. What is
    /// still there afterwards is real, or the state machine's to wait for.
    ///
    /// # Errors
    /// The last answer.
    pub async fn patiently<T, E, F, Fut>(&self, call: F) -> std::result::Result<T, SdkError<E>>
    where
        E: ProvideErrorMetadata,
        F: Fn() -> Fut,
        Fut: Future<Output = std::result::Result<T, SdkError<E>>>,
    {
        let mut attempt = 0;
        loop {
            let reply = call().await;
            attempt += 1;
            let (more, longest) = match &reply {
                Err(e) if is_key_settling(e) => (attempt < KEY_ATTEMPTS, Duration::from_secs(4)),
                Err(SdkError::ResponseError(raw)) => {
                    let throttled = raw.raw().body().bytes().is_some_and(is_xml_throttling);
                    (throttled && attempt < THROTTLED_ATTEMPTS, Duration::from_secs(1))
                }
                _ => (false, Duration::ZERO),
            };
            if !more {
                return reply;
            }
            self.pause(attempt, longest).await;
        }
    }

    /// Waits with jitter, so that duplicates which collided once do not do so again: exponentially
    /// from 200 ms up to `longest`.
    pub(crate) async fn pause(&self, attempt: u32, longest: Duration) {
        let ceiling = (200u64 << attempt.min(10)).min(longest.as_millis() as u64);
        let random = RandomState::new().build_hasher().finish();
        self.clock.sleep(Duration::from_millis(ceiling / 2 + random % (ceiling / 2 + 1))).await;
    }

    /// A repository by its name. Makes no call.
    pub fn repo<'a>(&'a self, name: &'a str) -> Repo<'a> {
        Repo { client: self, name }
    }
}

/// One repository.
#[derive(Debug, Clone, Copy)]
pub struct Repo<'a> {
    client: &'a Client,
    name: &'a str,
}

/// Where a branch stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// The branch's newest commit.
    Commit(String),
    /// The branch does not exist; the repository has history, and this is its default branch.
    NoBranch {
        /// The name of the default branch.
        default_branch: String,
    },
    /// The repository holds no commit at all.
    Empty,
}

impl Head {
    /// The commit id, where the branch exists.
    pub fn commit(&self) -> Option<&str> {
        match self {
            Head::Commit(id) => Some(id),
            Head::NoBranch { .. } | Head::Empty => None,
        }
    }
}

/// What one level of a folder holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Folder {
    /// Name (without path) to entry, of files and symbolic links.
    pub files: BTreeMap<String, Entry>,
    /// Names (without path) of the folders in it.
    pub folders: Vec<String>,
}

/// A file or symbolic link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The Git blob id, 40 hexadecimal digits.
    pub blob_id: String,
    /// A symbolic link is never taken for the file that it points to.
    pub symlink: bool,
}

impl<'a> Repo<'a> {
    /// The repository's name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    pub(crate) fn client(&self) -> &'a Client {
        self.client
    }

    /// How error texts name the repository.
    pub(crate) fn label(&self) -> String {
        format!("repository {}", self.name)
    }

    pub(crate) fn branch_label(&self, branch: &str) -> String {
        format!("branch {branch} of repository {}", self.name)
    }

    /// The newest commit of a branch. `BranchDoesNotExist` is also the answer of an empty
    /// repository, which is told apart by its having no default branch yet.
    ///
    /// # Errors
    /// `PrerequisiteMissing` without the repository; otherwise as AWS answers.
    pub async fn head(&self, branch: &str) -> Result<Head> {
        if let Some(id) = self.branch_head(branch).await? {
            return Ok(Head::Commit(id));
        }
        let metadata = self
            .client
            .patiently(|| self.client.sdk.get_repository().repository_name(self.name).send())
            .await
            .map_err(|e| error("codecommit:GetRepository", &self.label(), &e))?;
        match metadata.repository_metadata.and_then(|m| m.default_branch).filter(|b| !b.is_empty()) {
            None => Ok(Head::Empty),
            // Somebody made the first commit between the two calls.
            Some(default) if default == branch => Ok(match self.branch_head(branch).await? {
                Some(id) => Head::Commit(id),
                None => Head::NoBranch { default_branch: default },
            }),
            Some(default_branch) => Ok(Head::NoBranch { default_branch }),
        }
    }

    /// The newest commit of a branch that may not exist, by one call.
    pub(crate) async fn branch_head(&self, branch: &str) -> Result<Option<String>> {
        let reply = self
            .client
            .patiently(|| self.client.sdk.get_branch().repository_name(self.name).branch_name(branch).send())
            .await;
        match reply {
            Ok(reply) => match reply.branch.and_then(|b| b.commit_id) {
                Some(id) => Ok(Some(id)),
                None => Err(StepError::internal(format!(
                    "codecommit:GetBranch on {}: the reply has no commit id",
                    self.branch_label(branch)
                ))),
            },
            Err(e) if code(&e) == Some("BranchDoesNotExistException") => Ok(None),
            Err(e) => Err(error("codecommit:GetBranch", &self.branch_label(branch), &e)),
        }
    }

    /// The bytes of a file at a commit (or branch), or `None` where there is no such file.
    ///
    /// # Errors
    /// As AWS answers; `Unsupported` for a file that the API cannot give.
    pub async fn read_file(&self, at: &str, path: &str) -> Result<Option<Vec<u8>>> {
        let path = commit::clean(path);
        let reply = self
            .client
            .patiently(|| {
                let call = self.client.sdk.get_file().repository_name(self.name);
                call.commit_specifier(at).file_path(path).send()
            })
            .await;
        match reply {
            Ok(reply) => Ok(Some(reply.file_content.into_inner())),
            Err(e)
                if matches!(code(&e), Some("FileDoesNotExistException" | "FolderDoesNotExistException")) =>
            {
                Ok(None)
            }
            Err(e) => Err(error("codecommit:GetFile", &format!("{path} in {}", self.label()), &e)),
        }
    }

    /// One level of a folder at a commit (or branch), or `None` where there is no such folder.
    /// The root is `""`.
    ///
    /// # Errors
    /// As AWS answers.
    pub async fn read_folder(&self, at: &str, path: &str) -> Result<Option<Folder>> {
        let path = commit::clean(path);
        let reply = self
            .client
            .patiently(|| {
                let call = self.client.sdk.get_folder().repository_name(self.name);
                call.commit_specifier(at).folder_path(if path.is_empty() { "/" } else { path }).send()
            })
            .await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(e) if code(&e) == Some("FolderDoesNotExistException") => return Ok(None),
            Err(e) => {
                return Err(error("codecommit:GetFolder", &format!("/{path} in {}", self.label()), &e));
            }
        };
        let mut folder = Folder::default();
        let links = reply
            .symbolic_links
            .unwrap_or_default()
            .into_iter()
            .map(|l| (l.relative_path, l.absolute_path, l.blob_id, true));
        let files = reply.files.unwrap_or_default().into_iter().map(|f| {
            let symlink = f.file_mode == Some(FileModeTypeEnum::Symlink);
            (f.relative_path, f.absolute_path, f.blob_id, symlink)
        });
        for (relative, absolute, blob_id, symlink) in files.chain(links) {
            if let Some(name) = last_part(relative.or(absolute)) {
                folder.files.insert(name, Entry { blob_id: blob_id.unwrap_or_default(), symlink });
            }
        }
        for sub in reply.sub_folders.unwrap_or_default() {
            folder.folders.extend(last_part(sub.relative_path.or(sub.absolute_path)));
        }
        Ok(Some(folder))
    }
}

fn last_part(path: Option<String>) -> Option<String> {
    path.and_then(|p| p.rsplit('/').next().map(str::to_owned)).filter(|p| !p.is_empty())
}
