//! IAM's service-specific credentials, which MiniStack lacks: the user names and passwords for Git.
//!
//! Users and their policies are MiniStack's. A credential is only made for a user that exists there, and
//! whether it opens a repository is what the user's policies say.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue};
use time::OffsetDateTime;
use url::form_urlencoded;

use crate::clock;
use crate::edge::{Protocol, Service};
use crate::ministack::Upstream;
use crate::policy::{self, Context};
use crate::sigv4;
use crate::wire::{ApiError, Call, Caller, GitAuthority, Reply};

/// Each user has at most this many per service.
const LIMIT: usize = 2;
const CODECOMMIT: &str = "codecommit.amazonaws.com";
/// The services that had such credentials before Bedrock.
const SERVICES: &[&str] = &[CODECOMMIT, "cassandra.amazonaws.com"];

/// Finds the key of a repository, for the KMS half of a user's rights.
pub trait Repositories: Send + Sync {
    /// The ARN of the customer-managed key, where the repository exists and has one.
    fn key<'a>(&'a self, repository: &'a str) -> BoxFuture<'a, Option<String>>;
}

/// The emulator.
pub struct Iam {
    upstream: Upstream,
    region: String,
    account: String,
    /// The Git endpoint's host, without its port.
    host: String,
    credentials: Mutex<Vec<Credential>>,
    /// Held from the check of the limit to the making of the credential.
    making: tokio::sync::Mutex<()>,
    delay: Mutex<Duration>,
    repositories: OnceLock<Box<dyn Repositories>>,
}

#[derive(Clone)]
struct Credential {
    id: String,
    user: String,
    user_arn: String,
    service: String,
    service_user: String,
    password: String,
    active: bool,
    created: OffsetDateTime,
    usable_from: Instant,
}

type Result<T> = std::result::Result<T, ApiError>;

impl std::fmt::Debug for Iam {
    /// Passwords stay out.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Iam").field("account", &self.account).finish_non_exhaustive()
    }
}

impl Iam {
    /// The emulator, without credentials. `edge` is the address that Git is reached at.
    pub fn new(upstream: Upstream, region: &str, account: &str, edge: &str) -> Iam {
        let host = url::Url::parse(edge).ok().and_then(|url| url.host_str().map(str::to_owned));
        Iam {
            host: host.unwrap_or_default(),
            upstream,
            region: region.to_owned(),
            account: account.to_owned(),
            credentials: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            delay: Mutex::default(),
            repositories: OnceLock::new(),
        }
    }

    /// Tells it where to look up the key of a repository. Without, KMS rights are not asked for.
    pub fn with_repositories(&self, repositories: Box<dyn Repositories>) {
        // Once is enough; the world is built in one place.
        let _ = self.repositories.set(repositories);
    }

    /// How long a new password stays unusable, as IAM's changes need their time to arrive everywhere.
    pub fn delay(&self) -> Duration {
        *self.delay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets that delay for credentials made from now on.
    pub fn set_delay(&self, delay: Duration) {
        *self.delay.lock().unwrap_or_else(PoisonError::into_inner) = delay;
    }

    /// The principal behind a Basic `Authorization` header with a right password.
    pub async fn caller_of(&self, headers: &HeaderMap, repository: &str) -> Option<Caller> {
        let header = headers.get("authorization")?.to_str().ok()?;
        let text = String::from_utf8(STANDARD.decode(header.strip_prefix("Basic ")?.trim()).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        let arn = match self.find(user, password) {
            Some(credential) => credential.user_arn,
            None => self.signer(user, password, repository).await?,
        };
        Some(Caller { arn, account: self.account.clone() })
    }

    /// The principal whose key signed a password of `aws codecommit credential-helper`, as Flux with
    /// `provider: aws` makes them, too. The user name is the key, for sessions followed by `%` and the
    /// token; the signature is good for a quarter of an hour.
    async fn signer(&self, user: &str, password: &str, repository: &str) -> Option<String> {
        let (key, token) = user.split_once('%').map_or((user, None), |(key, token)| (key, Some(token)));
        let moment = password.split_once('Z')?.0;
        let format = time::macros::format_description!("[year][month][day]T[hour][minute][second]");
        let signed_at = time::PrimitiveDateTime::parse(moment, &format).ok()?.assume_utc();
        if (clock::now() - signed_at).abs() > time::Duration::minutes(15) {
            return None;
        }
        let credential = self.upstream.credential(key).await?;
        let path = format!("/v1/repos/{repository}");
        let expected =
            sigv4::git_password(&credential.secret_access_key, &self.region, &self.host, &path, moment);
        let right = sigv4::same(&expected, password) && credential.session_token.as_deref() == token;
        right.then_some(credential.arn)
    }

    fn find(&self, user: &str, password: &str) -> Option<Credential> {
        let credentials = self.lock();
        credentials
            .iter()
            .find(|credential| {
                credential.service == CODECOMMIT
                    && credential.service_user == user
                    && sigv4::same(&credential.password, password)
            })
            .cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Credential>> {
        self.credentials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn act(&self, call: &Call) -> Option<Result<String>> {
        let fields = fields(call);
        let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let result = match call.action.as_str() {
            "CreateServiceSpecificCredential" => {
                self.create(field("UserName"), field("ServiceName"), call).await
            }
            "ListServiceSpecificCredentials" => self.list(&field, call).await,
            "ResetServiceSpecificCredential" => self.reset(&field, call).await,
            "UpdateServiceSpecificCredential" => self.update(&field, call).await,
            "DeleteServiceSpecificCredential" => self.delete(&field, call).await,
            "DeleteUser" => match self.user(field("UserName"), call).await {
                Ok((user, _)) if self.lock().iter().any(|credential| credential.user == user) => {
                    let text = "Cannot delete entity, must remove referenced objects first.";
                    Err(ApiError::new("DeleteConflict", text).status(409))
                }
                _ => return None,
            },
            _ => return None,
        };
        Some(result)
    }

    async fn create(&self, user: Option<&str>, service: Option<&str>, call: &Call) -> Result<String> {
        let (user, user_arn) = self.user(user, call).await?;
        let service = required("serviceName", service)?;
        if !SERVICES.contains(&service) {
            let text = format!("No such service {service} is supported for Service Specific Credentials");
            return Err(ApiError::new("NoSuchEntity", text).status(404));
        }
        let _making = self.making.lock().await;
        let mut credentials = self.lock();
        let taken: Vec<&Credential> =
            credentials.iter().filter(|c| c.user == user && c.service == service).collect();
        if taken.len() >= LIMIT {
            let text = format!("Cannot exceed quota for ServiceSpecificCredentialsPerUser: {LIMIT}");
            return Err(ApiError::new("LimitExceeded", text).status(409));
        }
        // The second credential's name is told apart by a number.
        let names = [format!("{user}-at-{}", self.account), format!("{user}+1-at-{}", self.account)];
        let free = names.into_iter().find(|name| taken.iter().all(|c| c.service_user != *name));
        let credential = Credential {
            id: identity(),
            user,
            user_arn,
            service: service.to_owned(),
            service_user: free.unwrap_or_default(),
            password: password(),
            active: true,
            created: clock::now(),
            usable_from: Instant::now() + self.delay(),
        };
        let body = credential.with_password();
        credentials.push(credential);
        Ok(body)
    }

    async fn list<'a>(&self, field: &impl Fn(&str) -> Option<&'a str>, call: &Call) -> Result<String> {
        let all = field("AllUsers").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let user = if all { None } else { Some(self.user(field("UserName"), call).await?.0) };
        let service = field("ServiceName");
        let found: Vec<Credential> = self
            .lock()
            .iter()
            .filter(|c| user.as_ref().is_none_or(|user| c.user == *user))
            .filter(|c| service.is_none_or(|service| c.service == service))
            .cloned()
            .collect();
        let start: usize = field("Marker").and_then(|marker| marker.parse().ok()).unwrap_or(0);
        let count: usize = field("MaxItems").and_then(|count| count.parse().ok()).unwrap_or(100).max(1);
        let members: String = found
            .iter()
            .skip(start)
            .take(count)
            .map(|credential| format!("<member>{}</member>", credential.without_password()))
            .collect();
        let more = if start + count < found.len() {
            format!("<IsTruncated>true</IsTruncated><Marker>{}</Marker>", start + count)
        } else {
            "<IsTruncated>false</IsTruncated>".to_owned()
        };
        Ok(format!("<ServiceSpecificCredentials>{members}</ServiceSpecificCredentials>{more}"))
    }

    async fn reset<'a>(&self, field: &impl Fn(&str) -> Option<&'a str>, call: &Call) -> Result<String> {
        let delay = self.delay();
        self.change(field, call, |credential| {
            credential.password = password();
            credential.usable_from = Instant::now() + delay;
            credential.with_password()
        })
        .await
    }

    async fn update<'a>(&self, field: &impl Fn(&str) -> Option<&'a str>, call: &Call) -> Result<String> {
        let active = match required("status", field("Status"))? {
            "Active" => true,
            "Inactive" => false,
            other => {
                return Err(invalid(
                    "status",
                    other,
                    "Member must satisfy enum value set: [Active, Inactive]",
                ));
            }
        };
        self.change(field, call, |credential| {
            credential.active = active;
            String::new()
        })
        .await
    }

    async fn delete<'a>(&self, field: &impl Fn(&str) -> Option<&'a str>, call: &Call) -> Result<String> {
        let id = self.change(field, call, |credential| credential.id.clone()).await?;
        self.lock().retain(|credential| credential.id != id);
        Ok(String::new())
    }

    /// Changes the credential that a request names.
    async fn change<'a, T>(
        &self,
        field: &impl Fn(&str) -> Option<&'a str>,
        call: &Call,
        change: impl FnOnce(&mut Credential) -> T,
    ) -> Result<T> {
        let id = required("serviceSpecificCredentialId", field("ServiceSpecificCredentialId"))?;
        if id.len() < 20 {
            let why = "Member must have length greater than or equal to 20";
            return Err(invalid("serviceSpecificCredentialId", id, why));
        }
        if !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            let why = "Member must satisfy regular expression pattern: [\\w]+";
            return Err(invalid("serviceSpecificCredentialId", id, why));
        }
        let (user, _) = self.user(field("UserName"), call).await?;
        let mut credentials = self.lock();
        let found = credentials.iter_mut().find(|credential| credential.id == id && credential.user == user);
        match found {
            Some(credential) => Ok(change(credential)),
            None => Err(ApiError::new("NoSuchEntity", format!("No such credential {id} exists")).status(404)),
        }
    }

    /// The name and ARN of a user as IAM has them; without a name, of the caller.
    async fn user(&self, name: Option<&str>, call: &Call) -> Result<(String, String)> {
        let own = call.caller.arn.split_once(":user/").and_then(|(_, path)| path.rsplit('/').next());
        let name = required("userName", name.or(own))?;
        let unavailable = |error: String| ApiError::new("ServiceFailure", error).status(500);
        let parameters = [("Action", "GetUser"), ("Version", "2010-05-08"), ("UserName", name)];
        let answer = self
            .upstream
            .query("iam", "us-east-1", &parameters)
            .await
            .map_err(|error| unavailable(error.to_string()))?;
        match answer.status {
            200 => Ok((
                answer.element("UserName").unwrap_or_else(|| name.to_owned()),
                answer.element("Arn").unwrap_or_default(),
            )),
            404 => {
                let text = format!("The user with name {name} cannot be found.");
                Err(ApiError::new("NoSuchEntity", text).status(404))
            }
            status => Err(unavailable(format!("GetUser answers {status}"))),
        }
    }
}

impl Service for Iam {
    fn answer<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Option<Reply>> {
        Box::pin(async move {
            let result = self.act(call).await?;
            Some(match result {
                Ok(body) => reply(&call.action, &body),
                Err(error) => Protocol::Query.error(&error),
            })
        })
    }
}

impl GitAuthority for Iam {
    fn allows<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        repository: &'a str,
        write: bool,
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let principal = match self.find(user, password) {
                Some(credential) if !credential.active || credential.usable_from > Instant::now() => {
                    return false;
                }
                Some(credential) => credential.user_arn,
                None => match self.signer(user, password, repository).await {
                    Some(arn) if arn.ends_with(":root") => return true,
                    Some(arn) => arn,
                    None => return false,
                },
            };
            let action = if write { "codecommit:GitPush" } else { "codecommit:GitPull" };
            let arn = format!("arn:aws:codecommit:{}:{}:{repository}", self.region, self.account);
            let statements = self.upstream.policies(&principal).await;
            let may =
                |action: &str, resource: &str| policy::allows(&statements, action, resource, &Context::new());
            if !may(action, &arn) {
                return false;
            }
            // CodeCommit decrypts and encrypts as the caller, so the caller needs the key, too. What is
            // missing shows as the same bare 403.
            let key = match self.repositories.get() {
                Some(repositories) => repositories.key(repository).await,
                None => None,
            };
            key.is_none_or(|key| KEY_ACTIONS.iter().all(|action| may(action, &key)))
        })
    }
}

/// What CodeCommit's guide asks for beside the Git actions where the key is the customer's.
const KEY_ACTIONS: &[&str] = &[
    "kms:Encrypt",
    "kms:Decrypt",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:DescribeKey",
];

impl Credential {
    fn without_password(&self) -> String {
        format!(
            "<UserName>{}</UserName><Status>{}</Status><ServiceUserName>{}</ServiceUserName>\
             <CreateDate>{}</CreateDate><ServiceSpecificCredentialId>{}</ServiceSpecificCredentialId>\
             <ServiceName>{}</ServiceName>",
            self.user,
            if self.active { "Active" } else { "Inactive" },
            self.service_user,
            clock::iso(self.created),
            self.id,
            self.service,
        )
    }

    fn with_password(&self) -> String {
        format!(
            "<ServiceSpecificCredential>{}<ServicePassword>{}</ServicePassword></ServiceSpecificCredential>",
            self.without_password(),
            self.password
        )
    }
}

fn fields(call: &Call) -> Vec<(String, String)> {
    let query = call.request.uri().query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .chain(form_urlencoded::parse(call.request.body()).into_owned())
        .collect()
}

fn required<'a>(name: &str, value: Option<&'a str>) -> Result<&'a str> {
    value.filter(|value| !value.is_empty()).ok_or_else(|| {
        let text = format!(
            "1 validation error detected: Value null at '{name}' failed to satisfy constraint: Member must not \
             be null"
        );
        ApiError::new("ValidationError", text)
    })
}

fn invalid(name: &str, value: &str, why: &str) -> ApiError {
    let text = format!(
        "1 validation error detected: Value '{value}' at '{name}' failed to satisfy constraint: {why}"
    );
    ApiError::new("ValidationError", text)
}

fn reply(action: &str, result: &str) -> Reply {
    let result =
        if result.is_empty() { String::new() } else { format!("<{action}Result>{result}</{action}Result>") };
    let body = format!(
        "<{action}Response xmlns=\"https://iam.amazonaws.com/doc/2010-05-08/\">{result}<ResponseMetadata>\
         <RequestId>{}</RequestId></ResponseMetadata></{action}Response>",
        uuid::Uuid::new_v4()
    );
    let mut reply = Reply::new(Body::from(body));
    reply.headers_mut().insert("content-type", HeaderValue::from_static("text/xml"));
    reply
}

/// `ACCA` and seventeen letters and digits, as IAM gives them.
fn identity() -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bytes = [uuid::Uuid::new_v4().into_bytes(), uuid::Uuid::new_v4().into_bytes()].concat();
    let tail: String =
        bytes.iter().take(17).map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect();
    format!("ACCA{tail}")
}

/// Forty-four characters of base64, with the plus signs and slashes that make clients stumble.
fn password() -> String {
    STANDARD.encode([uuid::Uuid::new_v4().into_bytes(), uuid::Uuid::new_v4().into_bytes()].concat())
}
