//! Commits through the API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::plumbing::{Entry, Files, NO_OBJECT};
use super::refusal::{Answer, refuse, refuse_with};
use super::{CodeCommit, Herald, Repository, branches, names, now};
use crate::wire::{ApiError, Caller};

/// Files in one commit.
const MAX_FILES: usize = 100;
/// Bytes of one file, and of what a commit writes directly into one folder.
const MAX_FILE: usize = 6 * 1024 * 1024;
/// Bytes of all files of one commit together.
const MAX_CHANGE: usize = 7 * 1024 * 1024;
/// Bytes of a commit message.
const MAX_MESSAGE: usize = 256 * 1024;
/// Characters of an author's name and address.
const MAX_NAME: usize = 1000;

/// The file that keeps a folder that would be empty.
const KEEPER: &str = ".gitkeep";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateCommit {
    repository_name: Option<String>,
    branch_name: Option<String>,
    parent_commit_id: Option<String>,
    author_name: Option<String>,
    email: Option<String>,
    commit_message: Option<String>,
    keep_empty_folders: Option<bool>,
    put_files: Option<Vec<PutEntry>>,
    delete_files: Option<Vec<DeleteEntry>>,
    set_file_modes: Option<Vec<ModeEntry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PutEntry {
    file_path: Option<String>,
    file_mode: Option<String>,
    file_content: Option<String>,
    source_file: Option<SourceFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SourceFile {
    file_path: Option<String>,
    is_move: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeleteEntry {
    file_path: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ModeEntry {
    file_path: Option<String>,
    file_mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PutFile {
    repository_name: Option<String>,
    branch_name: Option<String>,
    file_content: Option<String>,
    file_path: Option<String>,
    file_mode: Option<String>,
    parent_commit_id: Option<String>,
    commit_message: Option<String>,
    name: Option<String>,
    email: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeleteFile {
    repository_name: Option<String>,
    branch_name: Option<String>,
    file_path: Option<String>,
    parent_commit_id: Option<String>,
    keep_empty_folders: Option<bool>,
    commit_message: Option<String>,
    name: Option<String>,
    email: Option<String>,
}

/// What a request asks for, checked as far as it can be without the repository.
#[derive(Default)]
struct Plan {
    puts: Vec<Put>,
    deletes: Vec<String>,
    modes: Vec<(String, &'static str)>,
    keep_folders: bool,
}

struct Put {
    path: String,
    mode: Option<&'static str>,
    content: Content,
}

enum Content {
    Bytes(Vec<u8>),
    Copy { from: String, and_delete: bool },
}

/// What a commit did, as its reply says it.
#[derive(Default)]
struct Outcome {
    added: Vec<(String, Entry)>,
    updated: Vec<(String, Entry)>,
    deleted: Vec<(String, Entry)>,
}

struct Landed {
    commit: String,
    tree: String,
    outcome: Outcome,
}

/// Where a commit goes and who makes it.
struct Target<'a> {
    repository: Option<&'a str>,
    branch: Option<&'a str>,
    parent: Option<&'a str>,
    name: Option<&'a str>,
    email: Option<&'a str>,
    message: Option<&'a str>,
}

/// A file's mode on the wire, from Git's.
pub(super) fn mode_word(mode: &str) -> &'static str {
    match mode {
        "100755" => "EXECUTABLE",
        "120000" => "SYMLINK",
        _ => "NORMAL",
    }
}

fn mode_bits(word: &str) -> Answer<&'static str> {
    match word {
        "NORMAL" => Ok("100644"),
        "EXECUTABLE" => Ok("100755"),
        "SYMLINK" => Ok("120000"),
        _ => Err(refuse("InvalidFileModeException")),
    }
}

/// Contents as the wire carries them. CreateCommit refuses an empty file just as PutFile does, although
/// its documentation doesn't list the error.
fn decode(content: &str) -> Answer<Vec<u8>> {
    let bytes = STANDARD
        .decode(content)
        .map_err(|_| refuse_with("SerializationException", "fileContent is not base64"))?;
    match bytes.len() {
        0 => Err(refuse("FileContentRequiredException")),
        size if size > MAX_FILE => Err(refuse("FileContentSizeLimitExceededException")),
        _ => Ok(bytes),
    }
}

fn folders(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

fn folder(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(&[], |end| &path[..end])
}

impl Plan {
    /// The plan of a CreateCommit.
    fn read(input: &CreateCommit) -> Answer<Plan> {
        let puts = input.put_files.as_deref().unwrap_or_default();
        let deletes = input.delete_files.as_deref().unwrap_or_default();
        let modes = input.set_file_modes.as_deref().unwrap_or_default();
        match puts.len() + deletes.len() + modes.len() {
            0 => return Err(refuse("FileEntryRequiredException")),
            count if count > MAX_FILES => return Err(refuse("MaximumFileEntriesExceededException")),
            _ => {}
        }
        let mut plan = Plan { keep_folders: input.keep_empty_folders.unwrap_or_default(), ..Plan::default() };
        for put in puts {
            let path = names::path(put.file_path.as_deref())?.to_owned();
            let mode = put.file_mode.as_deref().map(mode_bits).transpose()?;
            let content = match (&put.file_content, &put.source_file) {
                (None, None) => return Err(refuse("SourceFileOrContentRequiredException")),
                (Some(_), Some(_)) => return Err(refuse("FileContentAndSourceFileSpecifiedException")),
                (Some(content), None) => Content::Bytes(decode(content)?),
                (None, Some(source)) => {
                    let from = names::path(source.file_path.as_deref())?.to_owned();
                    if from == KEEPER || from.ends_with("/.gitkeep") {
                        return Err(refuse("RestrictedSourceFileException"));
                    }
                    Content::Copy { from, and_delete: source.is_move.unwrap_or_default() }
                }
            };
            plan.puts.push(Put { path, mode, content });
        }
        for delete in deletes {
            plan.deletes.push(names::path(delete.file_path.as_deref())?.to_owned());
        }
        for mode in modes {
            let path = names::path(mode.file_path.as_deref())?.to_owned();
            let word = mode.file_mode.as_deref().ok_or_else(|| refuse("FileModeRequiredException"))?;
            plan.modes.push((path, mode_bits(word)?));
        }
        plan.check()?;
        Ok(plan)
    }

    /// Whether its entries fit together.
    fn check(&self) -> Answer<()> {
        let moved = self.puts.iter().filter_map(|put| match &put.content {
            Content::Copy { from, and_delete: true } => Some(from),
            _ => None,
        });
        let mut paths = BTreeSet::new();
        let puts = self.puts.iter().map(|put| &put.path);
        let modes = self.modes.iter().map(|(path, _)| path);
        for path in puts.chain(&self.deletes).chain(modes).chain(moved) {
            if !paths.insert(path.as_str()) {
                return Err(refuse("SamePathRequestException"));
            }
        }
        let puts: BTreeSet<&str> = self.puts.iter().map(|put| put.path.as_str()).collect();
        if puts.iter().any(|path| folders(path).any(|folder| puts.contains(folder))) {
            return Err(refuse("PutFileEntryConflictException"));
        }
        let total: usize = self
            .puts
            .iter()
            .map(|put| if let Content::Bytes(bytes) = &put.content { bytes.len() } else { 0 })
            .sum();
        if total > MAX_CHANGE {
            return Err(refuse("FileContentSizeLimitExceededException"));
        }
        limit_folders(self)
    }
}

/// Changes the files as planned; `blobs` are the ids of the plan's contents in their order.
fn apply(files: &mut Files, plan: &Plan, blobs: &[String]) -> Answer<Outcome> {
    let before = files.clone();
    let gone = |path: &str| refuse_with("FileDoesNotExistException", format!("Could not find path {path}"));
    let mut outcome = Outcome::default();
    let mut emptied: Vec<String> = Vec::new();

    let moved = plan.puts.iter().filter_map(|put| match &put.content {
        Content::Copy { from, and_delete: true } => Some(from),
        _ => None,
    });
    for path in plan.deletes.iter().chain(moved) {
        let entry = files.remove(path.as_bytes()).ok_or_else(|| gone(path))?;
        if entry.is_submodule() {
            return Err(refuse("FilePathConflictsWithSubmodulePathException"));
        }
        outcome.deleted.push((path.clone(), entry));
        emptied.push(path.clone());
    }
    for (path, mode) in &plan.modes {
        let entry = files.get_mut(path.as_bytes()).ok_or_else(|| gone(path))?;
        if entry.mode != *mode {
            entry.mode = (*mode).to_owned();
            outcome.updated.push((path.clone(), entry.clone()));
        }
    }
    let mut blobs = blobs.iter();
    for put in &plan.puts {
        let old = before.get(put.path.as_bytes());
        let (id, size, inherited) = match &put.content {
            Content::Bytes(bytes) => {
                let id = blobs.next().cloned().unwrap_or_default();
                (id, bytes.len() as u64, old.map(|entry| entry.mode.clone()))
            }
            Content::Copy { from, .. } => {
                let source = before.get(from.as_bytes()).ok_or_else(|| gone(from))?;
                (source.id.clone(), source.size, Some(source.mode.clone()))
            }
        };
        if old.is_some_and(Entry::is_submodule) {
            return Err(refuse("FilePathConflictsWithSubmodulePathException"));
        }
        for folder in folders(&put.path) {
            match files.get(folder.as_bytes()) {
                Some(entry) if entry.is_submodule() => {
                    return Err(refuse("FilePathConflictsWithSubmodulePathException"));
                }
                Some(_) => return Err(refuse("DirectoryNameConflictsWithFileNameException")),
                None => {}
            }
        }
        let inside = format!("{}/", put.path).into_bytes();
        let first = files.range(inside.clone()..).next();
        if first.is_some_and(|(path, _)| path.starts_with(&inside)) {
            return Err(refuse("FileNameConflictsWithDirectoryNameException"));
        }
        let mode = put.mode.map(str::to_owned).or(inherited).unwrap_or_else(|| "100644".to_owned());
        let entry = Entry { mode, id, size };
        if old != Some(&entry) {
            let list = if old.is_some() { &mut outcome.updated } else { &mut outcome.added };
            list.push((put.path.clone(), entry.clone()));
        }
        files.insert(put.path.clone().into_bytes(), entry);
    }
    if plan.keep_folders {
        keep(files, &emptied, &mut outcome);
    }
    Ok(outcome)
}

/// The blob without content.
const EMPTY_BLOB: &str = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";

/// Puts the keeper into each folder that lost its last file.
fn keep(files: &mut Files, emptied: &[String], outcome: &mut Outcome) {
    for path in emptied {
        let Some((folder, _)) = path.rsplit_once('/') else { continue };
        let inside = format!("{folder}/");
        let first = files.range(inside.clone().into_bytes()..).next();
        if first.is_some_and(|(path, _)| path.starts_with(inside.as_bytes())) {
            continue;
        }
        let entry = Entry { mode: "100644".to_owned(), id: EMPTY_BLOB.to_owned(), size: 0 };
        let keeper = format!("{inside}{KEEPER}");
        files.insert(keeper.clone().into_bytes(), entry.clone());
        outcome.added.push((keeper, entry));
    }
}

/// Refuses a commit that writes more than the limit into one folder. The documentation can also be read as
/// a limit on all that stands in the folder afterwards; then a folder could never be filled by several
/// commits, while its advice is to make each of them smaller.
fn limit_folders(plan: &Plan) -> Answer<()> {
    let mut sizes: BTreeMap<&[u8], usize> = BTreeMap::new();
    for put in &plan.puts {
        if let Content::Bytes(bytes) = &put.content {
            *sizes.entry(folder(put.path.as_bytes())).or_default() += bytes.len();
        }
    }
    if sizes.values().any(|size| *size > MAX_FILE) {
        return Err(refuse("FolderContentSizeLimitExceededException"));
    }
    Ok(())
}

/// A commit's author as one line of a commit object can hold it.
fn author(name: &str, email: &str) -> String {
    let clean = |text: &str| -> String {
        let text: String = text.chars().filter(|c| !c.is_control() && !"<>".contains(*c)).collect();
        text.trim().to_owned()
    };
    format!("{} <{}>", clean(name), clean(email))
}

impl Target<'_> {
    fn check(&self) -> Answer<()> {
        names::repository(self.repository)?;
        names::branch(self.branch)?;
        if self.parent.is_some_and(|parent| !names::is_object_id(parent)) {
            return Err(refuse("InvalidParentCommitIdException"));
        }
        if self.name.is_some_and(|name| name.chars().count() > MAX_NAME) {
            return Err(refuse("NameLengthExceededException"));
        }
        let fits = |email: &str| {
            email.chars().count() <= MAX_NAME
                && !email.contains(['<', '>'])
                && !email.contains(char::is_whitespace)
        };
        if self.email.is_some_and(|email| !fits(email)) {
            return Err(refuse("InvalidEmailException"));
        }
        if self.message.is_some_and(|message| message.len() > MAX_MESSAGE) {
            return Err(refuse("CommitMessageLengthExceededException"));
        }
        Ok(())
    }
}

impl Repository {
    /// The commit that a new one goes on top of: nothing in an empty repository.
    async fn parent(&self, branch: &str, parent: Option<&str>) -> Answer<Option<String>> {
        let Some(tip) = self.tip(branch).await? else {
            let tag = self.git.resolve(&format!("refs/tags/{branch}"), "commit").await?;
            return Err(if tag.is_some() {
                refuse("BranchNameIsTagNameException")
            } else if !self.git.references("refs/heads/").await?.is_empty() {
                branches::missing(branch)
            } else if parent.is_some() {
                refuse("ParentCommitDoesNotExistException")
            } else {
                return Ok(None);
            });
        };
        let Some(parent) = parent else { return Err(refuse("ParentCommitIdRequiredException")) };
        if parent.eq_ignore_ascii_case(&tip) {
            return Ok(Some(tip));
        }
        let known = self.git.resolve(parent, "commit").await?.is_some();
        Err(refuse(if known {
            "ParentCommitIdOutdatedException"
        } else {
            "ParentCommitDoesNotExistException"
        }))
    }
}

/// A commit object that is to become a branch's head.
struct Landing {
    herald: Herald,
    repository: Arc<Repository>,
    branch: String,
    parent: Option<String>,
    commit: String,
    caller: String,
}

impl Landing {
    async fn land(self) -> Answer<()> {
        let repository = &self.repository;
        let _held = repository.references.lock().await;
        if self.parent.is_none() {
            // Another branch may have made the repository a full one in the meantime.
            repository.parent(&self.branch, None).await?;
        }
        let reference = format!("refs/heads/{}", self.branch);
        let old = self.parent.as_deref().unwrap_or(NO_OBJECT);
        if !repository.git.swap(&reference, &self.commit, old).await? {
            return Err(refuse(if self.parent.is_some() {
                "ParentCommitIdOutdatedException"
            } else {
                "ParentCommitIdRequiredException"
            }));
        }
        repository.adopt_default(&self.branch).await?;
        repository.change(|_| ())?;
        self.herald.announce(&repository.metadata(), &reference, old, &self.commit, &self.caller);
        Ok(())
    }
}

impl CodeCommit {
    async fn commit(
        &self,
        target: Target<'_>,
        plan: Plan,
        nothing: &str,
        default_message: impl FnOnce(&Outcome) -> String,
        caller: &Caller,
    ) -> Answer<Landed> {
        let repository = self.open(target.repository).await?;
        let branch = names::branch(target.branch)?;
        let parent = repository.parent(branch, target.parent).await?;
        let mut files = match &parent {
            Some(parent) => repository.git.files(parent).await?,
            None => Files::new(),
        };
        let contents: Vec<Vec<u8>> = plan
            .puts
            .iter()
            .filter_map(|put| match &put.content {
                Content::Bytes(bytes) => Some(bytes.clone()),
                Content::Copy { .. } => None,
            })
            .collect();
        let blobs = repository.git.store(&contents).await?;
        let outcome = apply(&mut files, &plan, &blobs)?;
        if outcome.added.is_empty() && outcome.updated.is_empty() && outcome.deleted.is_empty() {
            return Err(refuse(nothing));
        }
        if files.values().any(|entry| entry.id == EMPTY_BLOB) {
            repository.git.store(&[Vec::new()]).await?;
        }
        let tree = repository.git.store_tree(&files).await?;

        let fallback = caller.arn.rsplit(['/', ':']).next().unwrap_or_default();
        let name = target.name.filter(|name| !name.trim().is_empty()).unwrap_or(fallback);
        let author = author(name, target.email.unwrap_or_default());
        let seconds = now() / 1000;
        let message = match target.message {
            Some(message) if !message.is_empty() => message.to_owned(),
            _ => default_message(&outcome),
        };
        let mut text = format!("tree {tree}\n");
        if let Some(parent) = &parent {
            text.push_str(&format!("parent {parent}\n"));
        }
        text.push_str(&format!("author {author} {seconds} +0000\ncommitter {author} {seconds} +0000\n\n"));
        text.push_str(&message.replace('\0', ""));
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let commit = repository.git.store_commit(text.into_bytes()).await?;

        // Everything up to here may be repeated or thrown away. The reference decides, and what follows from
        // it is done even if the caller hangs up now: it will look and find either all of it or nothing.
        let landing = Landing {
            herald: self.herald(),
            repository,
            branch: branch.to_owned(),
            parent,
            commit: commit.clone(),
            caller: caller.arn.clone(),
        };
        tokio::spawn(landing.land())
            .await
            .map_err(|error| ApiError::new("InternalFailure", error.to_string()).status(500))??;
        Ok(Landed { commit, tree, outcome })
    }

    pub(super) async fn create_commit(&self, input: CreateCommit, caller: &Caller) -> Answer<Value> {
        let target = Target {
            repository: input.repository_name.as_deref(),
            branch: input.branch_name.as_deref(),
            parent: input.parent_commit_id.as_deref(),
            name: input.author_name.as_deref(),
            email: input.email.as_deref(),
            message: input.commit_message.as_deref(),
        };
        target.check()?;
        let plan = Plan::read(&input)?;
        let message = |outcome: &Outcome| {
            let all = outcome.added.len() + outcome.updated.len() + outcome.deleted.len();
            format!("Changed {all} file{}", if all == 1 { "" } else { "s" })
        };
        let landed = self.commit(target, plan, "NoChangeException", message, caller).await?;
        let list = |entries: &[(String, Entry)]| -> Vec<Value> {
            let entries = entries.iter().map(|(path, entry)| {
                json!({"absolutePath": path, "blobId": entry.id, "fileMode": mode_word(&entry.mode)})
            });
            entries.collect()
        };
        Ok(json!({
            "commitId": landed.commit,
            "treeId": landed.tree,
            "filesAdded": list(&landed.outcome.added),
            "filesUpdated": list(&landed.outcome.updated),
            "filesDeleted": list(&landed.outcome.deleted),
        }))
    }

    pub(super) async fn put_file(&self, input: PutFile, caller: &Caller) -> Answer<Value> {
        let target = Target {
            repository: input.repository_name.as_deref(),
            branch: input.branch_name.as_deref(),
            parent: input.parent_commit_id.as_deref(),
            name: input.name.as_deref(),
            email: input.email.as_deref(),
            message: input.commit_message.as_deref(),
        };
        target.check()?;
        let path = names::path(input.file_path.as_deref())?.to_owned();
        let content = input.file_content.as_deref().unwrap_or_default();
        let put = Put {
            mode: input.file_mode.as_deref().map(mode_bits).transpose()?,
            content: Content::Bytes(decode(content)?),
            path,
        };
        let path = put.path.clone();
        let plan = Plan { puts: vec![put], ..Plan::default() };
        let message = |outcome: &Outcome| {
            format!("{} {path}", if outcome.added.is_empty() { "Edited" } else { "Added" })
        };
        let landed = self.commit(target, plan, "SameFileContentException", message, caller).await?;
        let written = landed.outcome.added.first().or(landed.outcome.updated.first());
        let blob = written.map(|(_, entry)| entry.id.clone());
        Ok(json!({"commitId": landed.commit, "blobId": blob, "treeId": landed.tree}))
    }

    pub(super) async fn delete_file(&self, input: DeleteFile, caller: &Caller) -> Answer<Value> {
        let target = Target {
            repository: input.repository_name.as_deref(),
            branch: input.branch_name.as_deref(),
            parent: input.parent_commit_id.as_deref(),
            name: input.name.as_deref(),
            email: input.email.as_deref(),
            message: input.commit_message.as_deref(),
        };
        target.check()?;
        let path = names::path(input.file_path.as_deref())?.to_owned();
        let required = || -> ApiError { refuse("ParentCommitIdRequiredException") };
        target.parent.ok_or_else(required)?;
        let keep_folders = input.keep_empty_folders.unwrap_or_default();
        let plan = Plan { deletes: vec![path.clone()], keep_folders, ..Plan::default() };
        let message = |_: &Outcome| format!("Deleted {path}");
        let landed = self.commit(target, plan, "NoChangeException", message, caller).await?;
        let blob = landed.outcome.deleted.first().map(|(_, entry)| entry.id.clone());
        Ok(json!({
            "commitId": landed.commit,
            "blobId": blob,
            "treeId": landed.tree,
            "filePath": path,
        }))
    }
}
