//! Branches.

use serde::Deserialize;
use serde_json::{Value, json};

use super::plumbing::NO_OBJECT;
use super::refusal::{Answer, refuse, refuse_with};
use super::{CodeCommit, names};
use crate::wire::{ApiError, Caller};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateBranch {
    repository_name: Option<String>,
    branch_name: Option<String>,
    commit_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OneBranch {
    repository_name: Option<String>,
    branch_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListBranches {
    repository_name: Option<String>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UpdateDefaultBranch {
    repository_name: Option<String>,
    default_branch_name: Option<String>,
}

/// The error of a branch that isn't there.
pub(super) fn missing(branch: &str) -> ApiError {
    refuse_with("BranchDoesNotExistException", format!("Branch {branch} does not exist"))
}

impl CodeCommit {
    pub(super) async fn create_branch(&self, input: CreateBranch, caller: &Caller) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let branch = names::branch(input.branch_name.as_deref())?;
        let commit = input
            .commit_id
            .as_deref()
            .filter(|commit| !commit.is_empty())
            .ok_or_else(|| refuse("CommitIdRequiredException"))?;
        if !names::is_object_id(commit) {
            return Err(refuse("InvalidCommitIdException"));
        }
        let repository = self.open(input.repository_name.as_deref()).await?;
        let Some(commit) = repository.git.resolve(commit, "commit").await? else {
            return Err(refuse("CommitDoesNotExistException"));
        };
        let reference = format!("refs/heads/{branch}");
        let _held = repository.references.lock().await;
        if repository.tip(branch).await?.is_some()
            || !repository.git.swap(&reference, &commit, NO_OBJECT).await?
        {
            return Err(refuse("BranchNameExistsException"));
        }
        repository.adopt_default(branch).await?;
        repository.change(|_| ())?;
        self.announce(&repository.metadata(), &reference, NO_OBJECT, &commit, &caller.arn);
        Ok(Value::Null)
    }

    pub(super) async fn get_branch(&self, input: OneBranch) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let branch = names::branch(input.branch_name.as_deref())?;
        let repository = self.open(input.repository_name.as_deref()).await?;
        let tip = repository.tip(branch).await?.ok_or_else(|| missing(branch))?;
        Ok(json!({"branch": {"branchName": branch, "commitId": tip}}))
    }

    pub(super) async fn list_branches(&self, input: ListBranches) -> Answer<Value> {
        let repository = self.open(input.repository_name.as_deref()).await?;
        let branches: Vec<String> = repository
            .git
            .references("refs/heads/")
            .await?
            .into_iter()
            .filter_map(|(name, _)| name.strip_prefix("refs/heads/").map(str::to_owned))
            .collect();
        let (page, next) = self.paginate("branches", branches, input.next_token.as_deref(), None)?;
        let mut value = json!({"branches": page});
        if let Some(next) = next {
            value["nextToken"] = json!(next);
        }
        Ok(value)
    }

    /// Idempotent: a branch that is gone gives an empty reply.
    pub(super) async fn delete_branch(&self, input: OneBranch, caller: &Caller) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let branch = names::branch(input.branch_name.as_deref())?;
        let repository = self.open(input.repository_name.as_deref()).await?;
        let _held = repository.references.lock().await;
        if repository.default_branch().await?.as_deref() == Some(branch) {
            return Err(refuse("DefaultBranchCannotBeDeletedException"));
        }
        let Some(tip) = repository.tip(branch).await? else { return Ok(json!({})) };
        let reference = format!("refs/heads/{branch}");
        repository.git.delete(&reference, &tip).await?;
        repository.change(|_| ())?;
        self.announce(&repository.metadata(), &reference, &tip, NO_OBJECT, &caller.arn);
        Ok(json!({"deletedBranch": {"branchName": branch, "commitId": tip}}))
    }

    /// The same branch again is a success.
    pub(super) async fn update_default_branch(&self, input: UpdateDefaultBranch) -> Answer<Value> {
        names::repository(input.repository_name.as_deref())?;
        let branch = names::branch(input.default_branch_name.as_deref())?;
        let repository = self.open(input.repository_name.as_deref()).await?;
        let _held = repository.references.lock().await;
        repository.tip(branch).await?.ok_or_else(|| missing(branch))?;
        if repository.default_branch().await?.as_deref() != Some(branch) {
            repository.git.set_head(&format!("refs/heads/{branch}")).await?;
            repository.change(|_| ())?;
        }
        Ok(Value::Null)
    }
}
