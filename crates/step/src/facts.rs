//! What flows from step to step through the state machine.
//!
//! Every function takes one JSON object: the user's `request` as it came, and beside it those of
//! the objects below that the step needs, each under the name of its type in lower case
//! (`cluster`, `network`, `git`, `key`, `repository`, `credentials`). Every function answers with
//! `resources`, the facts it adds, and, where it is polled, [`Readiness`]. None of it is secret.

use serde::{Deserialize, Serialize};

/// From `cluster`: the cluster as `eks:DescribeCluster` describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// Its ARN, from which partition, region and account follow.
    pub arn: String,
    /// The address of its Kubernetes API, `https://…`.
    pub endpoint: String,
    /// The API's certificate authority: a PEM bundle in base64, as EKS gives it.
    pub certificate_authority: String,
    /// When the access entry of the Flux role was made, RFC 3339. A refusal by the Kubernetes API
    /// soon after this moment passes by itself.
    pub access_entry_created_at: String,
}

impl Cluster {
    fn arn_part(&self, index: usize) -> &str {
        self.arn.split(':').nth(index).unwrap_or_default()
    }

    /// `aws`, `aws-cn` or `aws-us-gov`.
    pub fn partition(&self) -> &str {
        self.arn_part(1)
    }

    /// The region's name.
    pub fn region(&self) -> &str {
        self.arn_part(3)
    }

    /// The account's twelve digits.
    pub fn account(&self) -> &str {
        self.arn_part(4)
    }
}

/// From `cluster`: where the endpoint's interfaces go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// The cluster's VPC.
    pub vpc_id: String,
    /// Its private subnets, sorted by id.
    pub subnets: Vec<Subnet>,
}

/// A private subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Subnet {
    /// `subnet-…`
    pub id: String,
    /// The IPv4 block in canonical form.
    pub cidr: String,
    /// The zone's name, as `DescribeVpcEndpointServices` lists zones.
    pub availability_zone: String,
}

/// From `cluster`: the address of the repository over HTTPS, known before it exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Git {
    /// `https://git-codecommit.<region>.amazonaws.com/v1/repos/<name>`, without a slash at its end.
    pub url: String,
}

/// From `key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Key {
    /// The key's ARN.
    pub arn: String,
    /// `alias/…`
    pub alias: String,
}

/// From `repo_seed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Repository {
    /// Its name.
    pub name: String,
    /// Its ARN.
    pub arn: String,
    /// The id that KMS gets as encryption context.
    pub id: String,
    /// The branch that Flux follows.
    pub branch: String,
    /// The branch's head after the step.
    pub commit_id: String,
}

/// From `credentials`. The password itself is nowhere but in the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Credentials {
    /// The ARN of the secret that holds user name and password.
    pub secret_arn: String,
    /// The IAM user.
    pub user_name: String,
    /// The id of the service-specific credential in use (`ACCA…`).
    pub credential_id: String,
}

/// A polled step's answer: polling belongs to the state machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// Whether the thing waited for is there.
    pub ready: bool,
    /// Why not, in the service's own words; empty when ready.
    pub because: String,
}

impl Readiness {
    /// It is there.
    pub fn ready() -> Self {
        Readiness { ready: true, because: String::new() }
    }

    /// It is not, for this reason.
    pub fn not_yet(because: impl Into<String>) -> Self {
        Readiness { ready: false, because: because.into() }
    }
}
