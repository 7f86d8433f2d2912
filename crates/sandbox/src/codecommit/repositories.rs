//! Repositories themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::plumbing::{Git, Problem};
use super::refusal::{Answer, refuse, refuse_with};
use super::{CodeCommit, Metadata, Repository, names, now, pair, repository, save, smart, tags};
use crate::wire::ApiError;
use std::sync::atomic::Ordering;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateRepository {
    repository_name: Option<String>,
    repository_description: Option<String>,
    tags: Option<BTreeMap<String, String>>,
    kms_key_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OneRepository {
    repository_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListRepositories {
    next_token: Option<String>,
    sort_by: Option<String>,
    order: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BatchGetRepositories {
    #[serde(default)]
    repository_names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UpdateRepositoryName {
    old_name: Option<String>,
    new_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UpdateRepositoryDescription {
    repository_name: Option<String>,
    repository_description: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UpdateRepositoryEncryptionKey {
    repository_name: Option<String>,
    kms_key_id: Option<String>,
}

/// Repositories that an account may have.
const LIMIT: usize = 5000;

fn description(text: Option<&str>) -> Answer<Option<String>> {
    match text {
        Some(text) if text.chars().count() > 1000 => Err(refuse("InvalidRepositoryDescriptionException")),
        text => Ok(text.filter(|text| !text.is_empty()).map(str::to_owned)),
    }
}

fn key_id(key: &str) -> Answer<&str> {
    let fits = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":/_-".contains(&byte));
    if fits { Ok(key) } else { Err(refuse("EncryptionKeyInvalidIdException")) }
}

fn exists(name: &str) -> ApiError {
    refuse_with("RepositoryNameExistsException", format!("Repository named {name} already exists"))
}

/// The ARN of the key that AWS manages for CodeCommit: one in an account and region.
pub fn managed_key(region: &str, account: &str) -> String {
    use sha1::{Digest as _, Sha1};
    let digest = Sha1::digest(format!("aws/codecommit {region} {account}").as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    let id = uuid::Builder::from_random_bytes(bytes).into_uuid();
    format!("arn:aws:kms:{region}:{account}:key/{id}")
}

impl CodeCommit {
    fn shown_key(&self, metadata: &Metadata) -> String {
        let managed = || managed_key(&self.settings.region, &self.settings.account);
        metadata.key.clone().unwrap_or_else(managed)
    }

    async fn describe(&self, repository: &Repository) -> Answer<Value> {
        let metadata = repository.metadata();
        #[allow(clippy::cast_precision_loss)]
        let seconds = |milliseconds: i64| json!(milliseconds as f64 / 1000.0);
        let mut value = json!({
            "accountId": self.settings.account,
            "repositoryId": metadata.id,
            "repositoryName": metadata.name,
            "creationDate": seconds(metadata.created),
            "lastModifiedDate": seconds(metadata.modified),
            "cloneUrlHttp": format!("{}/v1/repos/{}", self.settings.base_url.trim_end_matches('/'), metadata.name),
            "cloneUrlSsh": format!(
                "ssh://git-codecommit.{}.amazonaws.com/v1/repos/{}", self.settings.region, metadata.name
            ),
            "Arn": self.arn(&metadata.name),
            "kmsKeyId": self.shown_key(&metadata),
        });
        if let Some(description) = metadata.description {
            value["repositoryDescription"] = json!(description);
        }
        if let Some(branch) = repository.default_branch().await? {
            value["defaultBranch"] = json!(branch);
        }
        Ok(value)
    }

    pub(super) async fn create_repository(&self, input: CreateRepository) -> Answer<Value> {
        let name = names::repository(input.repository_name.as_deref())?;
        let description = description(input.repository_description.as_deref())?;
        let tags = tags::check(input.tags.unwrap_or_default())?;
        let key = input.kms_key_id.as_deref().map(key_id).transpose()?;
        if self.closed.load(Ordering::SeqCst) {
            return Err(refuse("OperationNotAllowedException"));
        }
        if self.find(name).is_some() {
            return Err(exists(name));
        }
        let key = match key {
            Some(key) if key != "aws/codecommit" && key != "alias/aws/codecommit" => {
                Some(self.usable(key).await?)
            }
            _ => None,
        };
        let time = now();
        let id = Uuid::new_v4().to_string();
        let metadata = Metadata {
            id: id.clone(),
            name: name.to_owned(),
            description,
            key,
            tags,
            created: time,
            modified: time,
        };
        let folder = self.settings.root.join(&id);
        std::fs::create_dir_all(&folder).map_err(Problem::from)?;
        smart::install_hooks(&self.settings.root).map_err(Problem::from)?;
        let git = Git::new(folder.clone(), smart::hooks(&self.settings.root));
        git.init().await?;
        save(&git, &metadata).map_err(Problem::from)?;
        let fresh = Arc::new(repository(git, metadata));
        let lost = {
            let mut repositories = self.repositories.write().unwrap_or_else(PoisonError::into_inner);
            if repositories.contains_key(name) {
                Some(exists(name))
            } else if repositories.len() >= LIMIT {
                Some(refuse("RepositoryLimitExceededException"))
            } else {
                repositories.insert(name.to_owned(), fresh.clone());
                None
            }
        };
        if let Some(error) = lost {
            // The folder is ours alone: nobody has seen its id.
            let _ = tokio::fs::remove_dir_all(folder).await;
            return Err(error);
        }
        Ok(json!({"repositoryMetadata": self.describe(&fresh).await?}))
    }

    pub(super) async fn get_repository(&self, input: OneRepository) -> Answer<Value> {
        let repository = self.open(input.repository_name.as_deref()).await?;
        Ok(json!({"repositoryMetadata": self.describe(&repository).await?}))
    }

    pub(super) fn list_repositories(&self, input: ListRepositories) -> Answer<Value> {
        let mut all: Vec<Metadata> = {
            let repositories = self.repositories.read().unwrap_or_else(PoisonError::into_inner);
            repositories.values().map(|repository| repository.metadata()).collect()
        };
        match input.sort_by.as_deref() {
            None | Some("repositoryName") => all.sort_by(|a, b| a.name.cmp(&b.name)),
            Some("lastModifiedDate") => all.sort_by_key(|metadata| metadata.modified),
            Some(_) => return Err(refuse("InvalidSortByException")),
        }
        match input.order.as_deref() {
            None | Some("ascending") => {}
            Some("descending") => all.reverse(),
            Some(_) => return Err(refuse("InvalidOrderException")),
        }
        let (page, next) = self.paginate("repositories", all, input.next_token.as_deref(), None)?;
        let pairs: Vec<Value> = page
            .into_iter()
            .map(|metadata| json!({"repositoryName": metadata.name, "repositoryId": metadata.id}))
            .collect();
        let mut value = json!({"repositories": pairs});
        if let Some(next) = next {
            value["nextToken"] = json!(next);
        }
        Ok(value)
    }

    pub(super) async fn batch_get_repositories(&self, input: BatchGetRepositories) -> Answer<Value> {
        if input.repository_names.is_empty() {
            return Err(refuse("RepositoryNamesRequiredException"));
        }
        if input.repository_names.len() > 100 {
            return Err(refuse("MaximumRepositoryNamesExceededException"));
        }
        let (mut found, mut missing, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for name in &input.repository_names {
            names::repository(Some(name))?;
            let Some(repository) = self.find(name) else {
                missing.push(name);
                continue;
            };
            match self.unlock(&repository).await {
                Ok(()) => found.push(self.describe(&repository).await?),
                Err(error) => {
                    let (code, message) = pair(&error);
                    errors.push(json!({
                        "repositoryName": name,
                        "repositoryId": repository.metadata().id,
                        "errorCode": code,
                        "errorMessage": message,
                    }));
                }
            }
        }
        Ok(json!({"repositories": found, "repositoriesNotFound": missing, "errors": errors}))
    }

    /// Idempotent: a repository that is gone gives a reply without an id.
    pub(super) async fn delete_repository(&self, input: OneRepository) -> Answer<Value> {
        let name = names::repository(input.repository_name.as_deref())?;
        let Some(repository) = self.find(name) else { return Ok(json!({})) };
        self.unlock(&repository).await?;
        {
            let mut repositories = self.repositories.write().unwrap_or_else(PoisonError::into_inner);
            match repositories.get(name) {
                Some(current) if Arc::ptr_eq(current, &repository) => repositories.remove(name),
                _ => return Ok(json!({})),
            };
        }
        tokio::fs::remove_dir_all(repository.git.folder()).await.map_err(Problem::from)?;
        Ok(json!({"repositoryId": repository.metadata().id}))
    }

    pub(super) fn update_repository_name(&self, input: UpdateRepositoryName) -> Answer<Value> {
        let new = names::repository(input.new_name.as_deref())?;
        let repository = self.named(input.old_name.as_deref())?;
        let mut repositories = self.repositories.write().unwrap_or_else(PoisonError::into_inner);
        if repositories.contains_key(new) {
            return Err(exists(new));
        }
        repository.change(|metadata| metadata.name = new.to_owned())?;
        repositories.remove(input.old_name.as_deref().unwrap_or_default());
        repositories.insert(new.to_owned(), repository);
        Ok(Value::Null)
    }

    pub(super) async fn update_repository_description(
        &self,
        input: UpdateRepositoryDescription,
    ) -> Answer<Value> {
        let text = description(input.repository_description.as_deref())?;
        let repository = self.open(input.repository_name.as_deref()).await?;
        repository.change(|metadata| metadata.description = text)?;
        Ok(Value::Null)
    }

    pub(super) async fn update_repository_encryption_key(
        &self,
        input: UpdateRepositoryEncryptionKey,
    ) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let key = input
            .kms_key_id
            .as_deref()
            .filter(|key| !key.is_empty())
            .ok_or_else(|| refuse("EncryptionKeyRequiredException"))?;
        let key = key_id(key)?;
        // What is stored has to be decrypted by the old key before the new one can encrypt it.
        let repository = self.open(input.repository_name.as_deref()).await?;
        let fresh = self.usable(key).await?;
        let before = repository.metadata();
        repository.change(|metadata| metadata.key = Some(fresh.clone()))?;
        Ok(json!({
            "repositoryId": before.id,
            "kmsKeyId": fresh,
            "originalKmsKeyId": self.shown_key(&before),
        }))
    }
}
