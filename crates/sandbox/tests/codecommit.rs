//! The CodeCommit emulator as independent clients see it: the AWS SDK, the `git` program, the AWS CLI.

use std::io::Write as _;
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};

use aws_sdk_codecommit::Client;
use aws_sdk_codecommit::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_codecommit::error::ProvideErrorMetadata;
use aws_sdk_codecommit::operation::create_commit::builders::CreateCommitFluentBuilder;
use aws_sdk_codecommit::primitives::Blob;
use aws_sdk_codecommit::types::{
    DeleteFileEntry, FileMetadata, FileModeTypeEnum, PutFileEntry, SetFileModeEntry, SourceFileSpecifier,
};
use axum::body::Body;
use base64::Engine as _;
use futures::future::BoxFuture;
use sandbox::codecommit::{CodeCommit, KeyCheck, KeyState, Settings};
use sandbox::wire::{Call, Caller, EventSink, GitAuthority};
use serde_json::Value;

const ACCOUNT: &str = "123456789012";
const KEY: &str = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222-3333-4444-555555555555";
const WRITER: &str = "writer-at-123456789012:pa%2Bss%2Fword%3D";
const READER: &str = "reader:secret";

/// Knows one reader and one writer.
struct Doorman;

impl GitAuthority for Doorman {
    fn allows<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        repository: &'a str,
        write: bool,
    ) -> BoxFuture<'a, bool> {
        let known = matches!((user, password), ("writer-at-123456789012", "pa+ss/word="))
            || (matches!((user, password), ("reader", "secret")) && !write);
        Box::pin(std::future::ready(known && repository != "forbidden"))
    }
}

#[derive(Default)]
struct Notes(Mutex<Vec<Value>>);

impl EventSink for Notes {
    fn publish(&self, source: &str, kind: &str, resources: Vec<String>, detail: Value) {
        assert_eq!((source, kind), ("aws.codecommit", "CodeCommit Repository State Change"));
        assert_eq!(resources.len(), 1);
        assert!(resources[0].starts_with("arn:aws:codecommit:eu-west-1:123456789012:"));
        self.0.lock().unwrap().push(detail);
    }
}

impl Notes {
    /// Event and reference of everything so far, which is then forgotten.
    fn take(&self) -> Vec<String> {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let details = std::mem::take(&mut *self.0.lock().unwrap());
        let lines =
            details.iter().map(|d| format!("{} {}", word(&d["event"]), word(&d["referenceFullName"])));
        lines.collect()
    }
}

/// Answers what the test says.
struct Keys(Mutex<KeyState>);

impl KeyCheck for Keys {
    fn state<'a>(&'a self, _: &'a str) -> BoxFuture<'a, KeyState> {
        Box::pin(std::future::ready(self.0.lock().unwrap().clone()))
    }
}

struct World {
    root: tempfile::TempDir,
    address: String,
    service: Arc<CodeCommit>,
    notes: Arc<Notes>,
    keys: Arc<Keys>,
    client: Client,
}

impl World {
    async fn start() -> World {
        let root = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let notes = Arc::new(Notes::default());
        let keys = Arc::new(Keys(Mutex::new(KeyState::Enabled(KEY.to_owned()))));
        let settings = settings(root.path(), &address);
        let service = CodeCommit::new(settings, Arc::new(Doorman), notes.clone()).with_keys(keys.clone());
        let service = Arc::new(service);
        let app = axum::Router::new().fallback({
            let service = service.clone();
            move |request: http::Request<Body>| answer(service.clone(), request)
        });
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let config = aws_sdk_codecommit::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .endpoint_url(&address)
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .credentials_provider(Credentials::new("AKIDEXAMPLE", "secret", None, None, "test"))
            .build();
        World { root, address, service, notes, keys, client: Client::from_conf(config) }
    }

    /// The world with a repository of that name.
    async fn with(name: &str) -> World {
        let world = World::start().await;
        world.client.create_repository().repository_name(name).send().await.unwrap();
        world
    }

    /// The clone URL, with credentials or without.
    fn url(&self, credentials: &str, name: &str) -> String {
        let host = self.address.strip_prefix("http://").unwrap();
        let at = if credentials.is_empty() { "" } else { "@" };
        format!("http://{credentials}{at}{host}/v1/repos/{name}")
    }

    fn commit(&self, branch: &str, parent: Option<&str>) -> CreateCommitFluentBuilder {
        let commit = self.client.create_commit().repository_name("demo").branch_name(branch);
        commit.set_parent_commit_id(parent.map(str::to_owned))
    }

    /// One commit with one file.
    async fn put(&self, branch: &str, parent: Option<&str>, path: &str, content: &str) -> String {
        let commit = self.commit(branch, parent).put_files(file(path, content)).send().await;
        commit.unwrap().commit_id.unwrap()
    }
}

fn settings(root: &Path, address: &str) -> Settings {
    Settings {
        root: root.to_owned(),
        base_url: address.to_owned(),
        region: "eu-west-1".to_owned(),
        account: ACCOUNT.to_owned(),
    }
}

async fn answer(service: Arc<CodeCommit>, request: http::Request<Body>) -> sandbox::wire::Reply {
    if CodeCommit::is_git(request.uri().path()) {
        return service.git(request).await;
    }
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 64 << 20).await.unwrap();
    let target = head.headers.get("x-amz-target").unwrap().to_str().unwrap();
    let call = Call {
        service: "codecommit".to_owned(),
        action: target.strip_prefix("CodeCommit_20150413.").unwrap().to_owned(),
        region: "eu-west-1".to_owned(),
        caller: Caller {
            arn: format!("arn:aws:sts::{ACCOUNT}:assumed-role/seeder/session"),
            account: ACCOUNT.to_owned(),
        },
        request: http::Request::from_parts(head, body),
    };
    service.call(&call).await
}

fn file(path: &str, content: impl AsRef<[u8]>) -> PutFileEntry {
    let content = Blob::new(content.as_ref());
    PutFileEntry::builder().file_path(path).file_content(content).build().unwrap()
}

fn gone(path: &str) -> DeleteFileEntry {
    DeleteFileEntry::builder().file_path(path).build().unwrap()
}

fn copy(from: &str, to: &str, and_delete: bool) -> PutFileEntry {
    let source = SourceFileSpecifier::builder().file_path(from).is_move(and_delete).build().unwrap();
    PutFileEntry::builder().file_path(to).source_file(source).build().unwrap()
}

fn mode(path: &str, mode: FileModeTypeEnum) -> SetFileModeEntry {
    SetFileModeEntry::builder().file_path(path).file_mode(mode).build().unwrap()
}

/// The error code of a result; empty for a success.
fn code<T, E: ProvideErrorMetadata>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => String::new(),
        Err(error) => error.code().unwrap_or("no code").to_owned(),
    }
}

/// Runs Git without anything of the user's own configuration.
async fn git(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::new("git");
    command
        .current_dir(folder)
        .env("HOME", folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("no_proxy", "127.0.0.1")
        .env_remove("GIT_DIR")
        .env_remove("GIT_ASKPASS")
        .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main"])
        .args(arguments);
    command.output().await.unwrap()
}

/// The same, for what has to succeed.
async fn git_ok(folder: &Path, arguments: &[&str]) -> String {
    let output = git(folder, arguments).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_repository_lives_and_goes() {
    let world = World::start().await;
    let client = &world.client;
    let created = client
        .create_repository()
        .repository_name("demo")
        .repository_description("for tests")
        .tags("team", "one")
        .kms_key_id("alias/demo")
        .send()
        .await
        .unwrap()
        .repository_metadata
        .unwrap();
    assert_eq!(created.arn(), Some("arn:aws:codecommit:eu-west-1:123456789012:demo"));
    assert_eq!(created.clone_url_http(), Some(world.url("", "demo").as_str()));
    assert_eq!(created.kms_key_id(), Some(KEY), "an alias is shown as the key it stands for");
    assert_eq!(created.default_branch(), None, "an empty repository has no default branch");
    assert!(created.creation_date().unwrap().secs() > 1_700_000_000);

    let again = client.create_repository().repository_name("demo").send().await.unwrap_err();
    assert_eq!(again.message(), Some("Repository named demo already exists"));
    assert!(again.into_service_error().is_repository_name_exists_exception());

    let arn = created.arn().unwrap();
    client.tag_resource().resource_arn(arn).tags("owner", "x").send().await.unwrap();
    client.untag_resource().resource_arn(arn).tag_keys("team").send().await.unwrap();
    let tags = client.list_tags_for_resource().resource_arn(arn).send().await.unwrap().tags.unwrap();
    assert_eq!(tags.into_iter().collect::<Vec<_>>(), [("owner".to_owned(), "x".to_owned())]);
    let system = client.tag_resource().resource_arn(arn).tags("aws:x", "y").send().await;
    assert_eq!(code(system), "InvalidSystemTagUsageException");
    let foreign = client.list_tags_for_resource().resource_arn("arn:aws:s3:::demo").send().await;
    assert_eq!(code(foreign), "InvalidResourceArnException");

    client.update_repository_name().old_name("demo").new_name("other").send().await.unwrap();
    let describe = client.update_repository_description().repository_name("other");
    describe.repository_description("changed").send().await.unwrap();
    let old = client.get_repository().repository_name("demo").send().await.unwrap_err();
    assert_eq!(old.code(), Some("RepositoryDoesNotExistException"));
    assert_eq!(old.message(), Some("demo does not exist"));
    let other = client.get_repository().repository_name("other").send().await.unwrap();
    let other = other.repository_metadata.unwrap();
    assert_eq!(other.repository_description(), Some("changed"));
    assert_eq!(other.repository_id(), created.repository_id());

    let batch = client.batch_get_repositories().repository_names("other").repository_names("nothing");
    let batch = batch.send().await.unwrap();
    assert_eq!(batch.repositories().len(), 1);
    assert_eq!(batch.repositories_not_found(), ["nothing"]);

    let deleted = client.delete_repository().repository_name("other").send().await.unwrap();
    assert_eq!(deleted.repository_id(), created.repository_id());
    let deleted = client.delete_repository().repository_name("other").send().await.unwrap();
    assert_eq!(deleted.repository_id(), None, "a repository that is gone is deleted without an id");
    assert_eq!(std::fs::read_dir(world.root.path()).unwrap().count(), 1, "only the hooks are left");
}

#[tokio::test]
async fn lists_come_in_pages() {
    let world = World::start().await;
    world.service.page_size(2);
    for name in ["c", "a", "e", "b", "d"] {
        world.client.create_repository().repository_name(name).send().await.unwrap();
    }
    let mut names = String::new();
    let mut pages = 0;
    let mut token = None;
    while pages == 0 || token.is_some() {
        let page = world.client.list_repositories().set_next_token(token).send().await.unwrap();
        names.extend(page.repositories().iter().filter_map(|pair| pair.repository_name()));
        pages += 1;
        token = page.next_token;
    }
    assert_eq!((names.as_str(), pages), ("abcde", 3));
    let wrong = world.client.list_repositories().next_token("x").send().await;
    assert_eq!(code(wrong), "InvalidContinuationTokenException");
}

#[tokio::test]
async fn the_first_commit_makes_the_default_branch() {
    let world = World::with("demo").await;
    let client = &world.client;
    let branch = client.get_branch().repository_name("demo").branch_name("flux");
    assert_eq!(code(branch.clone().send().await), "BranchDoesNotExistException");
    let default = client.update_default_branch().repository_name("demo").default_branch_name("flux");
    assert_eq!(code(default.clone().send().await), "BranchDoesNotExistException");
    let folder = client.get_folder().repository_name("demo").folder_path("/");
    assert_eq!(code(folder.clone().send().await), "CommitDoesNotExistException");
    let nowhere = "1".repeat(40);
    let wrong = world.commit("flux", Some(&nowhere)).put_files(file("a", "a")).send().await;
    assert_eq!(code(wrong), "ParentCommitDoesNotExistException");

    let first = world.put("flux", None, "a/b.txt", "hello\n").await;
    let tip = branch.send().await.unwrap().branch.unwrap();
    assert_eq!(tip.commit_id(), Some(first.as_str()));
    default.send().await.unwrap();
    let metadata = client.get_repository().repository_name("demo").send().await.unwrap();
    assert_eq!(metadata.repository_metadata.unwrap().default_branch(), Some("flux"));
    assert_eq!(world.notes.take(), ["referenceCreated refs/heads/flux"]);

    let folder = folder.send().await.unwrap();
    assert_eq!(folder.sub_folders()[0].absolute_path(), Some("a"));
    let below = client.get_folder().repository_name("demo").folder_path("a").send().await.unwrap();
    let entry = &below.files()[0];
    assert_eq!((entry.absolute_path(), entry.relative_path()), (Some("a/b.txt"), Some("b.txt")));
    assert_eq!(entry.blob_id(), Some("ce013625030ba8dba906f756967f9e9ca394464a"));
    let blob = client.get_blob().repository_name("demo").blob_id(entry.blob_id().unwrap());
    assert_eq!(blob.send().await.unwrap().content().as_ref(), b"hello\n");
    for specifier in ["flux", "refs/heads/flux", "HEAD", first.as_str()] {
        let read = client.get_file().repository_name("demo").file_path("/a/b.txt");
        let read = read.commit_specifier(specifier).send().await.unwrap();
        assert_eq!((read.file_content().as_ref(), read.file_size()), (b"hello\n".as_slice(), 6));
        assert_eq!(read.commit_id(), first);
    }
    for (specifier, expected) in [
        ("other", "CommitDoesNotExistException"),
        (nowhere.as_str(), "CommitDoesNotExistException"),
        ("flux~1", "InvalidCommitException"),
        ("--help", "InvalidCommitException"),
    ] {
        let read = client.get_file().repository_name("demo").file_path("a/b.txt");
        assert_eq!(code(read.commit_specifier(specifier).send().await), expected, "{specifier}");
    }
    let missing = client.get_file().repository_name("demo").file_path("a/c").send().await;
    assert_eq!(code(missing), "FileDoesNotExistException");
    let missing = client.get_folder().repository_name("demo").folder_path("b").send().await;
    assert_eq!(code(missing), "FolderDoesNotExistException");
}

#[tokio::test]
async fn a_commit_changes_what_it_says() {
    let world = World::with("demo").await;
    let mut first = world.commit("main", None).author_name("Ann <x>").email("ann@example.com");
    for path in ["keep", "old", "run.sh", "gone/only", "src"] {
        first = first.put_files(file(path, path));
    }
    let first = first.commit_message("One").send().await.unwrap();
    assert_eq!(first.files_added().len(), 5);
    let second = world
        .commit("main", first.commit_id())
        .put_files(file("old", "new"))
        .put_files(file("keep", "keep"))
        .put_files(copy("src", "moved/dst", true))
        .put_files(file("added", "x"))
        .delete_files(gone("gone/only"))
        .set_file_modes(mode("run.sh", FileModeTypeEnum::Executable))
        .keep_empty_folders(true)
        .send()
        .await
        .unwrap();
    let paths = |entries: &[FileMetadata]| -> Vec<String> {
        let mut paths: Vec<_> = entries.iter().filter_map(|e| e.absolute_path().map(str::to_owned)).collect();
        paths.sort();
        paths
    };
    assert_eq!(paths(second.files_added()), ["added", "gone/.gitkeep", "moved/dst"]);
    assert_eq!(paths(second.files_updated()), ["old", "run.sh"]);
    assert_eq!(paths(second.files_deleted()), ["gone/only", "src"]);

    let client = &world.client;
    let (first_id, second_id) = (first.commit_id().unwrap(), second.commit_id().unwrap());
    let shown = client.get_commit().repository_name("demo").commit_id(first_id).send().await.unwrap();
    let shown = shown.commit.unwrap();
    let author = shown.author().unwrap();
    assert_eq!((author.name(), author.email()), (Some("Ann x"), Some("ann@example.com")));
    assert_eq!(shown.message(), Some("One\n"));
    let shown = client.get_commit().repository_name("demo").commit_id(second_id).send().await.unwrap();
    let shown = shown.commit.unwrap();
    assert_eq!(shown.parents(), [first_id]);
    assert_eq!(shown.tree_id(), second.tree_id());
    assert_eq!(shown.author().unwrap().name(), Some("session"));

    let batch = client.batch_get_commits().repository_name("demo").commit_ids("short");
    let batch = batch.commit_ids(first_id).commit_ids("1".repeat(40)).send().await.unwrap();
    assert_eq!((batch.commits().len(), batch.errors().len()), (1, 2));

    let mut differences = Vec::new();
    let mut token = None;
    loop {
        let page = client.get_differences().repository_name("demo").before_commit_specifier(first_id);
        let page = page.after_commit_specifier("main").max_results(3).set_next_token(token);
        let page = page.send().await.unwrap();
        for difference in page.differences() {
            let blob = difference.after_blob().or(difference.before_blob()).unwrap();
            let kind = difference.change_type().unwrap().as_str();
            differences.push(format!("{kind} {} {}", blob.mode().unwrap(), blob.path().unwrap()));
        }
        token = page.next_token;
        if token.is_none() {
            break;
        }
    }
    assert_eq!(
        differences,
        [
            "A 100644 added",
            "A 100644 gone/.gitkeep",
            "D 100644 gone/only",
            "A 100644 moved/dst",
            "M 100644 old",
            "M 100755 run.sh",
            "D 100644 src"
        ]
    );
    let all = client.get_differences().repository_name("demo").after_commit_specifier("main");
    assert_eq!(all.clone().send().await.unwrap().differences().len(), 6);
    let below = all.clone().after_path("gone").send().await.unwrap();
    assert_eq!(below.differences()[0].after_blob().unwrap().path(), Some("gone/.gitkeep"));
    assert_eq!(code(all.clone().after_path("nothing").send().await), "PathDoesNotExistException");
    assert_eq!(code(all.clone().max_results(0).send().await), "InvalidMaxResultsException");

    let delete = client.delete_file().repository_name("demo").branch_name("main").file_path("keep");
    let deleted = delete.parent_commit_id(second_id).send().await.unwrap();
    assert_eq!(deleted.file_path(), "keep");
    assert_eq!(
        world.notes.take(),
        [
            "referenceCreated refs/heads/main",
            "referenceUpdated refs/heads/main",
            "referenceUpdated refs/heads/main"
        ]
    );
}

#[tokio::test]
async fn a_commit_is_refused_by_name() {
    let world = World::with("demo").await;
    let client = &world.client;
    let first = world.put("main", None, "dir/file", "one").await;
    let tip = world.put("main", Some(&first), "top", "two").await;
    let nowhere = "1".repeat(40);
    let at = |parent: Option<&str>| world.commit("main", parent);
    let tip = Some(tip.as_str());
    let big = vec![b'x'; 6 * 1024 * 1024 + 1];
    let half = vec![b'y'; 3_700_000];
    let mut hundred = at(tip);
    for index in 0..101 {
        hundred = hundred.put_files(file(&format!("f{index}"), "x"));
    }
    let empty = PutFileEntry::builder().file_path("x").build().unwrap();
    let source = SourceFileSpecifier::builder().file_path("top").build().unwrap();
    let both = PutFileEntry::builder().file_path("x").file_content(Blob::new("x")).source_file(source);
    let both = both.build().unwrap();
    let odd = PutFileEntry::builder().file_path("x").file_content(Blob::new("x"));
    let odd = odd.file_mode(FileModeTypeEnum::from("ROUND")).build().unwrap();
    let branch = client.create_branch().repository_name("demo").commit_id(&first);
    branch.clone().branch_name("more").send().await.unwrap();
    let cases = [
        (at(None).put_files(file("x", "x")), "ParentCommitIdRequiredException"),
        (at(Some(&first)).put_files(file("x", "x")), "ParentCommitIdOutdatedException"),
        (at(Some(&nowhere)).put_files(file("x", "x")), "ParentCommitDoesNotExistException"),
        (at(Some("HEAD")).put_files(file("x", "x")), "InvalidParentCommitIdException"),
        (world.commit("none", tip).put_files(file("x", "x")), "BranchDoesNotExistException"),
        (world.commit("a..b", tip).put_files(file("x", "x")), "InvalidBranchNameException"),
        (at(tip), "FileEntryRequiredException"),
        (hundred, "MaximumFileEntriesExceededException"),
        (at(tip).put_files(file("top", "two")), "NoChangeException"),
        (at(tip).put_files(file("x", "")), "FileContentRequiredException"),
        (at(tip).put_files(file("x", &big)), "FileContentSizeLimitExceededException"),
        (
            at(tip).put_files(file("a/x", &half)).put_files(file("b/x", &half)),
            "FileContentSizeLimitExceededException",
        ),
        (at(tip).put_files(empty), "SourceFileOrContentRequiredException"),
        (at(tip).put_files(both), "FileContentAndSourceFileSpecifiedException"),
        (at(tip).put_files(odd), "InvalidFileModeException"),
        (at(tip).put_files(file("x", "1")).put_files(file("x/y", "2")), "PutFileEntryConflictException"),
        (at(tip).put_files(file("x", "1")).put_files(file("/x", "2")), "SamePathRequestException"),
        (at(tip).put_files(file("top", "1")).delete_files(gone("top")), "SamePathRequestException"),
        (at(tip).put_files(file("top/x", "1")), "DirectoryNameConflictsWithFileNameException"),
        (at(tip).put_files(file("dir", "1")), "FileNameConflictsWithDirectoryNameException"),
        (at(tip).put_files(file("../x", "1")), "InvalidPathException"),
        (at(tip).put_files(file(".git/hooks/x", "1")), "InvalidPathException"),
        (at(tip).delete_files(gone("none")), "FileDoesNotExistException"),
        (at(tip).set_file_modes(mode("none", FileModeTypeEnum::Normal)), "FileDoesNotExistException"),
        (at(tip).put_files(copy("none", "x", false)), "FileDoesNotExistException"),
        (at(tip).put_files(copy("dir/.gitkeep", "x", false)), "RestrictedSourceFileException"),
        (at(tip).put_files(file("x", "1")).email("a b"), "InvalidEmailException"),
        (
            at(tip).put_files(file("x", "1")).commit_message("m".repeat(256 * 1024 + 1)),
            "CommitMessageLengthExceededException",
        ),
    ];
    for (index, (commit, expected)) in cases.into_iter().enumerate() {
        assert_eq!(code(commit.send().await), expected, "case {index}");
    }
    let third = vec![b'z'; 2_900_000];
    let folder = at(tip).put_files(file("a/x", &half)).put_files(file("a/y", &third)).send().await;
    assert_eq!(code(folder), "FolderContentSizeLimitExceededException");
    let fit = at(tip).put_files(file("a/x", &half)).put_files(file("b/y", &third)).send().await.unwrap();
    let fit = at(fit.commit_id()).put_files(file("a/y", &half)).send().await.unwrap();

    let put = client.put_file().repository_name("demo").branch_name("main").file_path("top");
    let put = put.parent_commit_id(fit.commit_id().unwrap());
    let same = put.clone().file_content(Blob::new("two")).send().await;
    assert_eq!(code(same), "SameFileContentException");
    let empty = put.clone().file_content(Blob::new("")).send().await;
    assert_eq!(code(empty), "FileContentRequiredException");
    let changed = put.clone().file_content(Blob::new("three")).send().await.unwrap();
    let stale = put.file_content(Blob::new("four")).send().await;
    assert_eq!(code(stale), "ParentCommitIdOutdatedException");
    let blob = client.get_blob().repository_name("demo").blob_id(changed.blob_id()).send().await.unwrap();
    assert_eq!(blob.content().as_ref(), b"three");

    assert_eq!(code(branch.branch_name("main").send().await), "BranchNameExistsException");
    let lost = client.create_branch().repository_name("demo").branch_name("lost").commit_id(nowhere);
    assert_eq!(code(lost.send().await), "CommitDoesNotExistException");
    let delete = client.delete_branch().repository_name("demo");
    let default = delete.clone().branch_name("main").send().await;
    assert_eq!(code(default), "DefaultBranchCannotBeDeletedException");
    let deleted = delete.clone().branch_name("more").send().await.unwrap();
    assert_eq!(deleted.deleted_branch().unwrap().commit_id(), Some(first.as_str()));
    let deleted = delete.branch_name("more").send().await.unwrap();
    assert!(deleted.deleted_branch().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_commits_on_a_parent_wins() {
    let world = World::with("demo").await;
    let mut parent: Option<String> = None;
    for round in 0..4 {
        let attempts = (0..8).map(|index| {
            // Pairs are the same down to the last byte.
            let content = format!("{round} {}", index / 2);
            world.commit("main", parent.as_deref()).put_files(file("race", content)).send()
        });
        let expected = match parent {
            Some(_) => "ParentCommitIdOutdatedException",
            None => "ParentCommitIdRequiredException",
        };
        let mut won = Vec::new();
        for result in futures::future::join_all(attempts).await {
            match result {
                Ok(commit) => won.push(commit.commit_id.unwrap()),
                Err(error) => assert_eq!(error.code(), Some(expected)),
            }
        }
        assert_eq!(won.len(), 1, "round {round}");
        let tip = world.client.get_branch().repository_name("demo").branch_name("main").send().await;
        assert_eq!(tip.unwrap().branch.unwrap().commit_id, won.first().cloned());
        parent = won.pop();
    }
    assert_eq!(world.notes.take().len(), 4, "losers send no event");
}

#[tokio::test]
async fn throttling_and_closed_accounts_look_real() {
    let world = World::with("demo").await;
    world.service.throttle(1);
    let throttled = world.client.get_repository().repository_name("demo").send().await.unwrap_err();
    let raw = throttled.raw_response().unwrap();
    assert_eq!(raw.status().as_u16(), 400);
    let body = String::from_utf8_lossy(raw.body().bytes().unwrap()).into_owned();
    assert!(body.starts_with("<ThrottlingException>\n  <Message>Rate exceeded</Message>"), "{body}");
    world.client.get_repository().repository_name("demo").send().await.unwrap();

    world.service.closed(true);
    let closed = world.client.create_repository().repository_name("x").send().await;
    assert_eq!(code(closed), "OperationNotAllowedException");
}

#[tokio::test]
async fn a_key_decides_whether_a_repository_answers() {
    let world = World::with("demo").await;
    world.client.create_repository().repository_name("plain").send().await.unwrap();
    let change = world.client.update_repository_encryption_key().repository_name("demo");
    let change = change.kms_key_id("alias/demo").send().await.unwrap();
    assert_eq!(change.kms_key_id(), Some(KEY));
    assert_eq!(world.service.key("demo").as_deref(), Some(KEY));
    assert_eq!(world.service.key("plain"), None, "AWS manages this one");
    assert!(change.original_kms_key_id().unwrap().starts_with("arn:aws:kms:eu-west-1:123456789012:key/"));
    world.put("main", None, "a", "a").await;
    for (state, expected) in [
        (KeyState::Disabled, "EncryptionKeyDisabledException"),
        (KeyState::NotFound, "EncryptionKeyNotFoundException"),
        (KeyState::Unavailable, "EncryptionKeyUnavailableException"),
        (KeyState::AccessDenied, "EncryptionKeyAccessDeniedException"),
    ] {
        *world.keys.0.lock().unwrap() = state;
        let get = world.client.get_repository().repository_name("demo").send().await;
        assert_eq!(code(get), expected);
        let delete = world.client.delete_repository().repository_name("demo").send().await;
        assert_eq!(code(delete), expected);
        let create = world.client.create_repository().repository_name("new").kms_key_id("x").send().await;
        assert_eq!(code(create), expected);
        world.client.get_repository().repository_name("plain").send().await.unwrap();
    }
    let odd = world.client.create_repository().repository_name("new").kms_key_id("no key!").send().await;
    assert_eq!(code(odd), "EncryptionKeyInvalidIdException");
    let output = git(world.root.path(), &["ls-remote", &world.url(READER, "demo")]).await;
    assert!(stderr(&output).contains("403"), "over Git it is a plain 403");
}

#[tokio::test]
async fn repositories_outlive_the_emulator() {
    let world = World::with("demo").await;
    let first = world.put("main", None, "a", "a").await;
    let settings = settings(world.root.path(), &world.address);
    let again = Arc::new(CodeCommit::new(settings, Arc::new(Doorman), world.notes.clone()));
    let request = http::Request::post("/")
        .header("x-amz-target", "CodeCommit_20150413.GetBranch")
        .body(Body::from(r#"{"repositoryName":"demo","branchName":"main"}"#))
        .unwrap();
    let reply = answer(again, request).await;
    let body = axum::body::to_bytes(reply.into_body(), 1 << 20).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["branch"]["commitId"], first);
}

#[tokio::test]
async fn requests_are_read_strictly() {
    let world = World::with("demo").await;
    for (action, body, expected) in [
        ("GetRepository", "{}", "RepositoryNameRequiredException"),
        ("GetRepository", r#"{"repositoryName":"a b"}"#, "InvalidRepositoryNameException"),
        ("GetRepository", r#"{"repositoryName":1}"#, "SerializationException"),
        ("GetRepository", "{", "SerializationException"),
        ("GetBranch", r#"{"repositoryName":"demo"}"#, "BranchNameRequiredException"),
        ("GetFolder", r#"{"repositoryName":"demo"}"#, "PathRequiredException"),
        ("GetBlob", r#"{"repositoryName":"demo"}"#, "BlobIdRequiredException"),
        ("GetBlob", r#"{"repositoryName":"demo","blobId":"x"}"#, "InvalidBlobIdException"),
        ("GetCommit", r#"{"repositoryName":"demo"}"#, "CommitIdRequiredException"),
        ("GetCommit", r#"{"repositoryName":"demo","commitId":"main"}"#, "InvalidCommitIdException"),
        ("BatchGetCommits", r#"{"repositoryName":"demo"}"#, "CommitIdsListRequiredException"),
        ("BatchGetRepositories", "{}", "RepositoryNamesRequiredException"),
        ("GetDifferences", r#"{"repositoryName":"demo"}"#, "CommitRequiredException"),
        ("ListRepositories", r#"{"sortBy":"size"}"#, "InvalidSortByException"),
        ("ListRepositories", r#"{"order":"up"}"#, "InvalidOrderException"),
        ("TagResource", "{}", "ResourceArnRequiredException"),
        ("UpdateRepositoryEncryptionKey", r#"{"repositoryName":"demo"}"#, "EncryptionKeyRequiredException"),
        ("CreatePullRequest", "{}", "UnknownOperationException"),
    ] {
        let request = http::Request::post("/")
            .header("x-amz-target", format!("CodeCommit_20150413.{action}"))
            .body(Body::from(body))
            .unwrap();
        let reply = answer(world.service.clone(), request).await;
        assert_eq!(reply.status(), 400);
        assert_eq!(reply.headers()["x-amzn-errortype"], expected, "{action} {body}");
        let body = axum::body::to_bytes(reply.into_body(), 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["__type"], expected);
        assert!(!body["message"].as_str().unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_pushes_and_fetches() {
    let world = World::with("demo").await;
    let place = tempfile::tempdir().unwrap();
    let home = place.path();
    let url = world.url(WRITER, "demo");

    git_ok(home, &["clone", "-q", &url, "work"]).await;
    let work = home.join("work");
    std::fs::write(work.join("README.md"), "hello\n").unwrap();
    git_ok(&work, &["add", "."]).await;
    git_ok(&work, &["commit", "-q", "-m", "One"]).await;
    git_ok(&work, &["push", "-q", "origin", "HEAD:trunk"]).await;
    let head = git_ok(&work, &["rev-parse", "HEAD"]).await;
    let metadata = world.client.get_repository().repository_name("demo").send().await.unwrap();
    assert_eq!(metadata.repository_metadata.unwrap().default_branch(), Some("trunk"));
    let event = world.notes.0.lock().unwrap()[0].clone();
    assert_eq!(event["event"], "referenceCreated");
    assert_eq!(event["commitId"], head);
    assert_eq!(event["oldCommitId"], Value::Null);
    assert_eq!(event["callerUserArn"], "arn:aws:iam::123456789012:user/writer");
    world.notes.take();

    let api = world.put("trunk", Some(&head), "api", "from the API").await;
    git_ok(&work, &["pull", "-q", "--ff-only", "origin", "trunk"]).await;
    assert_eq!(git_ok(&work, &["rev-parse", "HEAD"]).await, api);
    git_ok(&work, &["fsck", "--strict"]).await;
    git_ok(&work, &["tag", "v1"]).await;
    git_ok(&work, &["push", "-q", "origin", "HEAD:side", "v1"]).await;
    git_ok(&work, &["push", "-q", "origin", ":side"]).await;
    let mut events = world.notes.take();
    events[1..3].sort();
    assert_eq!(
        events,
        [
            "referenceUpdated refs/heads/trunk",
            "referenceCreated refs/heads/side",
            "referenceCreated refs/tags/v1",
            "referenceDeleted refs/heads/side"
        ]
    );
    let tag = world.client.get_file().repository_name("demo").file_path("api").commit_specifier("v1");
    assert_eq!(tag.send().await.unwrap().file_content().as_ref(), b"from the API");

    // What loses against the API's commit is refused, and leaves no event.
    git_ok(&work, &["reset", "-q", "--hard", &head]).await;
    std::fs::write(work.join("late"), "late").unwrap();
    git_ok(&work, &["add", "."]).await;
    git_ok(&work, &["commit", "-q", "-m", "Late"]).await;
    assert!(!git(&work, &["push", "-q", "origin", "HEAD:trunk"]).await.status.success());
    assert!(world.notes.take().is_empty());

    for version in ["0", "1", "2"] {
        let option = format!("protocol.version={version}");
        let name = format!("shallow{version}");
        let arguments = ["-c", &option, "clone", "-q", "--depth", "1", "--branch", "trunk", &url, &name];
        git_ok(home, &arguments).await;
        assert_eq!(git_ok(&home.join(&name), &["rev-list", "--count", "HEAD"]).await, "1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_pushes_and_compressed_requests_come_through() {
    let world = World::with("demo").await;
    let place = tempfile::tempdir().unwrap();
    let url = world.url(WRITER, "demo");
    git_ok(place.path(), &["clone", "-q", &url, "work"]).await;
    let (work, copy) = (place.path().join("work"), place.path().join("copy"));
    // Bytes that don't compress, more than a client sends in one piece.
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_le_bytes()[7]
    });
    let noise: Vec<u8> = noise.take(9_000_000).collect();
    std::fs::write(work.join("noise"), &noise).unwrap();
    git_ok(&work, &["add", "."]).await;
    git_ok(&work, &["commit", "-q", "-m", "Noise"]).await;
    git_ok(&work, &["push", "-q", "origin", "HEAD:main"]).await;
    let read = world.client.get_file().repository_name("demo").file_path("noise").send().await;
    assert_eq!(code(read), "FileTooLargeException");
    git_ok(place.path(), &["clone", "-q", &url, "copy"]).await;
    assert!(std::fs::read(copy.join("noise")).unwrap() == noise, "the copy differs");

    // Long requests come compressed; how long they have to be is the client's own business.
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zipped.write_all(b"0014command=ls-refs\n0000").unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = http
        .post(format!("{}/git-upload-pack", world.url("", "demo")))
        .basic_auth("reader", Some("secret"))
        .header("git-protocol", "version=2")
        .header("content-type", "application/x-git-upload-pack-request");
    let sent = request.try_clone().unwrap().header("content-encoding", "gzip");
    let reply = sent.body(zipped.finish().unwrap()).send().await.unwrap();
    assert_eq!(reply.headers()["content-type"], "application/x-git-upload-pack-result");
    let text = reply.text().await.unwrap();
    assert!(text.contains("refs/heads/main"), "{text}");
    let strange = request.header("content-encoding", "br").body("x").send().await.unwrap();
    assert_eq!(strange.status().as_u16(), 415);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_get_403_and_only_the_silent_a_challenge() {
    let world = World::with("demo").await;
    world.put("main", None, "a", "a").await;
    world.client.create_repository().repository_name("forbidden").send().await.unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let basic = |text: &str| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text));
    let refs = "/info/refs?service=git-upload-pack";
    let push = "/info/refs?service=git-receive-pack";
    for (header, name, rest, expected) in [
        (Some(basic("reader:secret")), "demo", refs, 200),
        (Some(basic("reader:secret")), "demo", push, 403),
        (Some(basic("reader:wrong")), "demo", refs, 403),
        (Some(basic("reader:")), "demo", refs, 403),
        (Some("Bearer x".to_owned()), "demo", refs, 403),
        (Some("Basic ???".to_owned()), "demo", refs, 403),
        (Some(basic("reader:secret")), "forbidden", refs, 403),
        (Some(basic("reader:secret")), "unknown", refs, 404),
        (Some(basic("reader:wrong")), "unknown", refs, 403),
        (Some(basic("reader:secret")), "demo.git", refs, 404),
        (Some(basic("reader:secret")), "demo/", refs, 404),
        (Some(basic("reader:secret")), "demo", "/info/refs", 403),
        (Some(basic("reader:secret")), "demo", "/HEAD", 404),
        (None, "demo", refs, 401),
        (None, "unknown", refs, 401),
    ] {
        let mut request = http.get(format!("{}/v1/repos/{name}{rest}", world.address));
        if let Some(header) = &header {
            request = request.header("authorization", header);
        }
        let reply = request.send().await.unwrap();
        assert_eq!(reply.status().as_u16(), expected, "{header:?} {name}{rest}");
        assert_eq!(reply.headers().contains_key("www-authenticate"), expected == 401);
    }

    let place = tempfile::tempdir().unwrap();
    let home = place.path();
    let wrong = git(home, &["clone", "-q", &world.url("reader:wrong", "demo"), "wrong"]).await;
    assert!(!wrong.status.success() && stderr(&wrong).contains("403"), "{}", stderr(&wrong));
    let bare = world.url("", "demo");
    let helper = "credential.helper=!f() { echo username=reader; echo password=secret; }; f";
    git_ok(home, &["-c", helper, "clone", "-q", &bare, "helped"]).await;
    git_ok(home, &["clone", "-q", &world.url(READER, "demo"), "embedded"]).await;
    let denied = git(&home.join("embedded"), &["push", "-q", "origin", "HEAD:other"]).await;
    assert!(stderr(&denied).contains("403"), "{}", stderr(&denied));

    // Without the challenge, a stock client gets in only by a header of its own.
    world.service.challenge(false);
    let silent = git(home, &["clone", "-q", &world.url(READER, "demo"), "silent"]).await;
    assert!(stderr(&silent).contains("403"), "{}", stderr(&silent));
    let header = format!("http.extraHeader=Authorization: {}", basic("reader:secret"));
    git_ok(home, &["-c", &header, "clone", "-q", &bare, "header"]).await;

    world.service.throttle_git(1);
    let busy = http.get(format!("{bare}{refs}")).send().await.unwrap();
    assert_eq!(busy.status().as_u16(), 429);
}

/// Runs only where the AWS CLI is installed.
#[tokio::test(flavor = "multi_thread")]
async fn the_aws_cli_works() {
    if tokio::process::Command::new("aws").arg("--version").output().await.is_err() {
        return;
    }
    let world = World::start().await;
    let aws = async |arguments: &[&str]| -> Value {
        let output = tokio::process::Command::new("aws")
            .args([
                "codecommit",
                "--endpoint-url",
                &world.address,
                "--region",
                "eu-west-1",
                "--output",
                "json",
            ])
            .args(arguments)
            .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_PAGER", "")
            .env("no_proxy", "127.0.0.1")
            .env_remove("AWS_PROFILE")
            .env_remove("AWS_ENDPOINT_URL")
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    let made = aws(&["create-repository", "--repository-name", "demo", "--tags", "a=b"]).await;
    assert_eq!(made["repositoryMetadata"]["repositoryName"], "demo");
    let place = tempfile::tempdir().unwrap();
    let content = place.path().join("content");
    std::fs::write(&content, "from the CLI\n").unwrap();
    let content = format!("fileb://{}", content.display());
    let put = ["put-file", "--repository-name", "demo", "--branch-name", "main", "--file-path", "a/b"];
    let put = aws(&[&put[..], &["--file-content", &content]].concat()).await;
    let branch = aws(&["get-branch", "--repository-name", "demo", "--branch-name", "main"]).await;
    assert_eq!(branch["branch"]["commitId"], put["commitId"]);
    let folder = aws(&["get-folder", "--repository-name", "demo", "--folder-path", "a"]).await;
    assert_eq!(folder["files"][0]["absolutePath"], "a/b");
    let commit = ["get-commit", "--repository-name", "demo", "--commit-id"];
    let commit = aws(&[&commit[..], &[put["commitId"].as_str().unwrap()]].concat()).await;
    assert_eq!(commit["commit"]["message"], "Added a/b\n");
    let listed = aws(&["list-repositories"]).await;
    assert_eq!(listed["repositories"][0]["repositoryName"], "demo");
    let gone = aws(&["delete-repository", "--repository-name", "demo"]).await;
    assert_eq!(gone["repositoryId"], made["repositoryMetadata"]["repositoryId"]);
}
