//! Git over smart HTTP.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;

use super::{CodeCommit, Herald, Repository, reply, take};
use crate::wire::Reply;

/// What a client asks of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Upload,
    Receive,
}

impl Service {
    fn named(name: &str) -> Option<Self> {
        match name {
            "git-upload-pack" => Some(Service::Upload),
            "git-receive-pack" => Some(Service::Receive),
            _ => None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Service::Upload => "upload-pack",
            Service::Receive => "receive-pack",
        }
    }
}

/// The environment variable that tells the hook where to write.
const RECEIPT: &str = "SANDBOX_PUSH_RECEIPT";

/// Git tells this hook, and nobody else, which references of a push were really changed.
const HOOK: &str = "#!/bin/sh\nexec cat >> \"$SANDBOX_PUSH_RECEIPT\"\n";

/// The folder of the hooks of all repositories.
pub(super) fn hooks(root: &Path) -> PathBuf {
    root.join("hooks")
}

/// Writes the hook, unless it is there.
pub(super) fn install_hooks(root: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = hooks(root);
    let hook = folder.join("post-receive");
    if hook.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&folder)?;
    // Under its final name the file is whole and executable from the start, whoever else makes it now.
    let fresh = folder.join(format!("post-receive.{}", uuid::Uuid::new_v4()));
    std::fs::write(&fresh, HOOK)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(fresh, hook)
}

/// User and password of a Basic authorization.
fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    text.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
}

fn refuse(status: u16) -> Reply {
    reply(status, "text/plain", Body::empty())
}

/// A client may have stored whatever it got, so every reply forbids that, as Git's own server does.
fn fresh(mut reply: Reply) -> Reply {
    let value = HeaderValue::from_static("no-cache, max-age=0, must-revalidate");
    reply.headers_mut().insert(header::CACHE_CONTROL, value);
    reply
}

impl CodeCommit {
    /// Answers a request to the Git endpoint: `/v1/repos/<name>/info/refs?service=…`,
    /// `/v1/repos/<name>/git-upload-pack` and `/v1/repos/<name>/git-receive-pack`.
    ///
    /// An unknown repository is told (404) only to those who may come in; everybody else gets 403. A
    /// repository whose key doesn't let it be read gives 403 too (aws/git-remote-codecommit#55), and so
    /// says nothing about keys.
    pub async fn git(&self, request: http::Request<Body>) -> Reply {
        if take(&self.git_throttled) {
            return refuse(429);
        }
        let (head, body) = request.into_parts();
        let Some((name, rest)) = head.uri.path().strip_prefix("/v1/repos/").and_then(|p| p.split_once('/'))
        else {
            return refuse(404);
        };
        let query = head.uri.query().unwrap_or_default();
        let service = match (&head.method, rest) {
            (&Method::GET, "info/refs") => url::form_urlencoded::parse(query.as_bytes())
                .find(|(key, _)| key == "service")
                .and_then(|(_, value)| Service::named(&value)),
            (&Method::POST, rest) => Service::named(rest),
            _ => None,
        };
        let Some(service) = service else {
            // The dumb protocol, which asks for files, isn't spoken.
            return refuse(if rest == "info/refs" { 403 } else { 404 });
        };

        let Some((user, password)) = credentials(&head.headers) else {
            let challenges = self.challenges.load(std::sync::atomic::Ordering::SeqCst);
            if head.headers.contains_key(header::AUTHORIZATION) || !challenges {
                return refuse(403);
            }
            let mut reply = refuse(401);
            let challenge = HeaderValue::from_static("Basic realm=\"AWS CodeCommit\"");
            reply.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            return reply;
        };
        if !self.authority.allows(&user, &password, name, service == Service::Receive).await {
            return refuse(403);
        }
        let Some(repository) = self.find(name) else { return refuse(404) };
        if self.unlock(&repository).await.is_err() {
            return refuse(403);
        }

        let protocol =
            head.headers.get("git-protocol").and_then(|value| value.to_str().ok()).unwrap_or_default();
        if head.method == Method::GET {
            return self.advertise(&repository, service, protocol).await;
        }
        let expected = format!("application/x-git-{}-request", service.word());
        if head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()) != Some(&expected) {
            return refuse(415);
        }
        let encoding = head.headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok());
        let zipped = match encoding {
            None | Some("identity") => false,
            Some("gzip" | "x-gzip") => true,
            Some(_) => return refuse(415),
        };
        // Git credentials are named `<user>-at-<account>`.
        let user = user.strip_suffix(&format!("-at-{}", self.settings.account)).unwrap_or(&user).to_owned();
        self.serve(repository, service, protocol, zipped, body, user).await
    }

    async fn advertise(&self, repository: &Repository, service: Service, protocol: &str) -> Reply {
        let mut command = repository.git.command();
        command
            .args([service.word(), "--stateless-rpc", "--advertise-refs"])
            .arg(repository.git.folder())
            .env("GIT_PROTOCOL", protocol)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let output = match command.output().await {
            Ok(output) if output.status.success() => output.stdout,
            _ => return refuse(500),
        };
        // Version 2 has no room for the line that names the service.
        let mut text = Vec::new();
        if !(service == Service::Upload && protocol.split(':').any(|word| word == "version=2")) {
            let line = format!("# service=git-{}\n", service.word());
            text.extend_from_slice(format!("{:04x}{line}0000", line.len() + 4).as_bytes());
        }
        text.extend_from_slice(&output);
        let kind = match service {
            Service::Upload => "application/x-git-upload-pack-advertisement",
            Service::Receive => "application/x-git-receive-pack-advertisement",
        };
        fresh(reply(200, kind, text))
    }

    async fn serve(
        &self,
        repository: Arc<Repository>,
        service: Service,
        protocol: &str,
        zipped: bool,
        body: Body,
        user: String,
    ) -> Reply {
        let receipt = match tempfile::NamedTempFile::new() {
            Ok(receipt) => receipt,
            Err(_) => return refuse(500),
        };
        let mut command = repository.git.command();
        command
            .args([service.word(), "--stateless-rpc"])
            .arg(repository.git.folder())
            .env("GIT_PROTOCOL", protocol)
            .env(RECEIPT, receipt.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A fetch that nobody waits for is a waste; a push is left to end by itself, so that it
            // leaves no locks behind.
            .kill_on_drop(service == Service::Upload);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(_) => return refuse(500),
        };
        if let Some(stdin) = child.stdin.take() {
            tokio::spawn(feed(stdin, body, zipped));
        }
        let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(8);
        let push =
            (service == Service::Receive).then(|| Push { herald: self.herald(), repository, receipt, user });
        tokio::spawn(drain(child, sender, push));
        let kind = match service {
            Service::Upload => "application/x-git-upload-pack-result",
            Service::Receive => "application/x-git-receive-pack-result",
        };
        fresh(reply(200, kind, Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receiver))))
    }
}

/// Streams a request's body into Git.
async fn feed(mut stdin: ChildStdin, body: Body, zipped: bool) {
    let mut chunks = body.into_data_stream();
    let mut plain = flate2::write::GzDecoder::new(Vec::new());
    while let Some(Ok(chunk)) = chunks.next().await {
        let written = if zipped {
            use std::io::Write as _;
            if plain.write_all(&chunk).is_err() {
                return;
            }
            let piece = std::mem::take(plain.get_mut());
            stdin.write_all(&piece).await
        } else {
            stdin.write_all(&chunk).await
        };
        if written.is_err() {
            return;
        }
    }
    if zipped && plain.try_finish().is_ok() {
        let piece = std::mem::take(plain.get_mut());
        let _ = stdin.write_all(&piece).await;
    }
    let _ = stdin.shutdown().await;
}

/// Streams Git's answer out. A push's consequences are settled before the answer ends, so that a client
/// that has seen the end of its push also finds the default branch set and the events sent.
async fn drain(mut child: Child, sender: mpsc::Sender<Result<Bytes, std::io::Error>>, push: Option<Push>) {
    let Some(mut stdout) = child.stdout.take() else { return };
    let mut buffer = vec![0; 64 * 1024];
    let mut listening = true;
    loop {
        match stdout.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(size) => {
                if listening && sender.send(Ok(Bytes::copy_from_slice(&buffer[..size]))).await.is_err() {
                    listening = false;
                    if push.is_none() {
                        return;
                    }
                }
            }
        }
    }
    let status = child.wait().await;
    if let Some(push) = push {
        push.settle().await;
    } else if !status.is_ok_and(|status| status.success()) {
        let error = std::io::Error::other("git ended early");
        let _ = sender.send(Err(error)).await;
    }
}

/// A push under way.
struct Push {
    herald: Herald,
    repository: Arc<Repository>,
    receipt: tempfile::NamedTempFile,
    user: String,
}

impl Push {
    async fn settle(self) {
        let text = tokio::fs::read_to_string(self.receipt.path()).await.unwrap_or_default();
        let changes: Vec<(&str, &str, &str)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.splitn(3, ' ');
                Some((words.next()?, words.next()?, words.next()?))
            })
            .collect();
        if changes.is_empty() {
            return;
        }
        {
            let _held = self.repository.references.lock().await;
            let first = changes.iter().filter(|(_, new, _)| *new != super::NO_OBJECT);
            if let Some(branch) = first.filter_map(|(_, _, name)| name.strip_prefix("refs/heads/")).next()
                && let Err(error) = self.repository.adopt_default(branch).await
            {
                tracing::warn!(?error, "the first branch did not become the default");
            }
            if let Err(error) = self.repository.change(|_| ()) {
                tracing::warn!(?error, "the repository's modification time was not kept");
            }
        }
        let metadata = self.repository.metadata();
        let caller = format!("arn:aws:iam::{}:user/{}", self.herald.settings.account, self.user);
        for (old, new, reference) in changes {
            self.herald.announce(&metadata, reference, old, new, &caller);
        }
    }
}
