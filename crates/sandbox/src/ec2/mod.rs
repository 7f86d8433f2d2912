//! EC2, as far as VPCs, security groups and interface endpoints go.
//!
//! It speaks EC2's query protocol (version 2016-11-15) and is as unkind as the real one: endpoints
//! go through `pending` and `deleting`, private DNS and zones conflict, groups that interfaces use
//! cannot be deleted, client tokens are remembered, parameters that do not exist are refused.
//!
//! What it does not imitate: instances, addresses, gateways as resources of their own (they are
//! only names in routes), gateway endpoints, default VPCs, IPv6 subnets, and quotas other than
//! those of endpoints and rules. Nothing is routed and no name is resolved.

mod cidr;
mod endpoints;
mod filter;
mod form;
mod groups;
mod network;
mod tags;
mod xml;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::clock;
use crate::wire::{ApiError, Call, Reply};
use cidr::Cidr;
use endpoints::{Endpoint, Token};
use form::Form;
use groups::Group;
use network::{Interface, RouteTable, Subnet, Vpc};
use tags::Tags;
use xml::Xml;

/// How the emulated EC2 behaves. Changes made by [`Ec2::configure`] hold from the next call on.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Twelve digits.
    pub account: String,
    /// The region in which [`Ec2::seed`] makes things. Others are there too, and empty.
    pub region: String,
    /// Letters of the region's zones.
    pub zones: Vec<String>,
    /// What endpoints are offered for.
    pub services: Vec<Service>,
    /// How long an endpoint stays `pending`.
    pub pending: Duration,
    /// How long it stays `deleting`, with its interfaces.
    pub deleting: Duration,
    /// How long a change of an endpoint refuses the next one.
    pub modifying: Duration,
    /// How long a new endpoint or group is unknown to all calls but its own.
    pub visible_after: Duration,
    /// Code and text with which endpoints fail instead of becoming available.
    pub endpoint_failure: Option<(String, String)>,
    /// How many items a page has where the call does not say.
    pub page_size: usize,
}

/// A service that interface endpoints are offered for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The last part of its name: `git-codecommit`.
    pub name: String,
    /// Letters of the zones that offer it; empty for all.
    pub zones: Vec<String>,
}

impl Service {
    /// A service that all zones offer.
    pub fn new(name: &str) -> Self {
        Service { name: name.to_owned(), zones: Vec::new() }
    }
}

impl Default for Settings {
    fn default() -> Self {
        let services = [
            "codecommit",
            "codecommit-fips",
            "ec2",
            "eks",
            "events",
            "git-codecommit",
            "git-codecommit-fips",
            "kms",
            "logs",
            "secretsmanager",
            "states",
            "sts",
        ];
        Settings {
            account: "000000000000".to_owned(),
            region: "eu-west-1".to_owned(),
            zones: ["a", "b", "c"].map(str::to_owned).to_vec(),
            services: services.map(Service::new).to_vec(),
            pending: Duration::from_secs(3),
            deleting: Duration::from_secs(2),
            modifying: Duration::ZERO,
            visible_after: Duration::ZERO,
            endpoint_failure: None,
            page_size: 1000,
        }
    }
}

/// A network as a cluster wants it, made by [`Ec2::seed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    /// A VPC with both DNS attributes on, `10.0.0.0/16`.
    pub vpc_id: String,
    /// Subnets in the first two zones whose default route leads to a NAT gateway.
    pub private: Vec<SeedSubnet>,
    /// Subnets in the same zones whose default route leads to an internet gateway.
    pub public: Vec<SeedSubnet>,
    /// A group for the cluster's own interfaces.
    pub cluster_group_id: String,
}

/// A subnet of a [`Seed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedSubnet {
    /// `subnet-…`
    pub id: String,
    /// Its IPv4 block.
    pub cidr: String,
    /// Its zone's name.
    pub zone: String,
}

/// The emulated EC2.
#[derive(Debug)]
pub struct Ec2 {
    world: Mutex<World>,
}

#[derive(Debug)]
struct World {
    settings: Settings,
    regions: BTreeMap<String, Region>,
    /// By how much [`Ec2::advance`] has moved the clock on.
    ahead: Duration,
}

/// What a call is answered with beside the region's state.
#[derive(Debug)]
struct Context<'a> {
    settings: &'a Settings,
    now: OffsetDateTime,
}

#[derive(Debug)]
struct Region {
    name: String,
    zones: Vec<String>,
    serial: u64,
    vpcs: Vec<Vpc>,
    subnets: Vec<Subnet>,
    tables: Vec<RouteTable>,
    groups: Vec<Group>,
    interfaces: Vec<Interface>,
    endpoints: Vec<Endpoint>,
    tokens: Vec<Token>,
    /// VPC and name of private DNS zones that somebody else made.
    private_zones: Vec<(String, String)>,
}

type Handler = fn(&mut Region, &Form, &Context<'_>) -> Result<Xml, ApiError>;

/// Every action with the parameters that it has (the first parts of their names).
const ACTIONS: &[(&str, &[&str], Handler)] = &[
    (
        "CreateVpcEndpoint",
        &[
            "VpcEndpointType",
            "VpcId",
            "ServiceName",
            "PolicyDocument",
            "SubnetId",
            "SecurityGroupId",
            "ClientToken",
            "PrivateDnsEnabled",
            "TagSpecification",
        ],
        endpoints::create,
    ),
    ("DescribeVpcEndpoints", &["VpcEndpointId", "Filter", "MaxResults", "NextToken"], endpoints::describe),
    ("DeleteVpcEndpoints", &["VpcEndpointId"], endpoints::delete),
    (
        "ModifyVpcEndpoint",
        &[
            "VpcEndpointId",
            "ResetPolicy",
            "PolicyDocument",
            "AddSubnetId",
            "RemoveSubnetId",
            "AddSecurityGroupId",
            "RemoveSecurityGroupId",
            "PrivateDnsEnabled",
        ],
        endpoints::modify,
    ),
    (
        "DescribeVpcEndpointServices",
        &["ServiceName", "Filter", "MaxResults", "NextToken"],
        endpoints::describe_services,
    ),
    ("CreateSecurityGroup", &["GroupDescription", "GroupName", "VpcId", "TagSpecification"], groups::create),
    (
        "DescribeSecurityGroups",
        &["GroupId", "GroupName", "Filter", "MaxResults", "NextToken"],
        groups::describe,
    ),
    ("AuthorizeSecurityGroupIngress", RULES, groups::authorize_ingress),
    ("AuthorizeSecurityGroupEgress", RULES, groups::authorize_egress),
    ("RevokeSecurityGroupIngress", RULES, groups::revoke_ingress),
    ("RevokeSecurityGroupEgress", RULES, groups::revoke_egress),
    (
        "DescribeSecurityGroupRules",
        &["SecurityGroupRuleId", "Filter", "MaxResults", "NextToken"],
        groups::describe_rules,
    ),
    ("DeleteSecurityGroup", &["GroupId"], groups::delete),
    ("CreateTags", &["ResourceId", "Tag"], tags::create),
    ("DeleteTags", &["ResourceId", "Tag"], tags::delete),
    ("DescribeTags", &["Filter", "MaxResults", "NextToken"], tags::describe),
    ("DescribeVpcs", &["VpcId", "Filter", "MaxResults", "NextToken"], network::describe_vpcs),
    ("CreateVpc", &["CidrBlock", "TagSpecification"], network::create_vpc),
    ("DescribeVpcAttribute", &["VpcId", "Attribute"], network::describe_vpc_attribute),
    (
        "ModifyVpcAttribute",
        &["VpcId", "EnableDnsSupport", "EnableDnsHostnames"],
        network::modify_vpc_attribute,
    ),
    ("DescribeSubnets", &["SubnetId", "Filter", "MaxResults", "NextToken"], network::describe_subnets),
    (
        "CreateSubnet",
        &["VpcId", "CidrBlock", "AvailabilityZone", "AvailabilityZoneId", "TagSpecification"],
        network::create_subnet,
    ),
    (
        "DescribeRouteTables",
        &["RouteTableId", "Filter", "MaxResults", "NextToken"],
        network::describe_route_tables,
    ),
    (
        "DescribeAvailabilityZones",
        &["ZoneName", "ZoneId", "Filter", "AllAvailabilityZones"],
        network::describe_zones,
    ),
    (
        "DescribeNetworkInterfaces",
        &["NetworkInterfaceId", "Filter", "MaxResults", "NextToken"],
        network::describe_interfaces,
    ),
];

const RULES: &[&str] =
    &["GroupId", "IpPermissions", "CidrIp", "IpProtocol", "FromPort", "ToPort", "SecurityGroupRuleId"];

impl Ec2 {
    /// An EC2 without anything in it.
    pub fn new(settings: Settings) -> Self {
        Ec2 { world: Mutex::new(World { settings, regions: BTreeMap::new(), ahead: Duration::ZERO }) }
    }

    /// Answers a call.
    pub async fn call(&self, call: &Call) -> Reply {
        let request_id = uuid::Uuid::new_v4().to_string();
        let form = Form::read(call);
        let action = form.get("Action").unwrap_or(&call.action);
        let result = self.lock().answer(&call.region, action, &form);
        let (status, body) = match result {
            Ok(xml) => (200, xml.reply(action, &request_id)),
            Err(error) => (error.status, xml::error(&error.code, &error.message, &request_id)),
        };
        let mut reply = Reply::new(Body::from(body));
        *reply.status_mut() = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::BAD_REQUEST);
        let headers = reply.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/xml;charset=UTF-8"));
        if let Ok(id) = http::HeaderValue::try_from(request_id) {
            headers.insert("x-amzn-requestid", id);
        }
        reply
    }

    /// Makes the network of a cluster in the settings' region.
    pub fn seed(&self) -> Seed {
        let mut world = self.lock();
        let region = world.settings.region.clone();
        world.with(&region, |region, context| region.seed(context))
    }

    /// Changes the settings.
    pub fn configure(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.lock().settings);
    }

    /// Moves this EC2's clock on, so that nobody has to wait for a state.
    pub fn advance(&self, by: Duration) {
        self.lock().ahead += by;
    }

    /// Sets a VPC's `enableDnsSupport` and `enableDnsHostnames`.
    pub fn set_dns(&self, vpc_id: &str, support: bool, hostnames: bool) {
        for region in self.lock().regions.values_mut() {
            for vpc in region.vpcs.iter_mut().filter(|vpc| vpc.id == vpc_id) {
                (vpc.dns_support, vpc.dns_hostnames) = (support, hostnames);
            }
        }
    }

    /// Associates a private DNS zone of somebody else's with a VPC, which is in the way of private
    /// DNS for the same name.
    pub fn add_private_zone(&self, vpc_id: &str, name: &str) {
        for region in self.lock().regions.values_mut() {
            if region.vpcs.iter().any(|vpc| vpc.id == vpc_id) {
                region.private_zones.push((vpc_id.to_owned(), name.to_owned()));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl crate::edge::Service for Ec2 {
    fn answer<'a>(&'a self, call: &'a Call) -> futures::future::BoxFuture<'a, Option<Reply>> {
        Box::pin(async move { Some(self.call(call).await) })
    }
}

impl World {
    fn answer(&mut self, region: &str, action: &str, form: &Form) -> Result<Xml, ApiError> {
        let Some((_, known, handler)) = ACTIONS.iter().find(|(name, _, _)| *name == action) else {
            return Err(ApiError::new(
                "InvalidAction",
                format!("The action {action} is not valid for this web service."),
            ));
        };
        form.check(known)?;
        let dry = form.flag("DryRun")?.unwrap_or(false);
        if dry {
            return Err(ApiError::new(
                "DryRunOperation",
                "Request would have succeeded, but DryRun flag is set.",
            )
            .status(412));
        }
        self.with(region, |region, context| handler(region, form, context))
    }

    fn with<T>(&mut self, region: &str, work: impl FnOnce(&mut Region, &Context<'_>) -> T) -> T {
        let settings = &self.settings;
        let name = if region.is_empty() { &settings.region } else { region };
        let region =
            self.regions.entry(name.to_owned()).or_insert_with(|| Region::new(name, &settings.zones));
        let context = Context { settings, now: clock::now() + self.ahead };
        region.settle(context.now);
        work(region, &context)
    }
}

impl Region {
    fn new(name: &str, letters: &[String]) -> Self {
        Region {
            name: name.to_owned(),
            zones: letters.iter().map(|letter| format!("{name}{letter}")).collect(),
            serial: 0,
            vpcs: Vec::new(),
            subnets: Vec::new(),
            tables: Vec::new(),
            groups: Vec::new(),
            interfaces: Vec::new(),
            endpoints: Vec::new(),
            tokens: Vec::new(),
            private_zones: Vec::new(),
        }
    }

    /// A new id. Ids follow from region and order, so that two runs of a test read alike.
    fn fresh(&mut self, prefix: &str) -> String {
        self.serial += 1;
        let digest = Sha256::digest(format!("{} {prefix} {}", self.name, self.serial));
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{prefix}-0{}", &hex[..16])
    }

    fn dns_suffix(&self) -> &'static str {
        if self.name.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
    }

    /// The tags of whatever has this id.
    fn tags_of(&mut self, id: &str, context: &Context<'_>) -> Result<&mut Tags, ApiError> {
        // The checks come first, since they know each kind's own error.
        match id.split('-').next().unwrap_or_default() {
            "vpce" => self.endpoint(id, context).map(|_| ())?,
            "sg" => self.group(id, context).map(|_| ())?,
            "vpc" => self.vpc(id).map(|_| ())?,
            "subnet" => self.subnet(id).map(|_| ())?,
            _ => {}
        }
        let vpcs = self.vpcs.iter_mut().map(|item| (&item.id, &mut item.tags));
        let subnets = self.subnets.iter_mut().map(|item| (&item.id, &mut item.tags));
        let tables = self.tables.iter_mut().map(|item| (&item.id, &mut item.tags));
        let groups = self.groups.iter_mut().map(|item| (&item.id, &mut item.tags));
        let interfaces = self.interfaces.iter_mut().map(|item| (&item.id, &mut item.tags));
        let endpoints = self.endpoints.iter_mut().map(|item| (&item.id, &mut item.tags));
        vpcs.chain(subnets)
            .chain(tables)
            .chain(groups)
            .chain(interfaces)
            .chain(endpoints)
            .find(|(other, _)| *other == id)
            .map(|(_, tags)| tags)
            .ok_or_else(|| ApiError::new("InvalidID", format!("The ID '{id}' is not valid")))
    }

    /// Type, id and tags of everything that calls can see.
    fn tagged(&self, context: &Context<'_>) -> Vec<(&'static str, &str, &Tags)> {
        let mut all: Vec<(&'static str, &str, &Tags)> = Vec::new();
        all.extend(self.vpcs.iter().map(|item| ("vpc", item.id.as_str(), &item.tags)));
        all.extend(self.subnets.iter().map(|item| ("subnet", item.id.as_str(), &item.tags)));
        all.extend(self.tables.iter().map(|item| ("route-table", item.id.as_str(), &item.tags)));
        all.extend(self.interfaces.iter().map(|item| ("network-interface", item.id.as_str(), &item.tags)));
        let groups = self.groups.iter().filter(|item| item.visible_at <= context.now);
        all.extend(groups.map(|item| ("security-group", item.id.as_str(), &item.tags)));
        let endpoints = self.endpoints.iter().filter(|item| item.visible_at <= context.now);
        all.extend(endpoints.map(|item| ("vpc-endpoint", item.id.as_str(), &item.tags)));
        all
    }

    fn seed(&mut self, context: &Context<'_>) -> Seed {
        fn named(name: &str) -> Tags {
            Tags::from([("Name".to_owned(), name.to_owned())])
        }
        fn block(text: &str) -> Cidr {
            Cidr::parse(text).unwrap_or_else(|| unreachable!("{text} is a block"))
        }
        let vpc_id = self.add_vpc(block("10.0.0.0/16"), named("demo"), context);
        for vpc in self.vpcs.iter_mut().filter(|vpc| vpc.id == vpc_id) {
            vpc.dns_hostnames = true;
        }
        let (internet, nat) = (self.fresh("igw"), self.fresh("nat"));
        let everywhere = "0.0.0.0/0".to_owned();
        let zones: Vec<String> = self.zones.iter().take(2).cloned().collect();
        let mut subnets = |public: bool, first: u8, role: &str| {
            let kind = if public { "public" } else { "private" };
            let target = if public { &internet } else { &nat };
            let table = self.add_table(
                &vpc_id,
                vec![(everywhere.clone(), target.clone())],
                named(&format!("demo-{kind}")),
            );
            let mut made = Vec::new();
            for (index, zone) in zones.iter().enumerate() {
                let cidr = block(&format!("10.0.{}.0/24", first + index as u8));
                let mut tags = named(&format!("demo-{kind}-{zone}"));
                tags.insert(role.to_owned(), "1".to_owned());
                let id = self.add_subnet(&vpc_id, cidr, zone, public, tags);
                self.associate(&table, &id);
                made.push(SeedSubnet { id, cidr: cidr.to_string(), zone: zone.clone() });
            }
            made
        };
        let private = subnets(false, 1, "kubernetes.io/role/internal-elb");
        let public = subnets(true, 101, "kubernetes.io/role/elb");
        let group = groups::add(
            self,
            &vpc_id,
            "eks-cluster-sg-demo",
            "EKS created security group applied to the cluster's interfaces",
            named("eks-cluster-sg-demo"),
            context,
        );
        for made in self.groups.iter_mut().filter(|made| made.id == group) {
            made.visible_at = context.now;
        }
        Seed { vpc_id, private, public, cluster_group_id: group }
    }
}

#[cfg(test)]
mod tests;
