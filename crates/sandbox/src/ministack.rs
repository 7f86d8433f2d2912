//! MiniStack as a child process: started on a free port, asked over HTTP, gone when we are.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::Value;

use crate::clock;
use crate::codecommit::managed_key;
use crate::policy::Statement;
use crate::wire::Reply;

const LAUNCHER: &str = include_str!("../ministack_launcher.py");

/// The access key of the account's root, as documented for MiniStack; its secret is the same word.
pub const ROOT_KEY: &str = "test";

/// How MiniStack is started.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The Python environment that has MiniStack.
    pub venv: PathBuf,
    /// The world's folder. It is removed when the sandbox ends, however it ends.
    pub folder: PathBuf,
    /// What functions get as `AWS_ENDPOINT_URL`.
    pub endpoint: String,
    /// The region of what the world makes by itself.
    pub region: String,
    /// Twelve digits.
    pub account: String,
    /// Factor on the waits and retry pauses of state machines.
    pub wait_scale: f64,
}

/// A running MiniStack.
#[derive(Debug)]
pub struct MiniStack {
    child: Child,
    stdin: Option<ChildStdin>,
    upstream: Upstream,
}

impl MiniStack {
    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// Where Python or MiniStack is missing, or it does not answer within a minute.
    pub async fn start(settings: &Settings) -> anyhow::Result<MiniStack> {
        let settings = settings.clone();
        let (child, stdin, port, token) = tokio::task::spawn_blocking(move || spawn(&settings)).await??;
        let mut started = MiniStack { child, stdin: Some(stdin), upstream: Upstream::new(port, token)? };
        for _ in 0..600 {
            if started.upstream.healthy().await {
                return Ok(started);
            }
            if let Some(status) = started.child.try_wait()? {
                bail!("MiniStack ended while starting ({status})");
            }
            clock::sleep(Duration::from_millis(100)).await;
        }
        bail!("MiniStack does not answer a minute after its start")
    }

    /// The way to it.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Ends it and every function's process, and waits for the end.
    pub fn stop(&mut self) {
        // The end of its standard input tells the launcher to end the whole process group.
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

impl Drop for MiniStack {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(settings: &Settings) -> anyhow::Result<(Child, ChildStdin, u16, String)> {
    let python = settings.venv.join("bin/python");
    if !python.exists() {
        bail!("{} is missing; `make setup` makes it", python.display());
    }
    let launcher = settings.folder.join("ministack_launcher.py");
    std::fs::write(&launcher, LAUNCHER).with_context(|| format!("writing {}", launcher.display()))?;
    let temporary = temporary(&settings.folder);
    std::fs::create_dir_all(&temporary)?;
    let log_path = settings.folder.join("ministack.log");
    let log = std::fs::File::create(&log_path)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let token = uuid::Uuid::new_v4().to_string();
    let mut child = Command::new(&python)
        .arg(&launcher)
        .current_dir(&settings.folder)
        // Functions inherit this environment, so none of the caller's goes in.
        .env_clear()
        .env("PATH", format!("{}:{path}", settings.venv.join("bin").display()))
        .env("HOME", &settings.folder)
        .env("TMPDIR", &temporary)
        .env("LANG", "C.UTF-8")
        .env("SANDBOX_FOLDER", &settings.folder)
        .env("AWS_ENDPOINT_URL", &settings.endpoint)
        .env("AWS_ACCESS_KEY_ID", ROOT_KEY)
        .env("AWS_SECRET_ACCESS_KEY", ROOT_KEY)
        .env("AWS_DEFAULT_REGION", &settings.region)
        .env("MINISTACK_REGION", &settings.region)
        .env("MINISTACK_ACCOUNT_ID", &settings.account)
        .env("SANDBOX_MANAGED_KEY", managed_key(&settings.region, &settings.account))
        .env("BIND_HOST", "127.0.0.1")
        // Functions get session credentials of their role, so that the edge knows who calls.
        .env("AUTH", "true")
        // Listeners and helpers that nobody here needs; some of them would bind to every interface.
        .env("IOT_MTLS_ENABLED", "0")
        .env("SFTP_ENABLED", "0")
        .env("DOCKER_HOST", "unix:///nonexistent")
        .env("SFN_WAIT_SCALE", settings.wait_scale.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        // A Ctrl-C in the terminal is for the sandbox, which then ends this group by its pipe.
        .process_group(0)
        .spawn()
        .with_context(|| format!("starting {}", python.display()))?;
    let mut stdin = child.stdin.take().context("no pipe to MiniStack")?;
    writeln!(stdin, "{token}")?;
    stdin.flush()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no pipe from MiniStack")?).read_line(&mut line)?;
    #[derive(Deserialize)]
    struct Started {
        port: u16,
    }
    match serde_json::from_str::<Started>(&line) {
        Ok(started) => Ok((child, stdin, started.port, token)),
        Err(_) => {
            // Read first: the launcher removes the folder when it ends by its standard input.
            let log = std::fs::read_to_string(&log_path).unwrap_or_default();
            drop(stdin);
            let status = child.wait().map(|status| status.to_string()).unwrap_or_default();
            let mut last: Vec<&str> =
                log.lines().map(str::trim).filter(|line| !line.is_empty()).rev().take(5).collect();
            last.push(&status);
            last.reverse();
            bail!(
                "MiniStack did not start; `make setup` installs what it needs into {}: {}",
                settings.venv.display(),
                last.join(" | ")
            )
        }
    }
}

/// Where the programs of a world whose folder this is keep what is temporary.
pub fn temporary(folder: &Path) -> PathBuf {
    folder.join("tmp")
}

/// The Python environment: `SANDBOX_VENV`, or `.venv` in the project's root.
pub fn venv(root: &Path) -> PathBuf {
    std::env::var_os("SANDBOX_VENV").map_or_else(|| root.join(".venv"), PathBuf::from)
}

/// The principal behind an access key.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credential {
    /// As STS names it.
    pub arn: String,
    /// Twelve digits.
    pub account: String,
    /// The key's secret.
    pub secret_access_key: String,
    /// Of temporary credentials.
    pub session_token: Option<String>,
    /// STS' `UserId`.
    pub user_id: String,
}

/// A way to MiniStack that does not pass the edge.
#[derive(Debug, Clone)]
pub struct Upstream {
    client: reqwest::Client,
    base: String,
    token: String,
}

/// A reply, read whole.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The body, as text.
    pub body: String,
}

impl Answer {
    /// The body as JSON; `Null` where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    /// The text of the first element of this name in an XML body.
    pub fn element(&self, name: &str) -> Option<String> {
        let from = self.body.find(&format!("<{name}>"))? + name.len() + 2;
        let to = self.body[from..].find(&format!("</{name}>"))? + from;
        Some(unescape(&self.body[from..to]))
    }
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#34;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

impl Upstream {
    fn new(port: u16, token: String) -> anyhow::Result<Upstream> {
        let client =
            reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build()?;
        Ok(Upstream { client, base: format!("http://127.0.0.1:{port}"), token })
    }

    async fn healthy(&self) -> bool {
        let asked = self.client.get(format!("{}/_ministack/health", self.base));
        matches!(asked.timeout(Duration::from_secs(5)).send().await, Ok(reply) if reply.status().is_success())
    }

    /// Sends a request on, streaming both bodies.
    pub async fn forward(
        &self,
        method: Method,
        path_and_query: &str,
        headers: &HeaderMap,
        body: reqwest::Body,
    ) -> Reply {
        let mut request = self.client.request(method, format!("{}{path_and_query}", self.base)).body(body);
        for (name, value) in headers {
            if !hop_by_hop(name) {
                request = request.header(name, value);
            }
        }
        let reply = match request.send().await {
            Ok(reply) => reply,
            Err(error) => {
                tracing::warn!(error = %error, "MiniStack does not answer");
                let mut reply = Reply::new(Body::from("MiniStack does not answer"));
                *reply.status_mut() = http::StatusCode::BAD_GATEWAY;
                return reply;
            }
        };
        let mut out = Reply::default();
        *out.status_mut() = reply.status();
        for (name, value) in reply.headers() {
            if !hop_by_hop(name) {
                out.headers_mut().append(name, value.clone());
            }
        }
        *out.body_mut() = Body::from_stream(reply.bytes_stream());
        out
    }

    /// Calls a query service (IAM, STS, CloudFormation …) as the account's root.
    ///
    /// # Errors
    /// Where MiniStack does not answer.
    pub async fn query(
        &self,
        service: &str,
        region: &str,
        parameters: &[(&str, &str)],
    ) -> anyhow::Result<Answer> {
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
        self.call(service, region, "application/x-www-form-urlencoded", None, form).await
    }

    /// Calls a JSON service (Step Functions, EventBridge …) as the account's root.
    ///
    /// # Errors
    /// Where MiniStack does not answer.
    pub async fn json(
        &self,
        service: &str,
        region: &str,
        target: &str,
        body: &Value,
    ) -> anyhow::Result<Answer> {
        self.call(service, region, "application/x-amz-json-1.1", Some(target), body.to_string()).await
    }

    async fn call(
        &self,
        service: &str,
        region: &str,
        content_type: &str,
        target: Option<&str>,
        body: String,
    ) -> anyhow::Result<Answer> {
        let mut request = self
            .client
            .post(&self.base)
            .header("content-type", content_type)
            .header("authorization", root_authorization(region, service))
            .header("x-amz-date", root_date())
            .timeout(Duration::from_secs(60))
            .body(body);
        if let Some(target) = target {
            request = request.header("x-amz-target", target);
        }
        let reply = request.send().await?;
        Ok(Answer { status: reply.status().as_u16(), body: reply.text().await? })
    }

    /// The principal and secret of an access key; nothing where the key is unknown, inactive or expired.
    pub async fn credential(&self, access_key: &str) -> Option<Credential> {
        let reply =
            self.inside("credential", &serde_json::json!({ "accessKeyId": access_key })).await.ok()?;
        reply.json().await.ok()
    }

    /// The statements of a user's or role's identity policies; none where it is unknown.
    pub async fn policies(&self, principal: &str) -> Vec<Statement> {
        #[derive(Deserialize)]
        struct Found {
            statements: Vec<Statement>,
        }
        let asked = self.inside("policies", &serde_json::json!({ "principalArn": principal })).await;
        match asked {
            Ok(reply) => reply.json::<Found>().await.map(|found| found.statements).unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// Publishes an event as an AWS service on the default bus.
    ///
    /// # Errors
    /// Where MiniStack does not take it.
    pub async fn publish(&self, region: &str, entry: Value) -> anyhow::Result<()> {
        self.inside("event", &serde_json::json!({ "region": region, "entry": entry })).await?;
        Ok(())
    }

    /// Sets the factor on the waits and retry pauses of state machines.
    ///
    /// # Errors
    /// Where MiniStack does not take it.
    pub async fn set_wait_scale(&self, scale: f64) -> anyhow::Result<()> {
        let request = self
            .client
            .post(format!("{}/_ministack/config", self.base))
            .json(&serde_json::json!({ "stepfunctions._SFN_WAIT_SCALE": scale }));
        request.send().await?.error_for_status()?;
        Ok(())
    }

    async fn inside(&self, path: &str, body: &Value) -> anyhow::Result<reqwest::Response> {
        let request = self
            .client
            .post(format!("{}/_sandbox/{path}", self.base))
            .header("x-sandbox-token", &self.token)
            .timeout(Duration::from_secs(30))
            .json(body);
        Ok(request.send().await?.error_for_status()?)
    }
}

/// An `Authorization` header of the root's. MiniStack does not check the root's signature.
pub fn root_authorization(region: &str, service: &str) -> HeaderValue {
    let text = format!(
        "AWS4-HMAC-SHA256 Credential={ROOT_KEY}/{}/{region}/{service}/aws4_request, \
         SignedHeaders=host, Signature=unchecked",
        &root_date()[..8]
    );
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn root_date() -> String {
    clock::iso(clock::now()).replace(['-', ':'], "")
}

fn hop_by_hop(name: &HeaderName) -> bool {
    ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"]
        .contains(&name.as_str())
}

/// A body that is at hand, for [`Upstream::forward`].
pub fn whole(body: Bytes) -> reqwest::Body {
    reqwest::Body::from(body)
}
