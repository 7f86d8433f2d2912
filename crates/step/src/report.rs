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
}

impl Change {
    /// The word as reports spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Change::Created => "created",
            Change::Adopted => "adopted",
            Change::Updated => "updated",
            Change::Unchanged => "unchanged",
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
