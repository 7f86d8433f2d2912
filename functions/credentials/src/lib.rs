//! The step `credentials`: an IAM user with exactly Git and KMS rights on the repository has one
//! service-specific credential, which only the secret holds.
//!
//! IAM shows a password once, when it makes the credential, and takes no client token. So the order
//! of writes, and what each run concludes from what it finds, are chosen such that every point at
//! which a run may stop is healed by the next one, and that two runs at once do not harm each other:
//!
//! | what a run finds | what it does |
//! |---|---|
//! | the secret's credential exists and is active | keeps it; deletes another one that no secret holds |
//! | a credential that the secret does not hold (stopped before storing) | makes a new one, stores it, then deletes the old one |
//! | a secret without a value | fills it |
//! | the secret's credential is gone or inactive | makes a new one, stores it |
//! | the secret is scheduled for deletion, and ours | restores it, then as above |
//! | the secret is under another key | moves it to the key |
//! | the repository's address changed | stores the same password with the new address |
//!
//! Storing is a compare-and-set: the version id of a write follows from the versions that the run
//! saw ([`secret::next_version`]), and CreateSecret fails where a secret is. The loser of a race
//! deletes the credential that it made itself, and looks again. A credential that the secret does not
//! hold is deleted only after a write of this run has won, or where the secret's own is good: then
//! nobody who holds the other one can store it any more. So the one in use is never reset nor deleted.

mod error;
mod policy;
pub mod secret;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use aws_config::SdkConfig;
use aws_sdk_iam::config::retry::RetryConfig;
use aws_sdk_iam::types::StatusType;
use aws_sdk_secretsmanager::primitives::DateTimeFormat;
use aws_sdk_secretsmanager::types::Tag;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use step::clock::Clock;
use step::names::{self, IAM_PATH, OWNER_TAG, Owner, USER_POLICY};
use step::runtime::Stack;
use step::{Change, ErrorName, Request, Resource, Result, StepError, facts, ledger};

use error::code;
use secret::{CREDENTIAL_TAG, Secret, Stored, URL_TAG, next_version};

/// The service that the credential is for.
const SERVICE: &str = "codecommit.amazonaws.com";
const USER: &str = "AWS::IAM::User";
const POLICY: &str = "AWS::IAM::UserPolicy";
/// CloudFormation has no type for it; this follows its spelling.
const CREDENTIAL: &str = "AWS::IAM::ServiceSpecificCredential";
const SECRET: &str = "AWS::SecretsManager::Secret";
/// IAM's limit a user and service.
const MAX_CREDENTIALS: usize = 2;
/// No run lasts longer than this, so a credential of this age which no secret holds has no run that
/// could still store it. The function's timeout is 50 s; the rest is for clocks that differ.
const LONGEST_RUN: Duration = Duration::from_secs(90);
/// How long a user is new: IAM's parts do not know its path yet, by which this function's role may act
/// on it, so they refuse for want of a permission what they allow some seconds later.
const NEW_USER: Duration = Duration::from_secs(120);
/// How often a run looks again after it lost a race.
const ROUNDS: u32 = 4;
/// How often a call is made while IAM or KMS do not know yet what was just made: about 10 s.
const SETTLING: u32 = 6;

/// What the function takes.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// The user's request.
    pub request: Request,
    /// From `cluster`.
    pub cluster: facts::Cluster,
    /// From `cluster`.
    pub git: facts::Git,
    /// From `key`.
    pub key: facts::Key,
}

/// What the function answers. The password is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Where the credential is.
    pub credentials: facts::Credentials,
    /// User, policy, credential and secret.
    pub resources: Vec<Resource>,
}

/// The step with its clients.
#[derive(Debug, Clone)]
pub struct Step {
    iam: aws_sdk_iam::Client,
    secrets: aws_sdk_secretsmanager::Client,
    stack: Stack,
    clock: Clock,
}

/// What is to be, as it follows from the input.
#[derive(Debug, Clone)]
struct Wanted {
    owner: String,
    user: String,
    secret: String,
    policy: Value,
    key: String,
    url: String,
}

/// What a look found. It reads no password.
#[derive(Debug, Clone)]
struct Found {
    user: Option<User>,
    policy: Option<Value>,
    credentials: Vec<Credential>,
    secret: Option<Secret>,
}

/// The IAM user.
#[derive(Debug, Clone)]
struct User {
    arn: String,
    /// Whether it was made a moment ago.
    new: bool,
}

/// A service-specific credential without its password.
#[derive(Debug, Clone)]
struct Credential {
    id: String,
    username: String,
    active: bool,
    created: SystemTime,
}

/// The credential that the secret holds.
struct Recorded {
    id: String,
    url: String,
    /// The value, where it had to be read because the tags do not say so yet.
    value: Option<Stored>,
}

/// What was done over all rounds of a run.
#[derive(Debug, Default)]
struct Changes {
    user_arn: String,
    user: Option<Change>,
    policy: Option<Change>,
    credential: Option<Change>,
    secret: Option<Change>,
    secret_detail: Vec<String>,
    credential_detail: Vec<String>,
    /// A credential that this run made and has not stored, since another run was faster; it is used
    /// should the secret still need one, and deleted otherwise.
    pending: Option<Stored>,
}

impl Changes {
    fn secret(&mut self, change: Change, detail: impl Into<String>) {
        self.secret.get_or_insert(change);
        self.secret_detail.push(detail.into());
    }
}

/// A value that was not stored.
struct NotKept {
    error: StepError,
    /// It may have been stored all the same: the answer was lost, or a later call failed. The next
    /// run finds out; until then the credential must live.
    maybe: bool,
}

impl NotKept {
    /// Sorts an error of CreateSecret and PutSecretValue.
    fn new<E: aws_sdk_iam::error::ProvideErrorMetadata>(
        action: &str,
        wanted: &Wanted,
        stored: &Stored,
        e: &SdkError<E, HttpResponse>,
    ) -> Self {
        let error = error::secrets(action, &wanted.secret_label(), e);
        let maybe = error.name == ErrorName::Transient && code(e) != Some("InvalidRequestException");
        NotKept { error: error::scrubbed(error, &stored.password), maybe }
    }
}

/// What came of a round.
enum Round {
    /// All is as it should be: the secret's ARN and the credential's id.
    Done { secret_arn: String, credential_id: String },
    /// Somebody else was faster. The error is for the case that it stays so.
    Again(StepError),
}

impl Step {
    /// Makes the clients.
    pub fn new(config: &SdkConfig, stack: Stack) -> Self {
        Step {
            iam: aws_sdk_iam::Client::new(config),
            secrets: aws_sdk_secretsmanager::Client::new(config),
            stack,
            clock: Clock::System,
        }
    }

    /// Takes the time, and the pauses between attempts, from this clock.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes sure that user, policy, credential and secret are there and agree.
    ///
    /// # Errors
    /// `Conflict` where a user or secret of that name is somebody else's; `Transient` where another
    /// run is under way; otherwise as AWS answers. No text holds the password.
    pub async fn apply(&self, input: Input) -> Result<Output> {
        input.request.check()?;
        let wanted = Wanted::new(&self.stack, &input);
        let mut changes = Changes::default();
        let mut last = None;
        for round in 0..ROUNDS {
            if round > 0 {
                self.pause(round).await;
            }
            let found = self.look(&wanted).await?;
            match self.act(&wanted, found, &mut changes).await? {
                Round::Done { secret_arn, credential_id } => {
                    return Ok(report(&wanted, changes, secret_arn, credential_id));
                }
                Round::Again(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| StepError::internal("no round was made")))
    }

    /// Reads what is there, and refuses what is somebody else's before anything is written.
    async fn look(&self, wanted: &Wanted) -> Result<Found> {
        let user = self.look_at_user(wanted).await?;
        let secret = self.look_at_secret(wanted).await?;
        let (mut policy, mut credentials) = (None, Vec::new());
        if let Some(user) = &user {
            policy = self.look_at_policy(wanted, user.new).await?;
            credentials = self.look_at_credentials(wanted, user.new).await?;
        }
        Ok(Found { user, policy, credentials, secret })
    }

    async fn look_at_user(&self, wanted: &Wanted) -> Result<Option<User>> {
        let reply = self.iam.get_user().user_name(&wanted.user).send().await;
        let user = match reply {
            Ok(reply) => match reply.user {
                Some(user) => user,
                None => return Ok(None),
            },
            Err(e) if code(&e) == Some("NoSuchEntity") => return Ok(None),
            Err(e) => return Err(error::iam("iam:GetUser", &wanted.user_label(), &e)),
        };
        let owner = user.tags().iter().find(|tag| tag.key() == OWNER_TAG).map(|tag| tag.value());
        if owner != Some(&wanted.owner) || user.path() != IAM_PATH {
            return Err(StepError::conflict(format!(
                "{} exists ({}) and {}. It is left alone: name another user in credentials.userName, or delete it",
                wanted.user_label(),
                user.arn(),
                whose(owner, &wanted.owner),
            )));
        }
        let created = SystemTime::try_from(user.create_date).unwrap_or(SystemTime::UNIX_EPOCH);
        let age = self.clock.now().duration_since(created).unwrap_or_default();
        Ok(Some(User { arn: user.arn, new: age < NEW_USER }))
    }

    async fn look_at_policy(&self, wanted: &Wanted, new: bool) -> Result<Option<Value>> {
        let call = self.iam.get_user_policy().user_name(&wanted.user).policy_name(USER_POLICY);
        match call.send().await {
            Ok(reply) => Ok(Some(policy::decode(reply.policy_document()).unwrap_or(Value::Null))),
            Err(e) if code(&e) == Some("NoSuchEntity") => Ok(None),
            Err(e) => Err(error::iam_on(new, "iam:GetUserPolicy", &wanted.user_label(), &e)),
        }
    }

    async fn look_at_credentials(&self, wanted: &Wanted, new: bool) -> Result<Vec<Credential>> {
        let call = self.iam.list_service_specific_credentials().user_name(&wanted.user).service_name(SERVICE);
        let reply = match call.send().await {
            Ok(reply) => reply,
            // The user was made a moment ago, so it has none.
            Err(e) if code(&e) == Some("NoSuchEntity") && error::is_user_settling(&e) => {
                return Ok(Vec::new());
            }
            Err(e) => {
                let label = wanted.user_label();
                return Err(error::iam_on(new, "iam:ListServiceSpecificCredentials", &label, &e));
            }
        };
        let list = reply.service_specific_credentials.unwrap_or_default();
        Ok(list
            .into_iter()
            .map(|c| Credential {
                id: c.service_specific_credential_id,
                username: c.service_user_name,
                active: c.status == StatusType::Active,
                created: SystemTime::try_from(c.create_date).unwrap_or(SystemTime::UNIX_EPOCH),
            })
            .collect())
    }

    async fn look_at_secret(&self, wanted: &Wanted) -> Result<Option<Secret>> {
        let reply = match self.secrets.describe_secret().secret_id(&wanted.secret).send().await {
            Ok(reply) => reply,
            Err(e) if code(&e) == Some("ResourceNotFoundException") => return Ok(None),
            Err(e) => {
                return Err(error::secrets("secretsmanager:DescribeSecret", &wanted.secret_label(), &e));
            }
        };
        let tags = reply.tags.unwrap_or_default().into_iter().filter_map(|tag| tag.key.zip(tag.value));
        let found = Secret {
            arn: reply.arn.unwrap_or_default(),
            key: reply.kms_key_id.filter(|key| !key.is_empty()),
            deleted: reply.deleted_date.is_some(),
            tags: tags.collect(),
            versions: reply.version_ids_to_stages.unwrap_or_default().into_iter().collect(),
        };
        if found.owner() != Some(&wanted.owner) {
            let way_out = if found.deleted {
                "It is scheduled for deletion, and not restored: name another secret in credentials.secretName, or \
                 delete it for good (aws secretsmanager delete-secret --force-delete-without-recovery)"
            } else {
                "It is left alone: name another secret in credentials.secretName, or delete it"
            };
            return Err(StepError::conflict(format!(
                "{} exists and {}. {way_out}",
                wanted.secret_label(),
                whose(found.owner(), &wanted.owner)
            )));
        }
        Ok(Some(found))
    }

    /// One round: user, policy, then credential and secret.
    async fn act(&self, wanted: &Wanted, found: Found, changes: &mut Changes) -> Result<Round> {
        let new = found.user.as_ref().is_none_or(|user| user.new);
        match &found.user {
            Some(user) => {
                changes.user_arn.clone_from(&user.arn);
                ledger::note(&Resource::new(USER, &wanted.user, Change::Unchanged));
            }
            None => match self.create_user(wanted).await? {
                Some(arn) => {
                    changes.user_arn = arn;
                    changes.user = Some(Change::Created);
                    ledger::note(&Resource::new(USER, &wanted.user, Change::Created));
                }
                None => {
                    return Ok(Round::Again(StepError::conflict(format!(
                        "{} is said to exist and cannot be found: another user's name differs from it only in upper and lower \
                         case, or it has just been deleted. Start again in a minute, or name another user in \
                         credentials.userName",
                        wanted.user_label()
                    ))));
                }
            },
        }
        if found.policy.as_ref() != Some(&wanted.policy) {
            self.put_policy(wanted, new).await?;
            let change = if found.policy.is_some() { Change::Updated } else { Change::Created };
            changes.policy.get_or_insert(change);
        }
        let policy = changes.policy.unwrap_or(Change::Unchanged);
        ledger::note(&Resource::new(POLICY, wanted.policy_id(), policy));

        let mut secret = found.secret;
        if secret.is_some() {
            ledger::note(&Resource::new(SECRET, &wanted.secret, Change::Unchanged));
        }
        if let Some(secret) = &mut secret
            && let Some(error) = self.repair(wanted, secret, changes).await?
        {
            return Ok(Round::Again(error));
        }
        let recorded = match &secret {
            Some(secret) => self.recorded(wanted, secret, &found.credentials).await?,
            None => None,
        };
        let in_use = recorded
            .as_ref()
            .and_then(|r| found.credentials.iter().find(|c| c.id == r.id))
            .filter(|credential| credential.active);
        let (Some(secret), Some(recorded), Some(in_use)) = (&secret, &recorded, in_use) else {
            return self.issue(wanted, new, found.credentials, secret, changes).await;
        };
        ledger::note(&Resource::new(CREDENTIAL, &in_use.id, Change::Unchanged));

        if recorded.url != wanted.url {
            let value = match recorded.value.clone() {
                Some(value) => Some(value),
                None => self.read(wanted).await?,
            };
            let Some(mut stored) = value else { return Ok(Round::Again(wanted.busy())) };
            stored.url.clone_from(&wanted.url);
            stored.credential_id.clone_from(&recorded.id);
            if !self.put(wanted, secret, &stored).await.map_err(|not| not.error)? {
                return Ok(Round::Again(wanted.busy()));
            }
            changes.secret(Change::Updated, format!("the address was {}", recorded.url));
        } else if recorded.value.is_some() {
            let current = secret.current().unwrap_or_default();
            self.tag(wanted, secret, &recorded.id, current).await?;
            changes.secret(Change::Updated, "its tags name the credential that it holds");
        }
        // While a rotation is under way the other credential is the rotation's. One that this run made
        // and did not store goes in any case, whether IAM lists it already or not.
        let ours = changes.pending.take().map(|pending| pending.credential_id);
        let listed = found.credentials.iter().map(|c| &c.id).filter(|_| !secret.rotating());
        let leftovers: BTreeSet<&String> = listed.chain(&ours).filter(|id| **id != in_use.id).collect();
        for id in leftovers {
            self.delete(wanted, id).await?;
            changes.credential.get_or_insert(Change::Updated);
            changes.credential_detail.push(format!("deleted {id}, which no secret holds"));
        }
        Ok(Round::Done { secret_arn: secret.arn.clone(), credential_id: in_use.id.clone() })
    }

    /// `None` where the name is taken all at once: by a duplicate run, or by another spelling.
    async fn create_user(&self, wanted: &Wanted) -> Result<Option<String>> {
        let tag = aws_sdk_iam::types::Tag::builder()
            .key(OWNER_TAG)
            .value(&wanted.owner)
            .build()
            .map_err(|_| StepError::internal("a tag without key or value"))?;
        let call = self.iam.create_user().user_name(&wanted.user).path(IAM_PATH).tags(tag);
        match call.send().await {
            Ok(reply) => Ok(Some(reply.user.map(|user| user.arn).unwrap_or_default())),
            Err(e) if code(&e) == Some("EntityAlreadyExists") => Ok(None),
            Err(e) => Err(error::iam("iam:CreateUser", &wanted.user_label(), &e)),
        }
    }

    async fn put_policy(&self, wanted: &Wanted, new: bool) -> Result<()> {
        let call = self
            .iam
            .put_user_policy()
            .user_name(&wanted.user)
            .policy_name(USER_POLICY)
            .policy_document(wanted.policy.to_string());
        self.patiently(|e| error::is_settling_on(new, e), || call.clone().send())
            .await
            .map(|_| ())
            .map_err(|e| error::iam_on(new, "iam:PutUserPolicy", &wanted.user_label(), &e))
    }

    /// Restores the secret and moves it to the key. Answers with an error where somebody else works
    /// on the secret.
    async fn repair(
        &self,
        wanted: &Wanted,
        secret: &mut Secret,
        changes: &mut Changes,
    ) -> Result<Option<StepError>> {
        if secret.deleted {
            match self.secrets.restore_secret().secret_id(&wanted.secret).send().await {
                Ok(_) => {
                    secret.deleted = false;
                    ledger::note(&Resource::new(SECRET, &wanted.secret, Change::Updated));
                    changes.secret(Change::Updated, "restored from its scheduled deletion");
                }
                Err(e) => {
                    let mapped = error::secrets("secretsmanager:RestoreSecret", &wanted.secret_label(), &e);
                    return again_or_fail(&e, mapped);
                }
            }
        }
        if !secret.key.as_deref().is_some_and(|key| same_key(key, &wanted.key)) {
            let call = self.secrets.update_secret().secret_id(&wanted.secret).kms_key_id(&wanted.key);
            match self.patiently(error::is_key_settling, || call.clone().send()).await {
                Ok(_) => {
                    let before = secret.key.replace(wanted.key.clone());
                    let before = before.unwrap_or_else(|| "the AWS managed key".to_owned());
                    changes.secret(Change::Updated, format!("its key was {before}"));
                }
                Err(e) => {
                    let mapped = error::secrets("secretsmanager:UpdateSecret", &wanted.secret_label(), &e);
                    return again_or_fail(&e, mapped);
                }
            }
        }
        Ok(None)
    }

    /// Which credential the secret holds. The tags say so; where they speak of another version, the
    /// value does.
    async fn recorded(
        &self,
        wanted: &Wanted,
        secret: &Secret,
        credentials: &[Credential],
    ) -> Result<Option<Recorded>> {
        if secret.current().is_none() {
            return Ok(None);
        }
        if let Some((id, url)) = secret.tagged() {
            return Ok(Some(Recorded { id: id.to_owned(), url: url.to_owned(), value: None }));
        }
        let Some(stored) = self.read(wanted).await? else { return Ok(None) };
        // A value that a person wrote may lack the id; user names of one user's credentials differ.
        let id = credentials
            .iter()
            .find(|c| c.id == stored.credential_id)
            .or_else(|| credentials.iter().find(|c| c.username == stored.username))
            .map_or_else(|| stored.credential_id.clone(), |c| c.id.clone());
        Ok(Some(Recorded { id, url: stored.url.clone(), value: Some(stored) }))
    }

    /// The value of the current version. `None` where there is none, or none that this step wrote.
    async fn read(&self, wanted: &Wanted) -> Result<Option<Stored>> {
        let call = self.secrets.get_secret_value().secret_id(&wanted.secret);
        match self.patiently(error::is_key_settling, || call.clone().send()).await {
            Ok(reply) => {
                let text = reply.secret_string.map(SecretString::from);
                Ok(text.and_then(|text| Stored::parse(text.expose_secret())))
            }
            Err(e) if code(&e) == Some("ResourceNotFoundException") => Ok(None),
            Err(e) => Err(error::secrets("secretsmanager:GetSecretValue", &wanted.secret_label(), &e)),
        }
    }

    /// Makes a credential and stores it, then deletes those that no secret holds.
    async fn issue(
        &self,
        wanted: &Wanted,
        new: bool,
        mut others: Vec<Credential>,
        secret: Option<Secret>,
        changes: &mut Changes,
    ) -> Result<Round> {
        // Not yet in the list means that IAM is slow; inactive, that somebody turned it off.
        let turned_off = |p: &Stored| others.iter().any(|c| c.id == p.credential_id && !c.active);
        changes.pending = changes.pending.take().filter(|pending| !turned_off(pending));
        if let Some(pending) = &changes.pending {
            others.retain(|c| c.id != pending.credential_id);
        } else if others.len() >= MAX_CREDENTIALS {
            // There is no slot. An inactive one goes first, since nobody can use it; of the active
            // ones only one whose run has certainly ended, or that run might store it afterwards.
            others.sort_by_key(|c| (c.active, c.created));
            let oldest = &others[0];
            let age = self.clock.now().duration_since(oldest.created).unwrap_or_default();
            if oldest.active && age < LONGEST_RUN {
                return Err(StepError::transient(format!(
                    "{} has two Git credentials that no secret holds yet ({}): other runs are under way, or have just \
                     failed. The step is tried again, and deletes one of them once it is {} s old",
                    wanted.user_label(),
                    others.iter().map(|c| c.id.as_str()).collect::<Vec<_>>().join(", "),
                    LONGEST_RUN.as_secs()
                )));
            }
            let oldest = others.remove(0);
            self.delete(wanted, &oldest.id).await?;
            changes.credential_detail.push(format!("deleted {}, which no secret held", oldest.id));
        }
        let stored = match changes.pending.take() {
            Some(pending) => pending,
            None => match self.create_credential(wanted, new).await? {
                Some(made) => made,
                None => return Ok(Round::Again(wanted.busy())),
            },
        };
        let kept = match &secret {
            Some(secret) => {
                self.put(wanted, secret, &stored).await.map(|won| won.then(|| secret.arn.clone()))
            }
            None => self.create_secret(wanted, &stored).await,
        };
        let secret_arn = match kept {
            Ok(Some(arn)) => arn,
            Ok(None) => {
                changes.pending = Some(stored);
                return Ok(Round::Again(wanted.busy()));
            }
            Err(NotKept { error, maybe: true }) => return Err(error),
            Err(NotKept { error, maybe: false }) => {
                if let Err(second) = self.delete(wanted, &stored.credential_id).await {
                    tracing::warn!(message = %second.message, "the unused credential is left for the next run");
                }
                return Err(error);
            }
        };
        changes.credential = Some(Change::Created);
        let kept = if secret.is_some() { Change::Updated } else { Change::Created };
        ledger::note(&Resource::new(SECRET, &wanted.secret, kept));
        match secret {
            Some(_) => changes.secret(Change::Updated, "filled with a new credential"),
            None => changes.secret = Some(Change::Created),
        }
        for other in others {
            self.delete(wanted, &other.id).await?;
            changes.credential_detail.push(format!("deleted {}, which no secret holds", other.id));
        }
        Ok(Round::Done { secret_arn, credential_id: stored.credential_id })
    }

    /// Makes a credential. `None` where the user has two already, which other runs made meanwhile.
    async fn create_credential(&self, wanted: &Wanted, new: bool) -> Result<Option<Stored>> {
        let label = wanted.user_label();
        // The call has no client token, so the SDK must not repeat it: a lost answer leaves a
        // credential that nobody knows, and the next run deletes that one.
        let once = aws_sdk_iam::config::Config::builder().retry_config(RetryConfig::disabled());
        let reply = self
            .patiently(
                |e| error::is_settling_on(new, e),
                || {
                    let call = self
                        .iam
                        .create_service_specific_credential()
                        .user_name(&wanted.user)
                        .service_name(SERVICE);
                    call.customize().config_override(once.clone()).send()
                },
            )
            .await;
        let made = match reply {
            Ok(reply) => reply.service_specific_credential,
            Err(e) if code(&e) == Some("LimitExceeded") => return Ok(None),
            Err(e) => {
                return Err(error::iam_on(new, "iam:CreateServiceSpecificCredential", &label, &e));
            }
        };
        let made = made.ok_or_else(|| {
            StepError::transient(format!(
                "iam:CreateServiceSpecificCredential on {label}: the reply holds no credential. The step is tried again"
            ))
        })?;
        ledger::note(&Resource::new(CREDENTIAL, &made.service_specific_credential_id, Change::Created));
        let created_at = made.create_date.fmt(DateTimeFormat::DateTime).unwrap_or_default();
        Ok(Some(Stored {
            username: made.service_user_name,
            password: SecretString::from(made.service_password),
            url: wanted.url.clone(),
            credential_id: made.service_specific_credential_id,
            created_at,
        }))
    }

    async fn delete(&self, wanted: &Wanted, id: &str) -> Result<()> {
        let call = self
            .iam
            .delete_service_specific_credential()
            .user_name(&wanted.user)
            .service_specific_credential_id(id);
        match call.send().await {
            Err(e) if code(&e) != Some("NoSuchEntity") => Err(error::iam(
                "iam:DeleteServiceSpecificCredential",
                &format!("{id} of {}", wanted.user_label()),
                &e,
            )),
            _ => {
                ledger::forget(CREDENTIAL, id);
                Ok(())
            }
        }
    }

    /// Makes the secret with its value. Answers with its ARN, or `None` where there is one already.
    async fn create_secret(
        &self,
        wanted: &Wanted,
        stored: &Stored,
    ) -> std::result::Result<Option<String>, NotKept> {
        let version = next_version(&wanted.secret, &BTreeMap::new());
        let value = stored.to_json();
        let call = self
            .secrets
            .create_secret()
            .name(&wanted.secret)
            .description(format!("Git credentials of IAM user {}, made by eks-flux-bootstrap", wanted.user))
            .kms_key_id(&wanted.key)
            .client_request_token(&version)
            .set_tags(Some(self.all_tags(wanted, &stored.credential_id, &version)))
            .secret_string(value.expose_secret());
        let reply = match self.patiently(error::is_key_settling, || call.clone().send()).await {
            Ok(reply) => reply,
            Err(e) if code(&e) == Some("ResourceExistsException") => return Ok(None),
            Err(e) => return Err(NotKept::new("secretsmanager:CreateSecret", wanted, stored, &e)),
        };
        let arn = reply.arn.unwrap_or_else(|| wanted.secret.clone());
        // Secrets Manager takes the token for the version's id; should it not, the tag follows.
        if let Some(got) = reply.version_id.filter(|got| *got != version) {
            let made = Secret { arn: arn.clone(), ..Secret::default() };
            self.tag(wanted, &made, &stored.credential_id, &got).await.map_err(tag_failed)?;
        }
        Ok(Some(arn))
    }

    /// Writes the next version. False where another run wrote it already.
    async fn put(
        &self,
        wanted: &Wanted,
        secret: &Secret,
        stored: &Stored,
    ) -> std::result::Result<bool, NotKept> {
        let version = next_version(&wanted.secret, &secret.versions);
        let value = stored.to_json();
        let call = self
            .secrets
            .put_secret_value()
            .secret_id(&wanted.secret)
            .client_request_token(&version)
            .secret_string(value.expose_secret());
        let reply = match self.patiently(error::is_key_settling, || call.clone().send()).await {
            Ok(reply) => reply,
            Err(e) if code(&e) == Some("ResourceExistsException") => return Ok(false),
            Err(e) => return Err(NotKept::new("secretsmanager:PutSecretValue", wanted, stored, &e)),
        };
        let version = reply.version_id.unwrap_or(version);
        self.tag(wanted, secret, &stored.credential_id, &version).await.map_err(tag_failed)?;
        Ok(true)
    }

    /// Says in the tags which credential a version holds.
    async fn tag(&self, wanted: &Wanted, secret: &Secret, credential: &str, version: &str) -> Result<()> {
        let id = if secret.arn.is_empty() { &wanted.secret } else { &secret.arn };
        self.secrets
            .tag_resource()
            .secret_id(id)
            .set_tags(Some(self.value_tags(wanted, credential, version)))
            .send()
            .await
            .map(|_| ())
            .map_err(|e| error::secrets("secretsmanager:TagResource", &wanted.secret_label(), &e))
    }

    fn value_tags(&self, wanted: &Wanted, credential: &str, version: &str) -> Vec<Tag> {
        vec![tag(CREDENTIAL_TAG, &format!("{credential}@{version}")), tag(URL_TAG, &wanted.url)]
    }

    fn all_tags(&self, wanted: &Wanted, credential: &str, version: &str) -> Vec<Tag> {
        let mut tags = vec![tag(OWNER_TAG, &wanted.owner)];
        tags.extend(self.value_tags(wanted, credential, version));
        tags
    }

    /// Makes a call again while AWS does not know yet what was just made. Only for answers that say
    /// that nothing was done.
    async fn patiently<T, E, F, Fut>(
        &self,
        settling: impl Fn(&SdkError<E, HttpResponse>) -> bool,
        call: F,
    ) -> std::result::Result<T, SdkError<E, HttpResponse>>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = std::result::Result<T, SdkError<E, HttpResponse>>>,
    {
        let mut attempt = 0;
        loop {
            let reply = call().await;
            attempt += 1;
            match &reply {
                Err(e) if attempt < SETTLING && settling(e) => self.pause(attempt).await,
                _ => return reply,
            }
        }
    }

    async fn pause(&self, attempt: u32) {
        self.clock.sleep(Duration::from_millis((250u64 << attempt).min(3_000))).await;
    }
}

impl Wanted {
    fn new(stack: &Stack, input: &Input) -> Self {
        let cluster = &input.cluster;
        let repository = format!(
            "arn:{}:codecommit:{}:{}:{}",
            cluster.partition(),
            cluster.region(),
            cluster.account(),
            names::repository(&input.request)
        );
        Wanted {
            owner: Owner::new(&stack.name, &input.request).target(),
            user: names::user(&input.request),
            secret: names::secret(&input.request),
            policy: policy::document(&repository, &input.key.arn),
            key: input.key.arn.clone(),
            url: input.git.url.clone(),
        }
    }

    fn policy_id(&self) -> String {
        format!("{}/{USER_POLICY}", self.user)
    }

    fn user_label(&self) -> String {
        format!("IAM user {}", self.user)
    }

    fn secret_label(&self) -> String {
        format!("secret {}", self.secret)
    }

    /// The error where every round was lost.
    fn busy(&self) -> StepError {
        StepError::transient(format!(
            "{} and {}: another run writes them at the same time. The step is tried again",
            self.user_label(),
            self.secret_label()
        ))
    }
}

fn report(wanted: &Wanted, changes: Changes, secret_arn: String, credential_id: String) -> Output {
    let detailed = |resource: Resource, detail: &[String]| match detail {
        [] => resource,
        _ => resource.detail(detail.join("; ")),
    };
    let or_unchanged = |change: Option<Change>| change.unwrap_or(Change::Unchanged);
    let mut user = Resource::new(USER, &wanted.user, or_unchanged(changes.user));
    if !changes.user_arn.is_empty() {
        user = user.arn(changes.user_arn);
    }
    let credential = Resource::new(CREDENTIAL, &credential_id, or_unchanged(changes.credential));
    let secret = Resource::new(SECRET, &wanted.secret, or_unchanged(changes.secret));
    Output {
        resources: vec![
            user,
            Resource::new(POLICY, wanted.policy_id(), or_unchanged(changes.policy)),
            detailed(credential, &changes.credential_detail),
            detailed(secret.arn(&secret_arn), &changes.secret_detail),
        ],
        credentials: facts::Credentials { secret_arn, user_name: wanted.user.clone(), credential_id },
    }
}

/// A secret that vanished or changed its state between two calls is looked at again.
fn again_or_fail<E: aws_sdk_iam::error::ProvideErrorMetadata>(
    e: &SdkError<E, HttpResponse>,
    mapped: StepError,
) -> Result<Option<StepError>> {
    let moved = code(e) == Some("ResourceNotFoundException")
        || (code(e) == Some("InvalidRequestException")
            && error::said(e).contains(error::MARKED_FOR_DELETION));
    if moved { Ok(Some(mapped)) } else { Err(mapped) }
}

/// The value is stored by then, and the next run reads it and writes the tags.
fn tag_failed(error: StepError) -> NotKept {
    NotKept { error, maybe: true }
}

fn whose(owner: Option<&str>, wanted: &str) -> String {
    match owner {
        Some(owner) if owner == wanted => format!("is outside of the path {IAM_PATH}"),
        Some(owner) => format!("belongs to {owner} (tag {OWNER_TAG}), not to {wanted}"),
        None => format!("was not made by eks-flux-bootstrap (no tag {OWNER_TAG})"),
    }
}

fn tag(key: &str, value: &str) -> Tag {
    Tag::builder().key(key).value(value).build()
}

/// Secrets Manager answers with what it was given, or with the key's id.
fn same_key(id: &str, arn: &str) -> bool {
    id == arn || arn.rsplit_once(":key/").is_some_and(|(_, tail)| tail == id)
}
