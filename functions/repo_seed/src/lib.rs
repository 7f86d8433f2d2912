//! The step `repo_seed`: the repository exists, uses the key, and the branch has a first commit.
//!
//! # What is seeded, and when
//! A branch is seeded once: with a README and a file that keeps the folder of manifests. That folder
//! is the sign that it was done, since Flux needs it and Git keeps no empty folders. A branch that
//! has the folder is therefore left alone, so that a README which a person deleted does not come
//! back with every run; a branch without it (an earlier run stopped half-way, or the history is
//! somebody else's) gets what is missing, and nothing that is there is overwritten.
//!
//! # Whose repository it is
//! The owner tag decides. A repository of another owner, or of nobody, is adopted as it is: it keeps
//! its key, its tags and its description. It has to be usable with the rights that `credentials`
//! gives to the Git user, which know one key only; so a foreign repository under another
//! customer-managed key is a `Conflict`, told here rather than found out from Git's bare 403.

mod readme;

use aws_config::SdkConfig;
use aws_sdk_codecommit::types::RepositoryMetadata;
use codecommit::{BRANCH, Client, Commit, File, Head, Overwrite, code, error};
use serde::{Deserialize, Serialize};
use step::names::{self, OWNER_TAG, Owner};
use step::runtime::Stack;
use step::{Change, Request, Resource, Result, StepError, facts, ledger};

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

/// What the function answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The repository and its branch's head.
    pub repository: facts::Repository,
    /// The repository and the branch.
    pub resources: Vec<Resource>,
}

/// The step with its clients.
#[derive(Debug, Clone)]
pub struct Step {
    codecommit: Client,
    kms: aws_sdk_kms::Client,
    stack: Stack,
}

/// What a look at the repository found.
#[derive(Debug, Clone)]
struct Existing {
    metadata: RepositoryMetadata,
    /// The value of the owner tag, where there is one.
    owner: Option<String>,
}

impl Step {
    /// Makes the clients.
    pub fn new(config: &SdkConfig, stack: Stack) -> Self {
        Step { codecommit: Client::new(config), kms: aws_sdk_kms::Client::new(config), stack }
    }

    /// Takes the pauses between attempts from this clock.
    pub fn with_clock(mut self, clock: step::clock::Clock) -> Self {
        self.codecommit = self.codecommit.with_clock(clock);
        self
    }

    /// Makes sure that the repository and its branch are there.
    ///
    /// # Errors
    /// `Conflict` where a foreign repository cannot be used; `Unsupported` where the account may not
    /// use CodeCommit; `Denied`, `Transient` as AWS answers.
    pub async fn apply(&self, input: Input) -> Result<Output> {
        input.request.check()?;
        let name = names::repository(&input.request);
        let owner = Owner::new(&self.stack.name, &input.request).target();

        let (metadata, repository) = match self.look(&name).await? {
            Some(found) => self.converge(&input, found, &owner).await?,
            None => self.create(&input, &name, &owner).await?,
        };
        ledger::note(&repository);
        let (commit_id, branch) = self.seed(&input, &name, repository.change).await?;

        let facts = facts::Repository {
            arn: metadata.arn.unwrap_or_else(|| repository_arn(&input.cluster, &name)),
            id: metadata.repository_id.unwrap_or_default(),
            name,
            branch: input.request.repository.branch,
            commit_id,
        };
        Ok(Output { repository: facts, resources: vec![repository, branch] })
    }

    /// Reads the repository and its owner.
    async fn look(&self, name: &str) -> Result<Option<Existing>> {
        let label = format!("repository {name}");
        let sdk = self.codecommit.sdk();
        let reply = self.codecommit.patiently(|| sdk.get_repository().repository_name(name).send()).await;
        let metadata = match reply {
            Ok(reply) => reply.repository_metadata.ok_or_else(|| {
                StepError::internal(format!("codecommit:GetRepository on {label}: the reply has no metadata"))
            })?,
            Err(e) if code(&e) == Some("RepositoryDoesNotExistException") => return Ok(None),
            Err(e) => return Err(error("codecommit:GetRepository", &label, &e)),
        };
        let arn = metadata.arn.clone().unwrap_or_default();
        let mut owner = None;
        let mut next = None;
        loop {
            let reply = self
                .codecommit
                .patiently(|| {
                    sdk.list_tags_for_resource().resource_arn(&arn).set_next_token(next.clone()).send()
                })
                .await
                .map_err(|e| error("codecommit:ListTagsForResource", &label, &e))?;
            owner = owner.or_else(|| reply.tags.as_ref().and_then(|tags| tags.get(OWNER_TAG)).cloned());
            next = reply.next_token.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(Some(Existing { metadata, owner }));
            }
        }
    }

    /// Makes the repository with its key, so that nothing is ever stored under another.
    async fn create(&self, input: &Input, name: &str, owner: &str) -> Result<(RepositoryMetadata, Resource)> {
        let description = input.request.repository.description.clone().unwrap_or_else(|| {
            format!(
                "What Flux runs in EKS cluster {}, namespace {}. Made by eks-flux-bootstrap",
                input.request.cluster, input.request.flux.namespace
            )
        });
        let call = self
            .codecommit
            .sdk()
            .create_repository()
            .repository_name(name)
            .repository_description(description)
            .kms_key_id(&input.key.arn)
            .tags(OWNER_TAG, owner);
        match self.codecommit.patiently(|| call.clone().send()).await {
            Ok(reply) => {
                let metadata = reply.repository_metadata.ok_or_else(|| {
                    StepError::internal(format!(
                        "codecommit:CreateRepository on repository {name}: the reply has no metadata"
                    ))
                })?;
                let resource = resource(&metadata, input, name, Change::Created);
                Ok((metadata, resource))
            }
            // A duplicate run was faster, or our own call landed and its answer was lost.
            Err(e) if code(&e) == Some("RepositoryNameExistsException") => match self.look(name).await? {
                Some(found) => self.converge(input, found, owner).await,
                None => Err(StepError::transient(format!(
                    "repository {name} is said to exist and cannot be found. The step is tried again"
                ))),
            },
            Err(e) => Err(error("codecommit:CreateRepository", &format!("repository {name}"), &e)),
        }
    }

    /// Brings a repository that exists to the key, where it is ours; adopts it, where it is not.
    async fn converge(
        &self,
        input: &Input,
        found: Existing,
        owner: &str,
    ) -> Result<(RepositoryMetadata, Resource)> {
        let Existing { metadata, owner: found_owner } = found;
        let name = metadata.repository_name.clone().unwrap_or_else(|| names::repository(&input.request));
        let has = metadata.kms_key_id.clone().filter(|id| !id.is_empty());
        let same_key = has.as_deref().is_some_and(|id| same_key(id, &input.key.arn));

        if found_owner.as_deref() == Some(owner) {
            if same_key {
                let resource = resource(&metadata, input, &name, Change::Unchanged);
                return Ok((metadata, resource));
            }
            let sdk = self.codecommit.sdk();
            self.codecommit
                .patiently(|| {
                    let call = sdk.update_repository_encryption_key().repository_name(&name);
                    call.kms_key_id(&input.key.arn).send()
                })
                .await
                .map_err(|e| {
                    error("codecommit:UpdateRepositoryEncryptionKey", &format!("repository {name}"), &e)
                })?;
            let before = has.unwrap_or_else(|| "the AWS managed key".to_owned());
            let resource = resource(&metadata, input, &name, Change::Updated)
                .detail(format!("its key was {before} and is now {}", input.key.arn));
            return Ok((metadata, resource));
        }

        let whose = match found_owner {
            Some(other) => format!("it belongs to {other}"),
            None => "it was not made by eks-flux-bootstrap".to_owned(),
        };
        if let Some(id) = has.filter(|_| !same_key)
            && !self.is_aws_managed(&id).await?
        {
            return Err(StepError::conflict(format!(
                "repository {name} exists, {whose}, and uses the customer-managed key {id}, while this run would \
                 give its Git user rights on {} ({}) only. Its key is not changed. Name an alias of {id} in \
                 key.alias, or another repository in repository.name",
                input.key.alias, input.key.arn
            )));
        }
        let resource = resource(&metadata, input, &name, Change::Adopted)
            .detail(format!("{whose}; its key, tags and description stay as they are"));
        Ok((metadata, resource))
    }

    /// An AWS managed key needs no rights of its own, so a repository under it is usable. A key that is
    /// gone was a customer's, since nobody can delete one of AWS'.
    async fn is_aws_managed(&self, id: &str) -> Result<bool> {
        let reply = match self.kms.describe_key().key_id(id).send().await {
            Ok(reply) => reply,
            Err(e) if code(&e) == Some("NotFoundException") => return Ok(false),
            Err(e) => return Err(StepError::from_sdk("kms:DescribeKey", &format!("key {id}"), &e)),
        };
        let manager = reply.key_metadata.and_then(|key| key.key_manager);
        Ok(manager == Some(aws_sdk_kms::types::KeyManagerType::Aws))
    }

    /// The branch with its first commit; answers with the head.
    async fn seed(&self, input: &Input, name: &str, repository: Change) -> Result<(String, Resource)> {
        let branch = &input.request.repository.branch;
        let repo = self.codecommit.repo(name);
        let id = format!("{name}/{branch}");
        let as_it_was = if repository == Change::Adopted { Change::Adopted } else { Change::Unchanged };

        let head = repo.head(branch).await?;
        let base = match &head {
            Head::Commit(commit) => {
                if repo.read_folder(commit, &input.request.flux.path).await?.is_some() {
                    return Ok((commit.clone(), Resource::new(BRANCH, id, as_it_was)));
                }
                Some(commit.as_str())
            }
            Head::NoBranch { default_branch } => Some(default_branch.as_str()),
            Head::Empty => None,
        };
        let mut commit = Commit::new(branch, &readme::message(&input.request)).from_default();
        // A README of any other spelling does the job, too.
        let has_readme = match base {
            Some(at) => repo.read_folder(at, "").await?.is_some_and(|root| {
                root.files.keys().any(|name| name.to_ascii_lowercase().starts_with("readme"))
            }),
            None => false,
        };
        if !has_readme {
            commit = commit.file(File::new("README.md", readme::text(&input.request), Overwrite::IfAbsent));
        }
        let keep = format!("{}/.gitkeep", input.request.flux.path.trim_end_matches('/'));
        commit = commit.file(File::new(&keep, readme::KEEP, Overwrite::IfAbsent));

        let done = repo.commit_files(&commit).await?;
        let change = if done.change == Change::Unchanged { as_it_was } else { done.change };
        let mut resource = Resource::new(BRANCH, id, change);
        if !done.written.is_empty() {
            resource = resource.detail(format!("wrote {}", done.written.join(", ")));
        }
        Ok((done.commit_id, resource))
    }
}

fn resource(metadata: &RepositoryMetadata, input: &Input, name: &str, change: Change) -> Resource {
    let arn = metadata.arn.clone().unwrap_or_else(|| repository_arn(&input.cluster, name));
    Resource::new("AWS::CodeCommit::Repository", name, change).arn(arn)
}

fn repository_arn(cluster: &facts::Cluster, name: &str) -> String {
    format!("arn:{}:codecommit:{}:{}:{name}", cluster.partition(), cluster.region(), cluster.account())
}

/// CodeCommit answers with the ARN; an id alone means the same key.
fn same_key(id: &str, arn: &str) -> bool {
    id == arn || arn.rsplit_once(":key/").is_some_and(|(_, tail)| tail == id)
}
