//! VPCs, subnets, route tables, zones and network interfaces.

use super::cidr::Cidr;
use super::form::{Form, invalid};
use super::tags::{self, Tags};
use super::xml::Xml;
use super::{Context, Region, filter, groups};
use crate::wire::ApiError;

/// A VPC.
#[derive(Debug, Clone)]
pub(super) struct Vpc {
    pub(super) id: String,
    pub(super) cidr: Cidr,
    pub(super) dns_support: bool,
    pub(super) dns_hostnames: bool,
    pub(super) tags: Tags,
}

/// A subnet.
#[derive(Debug, Clone)]
pub(super) struct Subnet {
    pub(super) id: String,
    pub(super) vpc: String,
    pub(super) cidr: Cidr,
    pub(super) zone: String,
    pub(super) public: bool,
    pub(super) tags: Tags,
}

/// A route table.
#[derive(Debug, Clone)]
pub(super) struct RouteTable {
    pub(super) id: String,
    pub(super) vpc: String,
    /// Id of the association, and the subnet; the main table's own has none.
    pub(super) associations: Vec<(String, Option<String>)>,
    /// Destination and target: `local`, `igw-…` or `nat-…`.
    pub(super) routes: Vec<(String, String)>,
    pub(super) tags: Tags,
}

/// A network interface of an endpoint.
#[derive(Debug, Clone)]
pub(super) struct Interface {
    pub(super) id: String,
    pub(super) endpoint: String,
    pub(super) vpc: String,
    pub(super) subnet: String,
    pub(super) address: String,
    pub(super) groups: Vec<String>,
    pub(super) tags: Tags,
}

impl Region {
    pub(super) fn vpc(&self, id: &str) -> Result<&Vpc, ApiError> {
        self.vpcs.iter().find(|vpc| vpc.id == id).ok_or_else(|| {
            ApiError::new("InvalidVpcID.NotFound", format!("The vpc ID '{id}' does not exist"))
        })
    }

    pub(super) fn subnet(&self, id: &str) -> Result<&Subnet, ApiError> {
        self.subnets.iter().find(|subnet| subnet.id == id).ok_or_else(|| {
            ApiError::new("InvalidSubnetID.NotFound", format!("The subnet ID '{id}' does not exist"))
        })
    }

    pub(super) fn zone_id(&self, zone: &str) -> String {
        let at = self.zones.iter().position(|name| name == zone).unwrap_or_default();
        // `eu-west-1` is `euw1` in the ids of zones.
        let mut short = String::new();
        for (index, part) in self.name.split('-').enumerate() {
            short.push_str(if index == 0 { part } else { &part[..part.len().min(1)] });
        }
        format!("{short}-az{}", at + 1)
    }

    /// Makes a VPC with its main route table and its default group.
    pub(super) fn add_vpc(&mut self, cidr: Cidr, tags: Tags, context: &Context<'_>) -> String {
        let id = self.fresh("vpc");
        self.vpcs.push(Vpc { id: id.clone(), cidr, dns_support: true, dns_hostnames: false, tags });
        let table = self.add_table(&id, Vec::new(), Tags::new());
        let association = self.fresh("rtbassoc");
        if let Some(table) = self.tables.iter_mut().find(|t| t.id == table) {
            table.associations.push((association, None));
        }
        groups::add(self, &id, "default", "default VPC security group", Tags::new(), context);
        id
    }

    pub(super) fn add_subnet(
        &mut self,
        vpc: &str,
        cidr: Cidr,
        zone: &str,
        public: bool,
        tags: Tags,
    ) -> String {
        let id = self.fresh("subnet");
        self.subnets.push(Subnet {
            id: id.clone(),
            vpc: vpc.to_owned(),
            cidr,
            zone: zone.to_owned(),
            public,
            tags,
        });
        id
    }

    /// Makes a route table with the local route and these others.
    pub(super) fn add_table(&mut self, vpc: &str, mut routes: Vec<(String, String)>, tags: Tags) -> String {
        let id = self.fresh("rtb");
        if let Ok(vpc) = self.vpc(vpc) {
            routes.insert(0, (vpc.cidr.to_string(), "local".to_owned()));
        }
        self.tables.push(RouteTable {
            id: id.clone(),
            vpc: vpc.to_owned(),
            associations: Vec::new(),
            routes,
            tags,
        });
        id
    }

    /// Routes a subnet by a table.
    pub(super) fn associate(&mut self, table: &str, subnet: &str) {
        let association = self.fresh("rtbassoc");
        if let Some(table) = self.tables.iter_mut().find(|t| t.id == table) {
            table.associations.push((association, Some(subnet.to_owned())));
        }
    }

    /// The first address of a subnet that no interface has.
    pub(super) fn free_address(&self, subnet: &Subnet) -> Option<String> {
        subnet
            .cidr
            .usable()
            .map(|address| address.to_string())
            .find(|address| !self.interfaces.iter().any(|i| i.subnet == subnet.id && i.address == *address))
    }
}

/// Those of the resources that a describe call is about: by id, where one that is missing is an
/// error, or all.
fn chosen<'a, T>(
    all: &'a [T],
    ids: &[&str],
    id_of: impl Fn(&T) -> &str,
    missing: impl Fn(&str) -> ApiError,
) -> Result<Vec<&'a T>, ApiError> {
    for id in ids {
        if !all.iter().any(|item| id_of(item) == *id) {
            return Err(missing(id));
        }
    }
    Ok(all.iter().filter(|item| ids.is_empty() || ids.contains(&id_of(item))).collect())
}

/// `DescribeVpcs`
pub(super) fn describe_vpcs(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    let filters = filter::read(
        form,
        &["vpc-id", "cidr", "cidr-block-association.cidr-block", "is-default", "state", "owner-id"],
    )?;
    let ids = form.list("VpcId");
    let found = chosen(
        &region.vpcs,
        &ids,
        |vpc| &vpc.id,
        |id| ApiError::new("InvalidVpcID.NotFound", format!("The vpc ID '{id}' does not exist")),
    )?;
    let found: Vec<&Vpc> = found
        .into_iter()
        .filter(|vpc| {
            filter::passes(&filters, &vpc.tags, |name| {
                vec![match name {
                    "vpc-id" => vpc.id.clone(),
                    "is-default" => "false".to_owned(),
                    "state" => "available".to_owned(),
                    "owner-id" => context.settings.account.clone(),
                    _ => vpc.cidr.to_string(),
                }]
            })
        })
        .collect();
    let (page, next) = filter::page(form, context.settings.page_size, !ids.is_empty(), found)?;
    let mut xml = Xml::default();
    xml.list("vpcSet", page, |xml, vpc| write_vpc(xml, vpc, context)).optional("nextToken", next);
    Ok(xml)
}

fn write_vpc(xml: &mut Xml, vpc: &Vpc, context: &Context<'_>) {
    xml.text("vpcId", &vpc.id)
        .text("ownerId", &context.settings.account)
        .text("state", "available")
        .text("cidrBlock", vpc.cidr)
        .list("cidrBlockAssociationSet", [vpc.cidr], |xml, cidr| {
            xml.text("associationId", vpc.id.replacen("vpc-", "vpc-cidr-assoc-", 1))
                .text("cidrBlock", cidr)
                .node("cidrBlockState", |xml| {
                    xml.text("state", "associated");
                });
        })
        .text("dhcpOptionsId", "default")
        .text("instanceTenancy", "default")
        .text("isDefault", false);
    tags::write(xml, &vpc.tags);
}

/// `CreateVpc`
pub(super) fn create_vpc(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let text = form.required("CidrBlock")?;
    let cidr = Cidr::parse(text).ok_or_else(|| malformed(text))?;
    if !(16..=28).contains(&cidr.length()) {
        return Err(ApiError::new("InvalidVpc.Range", format!("The CIDR '{text}' is invalid.")));
    }
    let tags = tags::on_creation(form, "vpc")?;
    let id = region.add_vpc(cidr, tags, context);
    let mut xml = Xml::default();
    let vpc = region.vpc(&id)?;
    xml.node("vpc", |xml| write_vpc(xml, vpc, context));
    Ok(xml)
}

/// `DescribeVpcAttribute`
pub(super) fn describe_vpc_attribute(
    region: &mut Region,
    form: &Form,
    _: &Context<'_>,
) -> Result<Xml, ApiError> {
    let vpc = region.vpc(form.required("VpcId")?)?;
    let attribute = form.required("Attribute")?;
    let value = match attribute {
        "enableDnsSupport" => vpc.dns_support,
        "enableDnsHostnames" => vpc.dns_hostnames,
        "enableNetworkAddressUsageMetrics" => false,
        other => return Err(invalid("Attribute", other, "Unknown attribute")),
    };
    let mut xml = Xml::default();
    xml.text("vpcId", &vpc.id).node(attribute, |xml| {
        xml.text("value", value);
    });
    Ok(xml)
}

/// `ModifyVpcAttribute`: one attribute a call, as EC2 wants it.
pub(super) fn modify_vpc_attribute(
    region: &mut Region,
    form: &Form,
    _: &Context<'_>,
) -> Result<Xml, ApiError> {
    let id = region.vpc(form.required("VpcId")?)?.id.clone();
    let support = form.flag("EnableDnsSupport.Value")?;
    let hostnames = form.flag("EnableDnsHostnames.Value")?;
    if support.is_some() == hostnames.is_some() {
        return Err(ApiError::new(
            "InvalidParameterCombination",
            "Exactly one of EnableDnsSupport and EnableDnsHostnames has to be given",
        ));
    }
    for vpc in region.vpcs.iter_mut().filter(|vpc| vpc.id == id) {
        vpc.dns_support = support.unwrap_or(vpc.dns_support);
        vpc.dns_hostnames = hostnames.unwrap_or(vpc.dns_hostnames);
    }
    let mut xml = Xml::default();
    xml.text("return", true);
    Ok(xml)
}

/// `DescribeSubnets`
pub(super) fn describe_subnets(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    let known = [
        "subnet-id",
        "vpc-id",
        "availability-zone",
        "availabilityZone",
        "availability-zone-id",
        "availabilityZoneId",
        "cidr-block",
        "cidr",
        "cidrBlock",
        "state",
        "map-public-ip-on-launch",
        "default-for-az",
        "owner-id",
        "subnet-arn",
    ];
    let filters = filter::read(form, &known)?;
    let ids = form.list("SubnetId");
    let found = chosen(
        &region.subnets,
        &ids,
        |subnet| &subnet.id,
        |id| ApiError::new("InvalidSubnetID.NotFound", format!("The subnet ID '{id}' does not exist")),
    )?;
    let found: Vec<&Subnet> = found
        .into_iter()
        .filter(|subnet| {
            filter::passes(&filters, &subnet.tags, |name| {
                vec![match name {
                    "subnet-id" => subnet.id.clone(),
                    "vpc-id" => subnet.vpc.clone(),
                    "availability-zone" | "availabilityZone" => subnet.zone.clone(),
                    "availability-zone-id" | "availabilityZoneId" => region.zone_id(&subnet.zone),
                    "state" => "available".to_owned(),
                    "map-public-ip-on-launch" => subnet.public.to_string(),
                    "default-for-az" => "false".to_owned(),
                    "owner-id" => context.settings.account.clone(),
                    "subnet-arn" => arn(region, context, "subnet", &subnet.id),
                    _ => subnet.cidr.to_string(),
                }]
            })
        })
        .collect();
    let (page, next) = filter::page(form, context.settings.page_size, !ids.is_empty(), found)?;
    let mut xml = Xml::default();
    xml.list("subnetSet", page, |xml, subnet| write_subnet(xml, region, subnet, context))
        .optional("nextToken", next);
    Ok(xml)
}

fn write_subnet(xml: &mut Xml, region: &Region, subnet: &Subnet, context: &Context<'_>) {
    let used = region.interfaces.iter().filter(|i| i.subnet == subnet.id).count();
    xml.text("subnetId", &subnet.id)
        .text("subnetArn", arn(region, context, "subnet", &subnet.id))
        .text("state", "available")
        .text("ownerId", &context.settings.account)
        .text("vpcId", &subnet.vpc)
        .text("cidrBlock", subnet.cidr)
        .list("ipv6CidrBlockAssociationSet", std::iter::empty::<()>(), |_, ()| {})
        .text("availableIpAddressCount", (1u64 << (32 - subnet.cidr.length())) - 5 - used as u64)
        .text("availabilityZone", &subnet.zone)
        .text("availabilityZoneId", region.zone_id(&subnet.zone))
        .text("defaultForAz", false)
        .text("mapPublicIpOnLaunch", subnet.public)
        .text("assignIpv6AddressOnCreation", false);
    tags::write(xml, &subnet.tags);
}

/// `CreateSubnet`
pub(super) fn create_subnet(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    let vpc = region.vpc(form.required("VpcId")?)?.clone();
    let text = form.required("CidrBlock")?;
    let cidr = Cidr::parse(text).ok_or_else(|| malformed(text))?;
    if !(16..=28).contains(&cidr.length()) || !vpc.cidr.contains(cidr) {
        return Err(ApiError::new("InvalidSubnet.Range", format!("The CIDR '{text}' is invalid.")));
    }
    if region.subnets.iter().any(|subnet| subnet.vpc == vpc.id && subnet.cidr.overlaps(cidr)) {
        return Err(ApiError::new(
            "InvalidSubnet.Conflict",
            format!("The CIDR '{text}' conflicts with another subnet"),
        ));
    }
    let by_id = |id: &str| region.zones.iter().find(|zone| region.zone_id(zone) == id);
    let zone = match (form.get("AvailabilityZone"), form.get("AvailabilityZoneId")) {
        (Some(name), _) => region.zones.iter().find(|zone| *zone == name).cloned().ok_or(name),
        (None, Some(id)) => by_id(id).cloned().ok_or(id),
        (None, None) => region.zones.first().cloned().ok_or(""),
    };
    let zone = zone.map_err(|given| {
        ApiError::new(
            "InvalidParameterValue",
            format!(
                "Value ({given}) for parameter availabilityZone is invalid. Subnets can currently only be created in the following availability zones: {}.",
                region.zones.join(", ")
            ),
        )
    })?;
    let tags = tags::on_creation(form, "subnet")?;
    let id = region.add_subnet(&vpc.id, cidr, &zone, false, tags);
    let mut xml = Xml::default();
    let subnet = region.subnet(&id)?;
    xml.node("subnet", |xml| write_subnet(xml, region, subnet, context));
    Ok(xml)
}

fn malformed(text: &str) -> ApiError {
    ApiError::new(
        "InvalidParameterValue",
        format!("Value ({text}) for parameter cidrBlock is invalid. This is not a valid CIDR block."),
    )
}

/// `DescribeRouteTables`
pub(super) fn describe_route_tables(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    let known = [
        "route-table-id",
        "vpc-id",
        "owner-id",
        "association.main",
        "association.subnet-id",
        "association.route-table-id",
        "association.route-table-association-id",
        "route.destination-cidr-block",
        "route.gateway-id",
        "route.nat-gateway-id",
        "route.state",
        "route.origin",
    ];
    let filters = filter::read(form, &known)?;
    let ids = form.list("RouteTableId");
    let found = chosen(
        &region.tables,
        &ids,
        |table| &table.id,
        |id| {
            ApiError::new("InvalidRouteTableID.NotFound", format!("The routeTable ID '{id}' does not exist"))
        },
    )?;
    let found: Vec<&RouteTable> = found
        .into_iter()
        .filter(|table| {
            let associations = table.associations.iter();
            let targets = |nat: bool| {
                let targets = table.routes.iter().map(|(_, target)| target.clone());
                targets.filter(move |target| target.starts_with("nat-") == nat).collect()
            };
            filter::passes(&filters, &table.tags, |name| match name {
                "route-table-id" => vec![table.id.clone()],
                "vpc-id" => vec![table.vpc.clone()],
                "association.main" => associations.clone().map(|(_, s)| s.is_none().to_string()).collect(),
                "association.subnet-id" => associations.clone().filter_map(|(_, s)| s.clone()).collect(),
                "association.route-table-id" => associations.clone().map(|_| table.id.clone()).collect(),
                "association.route-table-association-id" => {
                    associations.clone().map(|(id, _)| id.clone()).collect()
                }
                "route.destination-cidr-block" => table.routes.iter().map(|(to, _)| to.clone()).collect(),
                "route.gateway-id" => targets(false),
                "route.nat-gateway-id" => targets(true),
                "route.state" => vec!["active".to_owned()],
                "route.origin" => table.routes.iter().map(|(_, target)| origin(target).to_owned()).collect(),
                _ => vec![context.settings.account.clone()],
            })
        })
        .collect();
    let (page, next) = filter::page(form, context.settings.page_size, !ids.is_empty(), found)?;
    let mut xml = Xml::default();
    xml.list("routeTableSet", page, |xml, table| {
        xml.text("routeTableId", &table.id)
            .text("vpcId", &table.vpc)
            .text("ownerId", &context.settings.account)
            .list("routeSet", &table.routes, |xml, (destination, target)| {
                let field = if target.starts_with("nat-") { "natGatewayId" } else { "gatewayId" };
                xml.text("destinationCidrBlock", destination)
                    .text(field, target)
                    .text("state", "active")
                    .text("origin", origin(target));
            })
            .list("associationSet", &table.associations, |xml, (id, subnet)| {
                xml.text("routeTableAssociationId", id)
                    .text("routeTableId", &table.id)
                    .optional("subnetId", subnet.as_ref())
                    .text("main", subnet.is_none())
                    .node("associationState", |xml| {
                        xml.text("state", "associated");
                    });
            })
            .list("propagatingVgwSet", std::iter::empty::<()>(), |_, ()| {});
        tags::write(xml, &table.tags);
    })
    .optional("nextToken", next);
    Ok(xml)
}

fn origin(target: &str) -> &'static str {
    if target == "local" { "CreateRouteTable" } else { "CreateRoute" }
}

/// `DescribeAvailabilityZones`
pub(super) fn describe_zones(region: &mut Region, form: &Form, _: &Context<'_>) -> Result<Xml, ApiError> {
    let filters =
        filter::read(form, &["zone-name", "zone-id", "region-name", "state", "zone-type", "opt-in-status"])?;
    let (names, ids) = (form.list("ZoneName"), form.list("ZoneId"));
    for name in &names {
        if !region.zones.iter().any(|zone| zone == name) {
            return Err(invalid("ZoneName", name, "Invalid availability zone"));
        }
    }
    let zones = region.zones.iter().filter(|zone| {
        let zone_id = region.zone_id(zone);
        (names.is_empty() || names.contains(&zone.as_str()))
            && (ids.is_empty() || ids.contains(&zone_id.as_str()))
            && filter::passes(&filters, &Tags::new(), |name| {
                vec![match name {
                    "zone-name" => zone.to_string(),
                    "zone-id" => zone_id.clone(),
                    "region-name" => region.name.clone(),
                    "zone-type" => "availability-zone".to_owned(),
                    "opt-in-status" => "opt-in-not-required".to_owned(),
                    _ => "available".to_owned(),
                }]
            })
    });
    let mut xml = Xml::default();
    xml.list("availabilityZoneInfo", zones, |xml, zone| {
        xml.text("zoneName", zone)
            .text("zoneId", region.zone_id(zone))
            .text("zoneState", "available")
            .text("regionName", &region.name)
            .text("zoneType", "availability-zone")
            .text("optInStatus", "opt-in-not-required")
            .text("groupName", &region.name)
            .text("networkBorderGroup", &region.name)
            .list("messageSet", std::iter::empty::<()>(), |_, ()| {});
    });
    Ok(xml)
}

/// `DescribeNetworkInterfaces`
pub(super) fn describe_interfaces(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    let known = [
        "network-interface-id",
        "vpc-id",
        "subnet-id",
        "availability-zone",
        "group-id",
        "group-name",
        "interface-type",
        "description",
        "private-ip-address",
        "addresses.private-ip-address",
        "requester-managed",
        "status",
        "owner-id",
    ];
    let filters = filter::read(form, &known)?;
    let ids = form.list("NetworkInterfaceId");
    let found = chosen(
        &region.interfaces,
        &ids,
        |interface| &interface.id,
        |id| {
            ApiError::new(
                "InvalidNetworkInterfaceID.NotFound",
                format!("The networkInterface ID '{id}' does not exist"),
            )
        },
    )?;
    let zone = |interface: &Interface| {
        region.subnet(&interface.subnet).map(|subnet| subnet.zone.clone()).unwrap_or_default()
    };
    let found: Vec<&Interface> = found
        .into_iter()
        .filter(|interface| {
            filter::passes(&filters, &interface.tags, |name| match name {
                "group-id" => interface.groups.clone(),
                "group-name" => interface.groups.iter().map(|id| region.group_name(id).to_owned()).collect(),
                "network-interface-id" => vec![interface.id.clone()],
                "vpc-id" => vec![interface.vpc.clone()],
                "subnet-id" => vec![interface.subnet.clone()],
                "availability-zone" => vec![zone(interface)],
                "interface-type" => vec!["vpc_endpoint".to_owned()],
                "description" => vec![description(interface)],
                "requester-managed" => vec!["true".to_owned()],
                "status" => vec!["in-use".to_owned()],
                "owner-id" => vec![context.settings.account.clone()],
                _ => vec![interface.address.clone()],
            })
        })
        .collect();
    let (page, next) = filter::page(form, context.settings.page_size, !ids.is_empty(), found)?;
    let mut xml = Xml::default();
    xml.list("networkInterfaceSet", page, |xml, interface| {
        xml.text("networkInterfaceId", &interface.id)
            .text("subnetId", &interface.subnet)
            .text("vpcId", &interface.vpc)
            .text("availabilityZone", zone(interface))
            .text("description", description(interface))
            .text("ownerId", &context.settings.account)
            .text("requesterId", "727180483921")
            .text("requesterManaged", true)
            .text("status", "in-use")
            .text("interfaceType", "vpc_endpoint")
            .text("privateIpAddress", &interface.address)
            .text("sourceDestCheck", true)
            .list("groupSet", &interface.groups, |xml, id| {
                xml.text("groupId", id).text("groupName", region.group_name(id));
            })
            .list("privateIpAddressesSet", [&interface.address], |xml, address| {
                xml.text("privateIpAddress", address).text("primary", true);
            });
        tags::write(xml, &interface.tags);
    })
    .optional("nextToken", next);
    Ok(xml)
}

fn description(interface: &Interface) -> String {
    format!("VPC Endpoint Interface {}", interface.endpoint)
}

/// The ARN of a resource of EC2.
pub(super) fn arn(region: &Region, context: &Context<'_>, kind: &str, id: &str) -> String {
    format!("arn:{}:ec2:{}:{}:{kind}/{id}", partition(&region.name), region.name, context.settings.account)
}

fn partition(region: &str) -> &'static str {
    if region.starts_with("cn-") {
        "aws-cn"
    } else if region.starts_with("us-gov-") {
        "aws-us-gov"
    } else {
        "aws"
    }
}
