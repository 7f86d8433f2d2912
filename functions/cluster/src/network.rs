//! The VPC's DNS, and its private subnets.

use std::collections::BTreeSet;

use ec2::{Cidr, Client, RouteTable};
use step::facts::{Network, Subnet};
use step::request::NetworkOptions;
use step::{Result, StepError};

/// Where subnets are looked for.
pub(crate) struct Place<'a> {
    /// What the request says.
    pub(crate) options: &'a NetworkOptions,
    /// The cluster's VPC.
    pub(crate) vpc_id: &'a str,
    /// The cluster's subnets and those of the Fargate profiles that run Flux: the endpoint lets in
    /// the blocks of these, so none of them may be left out.
    pub(crate) subnet_ids: BTreeSet<String>,
}

/// Looks at the VPC and its subnets. What is missing is added to the list.
pub(crate) async fn look(ec2: &Client, place: &Place<'_>, missing: &mut Vec<String>) -> Result<Network> {
    let vpc_id = place.options.vpc_id.as_deref().unwrap_or(place.vpc_id).to_owned();
    let mut network = Network { vpc_id: vpc_id.clone(), subnets: Vec::new() };
    for (attribute, option) in
        [("enableDnsSupport", "--enable-dns-support"), ("enableDnsHostnames", "--enable-dns-hostnames")]
    {
        let value = match attribute {
            "enableDnsSupport" => ec2.dns_support(&vpc_id).await,
            _ => ec2.dns_hostnames(&vpc_id).await,
        };
        match value {
            Ok(true) => {}
            Ok(false) => missing.push(format!(
                "the attribute {attribute} of {vpc_id} is off, and private DNS needs it: aws ec2 modify-vpc-attribute --vpc-id {vpc_id} {option}"
            )),
            Err(error) if error.code().eq_ignore_ascii_case("InvalidVpcID.NotFound") => {
                missing.push(format!(
                    "{vpc_id} does not exist in this account and region; correct network.vpcId, or leave it out to use the cluster's VPC"
                ));
                return Ok(network);
            }
            Err(error) => return Err(error.on(&vpc_id)),
        }
    }
    network.subnets = subnets(ec2, place, &vpc_id, missing).await?;
    Ok(network)
}

async fn subnets(
    ec2: &Client,
    place: &Place<'_>,
    vpc_id: &str,
    missing: &mut Vec<String>,
) -> Result<Vec<Subnet>> {
    let named: BTreeSet<String> = place.options.subnet_ids.iter().cloned().collect();
    let mut found = if named.is_empty() && vpc_id != place.vpc_id {
        ec2.subnets_of_vpc(vpc_id).await.map_err(|error| error.on(vpc_id))?
    } else {
        let ids = if named.is_empty() { &place.subnet_ids } else { &named };
        let ids: Vec<String> = ids.iter().cloned().collect();
        let found = ec2.subnets(&ids).await.map_err(|error| error.on(&ids.join(", ")))?;
        for id in ids.iter().filter(|id| !found.iter().any(|subnet| subnet.subnet_id == **id)) {
            missing.push(format!(
                "{id} does not exist in this account and region; {}",
                if named.is_empty() {
                    "name the private subnets under network.subnetIds"
                } else {
                    "correct network.subnetIds"
                }
            ));
        }
        found
    };
    found.sort_by(|a, b| a.subnet_id.cmp(&b.subnet_id));
    if !named.is_empty() {
        for subnet in found.iter().filter(|subnet| subnet.vpc_id != vpc_id) {
            missing.push(format!(
                "{} is in {}, not in {vpc_id}; correct network.subnetIds or network.vpcId",
                subnet.subnet_id, subnet.vpc_id
            ));
        }
    } else {
        let tables = ec2.route_tables(vpc_id).await.map_err(|error| error.on(vpc_id))?;
        let all: Vec<String> = found.iter().map(|subnet| subnet.subnet_id.clone()).collect();
        found.retain(|subnet| is_private(&tables, &subnet.subnet_id));
        if found.is_empty() && !all.is_empty() {
            missing.push(format!(
                "none of the subnets {} is private: each has a default route to an internet gateway. Fargate runs pods in private subnets only; name some under network.subnetIds",
                all.join(", ")
            ));
        }
    }
    let mut subnets = Vec::new();
    for subnet in found {
        match subnet.cidr_block.as_deref().and_then(|block| block.parse::<Cidr>().ok()) {
            Some(cidr) => subnets.push(Subnet {
                id: subnet.subnet_id,
                cidr: cidr.to_string(),
                availability_zone: subnet.availability_zone,
            }),
            None => missing.push(format!(
                "{} has no IPv4 block, and the endpoint's security group lets in IPv4 blocks; name other private subnets under network.subnetIds",
                subnet.subnet_id
            )),
        }
    }
    if subnets.is_empty() && missing.is_empty() {
        missing.push(format!(
            "no subnet of {vpc_id} is known; name its private subnets under network.subnetIds"
        ));
    }
    Ok(subnets)
}

/// A subnet's routes are those of its own route table, or else of the VPC's main one.
fn is_private(tables: &[RouteTable], subnet_id: &str) -> bool {
    let table = tables
        .iter()
        .find(|table| table.is_of(subnet_id))
        .or_else(|| tables.iter().find(|table| table.is_main()));
    !table.is_some_and(RouteTable::leads_to_the_internet)
}

/// The DNS suffix of a partition's services, for the partitions that have CodeCommit.
///
/// # Errors
/// `Unsupported` for the others.
pub(crate) fn dns_suffix(partition: &str) -> Result<&'static str> {
    match partition {
        "aws" | "aws-us-gov" => Ok("amazonaws.com"),
        "aws-cn" => Ok("amazonaws.com.cn"),
        other => Err(StepError::unsupported(format!(
            "AWS CodeCommit is not offered in the partition {other}; use a region of aws, aws-cn or aws-us-gov"
        ))),
    }
}
