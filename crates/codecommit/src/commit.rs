//! Commits that are safe to repeat.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_sdk_codecommit::error::SdkError;
use aws_sdk_codecommit::operation::create_commit::{CreateCommitError, CreateCommitOutput};
use aws_sdk_codecommit::primitives::Blob;
use aws_sdk_codecommit::types::{DeleteFileEntry, FileModeTypeEnum, PutFileEntry};
use sha1::{Digest, Sha1};
use step::{Resource, Result, StepError, ledger};

use crate::{Folder, Head, Repo, code, error, is_key_settling};

pub use step::Change;

/// The kind of a branch in reports. CloudFormation has no type for it; this follows its spelling.
pub const BRANCH: &str = "AWS::CodeCommit::Branch";

/// CodeCommit takes 100 files a commit.
const MAX_FILES: usize = 99;
/// CodeCommit takes 7 MB of changes a commit and does not say which megabyte it means.
const MAX_BYTES: usize = 6_900_000;
/// CodeCommit takes 6 MB a file.
const MAX_FILE_BYTES: usize = 6_291_456;
/// How often the head is read again before the state machine takes over.
const ATTEMPTS: u32 = 6;
/// The longest pause between two of them.
const PAUSE: Duration = Duration::from_millis(1_500);

/// Whether what is there may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// The file is ours: it gets these bytes.
    Always,
    /// The file is a first proposal: whatever is at its path stays.
    IfAbsent,
}

/// A file to be in the branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Path from the root, without a slash at its beginning.
    pub path: String,
    /// The content. CodeCommit refuses empty files in PutFile, so that they are not sent at all.
    pub bytes: Vec<u8>,
    /// Whether what is there may be replaced.
    pub overwrite: Overwrite,
}

impl File {
    /// A file; `./` and `/` at the path's beginning are dropped.
    pub fn new(path: &str, bytes: impl Into<Vec<u8>>, overwrite: Overwrite) -> Self {
        File { path: clean(path).to_owned(), bytes: bytes.into(), overwrite }
    }
}

/// What to do about a branch that does not exist in a repository with other history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewBranch {
    /// `Conflict`.
    Refuse,
    /// It begins at the default branch's head.
    FromDefault,
}

/// Files to be in a branch, and how the commit is described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The branch. In an empty repository the commit makes it, and it becomes the default.
    pub branch: String,
    /// The files.
    pub files: Vec<File>,
    /// Paths that are not to be in the branch any more.
    pub deletes: Vec<String>,
    /// The commit message.
    pub message: String,
    /// The author's name.
    pub author: String,
    /// The author's address; may be empty.
    pub email: String,
    /// For a branch that does not exist beside other history.
    pub new_branch: NewBranch,
}

impl Commit {
    /// A commit without files, by `eks-flux-bootstrap`, on a branch that exists (or an empty
    /// repository).
    pub fn new(branch: &str, message: &str) -> Self {
        Commit {
            branch: branch.to_owned(),
            files: Vec::new(),
            deletes: Vec::new(),
            message: message.to_owned(),
            author: "eks-flux-bootstrap".to_owned(),
            email: String::new(),
            new_branch: NewBranch::Refuse,
        }
    }

    /// Adds a file.
    pub fn file(mut self, file: File) -> Self {
        self.files.push(file);
        self
    }

    /// Adds files.
    pub fn files(mut self, files: impl IntoIterator<Item = File>) -> Self {
        self.files.extend(files);
        self
    }

    /// Adds a path to delete; one that is not there is no error.
    pub fn delete(mut self, path: &str) -> Self {
        self.deletes.push(clean(path).to_owned());
        self
    }

    /// Sets the author.
    pub fn author(mut self, name: &str, email: &str) -> Self {
        self.author = name.to_owned();
        self.email = email.to_owned();
        self
    }

    /// Lets the branch begin at the default branch's head where it does not exist.
    pub fn from_default(mut self) -> Self {
        self.new_branch = NewBranch::FromDefault;
        self
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The branch's head, with all files as they should be.
    pub commit_id: String,
    /// `Created`: the branch is new. `Updated`: files were written. `Unchanged`: no write was made.
    pub change: Change,
    /// The commits that this call made, oldest first. A commit whose answer was lost is not among
    /// them, though its files are in `written`.
    pub commits: Vec<String>,
    /// The paths that differed and were written or deleted.
    pub written: Vec<String>,
}

/// `sha1("blob <length>\0" + bytes)`, as Git names content.
pub fn blob_id(bytes: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A path without what CodeCommit refuses at its beginning and end.
pub(crate) fn clean(path: &str) -> &str {
    path.trim_start_matches("./").trim_matches('/')
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// One entry of CreateCommit.
#[derive(Debug, Clone, Copy)]
enum Entry<'c> {
    Put(&'c File),
    Delete(&'c str),
}

impl Entry<'_> {
    fn path(&self) -> &str {
        match self {
            Entry::Put(file) => &file.path,
            Entry::Delete(path) => path,
        }
    }

    fn size(&self) -> usize {
        match self {
            Entry::Put(file) => file.bytes.len(),
            Entry::Delete(_) => 0,
        }
    }
}

/// What a failed CreateCommit means for the next attempt.
enum Failure {
    /// The branch moved: read it again.
    Stale(StepError),
    /// The commit may have landed: read the head and look.
    Unknown(StepError),
    /// No attempt will help.
    Final(StepError),
}

impl Repo<'_> {
    /// Makes sure that the branch holds the files, in as few commits as CodeCommit's limits allow.
    /// Makes no write where nothing differs.
    ///
    /// # Errors
    /// `Transient` when the branch keeps moving or the service does not answer; `Conflict` where
    /// something in the repository is in the way; otherwise as [`error`](crate::error) says.
    pub async fn commit_files(&self, commit: &Commit) -> Result<Committed> {
        check(commit)?;
        let mut change = Change::Unchanged;
        let mut commits = Vec::new();
        let mut written = BTreeSet::new();
        let mut attempt = 0;
        'look: loop {
            let mut parent = match self.head(&commit.branch).await? {
                Head::Commit(id) => Some(id),
                Head::Empty => None,
                Head::NoBranch { default_branch } => {
                    let (at, made) = self.branch_from_default(commit, &default_branch).await?;
                    if made {
                        change = Change::Created;
                    }
                    Some(at)
                }
            };
            let pending = self.pending(parent.as_deref(), commit).await?;
            if pending.is_empty() {
                let commit_id = parent.ok_or_else(|| {
                    StepError::internal(format!("a commit without files for the empty {}", self.label()))
                })?;
                let written = written.into_iter().collect();
                return Ok(Committed { commit_id, change, commits, written });
            }
            for chunk in chunks(&pending) {
                let failure = match self.create_commit(parent.as_deref(), commit, chunk).await {
                    Ok(reply) => {
                        // NoChange is success: somebody else has just written the same.
                        let Some(reply) = reply else { continue };
                        change = match (&parent, change) {
                            (None, _) | (_, Change::Created) => Change::Created,
                            _ => Change::Updated,
                        };
                        written.extend(chunk.iter().map(|entry| entry.path().to_owned()));
                        let id = reply.commit_id.ok_or_else(|| {
                            StepError::internal(format!(
                                "codecommit:CreateCommit on {}: the reply has no commit id",
                                self.branch_label(&commit.branch)
                            ))
                        })?;
                        self.note(&commit.branch, change);
                        commits.push(id.clone());
                        parent = Some(id);
                        continue;
                    }
                    Err(failure) => failure,
                };
                match failure {
                    Failure::Final(error) => return Err(error),
                    Failure::Stale(error) => {
                        attempt += 1;
                        if attempt >= ATTEMPTS {
                            return Err(self.moving(commit, Some(error)));
                        }
                        self.client().pause(attempt, PAUSE).await;
                    }
                    Failure::Unknown(error) => {
                        attempt += 1;
                        if attempt >= ATTEMPTS {
                            return Err(error);
                        }
                        // If it landed, the next look finds nothing to do; it was a write all the same.
                        if change == Change::Unchanged {
                            change = if parent.is_none() { Change::Created } else { Change::Updated };
                        }
                        written.extend(chunk.iter().map(|entry| entry.path().to_owned()));
                        self.client().pause(attempt, PAUSE).await;
                    }
                }
                continue 'look;
            }
            // All chunks landed, and the last one is the head.
            if let Some(commit_id) = parent {
                let written = written.into_iter().collect();
                return Ok(Committed { commit_id, change, commits, written });
            }
        }
    }

    /// The error after the last attempt.
    fn moving(&self, commit: &Commit, last: Option<StepError>) -> StepError {
        let last = last.map(|error| format!(" ({})", error.message)).unwrap_or_default();
        StepError::transient(format!(
            "{}: somebody else commits to it at the same time{last}. The step is tried again",
            self.branch_label(&commit.branch)
        ))
    }

    /// For the case that a later chunk fails: the branch is changed by then.
    fn note(&self, branch: &str, change: Change) {
        ledger::note(&Resource::new(BRANCH, format!("{}/{branch}", self.name()), change));
    }

    /// Lets the branch begin at the default branch's head. Answers with the branch's head, and
    /// whether it was this call that made the branch.
    async fn branch_from_default(&self, commit: &Commit, default: &str) -> Result<(String, bool)> {
        let label = self.branch_label(&commit.branch);
        if commit.new_branch == NewBranch::Refuse {
            return Err(StepError::conflict(format!(
                "{label} does not exist, though the repository has other history on {default}. Start the execution \
                 again: its step repo_seed makes the branch"
            )));
        }
        let Some(at) = self.branch_head(default).await? else {
            return Err(StepError::conflict(format!(
                "{label} does not exist, and neither does the repository's default branch {default}. Set a default \
                 branch that exists (aws codecommit update-default-branch), then start again"
            )));
        };
        let reply = self
            .client()
            .patiently(|| {
                let call = self.client().sdk().create_branch().repository_name(self.name());
                call.branch_name(&commit.branch).commit_id(&at).send()
            })
            .await;
        match reply {
            Ok(_) => {
                self.note(&commit.branch, Change::Created);
                Ok((at, true))
            }
            Err(e) if code(&e) == Some("BranchNameExistsException") => {
                // A duplicate run made it; its head may be further on than the default's.
                let at = self.branch_head(&commit.branch).await?;
                Ok((at.ok_or_else(|| self.moving(commit, None))?, false))
            }
            Err(e) => Err(error("codecommit:CreateBranch", &label, &e)),
        }
    }

    /// What differs from the branch, in the order of the request.
    async fn pending<'c>(&self, head: Option<&str>, commit: &'c Commit) -> Result<Vec<Entry<'c>>> {
        let mut folders: BTreeMap<&str, Folder> = BTreeMap::new();
        if let Some(head) = head {
            let files = commit.files.iter().map(|file| file.path.as_str());
            for path in files.chain(commit.deletes.iter().map(String::as_str)) {
                let (folder, _) = split(path);
                if !folders.contains_key(folder) {
                    folders.insert(folder, self.read_folder(head, folder).await?.unwrap_or_default());
                }
            }
        }
        let there = |path: &str| {
            let (folder, name) = split(path);
            folders.get(folder).and_then(|folder| folder.files.get(name))
        };
        let puts = commit.files.iter().filter(|file| match (there(&file.path), file.overwrite) {
            (None, _) => true,
            (Some(_), Overwrite::IfAbsent) => false,
            (Some(entry), Overwrite::Always) => entry.symlink || entry.blob_id != blob_id(&file.bytes),
        });
        let deletes = commit.deletes.iter().filter(|path| there(path).is_some());
        Ok(puts.map(Entry::Put).chain(deletes.map(|path| Entry::Delete(path))).collect())
    }

    /// One call. `Ok(None)` where the service says that nothing would change.
    async fn create_commit(
        &self,
        parent: Option<&str>,
        commit: &Commit,
        entries: &[Entry<'_>],
    ) -> std::result::Result<Option<CreateCommitOutput>, Failure> {
        let label = self.branch_label(&commit.branch);
        let unbuilt = |_| Failure::Final(StepError::internal(format!("a file without a path for {label}")));
        let mut call = self
            .client()
            .sdk()
            .create_commit()
            .repository_name(self.name())
            .branch_name(&commit.branch)
            .set_parent_commit_id(parent.map(str::to_owned))
            .commit_message(&commit.message)
            .author_name(&commit.author)
            .set_email(Some(commit.email.clone()).filter(|email| !email.is_empty()));
        for entry in entries {
            call = match entry {
                Entry::Put(file) => call.put_files(
                    PutFileEntry::builder()
                        .file_path(&file.path)
                        .file_mode(FileModeTypeEnum::Normal)
                        .file_content(Blob::new(file.bytes.clone()))
                        .build()
                        .map_err(unbuilt)?,
                ),
                Entry::Delete(path) => {
                    call.delete_files(DeleteFileEntry::builder().file_path(*path).build().map_err(unbuilt)?)
                }
            };
        }
        match self.client().patiently(|| call.clone().send()).await {
            Ok(reply) => Ok(Some(reply)),
            Err(e) if code(&e) == Some("NoChangeException") => Ok(None),
            Err(e) => Err(failure(&label, &e)),
        }
    }
}

fn failure(label: &str, e: &SdkError<CreateCommitError>) -> Failure {
    let mapped = error("codecommit:CreateCommit", label, e);
    match code(e) {
        Some(
            "ParentCommitIdOutdatedException"
            | "ParentCommitIdRequiredException"
            | "ParentCommitDoesNotExistException"
            | "BranchDoesNotExistException"
            | "FileDoesNotExistException"
            // Declared on merges only; should it appear here, it says the same.
            | "ConcurrentReferenceUpdateException",
        ) => Failure::Stale(mapped),
        // A key that stays unusable has had its time in `patiently` already.
        _ if is_key_settling(e) => Failure::Final(mapped),
        _ if mapped.name == step::ErrorName::Transient => Failure::Unknown(mapped),
        _ => Failure::Final(mapped),
    }
}

/// Refuses what CodeCommit would refuse, before any call.
fn check(commit: &Commit) -> Result<()> {
    let mut paths = BTreeSet::new();
    for file in &commit.files {
        let path = &file.path;
        if file.bytes.is_empty() {
            return Err(StepError::internal(format!(
                "{path} is empty: CodeCommit's API refuses empty files; give it a line"
            )));
        }
        if file.bytes.len() > MAX_FILE_BYTES {
            return Err(StepError::unsupported(format!(
                "{path} has {} bytes; CodeCommit's API takes 6 MB a file. Commit it with git instead",
                file.bytes.len()
            )));
        }
    }
    let all = commit.files.iter().map(|file| &file.path).chain(&commit.deletes);
    for path in all {
        if path.is_empty() || !paths.insert(path) {
            return Err(StepError::internal(format!("the path {path:?} is empty or listed twice")));
        }
    }
    Ok(())
}

/// Cuts the entries so that each part stays below CodeCommit's limits.
fn chunks<'p, 'c>(entries: &'p [Entry<'c>]) -> Vec<&'p [Entry<'c>]> {
    let mut parts = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (at, entry) in entries.iter().enumerate() {
        if at - from == MAX_FILES || (at > from && bytes + entry.size() > MAX_BYTES) {
            parts.push(&entries[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += entry.size();
    }
    if from < entries.len() {
        parts.push(&entries[from..]);
    }
    parts
}
