//! What EC2 describes, as far as the functions look at it.

use serde::Deserialize;

use crate::cidr::Cidr;
use crate::wire::items;

/// A tag.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Tag {
    /// Its key.
    pub key: String,
    /// Its value.
    #[serde(default)]
    pub value: String,
}

impl Tag {
    /// A tag.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Tag { key: key.into(), value: value.into() }
    }
}

fn tag<'a>(tags: &'a [Tag], key: &str) -> Option<&'a str> {
    tags.iter().find(|tag| tag.key == key).map(|tag| tag.value.as_str())
}

/// A subnet.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subnet {
    /// `subnet-…`
    pub subnet_id: String,
    /// `vpc-…`
    pub vpc_id: String,
    /// The IPv4 block; absent in a subnet that has IPv6 only.
    pub cidr_block: Option<String>,
    /// The zone's name.
    pub availability_zone: String,
}

/// A route table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteTable {
    /// `rtb-…`
    pub route_table_id: String,
    /// `vpc-…`
    pub vpc_id: String,
    #[serde(default, deserialize_with = "items")]
    association_set: Vec<Association>,
    /// Its routes.
    #[serde(default, deserialize_with = "items")]
    pub route_set: Vec<Route>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Association {
    #[serde(default)]
    main: bool,
    subnet_id: Option<String>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The IPv4 destination.
    pub destination_cidr_block: Option<String>,
    /// The IPv6 destination.
    pub destination_ipv6_cidr_block: Option<String>,
    /// `igw-…`, `vgw-…`, `vpce-…` or `local`.
    pub gateway_id: Option<String>,
}

impl RouteTable {
    /// Whether it routes the subnet by an association of its own.
    pub fn is_of(&self, subnet_id: &str) -> bool {
        self.association_set.iter().any(|a| a.subnet_id.as_deref() == Some(subnet_id))
    }

    /// Whether it routes what has no association.
    pub fn is_main(&self) -> bool {
        self.association_set.iter().any(|a| a.main)
    }

    /// Whether a default route leads to an internet gateway. An egress-only gateway (`eigw-…`) is
    /// another field of the route, and leads out only.
    pub fn leads_to_the_internet(&self) -> bool {
        self.route_set.iter().any(|route| {
            let default = route.destination_cidr_block.as_deref() == Some("0.0.0.0/0")
                || route.destination_ipv6_cidr_block.as_deref() == Some("::/0");
            default && route.gateway_id.as_deref().is_some_and(|id| id.starts_with("igw-"))
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VpcAttributes {
    pub(crate) enable_dns_support: Option<VpcAttribute>,
    pub(crate) enable_dns_hostnames: Option<VpcAttribute>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct VpcAttribute {
    pub(crate) value: bool,
}

/// A security group.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// `sg-…`
    pub group_id: String,
    /// Its name.
    pub group_name: String,
    /// `vpc-…`
    #[serde(default)]
    pub vpc_id: String,
    /// What it lets in.
    #[serde(default, deserialize_with = "items")]
    pub ip_permissions: Vec<Permission>,
    #[serde(default, deserialize_with = "items")]
    tag_set: Vec<Tag>,
}

impl Group {
    /// A tag's value.
    pub fn tag(&self, key: &str) -> Option<&str> {
        tag(&self.tag_set, key)
    }

    /// The blocks that it lets in to TCP port 443, by rules for exactly that port or wider ones.
    pub fn https_from(&self) -> Vec<Cidr> {
        self.ip_permissions
            .iter()
            .filter(|permission| permission.is_for_https())
            .flat_map(|permission| &permission.ip_ranges)
            .filter_map(|range| range.cidr_ip.as_ref()?.parse().ok())
            .collect()
    }

    /// Whether a rule lets other groups or prefix lists in to TCP port 443, so that blocks alone do
    /// not tell who may come in.
    pub fn https_by_reference(&self) -> bool {
        self.ip_permissions.iter().any(|permission| {
            permission.is_for_https()
                && (!permission.groups.is_empty() || !permission.prefix_list_ids.is_empty())
        })
    }
}

/// An inbound rule.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Permission {
    #[serde(default)]
    ip_protocol: String,
    from_port: Option<i32>,
    to_port: Option<i32>,
    #[serde(default, deserialize_with = "items")]
    ip_ranges: Vec<Range>,
    #[serde(default, deserialize_with = "items")]
    groups: Vec<Reference>,
    #[serde(default, deserialize_with = "items")]
    prefix_list_ids: Vec<Reference>,
}

impl Permission {
    fn is_for_https(&self) -> bool {
        match self.ip_protocol.as_str() {
            "-1" => true,
            "tcp" | "6" => {
                self.from_port.is_none_or(|port| port <= 443) && self.to_port.is_none_or(|port| port >= 443)
            }
            _ => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Range {
    cidr_ip: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Reference {}

/// A VPC endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// `vpce-…`
    pub vpc_endpoint_id: String,
    /// `vpc-…`
    #[serde(default)]
    pub vpc_id: String,
    /// `com.amazonaws.<region>.git-codecommit`
    #[serde(default)]
    pub service_name: String,
    /// Its state as the wire sends it: compare by [`state_is`].
    #[serde(default)]
    pub state: String,
    /// Whether the service's public name leads to it inside the VPC.
    #[serde(default)]
    pub private_dns_enabled: bool,
    /// The subnets of its interfaces.
    #[serde(default, deserialize_with = "items")]
    pub subnet_id_set: Vec<String>,
    #[serde(default, deserialize_with = "items")]
    group_set: Vec<GroupId>,
    #[serde(default, deserialize_with = "items")]
    tag_set: Vec<Tag>,
    /// Why it failed.
    pub last_error: Option<LastError>,
    /// Why it failed, in one piece.
    pub failure_reason: Option<String>,
}

impl Endpoint {
    /// A tag's value.
    pub fn tag(&self, key: &str) -> Option<&str> {
        tag(&self.tag_set, key)
    }

    /// The ids of its security groups.
    pub fn group_ids(&self) -> Vec<String> {
        self.group_set.iter().map(|group| group.group_id.clone()).collect()
    }

    /// Why it failed, where EC2 says so.
    pub fn failure(&self) -> Option<String> {
        let last = self.last_error.as_ref().map(|error| {
            let parts = [error.code.as_deref(), error.message.as_deref()];
            parts.into_iter().flatten().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ")
        });
        last.or_else(|| self.failure_reason.clone()).filter(|text| !text.is_empty())
    }
}

/// Whether an endpoint's state is one of these. The wire sends `pendingAcceptance`, the model says
/// `PendingAcceptance`, and both have been seen (awslabs/aws-sdk-rust#619).
pub fn state_is(state: &str, one_of: &[&str]) -> bool {
    one_of.iter().any(|name| state.eq_ignore_ascii_case(name))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupId {
    group_id: String,
}

/// Why an endpoint failed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LastError {
    /// A code.
    pub code: Option<String>,
    /// A text.
    pub message: Option<String>,
}

/// An endpoint service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointService {
    /// `com.amazonaws.<region>.git-codecommit`
    pub service_name: String,
    /// The zones in which it is offered, under the names that they have in this account.
    #[serde(default, deserialize_with = "items")]
    pub availability_zone_set: Vec<String>,
    /// The name that private DNS takes over.
    pub private_dns_name: Option<String>,
}

/// What [`crate::Client::create_endpoint`] makes.
#[derive(Debug, Clone)]
pub struct NewEndpoint<'a> {
    /// `vpc-…`
    pub vpc_id: &'a str,
    /// `com.amazonaws.<region>.git-codecommit`
    pub service_name: &'a str,
    /// At most one subnet in a zone.
    pub subnet_ids: &'a [String],
    /// Its security groups; without one, EC2 takes the VPC's default group.
    pub group_ids: &'a [String],
    /// At most 64 ASCII characters; the same token and parameters give the same endpoint.
    pub client_token: &'a str,
    /// Its tags.
    pub tags: &'a [Tag],
}
