//! What a step says about each resource.

use serde::{Deserialize, Serialize};

/// What the step did about a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It was not there and is now.
    Created,
    /// It was there, not ours, and already does the job; it is left as it is.
    Adopted,
    /// It was ours and differed.
    Updated,
    /// It was ours and right.
    Unchanged,
    /// A teardown took it away.
    Deleted,
    /// A teardown let its deletion begin; the detail says when it ends.
    Scheduled,
    /// A teardown left it; the detail says why.
    Kept,
    /// A plan: it is to be made.
    Create,
    /// A plan: it is foreign, and used as it is.
    Adopt,
    /// A plan: it is ours and differs; the detail names the attribute, old and new.
    Update,
    /// A plan of a teardown: it is to be taken away.
    Delete,
    /// A plan of a teardown: its deletion is to begin.
    Schedule,
    /// A plan of a teardown: it is to stay.
    Keep,
}

impl Change {
    /// The word as reports spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Change::Created => "created",
            Change::Adopted => "adopted",
            Change::Updated => "updated",
            Change::Unchanged => "unchanged",
            Change::Deleted => "deleted",
            Change::Scheduled => "scheduled",
            Change::Kept => "kept",
            Change::Create => "create",
            Change::Adopt => "adopt",
            Change::Update => "update",
            Change::Delete => "delete",
            Change::Schedule => "schedule",
            Change::Keep => "keep",
        }
    }

    /// The same as a plan says it: what was done is to be done.
    pub fn planned(self) -> Self {
        match self {
            Change::Created => Change::Create,
            Change::Adopted => Change::Adopt,
            Change::Updated => Change::Update,
            Change::Deleted => Change::Delete,
            Change::Scheduled => Change::Schedule,
            Change::Kept => Change::Keep,
            other => other,
        }
    }
}

/// One resource of AWS or Kubernetes in a step's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// CloudFormation's type name (`AWS::KMS::Key`), or the Kubernetes kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// The id or name that the service's own API takes.
    pub id: String,
    /// The ARN, where the resource has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arn: Option<String>,
    /// What was done.
    pub change: Change,
    /// What differed, or why it was adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Resource {
    /// A resource without ARN and detail.
    pub fn new(kind: &str, id: impl Into<String>, change: Change) -> Self {
        Resource { kind: kind.to_owned(), id: id.into(), arn: None, change, detail: None }
    }

    /// Adds the ARN.
    pub fn arn(mut self, arn: impl Into<String>) -> Self {
        self.arn = Some(arn.into());
        self
    }

    /// Adds the detail.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

/// A report in the words of a plan.
pub fn planned(resources: Vec<Resource>) -> Vec<Resource> {
    resources.into_iter().map(|resource| Resource { change: resource.change.planned(), ..resource }).collect()
}

/// What a step answers to a teardown or a rollback, in fact or in plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Removal {
    /// Whether all is gone that is to go; the state machine asks again where it is not.
    pub ready: bool,
    /// Why not; empty when it is.
    pub because: String,
    /// What is deleted, scheduled for deletion, or kept and why. What is not there is not listed.
    pub resources: Vec<Resource>,
}

impl Removal {
    /// All is done.
    pub fn done(resources: Vec<Resource>) -> Self {
        Removal { ready: true, because: String::new(), resources }
    }
}
