//! The step `key`: a customer-managed KMS key behind an alias, enabled and rotating.
//!
//! KMS offers no client token for `CreateKey`, so the step reads first and cleans up after itself.
//! The alias decides which key is *the* key; whoever loses the race for the alias schedules the
//! deletion of the key that it made.
//!
//! # Keys that a crash leaves behind
//! Between `CreateKey` and `CreateAlias` a key exists that no alias leads to. `ListKeys` with
//! `ListResourceTags` would find it at the price of a call per key of the account, on every run and
//! under quotas that the whole account shares; the index of the Resource Groups Tagging API finds
//! it by the owner tag with one call. That index may lag behind by some seconds, which is why each
//! run asks it, and not only the one that finds no alias:
//! - without an alias, a key of ours that can be used gets the alias, instead of one more key;
//! - with an alias, a key of ours that was *never finished* is scheduled for deletion.
//!
//! A new key carries the tag [`UNFINISHED_TAG`] from its creation until its alias is there. Only
//! this tag tells the orphan of a crash from a key that served a repository until somebody moved
//! the alias; deleting the latter would make that repository unreadable for ever.

mod leftovers;

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_kms::Client;
use aws_sdk_kms::config::retry::RetryConfig;
use aws_sdk_kms::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_kms::primitives::{DateTime, DateTimeFormat};
use aws_sdk_kms::types::{KeyManagerType, KeyMetadata, KeySpec, KeyState, KeyUsageType, Tag};
use serde::{Deserialize, Serialize};
use step::clock::Clock;
use step::facts::{Cluster, Key};
use step::names::{self, OWNER_TAG, Owner};
use step::runtime::Stack;
use step::{Change, ErrorName, Request, Resource, Result, StepError, ledger};
use transport::Transport;

/// Tag key on a key that has no alias yet. Its value is `true`.
pub const UNFINISHED_TAG: &str = "eks-flux-bootstrap:unfinished";

const KEY: &str = "AWS::KMS::Key";
const ALIAS: &str = "AWS::KMS::Alias";

/// KMS's text for a policy that would lock everybody out: the caller itself lacks
/// `kms:PutKeyPolicy` (KMS developer guide, "The key policy lockout safety check").
const LOCKOUT: &str = "will not allow you to update the key policy";
/// KMS's text for a principal that IAM does not know, or does not know yet.
const INVALID_PRINCIPAL: &str = "invalid principals";
/// How long a change of tags may take to reach KMS's authorization (KMS developer guide, "ABAC for
/// AWS KMS").
const TAG_DELAY: Duration = Duration::from_secs(300);
/// The shortest window that KMS takes. An orphan has never encrypted anything.
const ORPHAN_WINDOW_DAYS: i32 = 7;

/// The payload.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// The user's request.
    pub request: Request,
    /// From `cluster`.
    pub cluster: Cluster,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The key behind the alias.
    pub key: Key,
    /// The key, its alias, and orphans that were scheduled for deletion.
    pub resources: Vec<Resource>,
}

/// The step with its clients.
#[derive(Debug, Clone)]
pub struct Step {
    kms: Client,
    tagging: Transport,
    stack: Stack,
    clock: Clock,
}

/// A key as it was found.
#[derive(Debug, Clone)]
struct Found {
    arn: String,
    id: String,
    state: KeyState,
    created: Option<DateTime>,
    deletion: Option<DateTime>,
    /// Whether it is a customer-managed symmetric key for encryption, as CodeCommit and Secrets
    /// Manager want it.
    fits: bool,
    owner: Option<String>,
    unfinished: bool,
}

/// How a key came to be the one behind the alias.
enum Origin {
    /// The alias led to it.
    Behind,
    /// It was ours and without the alias.
    Reused,
    /// It was made in this invocation.
    Made,
}

impl Step {
    /// Makes the clients.
    pub fn new(config: &SdkConfig, stack: Stack) -> Self {
        Step { kms: Client::new(config), tagging: Transport::new(config), stack, clock: Clock::System }
    }

    /// Makes sure that the alias leads to a key that can be used.
    ///
    /// # Errors
    /// `Conflict` where a foreign key that cannot be used is behind the alias, `Denied`,
    /// `Unsupported` at the account's limit of keys, `Transient`.
    pub async fn apply(&self, input: Input) -> Result<Output> {
        input.request.check()?;
        let alias = names::key_alias(&input.request);
        let target = Owner::new(&self.stack.name, &input.request).target();

        let behind = self.look(&alias).await?;
        let leftovers = leftovers::find(&self.tagging, &input.cluster, &target).await?;

        let (mut key, mut origin) = match behind {
            Some(key) => (key, Origin::Behind),
            None => match self.reusable(&leftovers, &target).await? {
                Some(key) => (key, Origin::Reused),
                None => (self.create(&alias, &target).await?, Origin::Made),
            },
        };
        if !matches!(origin, Origin::Made) {
            ledger::note(&Resource::new(KEY, &key.id, Change::Unchanged));
        }
        let mut resources = Vec::new();
        let mut alias_change = Change::Unchanged;
        if !matches!(origin, Origin::Behind) {
            match self.attach(&alias, &key).await? {
                None => {
                    alias_change = Change::Created;
                    ledger::note(&Resource::new(ALIAS, &alias, alias_change));
                }
                Some(winner) => {
                    if matches!(origin, Origin::Made) {
                        resources.extend(self.schedule_orphan(&key.arn).await?);
                        ledger::forget(KEY, &key.id);
                    }
                    (key, origin) = (winner, Origin::Behind);
                }
            }
        }

        let ours = key.owner.as_deref() == Some(target.as_str());
        let resource = Resource::new(KEY, &key.id, Change::Unchanged).arn(&key.arn);
        let resource = if ours {
            let done = self.converge(&key, &alias).await?;
            match origin {
                Origin::Made => Resource { change: Change::Created, ..resource },
                Origin::Reused => Resource { change: Change::Updated, ..resource }
                    .detail(join("it was ours and had no alias", &done)),
                Origin::Behind if done.is_empty() => resource,
                Origin::Behind => Resource { change: Change::Updated, ..resource }.detail(done.join("; ")),
            }
        } else {
            usable_foreign(&key, &alias, &target)?;
            alias_change = Change::Adopted;
            let whose = match &key.owner {
                Some(owner) => format!("it belongs to {owner}"),
                None => "it is not tagged as this stack's".to_owned(),
            };
            Resource { change: Change::Adopted, ..resource }.detail(format!("{whose} and is left as it is"))
        };
        resources.insert(0, resource);
        resources
            .insert(1, Resource::new(ALIAS, &alias, alias_change).arn(alias_arn(&input.cluster, &alias)));

        for leftover in leftovers.iter().filter(|leftover| leftover.unfinished && leftover.arn != key.arn) {
            resources.extend(self.clean_up(&leftover.arn, &target).await?);
        }
        let key = Key { arn: key.arn, alias };
        Ok(Output { key, resources })
    }

    /// Describes a key by its alias or ARN, with the tags that say whose it is. Nothing where there
    /// is no such key.
    async fn look(&self, id: &str) -> Result<Option<Found>> {
        let output = match self.kms.describe_key().key_id(id).send().await {
            Ok(output) => output,
            Err(error) if error.code() == Some("NotFoundException") => return Ok(None),
            Err(error) => return Err(StepError::from_sdk("kms:DescribeKey", id, &error)),
        };
        let metadata = output
            .key_metadata
            .ok_or_else(|| StepError::internal(format!("kms:DescribeKey on {id}: the reply has no key")))?;
        let mut found = Found::new(&metadata, id)?;
        let mut pages = self.kms.list_resource_tags().key_id(&found.arn).into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| self.failed("kms:ListResourceTags", &found, &error))?;
            for tag in page.tags() {
                match tag.tag_key() {
                    OWNER_TAG => found.owner = Some(tag.tag_value().to_owned()),
                    UNFINISHED_TAG => found.unfinished = true,
                    _ => {}
                }
            }
        }
        Ok(Some(found))
    }

    /// The key of ours that is to get the alias again: one that was finished before one that was
    /// not, the older before the newer, so that two runs at once choose the same.
    async fn reusable(&self, leftovers: &[leftovers::Leftover], target: &str) -> Result<Option<Found>> {
        let mut candidates = Vec::new();
        for leftover in leftovers {
            // The index may lag behind: what counts is the key itself.
            if let Some(key) = self.look(&leftover.arn).await?
                && key.owner.as_deref() == Some(target)
                && key.fits
                && matches!(key.state, KeyState::Enabled | KeyState::Disabled)
            {
                candidates.push(key);
            }
        }
        candidates
            .sort_by_key(|key| (key.unfinished, key.created.map(|time| time.as_nanos()), key.arn.clone()));
        Ok(candidates.into_iter().next())
    }

    /// Makes a key with KMS's default policy, which is the root-principal one: the account decides by
    /// IAM policies who may use and administer the key. To send the same text would make KMS check
    /// that this role may change it, a permission that the role has no other use for, and that no tag
    /// can limit while the key does not exist.
    async fn create(&self, alias: &str, target: &str) -> Result<Found> {
        let tag = |key: &str, value: &str| {
            Tag::builder()
                .tag_key(key)
                .tag_value(value)
                .build()
                .map_err(|_| StepError::internal("a tag of the key could not be built"))
        };
        let request = self
            .kms
            .create_key()
            .description(format!("Git repository and credentials of Flux, {target}"))
            .tags(tag(OWNER_TAG, target)?)
            .tags(tag(UNFINISHED_TAG, "true")?);
        // A second attempt after a lost reply would make a second key. The next run finds the
        // first one by its tags.
        let single = aws_sdk_kms::Config::builder().retry_config(RetryConfig::disabled());
        let output = request
            .customize()
            .config_override(single)
            .send()
            .await
            .map_err(|error| create_failed(alias, &error))?;
        let metadata = output
            .key_metadata
            .ok_or_else(|| StepError::internal(format!("kms:CreateKey for {alias}: the reply has no key")))?;
        tracing::info!(key = metadata.arn(), alias, "key created");
        let found = Found::new(&metadata, alias)?;
        ledger::note(&Resource::new(KEY, &found.id, Change::Created));
        Ok(Found { owner: Some(target.to_owned()), unfinished: true, ..found })
    }

    /// Makes the alias. Where somebody else was faster, answers with the key that it leads to now.
    async fn attach(&self, alias: &str, key: &Found) -> Result<Option<Found>> {
        match self.kms.create_alias().alias_name(alias).target_key_id(&key.arn).send().await {
            Ok(_) => Ok(None),
            Err(error) if error.code() == Some("AlreadyExistsException") => {
                match self.look(alias).await? {
                    // An attempt of our own arrived although its reply was lost.
                    Some(behind) if behind.arn == key.arn => Ok(None),
                    Some(behind) => Ok(Some(behind)),
                    None => Err(StepError::transient(format!(
                        "kms:CreateAlias on {alias}: it exists, and kms:DescribeKey does not find it yet. The step is tried again"
                    ))),
                }
            }
            Err(error) if error.code() == Some("InvalidAliasNameException") => {
                Err(StepError::invalid_input(format!(
                    "key.alias: KMS does not take {alias:?} as an alias: {}",
                    error.message().unwrap_or("no message")
                )))
            }
            Err(error) => {
                let mut failure = self.failed("kms:CreateAlias", key, &error);
                failure.message =
                    format!("{} (for {alias}). The key is kept and the next run uses it", failure.message);
                Err(failure)
            }
        }
    }

    /// Brings a key of ours into the wanted state. Answers with what differed.
    ///
    /// The key policy is not compared: without its root-principal statement no call of this role
    /// would get here, and what an administrator has added to it is none of our business.
    async fn converge(&self, key: &Found, alias: &str) -> Result<Vec<&'static str>> {
        let arn = key.arn.as_str();
        let mut done = Vec::new();
        if !key.fits {
            return Err(StepError::conflict(format!(
                "KMS key {arn} behind {alias} carries this stack's tag and is not a symmetric encryption key. Point the alias to one that is, or name another alias in key.alias"
            )));
        }
        match &key.state {
            KeyState::Enabled => {}
            KeyState::Disabled => done.push("it was disabled and is enabled again"),
            KeyState::PendingDeletion => {
                self.kms
                    .cancel_key_deletion()
                    .key_id(arn)
                    .send()
                    .await
                    .map_err(|error| self.failed("kms:CancelKeyDeletion", key, &error))?;
                done.push("its deletion was scheduled and is cancelled");
            }
            state => return Err(unusable_state(key, alias, state)),
        }
        if !done.is_empty() {
            // A key comes out of a cancelled deletion disabled.
            self.kms
                .enable_key()
                .key_id(arn)
                .send()
                .await
                .map_err(|error| self.failed("kms:EnableKey", key, &error))?;
        }
        let rotation = self
            .kms
            .get_key_rotation_status()
            .key_id(arn)
            .send()
            .await
            .map_err(|error| self.failed("kms:GetKeyRotationStatus", key, &error))?;
        if !rotation.key_rotation_enabled() {
            self.kms
                .enable_key_rotation()
                .key_id(arn)
                .send()
                .await
                .map_err(|error| self.failed("kms:EnableKeyRotation", key, &error))?;
            done.push("its rotation was off and is on");
        }
        if key.unfinished {
            self.kms
                .untag_resource()
                .key_id(arn)
                .tag_keys(UNFINISHED_TAG)
                .send()
                .await
                .map_err(|error| self.failed("kms:UntagResource", key, &error))?;
            done.push("it was left unfinished and is finished");
        }
        Ok(done)
    }

    /// Schedules the deletion of a key of ours that never got its alias, unless it is on its way
    /// already.
    async fn clean_up(&self, arn: &str, target: &str) -> Result<Option<Resource>> {
        match self.look(arn).await? {
            Some(key)
                if key.unfinished
                    && key.owner.as_deref() == Some(target)
                    && matches!(key.state, KeyState::Enabled | KeyState::Disabled) =>
            {
                self.schedule_orphan(arn).await
            }
            _ => Ok(None),
        }
    }

    async fn schedule_orphan(&self, arn: &str) -> Result<Option<Resource>> {
        let output = match self
            .kms
            .schedule_key_deletion()
            .key_id(arn)
            .pending_window_in_days(ORPHAN_WINDOW_DAYS)
            .send()
            .await
        {
            Ok(output) => output,
            // "<arn> is pending deletion.": another run was faster.
            Err(error) if error.code() == Some("KMSInvalidStateException") => return Ok(None),
            Err(error) if error.code() == Some("NotFoundException") => {
                return Err(StepError::transient(format!(
                    "kms:ScheduleKeyDeletion on {arn}: the key was just made and is not known everywhere yet. The step is tried again"
                )));
            }
            Err(error) => return Err(StepError::from_sdk("kms:ScheduleKeyDeletion", arn, &error)),
        };
        let when = output.deletion_date.as_ref().map(date).unwrap_or_else(|| "in seven days".to_owned());
        tracing::warn!(key = arn, when, "orphan scheduled for deletion");
        Ok(Some(
            Resource::new(KEY, id_of(arn), Change::Updated)
                .arn(arn)
                .detail(format!("a run made it and did not get the alias; it is deleted {when}")),
        ))
    }

    /// An error on a key that exists. KMS is eventually consistent: right after a change a key may
    /// be unknown or in its old state, and authorization by tags may lag by minutes.
    fn failed<E>(&self, action: &str, key: &Found, error: &SdkError<E>) -> StepError
    where
        E: ProvideErrorMetadata,
    {
        let failure = StepError::from_sdk(action, &key.arn, error);
        match error.code() {
            Some("NotFoundException" | "KMSInvalidStateException" | "DisabledException") => {
                StepError::transient(format!(
                    "{}. A change of this key has not reached all of KMS yet; the step is tried again",
                    failure.message.trim_end_matches('.')
                ))
            }
            Some("AccessDeniedException") if self.is_new(key) => StepError {
                name: ErrorName::Transient,
                message: format!(
                    "{}. The key is new, and its tags count for authorization after up to five minutes; the step is tried again",
                    failure.message
                ),
            },
            _ => failure,
        }
    }

    fn is_new(&self, key: &Found) -> bool {
        let now = DateTime::from(self.clock.now()).as_secs_f64();
        key.created.is_some_and(|created| now - created.as_secs_f64() < TAG_DELAY.as_secs_f64())
    }
}

impl Found {
    fn new(metadata: &KeyMetadata, asked: &str) -> Result<Self> {
        let arn = metadata
            .arn()
            .ok_or_else(|| StepError::internal(format!("KMS names no ARN for the key of {asked}")))?;
        Ok(Found {
            arn: arn.to_owned(),
            id: metadata.key_id().to_owned(),
            state: metadata.key_state().cloned().unwrap_or(KeyState::Enabled),
            created: metadata.creation_date().copied(),
            deletion: metadata.deletion_date().copied(),
            fits: metadata.key_manager() != Some(&KeyManagerType::Aws)
                && metadata.key_spec().is_none_or(|spec| *spec == KeySpec::SymmetricDefault)
                && metadata.key_usage().is_none_or(|usage| *usage == KeyUsageType::EncryptDecrypt),
            owner: None,
            unfinished: false,
        })
    }
}

fn create_failed<E>(alias: &str, error: &SdkError<E>) -> StepError
where
    E: ProvideErrorMetadata,
{
    let what = format!("a new key for {alias}");
    let failure = StepError::from_sdk("kms:CreateKey", &what, error);
    let text = error.message().unwrap_or_default();
    match error.code() {
        // Only the text tells the two causes apart.
        Some("MalformedPolicyDocumentException") if text.contains(LOCKOUT) => StepError::denied(format!(
            "{}. Allow kms:PutKeyPolicy to the function's role: KMS makes no key whose policy its maker could not change",
            failure.message.trim_end_matches('.')
        )),
        Some("MalformedPolicyDocumentException") if text.contains(INVALID_PRINCIPAL) => {
            StepError::transient(format!(
                "{}. IAM does not know the principal everywhere yet; the step is tried again",
                failure.message.trim_end_matches('.')
            ))
        }
        Some("LimitExceededException") => StepError::unsupported(format!(
            "{}. The account has as many KMS keys as its quota allows: delete unused ones, ask for a higher quota, or name the alias of an existing key in key.alias",
            failure.message.trim_end_matches('.')
        )),
        _ => failure,
    }
}

/// Accepts a foreign key that does the job as it is.
fn usable_foreign(key: &Found, alias: &str, target: &str) -> Result<()> {
    let arn = key.arn.as_str();
    let ways = format!(
        "It is not tagged {OWNER_TAG}={target}, so it is never changed by this stack: name another alias in key.alias, or"
    );
    if !key.fits {
        return Err(StepError::conflict(format!(
            "KMS key {arn} behind {alias} is not a customer-managed symmetric key for encryption. {ways} point the alias to one that is"
        )));
    }
    match &key.state {
        KeyState::Enabled => Ok(()),
        KeyState::Disabled => Err(StepError::conflict(format!(
            "KMS key {arn} behind {alias} is disabled. {ways} enable it (kms:EnableKey)"
        ))),
        KeyState::PendingDeletion => {
            let when = key.deletion.as_ref().map(date).unwrap_or_else(|| "soon".to_owned());
            Err(StepError::conflict(format!(
                "KMS key {arn} behind {alias} is scheduled for deletion {when}. {ways} cancel that (kms:CancelKeyDeletion) and enable it (kms:EnableKey)"
            )))
        }
        state => Err(unusable_state(key, alias, state)),
    }
}

fn unusable_state(key: &Found, alias: &str, state: &KeyState) -> StepError {
    let arn = key.arn.as_str();
    match state {
        KeyState::Creating | KeyState::Updating => StepError::transient(format!(
            "KMS key {arn} behind {alias} is {}. The step is tried again",
            state.as_str()
        )),
        other => StepError::conflict(format!(
            "KMS key {arn} behind {alias} is in the state {} and cannot be used. Bring it to Enabled, or name another alias in key.alias",
            other.as_str()
        )),
    }
}

fn alias_arn(cluster: &Cluster, alias: &str) -> String {
    format!("arn:{}:kms:{}:{}:{alias}", cluster.partition(), cluster.region(), cluster.account())
}

fn id_of(arn: &str) -> &str {
    arn.rsplit('/').next().unwrap_or(arn)
}

fn date(time: &DateTime) -> String {
    match time.fmt(DateTimeFormat::DateTime) {
        Ok(text) => format!("on {text}"),
        Err(_) => "soon".to_owned(),
    }
}

fn join(first: &str, rest: &[&str]) -> String {
    std::iter::once(first).chain(rest.iter().copied()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
