//! The access entry by which the stack's Flux role may talk to the cluster's Kubernetes API.
//!
//! <https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html>

use aws_sdk_eks::Client;
use aws_sdk_eks::error::ProvideErrorMetadata;
use aws_sdk_eks::primitives::{DateTime, DateTimeFormat};
use aws_sdk_eks::types::{AccessEntry, AccessScope, AccessScopeType};
use step::names::{OWNER_TAG, Owner};
use step::{Change, Resource, Result, StepError, ledger};

const KIND: &str = "AWS::EKS::AccessEntry";
/// EKS's text for a cluster in `CONFIG_MAP` mode; the code, `InvalidRequestException`, has other
/// causes too.
const MODE: &str = "authentication mode must be set";
/// EKS's text for a role that was made a moment ago.
const INVALID_PRINCIPAL: &str = "invalid principal";
/// The entry type of people and programs; the others are for nodes and take no policies.
const STANDARD: &str = "STANDARD";

/// Whom the entry is for, on which cluster.
pub(crate) struct Want<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) role: &'a str,
    pub(crate) policy: String,
    pub(crate) owner: &'a Owner,
}

/// The entry as it was found.
pub(crate) struct Found {
    entry: AccessEntry,
    /// Since when the policy is associated with the whole cluster; nothing where it is not.
    admin: Option<Option<DateTime>>,
}

/// What `CONFIG_MAP` mode means, and the way out.
pub(crate) fn config_map_mode(cluster: &str) -> String {
    format!(
        "the cluster {cluster} takes its users from the aws-auth ConfigMap alone (authentication mode CONFIG_MAP), so this stack cannot be given access by an access entry. Change the mode, which keeps the ConfigMap in force and cannot be undone: aws eks update-cluster-config --name {cluster} --access-config authenticationMode=API_AND_CONFIG_MAP"
    )
}

/// Looks for the entry and its policy.
pub(crate) async fn look(eks: &Client, want: &Want<'_>) -> Result<Option<Found>> {
    let described =
        eks.describe_access_entry().cluster_name(want.cluster).principal_arn(want.role).send().await;
    let entry = match described {
        Ok(output) => output.access_entry,
        Err(error) if error.code() == Some("ResourceNotFoundException") => None,
        Err(error) => {
            if mentions(error.message(), MODE) {
                return Err(StepError::unsupported(config_map_mode(want.cluster)));
            }
            return Err(StepError::from_sdk("eks:DescribeAccessEntry", &want.on(), &error));
        }
    };
    let Some(entry) = entry else { return Ok(None) };
    if let Some(other) = entry.r#type().filter(|kind| *kind != STANDARD) {
        return Err(StepError::conflict(format!(
            "the access entry of {} on the cluster {} has the type {other}, which takes no access policy. Delete it (aws eks delete-access-entry --cluster-name {} --principal-arn {}), then start again",
            want.role, want.cluster, want.cluster, want.role
        )));
    }
    let mut pages = eks
        .list_associated_access_policies()
        .cluster_name(want.cluster)
        .principal_arn(want.role)
        .into_paginator()
        .send();
    let mut admin = None;
    while let Some(page) = pages.next().await {
        let page = page
            .map_err(|error| StepError::from_sdk("eks:ListAssociatedAccessPolicies", &want.on(), &error))?;
        for policy in page.associated_access_policies() {
            let everywhere =
                policy.access_scope().and_then(AccessScope::r#type) == Some(&AccessScopeType::Cluster);
            if everywhere && policy.policy_arn() == Some(&want.policy) {
                admin = Some(policy.associated_at().copied());
            }
        }
    }
    Ok(Some(Found { entry, admin }))
}

/// Makes what is missing. Answers with the resource and the moment of the last change, since which
/// the Kubernetes API may still refuse the role for some seconds.
pub(crate) async fn ensure(
    eks: &Client,
    want: &Want<'_>,
    found: Option<Found>,
) -> Result<(Resource, DateTime)> {
    let (found, created) = match found {
        Some(found) => (found, false),
        None => create(eks, want).await?,
    };
    let so_far = if created { Change::Created } else { Change::Unchanged };
    ledger::note(&Resource::new(KIND, want.role, so_far));
    let (associated, at) = match found.admin {
        Some(at) => (false, at),
        None => (true, associate(eks, want).await?),
    };
    let ours = found.entry.tags().and_then(|tags| tags.get(OWNER_TAG)) == Some(&want.owner.shared());
    let change = match (created, associated, ours) {
        (true, _, _) => Change::Created,
        (false, true, _) => Change::Updated,
        (false, false, true) => Change::Unchanged,
        (false, false, false) => Change::Adopted,
    };
    let mut resource = Resource::new(KIND, want.role, change);
    if let Some(arn) = found.entry.access_entry_arn() {
        resource = resource.arn(arn);
    }
    resource = match change {
        Change::Created => resource.detail("AmazonEKSClusterAdminPolicy on the whole cluster"),
        Change::Updated => resource.detail("AmazonEKSClusterAdminPolicy added, on the whole cluster"),
        Change::Adopted => resource.detail("was there with AmazonEKSClusterAdminPolicy"),
        _ => resource,
    };
    let created_at = found.entry.created_at().copied();
    let since = [created_at, at].into_iter().flatten().max_by_key(DateTime::as_nanos).ok_or_else(|| {
        StepError::transient(format!("{}: EKS does not say since when it exists", want.on()))
    })?;
    Ok((resource, since))
}

async fn create(eks: &Client, want: &Want<'_>) -> Result<(Found, bool)> {
    let created = eks
        .create_access_entry()
        .cluster_name(want.cluster)
        .principal_arn(want.role)
        .r#type(STANDARD)
        // The role is the stack's: all its namespaces on this cluster share the entry.
        .tags(OWNER_TAG, want.owner.shared())
        .send()
        .await;
    let error = match created {
        Ok(output) => {
            let entry = output.access_entry.ok_or_else(|| {
                StepError::transient(format!("{}: EKS made it and does not show it yet", want.on()))
            })?;
            return Ok((Found { entry, admin: None }, true));
        }
        Err(error) => error,
    };
    match error.code() {
        Some("ResourceInUseException") => match look(eks, want).await? {
            Some(found) => Ok((found, false)),
            None => Err(StepError::transient(format!(
                "{}: EKS says that it exists and does not show it yet. The step is tried again",
                want.on()
            ))),
        },
        Some("InvalidRequestException") if mentions(error.message(), MODE) => {
            Err(StepError::unsupported(config_map_mode(want.cluster)))
        }
        Some("InvalidParameterException") if mentions(error.message(), INVALID_PRINCIPAL) => {
            Err(StepError::transient(format!(
                "{}: EKS does not know the role yet (invalid principal). If the stack was deployed a moment ago this passes by itself",
                want.on()
            )))
        }
        _ => Err(StepError::from_sdk("eks:CreateAccessEntry", &want.on(), &error)),
    }
}

async fn associate(eks: &Client, want: &Want<'_>) -> Result<Option<DateTime>> {
    let scope = AccessScope::builder().r#type(AccessScopeType::Cluster).build();
    let output = eks
        .associate_access_policy()
        .cluster_name(want.cluster)
        .principal_arn(want.role)
        .policy_arn(&want.policy)
        .access_scope(scope)
        .send()
        .await
        .map_err(|error| match error.code() {
            // The entry was made a moment ago, and EKS is eventually consistent.
            Some("ResourceNotFoundException") => StepError::transient(format!(
                "{}: EKS does not know it yet. The step is tried again",
                want.on()
            )),
            _ => StepError::from_sdk("eks:AssociateAccessPolicy", &want.on(), &error),
        })?;
    Ok(output.associated_access_policy.and_then(|policy| policy.associated_at))
}

impl Want<'_> {
    fn on(&self) -> String {
        format!("the access entry of {} on the cluster {}", self.role, self.cluster)
    }
}

/// RFC 3339.
pub(crate) fn rfc3339(at: &DateTime) -> Result<String> {
    at.fmt(DateTimeFormat::DateTime).map_err(|_| StepError::internal("EKS gave a time that no calendar has"))
}

fn mentions(message: Option<&str>, text: &str) -> bool {
    message.is_some_and(|message| message.contains(text))
}
