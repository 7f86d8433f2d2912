//! Files, folders, commits and differences.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::commits::mode_word;
use super::plumbing::EMPTY_TREE;
use super::refusal::{Answer, refuse, refuse_with};
use super::{CodeCommit, Repository, detoken, entoken, names};
use std::sync::atomic::Ordering;

/// Bytes of a file that the API gives out.
const MAX_FILE: u64 = 6 * 1024 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetFile {
    repository_name: Option<String>,
    commit_specifier: Option<String>,
    file_path: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetFolder {
    repository_name: Option<String>,
    commit_specifier: Option<String>,
    folder_path: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetBlob {
    repository_name: Option<String>,
    blob_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetCommit {
    repository_name: Option<String>,
    commit_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BatchGetCommits {
    repository_name: Option<String>,
    commit_ids: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetDifferences {
    repository_name: Option<String>,
    before_commit_specifier: Option<String>,
    after_commit_specifier: Option<String>,
    before_path: Option<String>,
    after_path: Option<String>,
    #[serde(rename = "MaxResults")]
    max_results: Option<i64>,
    #[serde(rename = "NextToken")]
    next_token: Option<String>,
}

/// A commit object as the API shows it.
fn show(id: &str, content: &[u8]) -> Value {
    let text = String::from_utf8_lossy(content);
    let (head, message) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut commit = json!({"commitId": id, "parents": [], "message": message, "additionalData": ""});
    for line in head.lines() {
        match line.split_once(' ') {
            Some(("tree", tree)) => commit["treeId"] = json!(tree),
            Some(("parent", parent)) => {
                if let Some(parents) = commit["parents"].as_array_mut() {
                    parents.push(json!(parent));
                }
            }
            Some((role @ ("author" | "committer"), person)) => commit[role] = show_person(person),
            _ => {}
        }
    }
    commit
}

/// `Name <address> 1700000000 +0000`.
fn show_person(line: &str) -> Value {
    let (name, rest) = line.split_once('<').unwrap_or((line, ""));
    let (email, date) = rest.split_once('>').unwrap_or(("", ""));
    json!({"name": name.trim_end(), "email": email, "date": date.trim_start()})
}

impl Repository {
    /// The tree that a path names in a commit; nothing when there is no such folder.
    async fn folder(&self, commit: &str, path: &str) -> Answer<Option<String>> {
        if path.is_empty() {
            return Ok(self.git.resolve(commit, "tree").await?);
        }
        let entry = self.git.entry(commit, path).await?;
        Ok(entry.filter(|entry| entry.is_folder()).map(|entry| entry.id))
    }
}

impl CodeCommit {
    pub(super) async fn get_file(&self, input: GetFile) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let path = names::path(input.file_path.as_deref())?;
        let repository = self.open(input.repository_name.as_deref()).await?;
        let commit = repository.commit(input.commit_specifier.as_deref()).await?;
        let entry = repository.git.entry(&commit, path).await?;
        let entry = entry
            .filter(|entry| !entry.is_folder() && !entry.is_submodule())
            .ok_or_else(|| refuse_with("FileDoesNotExistException", format!("Could not find path {path}")))?;
        if entry.size > MAX_FILE {
            return Err(refuse("FileTooLargeException"));
        }
        let content = repository.git.object(&entry.id).await?.map(|object| object.content);
        Ok(json!({
            "commitId": commit,
            "blobId": entry.id,
            "filePath": path,
            "fileMode": mode_word(&entry.mode),
            "fileSize": entry.size,
            "fileContent": STANDARD.encode(content.unwrap_or_default()),
        }))
    }

    /// One level. `/` and the empty path are the root.
    pub(super) async fn get_folder(&self, input: GetFolder) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let given = input.folder_path.as_deref().ok_or_else(|| refuse("PathRequiredException"))?;
        let trimmed = given.strip_suffix('/').unwrap_or(given);
        let path = if trimmed.is_empty() { "" } else { names::path(Some(trimmed))? };
        let repository = self.open(input.repository_name.as_deref()).await?;
        let commit = repository.commit(input.commit_specifier.as_deref()).await?;
        let tree = repository.folder(&commit, path).await?;
        let tree = tree.ok_or_else(|| refuse("FolderDoesNotExistException"))?;
        let (mut folders, mut files, mut links, mut modules) = (vec![], vec![], vec![], vec![]);
        for (name, entry) in repository.git.list(&tree).await? {
            let name = String::from_utf8_lossy(&name).into_owned();
            let absolute = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let mut value = json!({"absolutePath": absolute, "relativePath": name});
            match entry.mode.as_str() {
                "040000" => {
                    value["treeId"] = json!(entry.id);
                    folders.push(value);
                }
                "160000" => {
                    value["commitId"] = json!(entry.id);
                    modules.push(value);
                }
                mode => {
                    value["blobId"] = json!(entry.id);
                    value["fileMode"] = json!(mode_word(mode));
                    if mode == "120000" { links.push(value) } else { files.push(value) }
                }
            }
        }
        Ok(json!({
            "commitId": commit,
            "folderPath": if path.is_empty() { given } else { path },
            "treeId": tree,
            "subFolders": folders,
            "files": files,
            "symbolicLinks": links,
            "subModules": modules,
        }))
    }

    pub(super) async fn get_blob(&self, input: GetBlob) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let id = input.blob_id.as_deref().filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| refuse("BlobIdRequiredException"))?;
        if !names::is_object_id(id) {
            return Err(refuse("InvalidBlobIdException"));
        }
        let repository = self.open(input.repository_name.as_deref()).await?;
        let object = repository.git.object(id).await?.filter(|object| object.kind == "blob");
        let object = object.ok_or_else(|| refuse("BlobIdDoesNotExistException"))?;
        if object.content.len() as u64 > MAX_FILE {
            return Err(refuse("FileTooLargeException"));
        }
        Ok(json!({"content": STANDARD.encode(object.content)}))
    }

    pub(super) async fn get_commit(&self, input: GetCommit) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let id = input.commit_id.as_deref().filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| refuse("CommitIdRequiredException"))?;
        if !names::is_object_id(id) {
            return Err(refuse("InvalidCommitIdException"));
        }
        let repository = self.open(input.repository_name.as_deref()).await?;
        let object = repository.git.object(id).await?.filter(|object| object.kind == "commit");
        let object = object.ok_or_else(|| refuse("CommitIdDoesNotExistException"))?;
        Ok(json!({"commit": show(&id.to_ascii_lowercase(), &object.content)}))
    }

    pub(super) async fn batch_get_commits(&self, input: BatchGetCommits) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let ids = input.commit_ids.filter(|ids| !ids.is_empty());
        let ids = ids.ok_or_else(|| refuse("CommitIdsListRequiredException"))?;
        if ids.len() > 100 {
            return Err(refuse("CommitIdsLimitExceededException"));
        }
        let repository = self.open(input.repository_name.as_deref()).await?;
        let valid: Vec<&str> = ids.iter().map(String::as_str).filter(|id| names::is_object_id(id)).collect();
        let objects = if valid.is_empty() { vec![] } else { repository.git.objects(&valid).await? };
        let mut commits = Vec::new();
        let mut errors = Vec::new();
        let mut failed = |id: &str, code: &str| {
            let error = refuse(code);
            errors.push(json!({"commitId": id, "errorCode": error.code, "errorMessage": error.message}));
        };
        for id in ids.iter().filter(|id| !names::is_object_id(id)) {
            failed(id, "InvalidCommitIdException");
        }
        for (id, object) in valid.into_iter().zip(objects) {
            match object.filter(|object| object.kind == "commit") {
                Some(object) => commits.push(show(&id.to_ascii_lowercase(), &object.content)),
                None => failed(id, "CommitIdDoesNotExistException"),
            }
        }
        Ok(json!({"commits": commits, "errors": errors}))
    }

    pub(super) async fn get_differences(&self, input: GetDifferences) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let after = input.after_commit_specifier.as_deref().filter(|after| !after.is_empty());
        let after = after.ok_or_else(|| refuse("CommitRequiredException"))?;
        let limit = match input.max_results {
            Some(limit) if limit < 1 => return Err(refuse("InvalidMaxResultsException")),
            Some(limit) => usize::try_from(limit).unwrap_or(usize::MAX),
            None => self.page.load(Ordering::SeqCst),
        };
        let side = |path: &Option<String>| match path.as_deref() {
            None | Some("" | "/") => Ok(None),
            Some(path) => {
                names::path(Some(path.strip_suffix('/').unwrap_or(path))).map(|path| Some(path.to_owned()))
            }
        };
        let (mut before_path, mut after_path) = (side(&input.before_path)?, side(&input.after_path)?);
        if before_path.is_none() {
            before_path.clone_from(&after_path);
        } else if after_path.is_none() {
            after_path.clone_from(&before_path);
        }
        let repository = self.open(input.repository_name.as_deref()).await?;

        // The branch may move between two pages: the token holds on to the commits of the first.
        let (before, after, start) = match input.next_token.as_deref() {
            Some(token) => {
                let invalid = || refuse("InvalidContinuationTokenException");
                let text = detoken("differences", token).ok_or_else(invalid)?;
                let [before, after, start] = text.split(' ').collect::<Vec<_>>()[..] else {
                    return Err(invalid());
                };
                if !names::is_object_id(before) || !names::is_object_id(after) {
                    return Err(invalid());
                }
                (before.to_owned(), after.to_owned(), start.parse().map_err(|_| invalid())?)
            }
            None => {
                let before = match input.before_commit_specifier.as_deref() {
                    Some(before) if !before.is_empty() => repository.commit(Some(before)).await?,
                    _ => EMPTY_TREE.to_owned(),
                };
                (before, repository.commit(Some(after)).await?, 0)
            }
        };

        let changes = match (before_path, after_path) {
            (Some(old), Some(new)) => repository.differences_below(&before, &old, &after, &new).await?,
            _ => repository.differences_everywhere(&before, &after).await?,
        };
        let next = changes.len() > start + limit;
        let page: Vec<Value> = changes.into_iter().skip(start).take(limit).collect();
        let mut value = json!({"differences": page});
        if next {
            value["NextToken"] =
                json!(entoken("differences", &format!("{before} {after} {}", start + limit)));
        }
        Ok(value)
    }
}

fn difference(before: Option<(String, String, String)>, after: Option<(String, String, String)>) -> Value {
    let kind = match (&before, &after) {
        (None, _) => "A",
        (_, None) => "D",
        _ => "M",
    };
    let mut value = json!({"changeType": kind});
    for (name, side) in [("beforeBlob", before), ("afterBlob", after)] {
        if let Some((mode, id, path)) = side {
            value[name] = json!({"blobId": id, "path": path, "mode": mode});
        }
    }
    value
}

impl Repository {
    async fn differences_everywhere(&self, before: &str, after: &str) -> Answer<Vec<Value>> {
        let changes = self.git.differences(before, after).await?;
        let values = changes.into_iter().map(|change| {
            let path = change.path;
            let side = |side: Option<(String, String)>| side.map(|(mode, id)| (mode, id, path.clone()));
            difference(side(change.before), side(change.after))
        });
        Ok(values.collect())
    }

    /// The differences between what a path names before and what a path (the same one, or its new name)
    /// names after: two folders or two files.
    async fn differences_below(&self, before: &str, old: &str, after: &str, new: &str) -> Answer<Vec<Value>> {
        let left = if before == EMPTY_TREE { None } else { self.git.entry(before, old).await? };
        let right = self.git.entry(after, new).await?;
        if left.is_none() && right.is_none() {
            return Err(refuse("PathDoesNotExistException"));
        }
        let mut values = Vec::new();
        let file = |side: &Option<super::plumbing::Entry>, path: &str| {
            side.as_ref()
                .filter(|entry| !entry.is_folder())
                .map(|entry| (entry.mode.clone(), entry.id.clone(), path.to_owned()))
        };
        let (left_file, right_file) = (file(&left, old), file(&right, new));
        let same = |a: &(String, String, String), b: &(String, String, String)| a.0 == b.0 && a.1 == b.1;
        match (&left_file, &right_file) {
            (None, None) => {}
            (Some(a), Some(b)) if same(a, b) => {}
            _ => values.push(difference(left_file, right_file)),
        }
        let tree = |side: Option<super::plumbing::Entry>| {
            side.filter(super::plumbing::Entry::is_folder).map_or(EMPTY_TREE.to_owned(), |entry| entry.id)
        };
        for change in self.git.differences(&tree(left), &tree(right)).await? {
            let path = change.path;
            let before = change.before.map(|(mode, id)| (mode, id, format!("{old}/{path}")));
            let after = change.after.map(|(mode, id)| (mode, id, format!("{new}/{path}")));
            values.push(difference(before, after));
        }
        Ok(values)
    }
}
