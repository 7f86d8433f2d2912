//! Reads a Git repository over HTTP with the `git` program, and words its errors as Flux does.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tempfile::TempDir;
use tokio::process::Command;

/// A user name and a password.
pub type Credentials = Option<(String, String)>;

/// What is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A branch.
    Branch(String),
    /// A tag.
    Tag(String),
    /// A full reference name.
    Name(String),
    /// A commit, on a branch where one is named.
    Commit(String, Option<String>),
}

impl Reference {
    fn full(&self) -> Option<String> {
        match self {
            Reference::Branch(name) => Some(format!("refs/heads/{name}")),
            Reference::Tag(name) => Some(format!("refs/tags/{name}")),
            Reference::Name(name) => Some(name.clone()),
            Reference::Commit(_, _) => None,
        }
    }

    /// The revision as Flux writes it: `branch@sha1:…`.
    pub fn revision(&self, commit: &str) -> String {
        match self {
            Reference::Branch(name) | Reference::Tag(name) => format!("{name}@sha1:{commit}"),
            Reference::Name(name) => format!("{name}@sha1:{commit}"),
            Reference::Commit(_, Some(branch)) => format!("{branch}@sha1:{commit}"),
            Reference::Commit(_, None) => format!("sha1:{commit}"),
        }
    }
}

/// What a fetch found.
pub enum Fetched {
    /// Still the revision that was known.
    Same,
    /// The repository has no commit at all.
    Empty,
    /// A new state of the files.
    New {
        /// The commit's id.
        commit: String,
        /// The first line of its message.
        message: String,
        /// The files.
        files: TempDir,
    },
}

/// Reads a reference, unless it still is at the known revision. The error is Flux's text.
pub async fn fetch(
    url: &str,
    reference: &Reference,
    credentials: &Credentials,
    known: Option<&str>,
    patience: Duration,
) -> Result<Fetched, String> {
    let place = if known.is_some() { "list remote for" } else { "clone" };
    let wrap = |text: String| format!("unable to {place} '{url}': {text}");
    let work = async {
        let listed =
            git(&["ls-remote", url], None, credentials).await.map_err(|text| wrap(word(&text, url)))?;
        if listed.trim().is_empty() {
            return Ok(Fetched::Empty);
        }
        let commit = match (reference, reference.full()) {
            (Reference::Commit(commit, _), _) => commit.clone(),
            (_, Some(full)) => {
                // The peeled form of an annotated tag comes last.
                let wanted = [full.clone(), format!("{full}^{{}}")];
                let found = listed.lines().rev().find_map(|line| {
                    let (id, name) = line.split_once('\t')?;
                    wanted.iter().any(|wanted| wanted == name).then(|| id.to_owned())
                });
                found.ok_or_else(|| format!("unable to clone '{url}': couldn't find remote ref {full:?}"))?
            }
            (_, None) => return Err(wrap("reference not found".to_owned())),
        };
        if known == Some(reference.revision(&commit).as_str()) {
            return Ok(Fetched::Same);
        }
        let files = tempfile::tempdir()
            .map_err(|error| format!("failed to create temporary working directory: {error}"))?;
        let path = files.path();
        let asked = reference.full().unwrap_or_else(|| commit.clone());
        for arguments in [
            &["init", "--quiet"][..],
            &["fetch", "--quiet", "--depth", "1", "--no-tags", url, &asked],
            &["checkout", "--quiet", "--detach", "FETCH_HEAD"],
        ] {
            let clone = |text: String| format!("unable to clone '{url}': {}", word(&text, url));
            git(arguments, Some(path), credentials).await.map_err(clone)?;
        }
        let head = git(&["log", "-1", "--format=%H%n%s"], Some(path), &None).await.map_err(wrap)?;
        let (commit, message) = head.trim().split_once('\n').unwrap_or((head.trim(), ""));
        // The artifact has the files without Git's own.
        let _ = tokio::fs::remove_dir_all(path.join(".git")).await;
        Ok(Fetched::New { commit: commit.to_owned(), message: message.to_owned(), files })
    };
    match tokio::time::timeout(patience, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(wrap("context deadline exceeded".to_owned())),
    }
}

/// Runs git. The password travels in the environment, which other users of the machine can't read,
/// and not in the command line, which they can.
async fn git(arguments: &[&str], folder: Option<&Path>, credentials: &Credentials) -> Result<String, String> {
    let mut command = Command::new("git");
    command
        .args(arguments)
        .env("LC_ALL", "C")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_ASKPASS", "true")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("NO_PROXY", crate::wire::no_proxy())
        .env("no_proxy", crate::wire::no_proxy())
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let mut config = vec![
        ("credential.helper".to_owned(), String::new()),
        ("http.followRedirects".to_owned(), "false".to_owned()),
    ];
    if let Some((user, password)) = credentials {
        let basic = STANDARD.encode(format!("{user}:{password}"));
        config.push(("http.extraHeader".to_owned(), format!("Authorization: Basic {basic}")));
    }
    command.env("GIT_CONFIG_COUNT", config.len().to_string());
    for (at, (name, value)) in config.iter().enumerate() {
        command.env(format!("GIT_CONFIG_KEY_{at}"), name).env(format!("GIT_CONFIG_VALUE_{at}"), value);
    }
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    let output = command.output().await.map_err(|error| format!("git could not be started: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Git's error in the words of Flux's own Git library.
fn word(stderr: &str, url: &str) -> String {
    let has = |part: &str| stderr.contains(part);
    if has("error: 401")
        || has("could not read Username")
        || has("could not read Password")
        || has("Authentication failed")
    {
        return "authentication required".to_owned();
    }
    if has("error: 403") {
        return "authorization failed".to_owned();
    }
    if has("error: 404") || has("not found") {
        return "repository not found".to_owned();
    }
    if let Some(code) =
        stderr.split("returned error: ").nth(1).and_then(|rest| rest.split_whitespace().next())
    {
        return format!(
            "unexpected client error: unexpected requesting \"{url}/info/refs?service=git-upload-pack\" status code: {code}"
        );
    }
    let host = url.split("//").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
    if has("Failed to connect") || has("Connection refused") || has("Couldn't connect") {
        return format!(
            "Get \"{url}/info/refs?service=git-upload-pack\": dial tcp {host}: connect: connection refused"
        );
    }
    if has("Could not resolve host") {
        return format!(
            "Get \"{url}/info/refs?service=git-upload-pack\": dial tcp: lookup {host}: no such host"
        );
    }
    stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("unknown error").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_worded_as_flux_does() {
        let url = "http://127.0.0.1:1/v1/repos/a";
        for (stderr, expected) in [
            (
                "fatal: could not read Username for 'http://x': terminal prompts disabled\n",
                "authentication required",
            ),
            ("fatal: Authentication failed for 'http://x/'\n", "authentication required"),
            (
                "fatal: unable to access 'http://x/': The requested URL returned error: 403\n",
                "authorization failed",
            ),
            ("fatal: repository 'http://x/' not found\n", "repository not found"),
            (
                "fatal: unable to access 'http://x/': The requested URL returned error: 429\n",
                "unexpected client error: unexpected requesting \"http://127.0.0.1:1/v1/repos/a/info/refs?service=git-upload-pack\" status code: 429",
            ),
            (
                "fatal: unable to access 'http://x/': Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server\n",
                "Get \"http://127.0.0.1:1/v1/repos/a/info/refs?service=git-upload-pack\": dial tcp 127.0.0.1:1: connect: connection refused",
            ),
        ] {
            assert_eq!(word(stderr, url), expected);
        }
    }
}
