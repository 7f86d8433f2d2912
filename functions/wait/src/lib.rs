//! The step `wait`: one probe of the Git endpoint with the stored credential.
//!
//! A fresh credential works after some seconds, and nothing announces when. The state machine calls
//! this step, waits and calls again, until the answer is "ready", the step fails because waiting
//! cannot help, or the request's limit is over; the last reason is then the text of the failure.
//!
//! The probe is what a Git client asks first: `GET <url>/info/refs?service=git-upload-pack`.
//! CodeCommit refuses with a bare 403 and no challenge (akuity/kargo#6794), so the credential goes
//! with the first request.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_secretsmanager::Client;
use aws_sdk_secretsmanager::error::ProvideErrorMetadata;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Request as HttpRequest, header};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use step::facts::{Credentials, Git, Readiness};
use step::{ErrorName, Request, Result, StepError};
use transport::Transport;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Enough for the references of any repository: a page of them takes some hundred bytes each.
const LIMIT: usize = 32 * 1024 * 1024;
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";

/// The payload.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// The user's request.
    pub request: Request,
    /// From `cluster`.
    pub git: Git,
    /// From `credentials`.
    pub credentials: Credentials,
}

/// The answer.
pub type Output = Readiness;

/// The step with its clients.
#[derive(Debug, Clone)]
pub struct Step {
    secrets: Client,
    transport: Transport,
}

/// What the secret holds, as far as the probe needs it.
struct Login {
    username: String,
    password: SecretString,
}

impl Step {
    /// Makes the clients.
    pub fn new(config: &SdkConfig) -> Self {
        Step { secrets: Client::new(config), transport: Transport::new(config) }
    }

    /// Probes once.
    ///
    /// # Errors
    /// Where waiting cannot help: `Denied`, `PrerequisiteMissing` without secret or repository,
    /// `Conflict` where the secret or the server is not what it should be, `Internal` for a reply
    /// that no rule knows.
    pub async fn apply(&self, input: Input) -> Result<Output> {
        input.request.check()?;
        let login = match self.login(&input.credentials.secret_arn).await? {
            Ok(login) => login,
            Err(because) => return Ok(Readiness::not_yet(because)),
        };
        let url = input.git.url.trim_end_matches('/');
        let request = HttpRequest::get(format!("{url}/info/refs?service=git-upload-pack"))
            .header(header::AUTHORIZATION, login.basic()?)
            .header(header::ACCEPT, "*/*")
            .header(header::USER_AGENT, concat!("eks-flux-bootstrap/", env!("CARGO_PKG_VERSION")))
            .body(Vec::new())
            .map_err(|_| StepError::internal(format!("{url} is not an address that can be probed")))?;
        match self.transport.send(request, TIMEOUT, LIMIT).await {
            Ok(reply) => verdict(
                reply.status().as_u16(),
                reply.headers(),
                url,
                &input.credentials.user_name,
                &input.credentials.secret_arn,
            ),
            // No whole answer: a connection that is refused, times out or breaks.
            Err(error) if error.name == ErrorName::Transient => {
                tracing::info!(reason = error.message, "not yet");
                Ok(Readiness::not_yet(format!(
                    "{}. If it stays so, the function has no way to the Git endpoint: in a VPC it needs the interface endpoint or a NAT gateway, and a security group that lets it through",
                    error.message
                )))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the secret; the inner error says why it cannot be read yet.
    async fn login(&self, arn: &str) -> Result<std::result::Result<Login, String>> {
        let error = match self.secrets.get_secret_value().secret_id(arn).send().await {
            Ok(output) => {
                let text = SecretString::from(output.secret_string.unwrap_or_default());
                return Login::parse(&text, arn).map(Ok);
            }
            Err(error) => error,
        };
        let text = error.message().unwrap_or_default();
        let again = "Start the execution again with the same request: credentials makes and fills it";
        Err(match error.code() {
            // The key was made a moment ago, and KMS may not know it everywhere.
            Some("AccessDeniedException") if text.contains("KMS") => {
                return Ok(Err(format!("the secret {arn} cannot be decrypted: {text}")));
            }
            Some("DecryptionFailure") => {
                return Ok(Err(format!("the secret {arn} cannot be decrypted: {text}")));
            }
            Some("ResourceNotFoundException") => {
                StepError::prerequisite_missing(format!("the secret {arn} is not there: {text} {again}"))
            }
            Some("InvalidRequestException") => {
                StepError::conflict(format!("the secret {arn} cannot be read: {text} {again}"))
            }
            _ => StepError::from_sdk("secretsmanager:GetSecretValue", arn, &error),
        })
    }
}

impl Login {
    /// Reads `{"username","password",…}`. The parser's own errors quote what they read, so none of
    /// them gets out.
    fn parse(text: &SecretString, arn: &str) -> Result<Login> {
        #[derive(Deserialize)]
        struct Stored {
            username: String,
            password: String,
        }
        let stored: Stored = serde_json::from_str(text.expose_secret()).map_err(|_| not_ours(arn))?;
        if stored.username.is_empty() || stored.password.is_empty() || stored.username.contains(':') {
            return Err(not_ours(arn));
        }
        Ok(Login { username: stored.username, password: stored.password.into() })
    }

    fn basic(&self) -> Result<HeaderValue> {
        let pair = format!("{}:{}", self.username, self.password.expose_secret());
        let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair)))
            .map_err(|_| StepError::internal("the credential does not fit into a header"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

fn not_ours(arn: &str) -> StepError {
    StepError::conflict(format!(
        "the secret {arn} does not hold a JSON object with username and password. If it is this stack's, delete its value and start the execution again; if not, name another secret in credentials.secretName"
    ))
}

/// What a reply means: usable, not yet, or hopeless.
fn verdict(status: u16, headers: &HeaderMap, url: &str, user: &str, secret: &str) -> Result<Readiness> {
    let header =
        |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let content_type = header(header::CONTENT_TYPE);
    let readiness = match status {
        200 if media_type(content_type).eq_ignore_ascii_case(ADVERTISEMENT) => Readiness::ready(),
        200 => {
            return Err(StepError::conflict(format!(
                "{url} answers, and not as a Git server (content type {:?}). A proxy or a private DNS zone stands in for CodeCommit: look at what the name resolves to where the function runs",
                shown(content_type)
            )));
        }
        403 => Readiness::not_yet(format!(
            "{url} still refuses the credential of {user} (HTTP 403). IAM takes some seconds to spread it. If it stays so, the secret {secret} does not hold the credential's password (delete the user's service-specific credential in IAM, and the next execution makes a new one), the user lacks codecommit:GitPull on the repository or kms:Decrypt on its key, or the endpoint's policy forbids it"
        )),
        429 => Readiness::not_yet(format!("{url} asks to slow down (HTTP 429)")),
        500..=599 => Readiness::not_yet(format!("{url} is not well (HTTP {status})")),
        401 => {
            return Err(StepError::denied(format!(
                "{url} does not take the credential of {user} (HTTP 401). The secret {secret} and the user's service-specific credential have parted: delete that credential in IAM and start the execution again"
            )));
        }
        404 => {
            return Err(StepError::prerequisite_missing(format!(
                "{url} is not there (HTTP 404). The repository was deleted or renamed since repo_seed saw it, or the address belongs to another account or region: start the execution again"
            )));
        }
        300..=399 => {
            return Err(StepError::conflict(format!(
                "{url} redirects to {:?} (HTTP {status}), which CodeCommit never does, and the credential is not sent there. A proxy stands in the way: let the function reach CodeCommit directly",
                shown(origin(header(header::LOCATION)))
            )));
        }
        _ => {
            return Err(StepError::internal(format!(
                "{url} answers HTTP {status}, which no rule knows. Try `git ls-remote` on it from the same network"
            )));
        }
    };
    if !readiness.ready {
        tracing::info!(reason = readiness.because, "not yet");
    }
    Ok(readiness)
}

fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Scheme and host of an address: path and query may carry what belongs to nobody else.
fn origin(location: &str) -> &str {
    let Some((_, rest)) = location.split_once("://") else { return location.split('?').next().unwrap_or("") };
    let start = location.len() - rest.len();
    let end = rest.find(['/', '?', '#']).map_or(location.len(), |at| start + at);
    // User information in front of the host is nobody's business, either.
    location[start..end].rsplit('@').next().unwrap_or("")
}

fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests;
