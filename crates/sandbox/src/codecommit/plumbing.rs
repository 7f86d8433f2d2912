//! The `git` program, as far as its plumbing serves the emulator.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// The empty tree, which Git knows without storing it.
pub(super) const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// The id that stands for "no such reference" in `update-ref` and in pushes.
pub(super) const NO_OBJECT: &str = "0000000000000000000000000000000000000000";

/// Settings that hold for every invocation. Background maintenance would outlive the world that
/// started it, and an unborn HEAD is not told to clients because CodeCommit's protocol has no word
/// for it.
const CONFIG: [(&str, &str); 6] = [
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("receive.autogc", "false"),
    ("init.defaultBranch", "main"),
    ("lsrefs.unborn", "ignore"),
    ("safe.directory", "*"),
];

/// Why an invocation gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    /// Git itself could not be run, or its pipes broke.
    #[error("git could not be run: is it installed and on the PATH?")]
    Io(#[from] std::io::Error),
    /// Git ran and refused.
    #[error("git {command} failed: {stderr}")]
    Failed {
        /// The subcommand.
        command: String,
        /// What it said.
        stderr: String,
    },
    /// Git ran, but its output is not what the documentation says.
    #[error("git {0} answered in an unknown form")]
    Form(&'static str),
}

/// A file in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// `100644`, `100755`, `120000`, `160000`, or `040000` for a folder.
    pub mode: String,
    /// The object's id.
    pub id: String,
    /// Bytes, for files.
    pub size: u64,
}

impl Entry {
    pub(super) fn is_folder(&self) -> bool {
        self.mode == "040000"
    }

    pub(super) fn is_submodule(&self) -> bool {
        self.mode == "160000"
    }
}

/// A tree flattened: path → file. Paths are bytes, as a push may bring any.
pub(super) type Files = BTreeMap<Vec<u8>, Entry>;

/// One difference between two trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// Mode and id before; nothing when the file was added.
    pub before: Option<(String, String)>,
    /// Mode and id after; nothing when the file was deleted.
    pub after: Option<(String, String)>,
    /// Path below the trees that were compared.
    pub path: String,
}

/// An object as `cat-file --batch` gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    /// `blob`, `commit`, `tree` or `tag`.
    pub kind: String,
    /// Its bytes.
    pub content: Vec<u8>,
}

/// A bare repository in a folder.
#[derive(Debug, Clone)]
pub(super) struct Git {
    folder: PathBuf,
    hooks: PathBuf,
}

impl Git {
    pub(super) fn new(folder: PathBuf, hooks: PathBuf) -> Self {
        Git { folder, hooks }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A command without anything of the user's own configuration or environment in it. It isn't killed
    /// when its caller goes away: a reference's lock would stay behind. It ends by itself with its input.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("git");
        command.env_clear();
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command
            .env("HOME", &self.folder)
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_DIR", &self.folder)
            .env("GIT_CONFIG_COUNT", (CONFIG.len() + 1).to_string())
            .env(format!("GIT_CONFIG_KEY_{}", CONFIG.len()), "core.hooksPath")
            .env(format!("GIT_CONFIG_VALUE_{}", CONFIG.len()), &self.hooks);
        for (index, (key, value)) in CONFIG.iter().enumerate() {
            command
                .env(format!("GIT_CONFIG_KEY_{index}"), key)
                .env(format!("GIT_CONFIG_VALUE_{index}"), value);
        }
        command
    }

    async fn output(
        &self,
        arguments: &[&str],
        input: Vec<u8>,
        environment: &[(&str, &Path)],
    ) -> Result<std::process::Output, Problem> {
        let mut command = self.command();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (key, value) in environment {
            command.env(key, value);
        }
        let mut child: Child = command.spawn()?;
        let stdin = child.stdin.take();
        let feed = async move {
            if let Some(mut stdin) = stdin {
                // A program that needs no more input closes its end: not our failure.
                let _ = stdin.write_all(&input).await;
                let _ = stdin.shutdown().await;
            }
        };
        let ((), output) = tokio::join!(feed, child.wait_with_output());
        Ok(output?)
    }

    /// Runs and gives the standard output of a success.
    pub(super) async fn run(&self, arguments: &[&str], input: Vec<u8>) -> Result<Vec<u8>, Problem> {
        self.run_with(arguments, input, &[]).await
    }

    async fn run_with(
        &self,
        arguments: &[&str],
        input: Vec<u8>,
        environment: &[(&str, &Path)],
    ) -> Result<Vec<u8>, Problem> {
        let output = self.output(arguments, input, environment).await?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(Problem::Failed {
            command: arguments.first().copied().unwrap_or_default().to_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    /// Makes the repository.
    pub(super) async fn init(&self) -> Result<(), Problem> {
        self.run(&["init", "--quiet", "--bare", "--template="], Vec::new()).await.map(drop)
    }

    /// The object that a full reference (or an id) names, peeled down to `kind`.
    pub(super) async fn resolve(&self, name: &str, kind: &str) -> Result<Option<String>, Problem> {
        let name = format!("{name}^{{{kind}}}");
        let output = self.output(&["rev-parse", "--verify", "--quiet", &name], Vec::new(), &[]).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let id = text.trim();
        Ok((output.status.success() && id.len() == 40).then(|| id.to_owned()))
    }

    /// The references below a prefix, with the ids they hold, in order of their names.
    pub(super) async fn references(&self, prefix: &str) -> Result<Vec<(String, String)>, Problem> {
        let arguments = ["for-each-ref", "--format=%(objectname) %(refname)", prefix];
        let output = self.run(&arguments, Vec::new()).await?;
        Ok(String::from_utf8_lossy(&output)
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(id, name)| (name.to_owned(), id.to_owned()))
            .collect())
    }

    /// The reference that HEAD stands for, whether it exists or not.
    pub(super) async fn head(&self) -> Result<String, Problem> {
        let output = self.run(&["symbolic-ref", "HEAD"], Vec::new()).await?;
        Ok(String::from_utf8_lossy(&output).trim().to_owned())
    }

    /// Makes HEAD stand for another reference.
    pub(super) async fn set_head(&self, reference: &str) -> Result<(), Problem> {
        self.run(&["symbolic-ref", "HEAD", reference], Vec::new()).await.map(drop)
    }

    /// Sets a reference if it still holds `old` ([`NO_OBJECT`]: if it doesn't exist). False when
    /// another was faster.
    pub(super) async fn swap(&self, reference: &str, new: &str, old: &str) -> Result<bool, Problem> {
        match self.run(&["update-ref", reference, new, old], Vec::new()).await {
            Ok(_) => Ok(true),
            // Git says the same exit code for a lost race and for a broken disk. What it holds now
            // tells them apart, unless the lock is still taken.
            Err(Problem::Failed { command, stderr }) => {
                let now = self.resolve(reference, "commit").await?;
                let expected = (old != NO_OBJECT).then(|| old.to_owned());
                if now != expected || stderr.contains("cannot lock ref") {
                    return Ok(false);
                }
                Err(Problem::Failed { command, stderr })
            }
            Err(other) => Err(other),
        }
    }

    /// Deletes a reference if it still holds `old`.
    pub(super) async fn delete(&self, reference: &str, old: &str) -> Result<(), Problem> {
        self.run(&["update-ref", "-d", reference, old], Vec::new()).await.map(drop)
    }

    /// Stores blobs in one go and gives their ids in the same order.
    pub(super) async fn store(&self, contents: &[Vec<u8>]) -> Result<Vec<String>, Problem> {
        if contents.is_empty() {
            return Ok(Vec::new());
        }
        let scratch = tempfile::tempdir()?;
        let mut paths = Vec::new();
        for (index, content) in contents.iter().enumerate() {
            let path = scratch.path().join(index.to_string());
            tokio::fs::write(&path, content).await?;
            paths.extend_from_slice(path.as_os_str().as_encoded_bytes());
            paths.push(b'\n');
        }
        let output = self.run(&["hash-object", "-w", "--no-filters", "--stdin-paths"], paths).await?;
        let ids: Vec<String> = String::from_utf8_lossy(&output).lines().map(str::to_owned).collect();
        if ids.len() == contents.len() { Ok(ids) } else { Err(Problem::Form("hash-object")) }
    }

    /// Stores a commit object.
    pub(super) async fn store_commit(&self, text: Vec<u8>) -> Result<String, Problem> {
        let output = self.run(&["hash-object", "-w", "-t", "commit", "--stdin"], text).await?;
        Ok(String::from_utf8_lossy(&output).trim().to_owned())
    }

    /// Stores the tree of these files, by an index of its own that no other call sees.
    pub(super) async fn store_tree(&self, files: &Files) -> Result<String, Problem> {
        if files.is_empty() {
            // The object has to exist for clients that fetch it.
            let output = self.run(&["mktree"], Vec::new()).await?;
            return Ok(String::from_utf8_lossy(&output).trim().to_owned());
        }
        let scratch = tempfile::tempdir()?;
        let index = scratch.path().join("index");
        let mut lines = Vec::new();
        for (path, entry) in files {
            lines.extend_from_slice(format!("{} {}\t", entry.mode, entry.id).as_bytes());
            lines.extend_from_slice(path);
            lines.push(0);
        }
        let environment = [("GIT_INDEX_FILE", index.as_path())];
        self.run_with(&["update-index", "-z", "--index-info"], lines, &environment).await?;
        let output = self.run_with(&["write-tree"], Vec::new(), &environment).await?;
        Ok(String::from_utf8_lossy(&output).trim().to_owned())
    }

    /// Every file of a tree or commit.
    pub(super) async fn files(&self, tree: &str) -> Result<Files, Problem> {
        let output = self.run(&["ls-tree", "-r", "-z", "-l", "--full-tree", tree], Vec::new()).await?;
        Ok(parse_tree(&output)?.into_iter().collect())
    }

    /// What stands directly in a tree.
    pub(super) async fn list(&self, tree: &str) -> Result<Vec<(Vec<u8>, Entry)>, Problem> {
        parse_tree(&self.run(&["ls-tree", "-z", "-l", "--full-tree", tree], Vec::new()).await?)
    }

    /// What a path names in a tree or commit.
    pub(super) async fn entry(&self, tree: &str, path: &str) -> Result<Option<Entry>, Problem> {
        let output = self.run(&["ls-tree", "-z", "-l", "--full-tree", tree, "--", path], Vec::new()).await?;
        let found = parse_tree(&output)?;
        Ok(found.into_iter().find(|(name, _)| name == path.as_bytes()).map(|(_, entry)| entry))
    }

    /// Objects by id, in the same order; nothing for those that don't exist.
    pub(super) async fn objects(&self, ids: &[&str]) -> Result<Vec<Option<Object>>, Problem> {
        let form = || Problem::Form("cat-file");
        let output = self.run(&["cat-file", "--batch"], (ids.join("\n") + "\n").into_bytes()).await?;
        let mut rest = output.as_slice();
        let mut objects = Vec::new();
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n').ok_or_else(form)?;
            let head = std::str::from_utf8(&rest[..end]).map_err(|_| form())?;
            rest = &rest[end + 1..];
            let words: Vec<&str> = head.split(' ').collect();
            let [_, kind, size] = words[..] else {
                objects.push(None);
                continue;
            };
            let size: usize = size.parse().map_err(|_| form())?;
            let content = rest.get(..size).ok_or_else(form)?.to_vec();
            rest = rest.get(size + 1..).ok_or_else(form)?;
            objects.push(Some(Object { kind: kind.to_owned(), content }));
        }
        if objects.len() == ids.len() { Ok(objects) } else { Err(form()) }
    }

    /// One object by id.
    pub(super) async fn object(&self, id: &str) -> Result<Option<Object>, Problem> {
        Ok(self.objects(&[id]).await?.pop().flatten())
    }

    /// The differences between two trees, file by file, without looking for renames: CodeCommit
    /// knows only added, modified and deleted.
    pub(super) async fn differences(&self, before: &str, after: &str) -> Result<Vec<Change>, Problem> {
        let form = || Problem::Form("diff-tree");
        let arguments = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", before, after];
        let output = self.run(&arguments, Vec::new()).await?;
        let mut fields = output.split(|byte| *byte == 0);
        let mut changes = Vec::new();
        while let Some(head) = fields.next().filter(|field| !field.is_empty()) {
            let head = std::str::from_utf8(head).map_err(|_| form())?;
            let words: Vec<&str> = head.trim_start_matches(':').split(' ').collect();
            let [before_mode, after_mode, before, after, _] = words[..] else { return Err(form()) };
            let path = fields.next().ok_or_else(form)?;
            let side = |mode: &str, id: &str| (mode != "000000").then(|| (mode.to_owned(), id.to_owned()));
            changes.push(Change {
                before: side(before_mode, before),
                after: side(after_mode, after),
                path: String::from_utf8_lossy(path).into_owned(),
            });
        }
        Ok(changes)
    }
}

fn parse_tree(output: &[u8]) -> Result<Vec<(Vec<u8>, Entry)>, Problem> {
    let form = || Problem::Form("ls-tree");
    let mut entries = Vec::new();
    for line in output.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
        let tab = line.iter().position(|byte| *byte == b'\t').ok_or_else(form)?;
        let head = std::str::from_utf8(&line[..tab]).map_err(|_| form())?;
        let words: Vec<&str> = head.split_whitespace().collect();
        let [mode, _, id, size] = words[..] else { return Err(form()) };
        let size = size.parse().unwrap_or(0);
        let entry = Entry { mode: mode.to_owned(), id: id.to_owned(), size };
        entries.push((line[tab + 1..].to_vec(), entry));
    }
    Ok(entries)
}
