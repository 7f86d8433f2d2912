//! The step `cluster`: the preflight. It finds out everything that the other steps take for
//! granted, lists all that is missing in one error, and only then makes its one resource, the
//! access entry of the stack's Flux role.

mod access;
mod fargate;
mod network;

use std::collections::BTreeSet;

use aws_config::SdkConfig;
use aws_sdk_eks::Client;
use aws_sdk_eks::error::ProvideErrorMetadata;
use aws_sdk_eks::types::{AuthenticationMode, ClusterStatus, FargateProfile};
use serde::Serialize;
use step::facts::{Cluster, Git, Network};
use step::names::{self, Owner};
use step::runtime::{Stack, env_var};
use step::{Request, Resource, Result, StepError};

/// What the template tells this function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    flux_role_arn: String,
    git_endpoint: Option<String>,
}

impl Settings {
    /// From the ARN of the role under which the functions talk to Kubernetes, as IAM has it, and
    /// the address of the Git endpoint where it is not the region's own.
    ///
    /// # Errors
    /// `Internal`, where the ARN is not a role's: EKS takes no session ARNs, and a session's ARN
    /// does not tell the role's path.
    pub fn new(flux_role_arn: &str, git_endpoint: Option<&str>) -> Result<Settings> {
        let parts: Vec<&str> = flux_role_arn.splitn(6, ':').collect();
        if parts.len() != 6 || parts[0] != "arn" || parts[2] != "iam" || !parts[5].starts_with("role/") {
            return Err(StepError::internal(format!(
                "FLUX_ROLE_ARN: {flux_role_arn:?} is not the ARN of an IAM role; deploy the stack again from its template"
            )));
        }
        Ok(Settings {
            flux_role_arn: flux_role_arn.to_owned(),
            git_endpoint: git_endpoint
                .map(|url| url.trim_end_matches('/').to_owned())
                .filter(|url| !url.is_empty()),
        })
    }

    /// Reads `FLUX_ROLE_ARN` and, where set, `GIT_ENDPOINT`.
    ///
    /// # Errors
    /// `Internal`, where the template did not set them rightly.
    pub fn from_env() -> Result<Settings> {
        Settings::new(&env_var("FLUX_ROLE_ARN")?, std::env::var("GIT_ENDPOINT").ok().as_deref())
    }
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The request with every default filled in, for the steps behind this one.
    pub request: Request,
    /// The cluster.
    pub cluster: Cluster,
    /// Where the endpoint's interfaces go.
    pub network: Network,
    /// The address of the repository.
    pub git: Git,
    /// The access entry.
    pub resources: Vec<Resource>,
}

/// The step with its clients.
#[derive(Debug, Clone)]
pub struct Step {
    eks: Client,
    ec2: ec2::Client,
    region: String,
    stack: Stack,
    settings: Settings,
}

impl Step {
    /// Makes the clients.
    pub fn new(config: &SdkConfig, stack: Stack, settings: Settings) -> Self {
        Step::with_client(config, ec2::Client::new(config), stack, settings)
    }

    /// The same over an EC2 client of the caller's.
    pub fn with_client(config: &SdkConfig, ec2: ec2::Client, stack: Stack, settings: Settings) -> Self {
        let region = config.region().map(|region| region.as_ref().to_owned()).unwrap_or_default();
        Step { eks: Client::new(config), ec2, region, stack, settings }
    }

    /// Checks the cluster and makes sure that the Flux role may talk to it.
    ///
    /// # Errors
    /// `InvalidInput`; `PrerequisiteMissing` with all that is missing; `Unsupported` where the
    /// cluster or its partition cannot do it, with all that is missing as well; `Conflict` where the
    /// role has an access entry of another type; `Denied`; `Transient`. Whichever it is, nothing was
    /// written, unless it came from the writing of the access entry itself.
    pub async fn apply(&self, request: Request) -> Result<Output> {
        request.check()?;
        let Checked { cluster, network, git } = self.check(&request).await?;
        let owner = Owner::new(&self.stack.name, &request);
        let want = access::Want {
            cluster: &cluster.name,
            role: &self.settings.flux_role_arn,
            policy: format!(
                "arn:{}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy",
                cluster.partition()
            ),
            owner: &owner,
        };
        let found = access::look(&self.eks, &want).await?;
        let (entry, since) = access::ensure(&self.eks, &want, found).await?;
        let cluster = Cluster { access_entry_created_at: access::rfc3339(&since)?, ..cluster };
        Ok(Output { request, cluster, network, git, resources: vec![entry] })
    }

    /// Reads everything and writes nothing. The access entry's moment is left empty.
    async fn check(&self, request: &Request) -> Result<Checked> {
        let name = &request.cluster;
        let described = self.describe(name).await?;
        let cluster = Cluster {
            name: name.clone(),
            arn: described.arn().unwrap_or_default().to_owned(),
            endpoint: described.endpoint().unwrap_or_default().to_owned(),
            certificate_authority: described
                .certificate_authority()
                .and_then(|certificate| certificate.data())
                .unwrap_or_default()
                .to_owned(),
            access_entry_created_at: String::new(),
        };
        // Without CodeCommit there is nothing to prepare.
        let suffix = network::dns_suffix(cluster.partition())?;

        let mut missing = Vec::new();
        let mut unsupported = Vec::new();
        // A cluster that is UPDATING serves its API and takes access entries.
        let up = matches!(described.status(), Some(ClusterStatus::Active | ClusterStatus::Updating));
        if !up {
            missing.push(unready(&described));
        }
        let mode = described.access_config().and_then(|config| config.authentication_mode());
        // Clusters from before access entries describe no access configuration at all.
        if mode.is_none_or(|mode| *mode == AuthenticationMode::ConfigMap) {
            unsupported.push(access::config_map_mode(name));
        }

        let namespace = &request.flux.namespace;
        let profiles = self.profiles(name).await?;
        let selected = fargate::select(&profiles, namespace, &request.flux.all_components());
        let fargate_subnets: Vec<&FargateProfile> = match selected {
            Ok(selected) => selected,
            Err(_) if cluster.partition() == "aws-us-gov" => {
                unsupported.push(
                    "Fargate is not offered in AWS GovCloud (US), and Flux is to run on Fargate. Use a cluster in another partition"
                        .to_owned(),
                );
                Vec::new()
            }
            Err(why) => {
                missing.push(format!(
                    "no active Fargate profile runs all of Flux's controllers in the namespace {namespace}: {why}. Make one whose selector names the namespace and no labels: aws eks create-fargate-profile --cluster-name {name} --fargate-profile-name {namespace} --pod-execution-role-arn <role> --subnets <private subnets> --selectors namespace={namespace}"
                ));
                Vec::new()
            }
        };

        let config = described.resources_vpc_config();
        let mut network = Network { vpc_id: String::new(), subnets: Vec::new() };
        match config.and_then(|config| config.vpc_id()).filter(|id| !id.is_empty()) {
            Some(vpc_id) => {
                let own = config.map(|config| config.subnet_ids()).unwrap_or_default();
                let place = network::Place {
                    options: &request.network,
                    vpc_id,
                    subnet_ids: fargate_subnets
                        .iter()
                        .flat_map(|profile| profile.subnets())
                        .chain(own)
                        .cloned()
                        .collect::<BTreeSet<String>>(),
                };
                network = network::look(&self.ec2, &place, &mut missing).await?;
            }
            None => missing.push(format!(
                "EKS describes no VPC for the cluster {name}, as for one that is only registered with it; name a cluster that EKS runs"
            )),
        }

        refuse(name, &unsupported, &missing)?;
        if cluster.endpoint.is_empty() || cluster.certificate_authority.is_empty() {
            return Err(StepError::transient(format!(
                "the cluster {name} is active and EKS does not show its endpoint and certificate authority yet. The step is tried again"
            )));
        }
        let endpoint = self
            .settings
            .git_endpoint
            .clone()
            .unwrap_or_else(|| format!("https://git-codecommit.{}.{suffix}", cluster.region()));
        let git = Git { url: format!("{endpoint}/v1/repos/{}", names::repository(request)) };
        Ok(Checked { cluster, network, git })
    }

    async fn describe(&self, name: &str) -> Result<aws_sdk_eks::types::Cluster> {
        let not_there = || {
            StepError::prerequisite_missing(format!(
                "no EKS cluster named {name} in the region {} of this account. Correct the request's cluster, or deploy this stack in the cluster's region, then start again",
                self.region
            ))
        };
        match self.eks.describe_cluster().name(name).send().await {
            Ok(output) => output.cluster.ok_or_else(not_there),
            Err(error) if error.code() == Some("ResourceNotFoundException") => Err(not_there()),
            Err(error) => Err(StepError::from_sdk("eks:DescribeCluster", name, &error)),
        }
    }

    async fn profiles(&self, cluster: &str) -> Result<Vec<FargateProfile>> {
        let mut pages = self.eks.list_fargate_profiles().cluster_name(cluster).into_paginator().send();
        let mut profiles = Vec::new();
        while let Some(page) = pages.next().await {
            let page =
                page.map_err(|error| StepError::from_sdk("eks:ListFargateProfiles", cluster, &error))?;
            for name in page.fargate_profile_names() {
                let described = self
                    .eks
                    .describe_fargate_profile()
                    .cluster_name(cluster)
                    .fargate_profile_name(name)
                    .send()
                    .await;
                match described {
                    Ok(output) => profiles.extend(output.fargate_profile),
                    // It was deleted between the two calls.
                    Err(error) if error.code() == Some("ResourceNotFoundException") => {}
                    Err(error) => {
                        let on = format!("the profile {name} of the cluster {cluster}");
                        return Err(StepError::from_sdk("eks:DescribeFargateProfile", &on, &error));
                    }
                }
            }
        }
        Ok(profiles)
    }
}

/// What the checks found out.
struct Checked {
    cluster: Cluster,
    network: Network,
    git: Git,
}

fn unready(cluster: &aws_sdk_eks::types::Cluster) -> String {
    let name = cluster.name().unwrap_or_default();
    let status = cluster.status().map_or("in no known state", ClusterStatus::as_str);
    let next = match status {
        "CREATING" | "PENDING" => format!("wait for it: aws eks wait cluster-active --name {name}"),
        "DELETING" => "name another one".to_owned(),
        _ => format!("look at its health: aws eks describe-cluster --name {name} --query cluster.health"),
    };
    format!("the cluster {name} is {status} instead of ACTIVE; {next}")
}

/// One error for all that was found.
fn refuse(name: &str, unsupported: &[String], missing: &[String]) -> Result<()> {
    let list = |items: &[String]| items.iter().map(|item| format!("\n- {item}")).collect::<String>();
    match (unsupported, missing) {
        ([], []) => Ok(()),
        ([], missing) => Err(StepError::prerequisite_missing(format!(
            "the cluster {name} is not ready for Flux; nothing was written. Put these right, then start again:{}",
            list(missing)
        ))),
        ([one], []) => {
            Err(StepError::unsupported(format!("{one}. Nothing was written; start again afterwards")))
        }
        (unsupported, missing) => Err(StepError::unsupported(format!(
            "the cluster {name} cannot be prepared as it is; nothing was written. Put these right, then start again:{}{}",
            list(unsupported),
            list(missing)
        ))),
    }
}
