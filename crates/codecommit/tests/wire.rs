//! Commits over scripted replies of CodeCommit.

use codecommit::{Change, Client, Commit, File, Head, Overwrite, blob_id};
use replies::{Exchange, Replies, on};
use serde_json::{Value, json};
use step::ErrorName;
use step::clock::Clock;

const XML_THROTTLING: &[u8] =
    b"<ThrottlingException>\n  <Message>Rate exceeded</Message>\n</ThrottlingException>";

fn client(replies: &Replies) -> Client {
    Client::new(&replies.config()).with_clock(Clock::Fixed(std::time::UNIX_EPOCH))
}

fn branch(id: &str) -> Exchange {
    on("GetBranch").json(json!({"branch": {"branchName": "flux-branch", "commitId": id}}))
}

fn no_branch() -> Exchange {
    on("GetBranch").error(400, "BranchDoesNotExistException", "Branch does not exist")
}

fn repository(default: Option<&str>) -> Exchange {
    let mut metadata = json!({"repositoryName": "demo-fluxcd", "repositoryId": "r-1"});
    if let Some(default) = default {
        metadata["defaultBranch"] = json!(default);
    }
    on("GetRepository").json(json!({"repositoryMetadata": metadata}))
}

fn folder(at: &str, path: &str, files: &[(&str, &str)]) -> Exchange {
    let files: Vec<Value> = files
        .iter()
        .map(|(name, content)| {
            json!({"absolutePath": format!("{path}/{name}"), "relativePath": name,
                   "blobId": blob_id(content.as_bytes()), "fileMode": "NORMAL"})
        })
        .collect();
    on("GetFolder")
        .with(&format!(r#""commitSpecifier":"{at}""#))
        .with(&format!(r#""folderPath":"{path}""#))
        .json(json!({"commitId": at, "folderPath": path, "treeId": "t", "files": files}))
}

fn no_folder() -> Exchange {
    on("GetFolder").error(400, "FolderDoesNotExistException", "no such folder")
}

fn created(parent: Option<&str>, id: &str) -> Exchange {
    let call = on("CreateCommit").json(json!({"commitId": id, "treeId": "t"}));
    match parent {
        Some(parent) => call.with(&format!(r#""parentCommitId":"{parent}""#)),
        None => call,
    }
}

fn outdated() -> Exchange {
    on("CreateCommit").error(400, "ParentCommitIdOutdatedException", "the branch moved")
}

fn a_commit() -> Commit {
    Commit::new("flux-branch", "Seed").file(File::new("./a/x.yaml", "x\n", Overwrite::Always))
}

#[test]
fn blob_ids_are_gits() {
    // From `git hash-object`.
    for (content, id) in [
        ("", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
        ("hello\n", "ce013625030ba8dba906f756967f9e9ca394464a"),
    ] {
        assert_eq!(blob_id(content.as_bytes()), id);
    }
}

#[tokio::test]
async fn a_branch_and_an_empty_repository_are_told_apart() {
    for (script, expected) in [
        (vec![branch("c1")], Head::Commit("c1".into())),
        (vec![no_branch(), repository(None)], Head::Empty),
        (vec![no_branch(), repository(Some("main"))], Head::NoBranch { default_branch: "main".into() }),
        // The first commit landed between the two calls.
        (vec![no_branch(), repository(Some("flux-branch")), branch("c1")], Head::Commit("c1".into())),
    ] {
        let replies = Replies::new(script);
        let head = client(&replies).repo("demo-fluxcd").head("flux-branch").await.expect("a head");
        assert_eq!(head, expected);
        replies.finish();
    }
}

/// What a script of replies makes of [`a_commit`]: the change, the head, the number of commits.
async fn outcome(script: Vec<Exchange>) -> Result<(Change, String, usize), step::StepError> {
    let replies = Replies::new(script);
    let done = client(&replies).repo("demo-fluxcd").commit_files(&a_commit()).await;
    replies.finish();
    done.map(|done| (done.change, done.commit_id, done.commits.len()))
}

#[tokio::test]
async fn commits_converge() {
    let there = |at: &str| folder(at, "a", &[("x.yaml", "x\n")]);
    let other = |at: &str| folder(at, "a", &[("x.yaml", "other\n")]);
    for (name, script, expected) in [
        ("same content, no call", vec![branch("c1"), there("c1")], (Change::Unchanged, "c1", 0)),
        (
            "empty repository: no parent",
            vec![no_branch(), repository(None), created(None, "c1")],
            (Change::Created, "c1", 1),
        ),
        (
            "other content",
            vec![branch("c1"), other("c1"), created(Some("c1"), "c2")],
            (Change::Updated, "c2", 1),
        ),
        ("no folder", vec![branch("c1"), no_folder(), created(Some("c1"), "c2")], (Change::Updated, "c2", 1)),
        (
            "the branch moved: read again, then commit on the new head",
            vec![branch("c1"), other("c1"), outdated(), branch("c2"), other("c2"), created(Some("c2"), "c3")],
            (Change::Updated, "c3", 1),
        ),
        (
            "somebody made the first commit",
            vec![
                no_branch(),
                repository(None),
                on("CreateCommit").error(400, "ParentCommitIdRequiredException", "a parent is required"),
                branch("c1"),
                no_folder(),
                created(Some("c1"), "c2"),
            ],
            (Change::Updated, "c2", 1),
        ),
        (
            "somebody wrote the same",
            vec![branch("c1"), other("c1"), on("CreateCommit").error(400, "NoChangeException", "no change")],
            (Change::Unchanged, "c1", 0),
        ),
        (
            "the reply was lost and the commit had landed",
            vec![branch("c1"), other("c1"), on("CreateCommit").lost(), branch("c2"), there("c2")],
            (Change::Updated, "c2", 0),
        ),
        (
            "the reply was lost and the commit had not landed",
            vec![
                branch("c1"),
                other("c1"),
                on("CreateCommit").lost(),
                branch("c1"),
                other("c1"),
                created(Some("c1"), "c2"),
            ],
            (Change::Updated, "c2", 1),
        ),
        (
            "a 500 after the first commit had landed",
            vec![
                no_branch(),
                repository(None),
                on("CreateCommit").error(500, "InternalServerError", "oops"),
                branch("c1"),
                there("c1"),
            ],
            (Change::Created, "c1", 0),
        ),
        (
            "throttled in XML, by a read and by the commit",
            vec![
                on("GetBranch").raw(400, "text/xml", XML_THROTTLING),
                branch("c1"),
                other("c1"),
                on("CreateCommit").raw(400, "text/xml", XML_THROTTLING),
                created(Some("c1"), "c2"),
            ],
            (Change::Updated, "c2", 1),
        ),
        (
            "the key settles",
            vec![
                branch("c1"),
                other("c1"),
                on("CreateCommit").error(400, "EncryptionKeyNotFoundException", "no such key"),
                on("CreateCommit").error(400, "EncryptionKeyAccessDeniedException", "denied"),
                created(Some("c1"), "c2"),
            ],
            (Change::Updated, "c2", 1),
        ),
    ] {
        let (change, head, commits) = outcome(script).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((change, head.as_str(), commits), expected, "{name}");
    }
}

#[tokio::test]
async fn what_does_not_pass_gets_a_name_and_a_way_out() {
    let failing = |code: &'static str, times: usize| {
        let mut script = vec![branch("c1"), no_folder()];
        script.extend((0..times).map(|_| on("CreateCommit").error(400, code, "said so")));
        script
    };
    for (script, name, text) in [
        (failing("EncryptionKeyDisabledException", 8), ErrorName::Conflict, "enable-key"),
        (failing("EncryptionKeyAccessDeniedException", 8), ErrorName::Denied, "kms:GenerateDataKey"),
        (failing("EncryptionKeyNotFoundException", 8), ErrorName::Conflict, "cancel-key-deletion"),
        (failing("EncryptionKeyUnavailableException", 8), ErrorName::Transient, "tried again"),
        (failing("EncryptionKeyInvalidUsageException", 1), ErrorName::Conflict, "symmetric"),
        (failing("EncryptionIntegrityChecksFailedException", 1), ErrorName::Internal, "AWS Support"),
        (failing("AccessDeniedException", 1), ErrorName::Denied, "codecommit:CreateCommit"),
        (failing("OperationNotAllowedException", 1), ErrorName::Unsupported, "AWS Support"),
        (failing("FileNameConflictsWithDirectoryNameException", 1), ErrorName::Conflict, "flux.path"),
        (failing("FolderContentSizeLimitExceededException", 1), ErrorName::Unsupported, "6 MB"),
        (failing("BranchNameIsTagNameException", 1), ErrorName::Conflict, "repository.branch"),
        (failing("InvalidParentCommitIdException", 1), ErrorName::Internal, "said so"),
        (
            vec![
                on("GetBranch").raw(400, "text/xml", XML_THROTTLING),
                on("GetBranch").raw(400, "text/xml", XML_THROTTLING),
                on("GetBranch").raw(400, "text/xml", XML_THROTTLING),
            ],
            ErrorName::Transient,
            "ThrottlingException",
        ),
        (
            vec![on("GetBranch").error(400, "RepositoryDoesNotExistException", "no repository")],
            ErrorName::PrerequisiteMissing,
            "demo-fluxcd",
        ),
        (vec![no_branch(), repository(Some("main"))], ErrorName::Conflict, "main"),
    ] {
        let error = outcome(script).await.expect_err(text);
        assert_eq!(error.name, name, "{error}");
        assert!(error.message.contains(text), "{text}: {error}");
    }
}

#[tokio::test]
async fn a_branch_that_never_stands_still_is_transient() {
    let round = |n: u32| {
        let at = format!("c{n}");
        [branch(&at), folder(&at, "a", &[]), outdated()]
    };
    let error = outcome((0..6).flat_map(round).collect()).await.expect_err("moving");
    assert_eq!(error.name, ErrorName::Transient);
    assert!(error.message.contains("branch flux-branch of repository demo-fluxcd"), "{error}");
}

#[tokio::test]
async fn other_history_gives_the_branch_its_beginning() {
    let replies = Replies::new([
        no_branch(),
        repository(Some("main")),
        on("GetBranch").with(r#""branchName":"main""#).json(json!({"branch": {"commitId": "m1"}})),
        on("CreateBranch").with(r#""commitId":"m1""#).json(json!({})),
        folder("m1", "a", &[("x.yaml", "edited by hand\n")]),
        folder("m1", "/", &[]),
        created(Some("m1"), "c2").with(r#""filePath":"README.md""#),
    ]);
    let commit = Commit::new("flux-branch", "Seed")
        .file(File::new("a/x.yaml", "x\n", Overwrite::IfAbsent))
        .file(File::new("README.md", "# x\n", Overwrite::IfAbsent))
        .from_default();
    let done = client(&replies).repo("demo-fluxcd").commit_files(&commit).await.expect("commit");
    assert_eq!((done.change, done.written), (Change::Created, vec!["README.md".to_owned()]));
    replies.finish();
}

#[tokio::test]
async fn a_duplicate_run_made_the_branch() {
    let replies = Replies::new([
        no_branch(),
        repository(Some("main")),
        on("GetBranch").json(json!({"branch": {"commitId": "m1"}})),
        on("CreateBranch").error(400, "BranchNameExistsException", "exists"),
        branch("c7"),
        folder("c7", "a", &[("x.yaml", "x\n")]),
    ]);
    let done =
        client(&replies).repo("demo-fluxcd").commit_files(&a_commit().from_default()).await.expect("commit");
    assert_eq!((done.change, done.commit_id.as_str()), (Change::Unchanged, "c7"));
    replies.finish();
}

#[tokio::test]
async fn many_files_become_a_chain() {
    let files = (0..200).map(|n| File::new(&format!("a/{n:03}"), format!("{n}\n"), Overwrite::Always));
    let replies = Replies::new([
        branch("c0"),
        no_folder(),
        created(Some("c0"), "c1").with(r#""filePath":"a/098""#),
        created(Some("c1"), "c2").with(r#""filePath":"a/099""#),
        // Somebody else commits in between: what has landed is not sent again.
        outdated(),
        branch("d0"),
        on("GetFolder").json(json!({"commitId": "d0", "folderPath": "a", "treeId": "t",
            "files": (0..198).map(|n| json!({"relativePath": format!("{n:03}"), "blobId": blob_id(format!("{n}\n").as_bytes()), "fileMode": "NORMAL"})).collect::<Vec<_>>()})),
        created(Some("d0"), "d1").with(r#""filePath":"a/198""#),
    ]);
    let commit = Commit::new("flux-branch", "Many").files(files);
    let done = client(&replies).repo("demo-fluxcd").commit_files(&commit).await.expect("commit");
    assert_eq!(done.commits, ["c1", "c2", "d1"]);
    assert_eq!((done.commit_id.as_str(), done.written.len()), ("d1", 200));
    replies.finish();
}

#[tokio::test]
async fn seven_megabytes_become_two_commits() {
    let replies =
        Replies::new([branch("c0"), no_folder(), created(Some("c0"), "c1"), created(Some("c1"), "c2")]);
    let commit = Commit::new("flux-branch", "Large")
        .files(["a/1", "a/2"].map(|path| File::new(path, vec![b'x'; 4_000_000], Overwrite::Always)));
    let done = client(&replies).repo("demo-fluxcd").commit_files(&commit).await.expect("commit");
    assert_eq!(done.commits, ["c1", "c2"]);
    replies.finish();
}

#[tokio::test]
async fn what_codecommit_refuses_is_not_sent() {
    for (file, name) in [
        (File::new("a/.gitkeep", "", Overwrite::Always), ErrorName::Internal),
        (File::new("a/x.yaml", "again", Overwrite::Always), ErrorName::Internal),
        (File::new("a/big", vec![b'x'; 6_291_457], Overwrite::Always), ErrorName::Unsupported),
    ] {
        let replies = Replies::default();
        let error = client(&replies)
            .repo("demo-fluxcd")
            .commit_files(&a_commit().file(file))
            .await
            .expect_err("refused");
        assert_eq!(error.name, name, "{error}");
        replies.finish();
    }
}

#[tokio::test]
async fn deletes_only_what_is_there_and_never_takes_a_link_for_a_file() {
    let replies = Replies::new([
        branch("c1"),
        on("GetFolder").json(json!({"commitId": "c1", "folderPath": "a", "treeId": "t",
            "files": [{"relativePath": "old", "blobId": "b", "fileMode": "NORMAL"}],
            "symbolicLinks": [{"relativePath": "x.yaml", "blobId": blob_id(b"x\n"), "fileMode": "SYMLINK"}]})),
        created(Some("c1"), "c2").with(r#""deleteFiles":[{"filePath":"a/old"}]"#).with(r#""filePath":"a/x.yaml""#),
    ]);
    let commit = a_commit().delete("a/old").delete("a/gone");
    let done = client(&replies).repo("demo-fluxcd").commit_files(&commit).await.expect("commit");
    assert_eq!(done.written, ["a/old", "a/x.yaml"]);
    replies.finish();
}

#[tokio::test]
async fn reads_files() {
    let replies = Replies::new([
        on("GetFile").with(r#""filePath":"a/x.yaml""#).json(json!({"commitId": "c1", "blobId": "b",
            "filePath": "a/x.yaml", "fileMode": "NORMAL", "fileSize": 2, "fileContent": "eAo="})),
        on("GetFile").error(400, "FileDoesNotExistException", "no such file"),
    ]);
    let client = client(&replies);
    let repo = client.repo("demo-fluxcd");
    assert_eq!(repo.read_file("c1", "./a/x.yaml").await.expect("file"), Some(b"x\n".to_vec()));
    assert_eq!(repo.read_file("c1", "a/y.yaml").await.expect("no file"), None);
    replies.finish();
}
