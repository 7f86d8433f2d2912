//! Interface endpoints and the services that offer them.

use time::OffsetDateTime;

use super::form::Form;
use super::network::{Interface, Subnet};
use super::tags::{self, Tags};
use super::xml::Xml;
use super::{Context, Region, filter};
use crate::clock;
use crate::wire::ApiError;

/// A VPC has at most this many interface endpoints, unless the quota was raised.
const MAX_ENDPOINTS: usize = 50;
/// The policy of an endpoint that was given none.
const OPEN_POLICY: &str =
    "{\"Statement\":[{\"Action\":\"*\",\"Effect\":\"Allow\",\"Principal\":\"*\",\"Resource\":\"*\"}]}";
/// The private hosted zone of the service's regional names.
const HOSTED_ZONE: &str = "Z38GZ743OKFT7T";

/// The private hosted zone that private DNS associates with the VPC.
const PRIVATE_ZONE: &str = "Z04221391FGKQYZ0A4L1S";

/// An interface endpoint. States follow from the times.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    pub(super) id: String,
    vpc: String,
    service: String,
    subnets: Vec<String>,
    groups: Vec<String>,
    private_dns: bool,
    policy: String,
    /// The random part of its DNS names.
    label: String,
    created: OffsetDateTime,
    settled_at: OffsetDateTime,
    pub(super) visible_at: OffsetDateTime,
    modifying_until: OffsetDateTime,
    pub(super) gone_at: Option<OffsetDateTime>,
    failure: Option<(String, String)>,
    pub(super) tags: Tags,
}

impl Endpoint {
    /// As the wire spells it, which is not as the service model's enumeration does.
    fn state(&self, now: OffsetDateTime) -> &'static str {
        if self.gone_at.is_some() {
            "deleting"
        } else if now < self.settled_at {
            "pending"
        } else if self.failure.is_some() {
            "failed"
        } else {
            "available"
        }
    }
}

/// A client token that was used, with what it was used for.
#[derive(Debug, Clone)]
pub(super) struct Token {
    token: String,
    fingerprint: String,
    endpoint: String,
}

/// What the region offers endpoints for.
struct Offer {
    name: String,
    short: String,
    private_dns: String,
    zones: Vec<String>,
}

impl Region {
    /// An endpoint that calls can see already.
    pub(super) fn endpoint(&self, id: &str, context: &Context<'_>) -> Result<&Endpoint, ApiError> {
        self.endpoints
            .iter()
            .find(|endpoint| endpoint.id == id && endpoint.visible_at <= context.now)
            .ok_or_else(|| not_found("InvalidVpcEndpointId.NotFound", id))
    }

    /// Lets go of endpoints whose deletion is over, and of their interfaces and client tokens.
    pub(super) fn settle(&mut self, now: OffsetDateTime) {
        self.endpoints.retain(|endpoint| endpoint.gone_at.is_none_or(|at| now < at));
        let endpoints = &self.endpoints;
        let is_there = |id: &str| endpoints.iter().any(|endpoint| endpoint.id == id);
        self.interfaces.retain(|interface| is_there(&interface.endpoint));
        self.tokens.retain(|token| is_there(&token.endpoint));
    }

    fn offers(&self, context: &Context<'_>) -> Vec<Offer> {
        let suffix = self.dns_suffix();
        let mut offers: Vec<Offer> = context
            .settings
            .services
            .iter()
            .map(|service| Offer {
                name: format!("com.amazonaws.{}.{}", self.name, service.name),
                private_dns: format!("{}.{}.{suffix}", service.name, self.name),
                short: service.name.clone(),
                zones: self
                    .zones
                    .iter()
                    .filter(|zone| {
                        service.zones.is_empty() || service.zones.iter().any(|letter| zone.ends_with(letter))
                    })
                    .cloned()
                    .collect(),
            })
            .collect();
        offers.sort_by(|a, b| a.name.cmp(&b.name));
        offers
    }

    fn offer(&self, name: &str, context: &Context<'_>) -> Result<Offer, ApiError> {
        self.offers(context).into_iter().find(|offer| offer.name == name).ok_or_else(|| unknown_service(name))
    }

    /// Refuses private DNS where the VPC's attributes or another name in it forbid it.
    fn check_private_dns(&self, vpc: &str, offer: &Offer, except: Option<&str>) -> Result<(), ApiError> {
        let attributes = self.vpc(vpc)?;
        if !attributes.dns_support || !attributes.dns_hostnames {
            return Err(ApiError::new(
                "InvalidParameter",
                format!(
                    "Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC attributes set to true for {vpc}"
                ),
            ));
        }
        let name = &offer.private_dns;
        let taken = self.endpoints.iter().any(|other| {
            other.vpc == vpc
                && other.private_dns
                && other.service == offer.name
                && Some(other.id.as_str()) != except
        });
        let zone = self.private_zones.iter().any(|(of, zone)| of == vpc && zone == name);
        if taken || zone {
            return Err(ApiError::new(
                "InvalidParameter",
                format!(
                    "private-dns-enabled cannot be set because there is already a conflicting DNS domain for {name} in the VPC {vpc}"
                ),
            ));
        }
        Ok(())
    }

    /// Checks that an endpoint can have interfaces in all of these subnets.
    fn check_subnets(&self, vpc: &str, offer: &Offer, ids: &[String]) -> Result<Vec<Subnet>, ApiError> {
        let mut subnets: Vec<Subnet> = Vec::new();
        for id in ids {
            let subnet = self.subnet(id)?;
            if subnet.vpc != vpc {
                return Err(ApiError::new(
                    "InvalidParameter",
                    format!("The subnet {id} does not belong to the VPC {vpc}"),
                ));
            }
            if !offer.zones.contains(&subnet.zone) {
                return Err(ApiError::new(
                    "InvalidParameter",
                    format!(
                        "The VPC endpoint service {} does not support the availability zone of the subnet: {id}.",
                        offer.name
                    ),
                ));
            }
            if subnets.iter().any(|other| other.zone == subnet.zone) {
                return Err(ApiError::new(
                    "DuplicateSubnetsInSameZone",
                    format!(
                        "Found another VPC endpoint subnet in the availability zone of {id}. VPC endpoint subnets should be in different availability zones supported by the VPC endpoint service."
                    ),
                ));
            }
            subnets.push(subnet.clone());
        }
        Ok(subnets)
    }

    fn check_groups(&self, vpc: &str, ids: &[String], context: &Context<'_>) -> Result<(), ApiError> {
        for id in ids {
            if self.group(id, context)?.vpc != vpc {
                return Err(ApiError::new(
                    "InvalidParameter",
                    format!("The security group {id} does not belong to the VPC {vpc}"),
                ));
            }
        }
        Ok(())
    }

    fn add_interface(&mut self, endpoint: &str, subnet: &Subnet, groups: &[String]) -> Result<(), ApiError> {
        let address = self.free_address(subnet).ok_or_else(|| {
            ApiError::new(
                "InsufficientFreeAddressesInSubnet",
                format!("The specified subnet '{}' does not have enough free addresses", subnet.id),
            )
        })?;
        let id = self.fresh("eni");
        self.interfaces.push(Interface {
            id,
            endpoint: endpoint.to_owned(),
            vpc: subnet.vpc.clone(),
            subnet: subnet.id.clone(),
            address,
            groups: groups.to_vec(),
            tags: Tags::new(),
        });
        Ok(())
    }
}

fn not_found(code: &str, id: &str) -> ApiError {
    ApiError::new(code, format!("The Vpc Endpoint Id '{id}' does not exist"))
}

fn unknown_service(name: &str) -> ApiError {
    ApiError::new("InvalidServiceName", format!("The Vpc Endpoint Service '{name}' does not exist"))
}

fn owned(list: Vec<&str>) -> Vec<String> {
    list.into_iter().map(str::to_owned).collect()
}

/// `CreateVpcEndpoint`
pub(super) fn create(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let token = form.get("ClientToken").filter(|token| !token.is_empty());
    let fingerprint = form.fingerprint(&["Action", "Version", "ClientToken", "DryRun"]);
    if let Some(used) = region.tokens.iter().find(|used| Some(used.token.as_str()) == token) {
        if used.fingerprint != fingerprint {
            return Err(ApiError::new(
                "IdempotentParameterMismatch",
                "The request uses the same client token as a previous, but non-identical request.",
            ));
        }
        let id = used.endpoint.clone();
        return created(region, &id, token, context);
    }

    let vpc = region.vpc(form.required("VpcId")?)?.id.clone();
    let offer = region.offer(form.required("ServiceName")?, context)?;
    let kind = form.get("VpcEndpointType").unwrap_or("Gateway");
    if kind != "Interface" {
        return Err(ApiError::new(
            "InvalidParameter",
            format!("Endpoint type ({kind}) does not match available service types ([Interface])."),
        ));
    }
    let subnets = region.check_subnets(&vpc, &offer, &owned(form.list("SubnetId")))?;
    let mut groups = owned(form.list("SecurityGroupId"));
    region.check_groups(&vpc, &groups, context)?;
    if groups.is_empty() {
        groups.extend(region.default_group(&vpc));
    }
    let private_dns = form.flag("PrivateDnsEnabled")?.unwrap_or(true);
    if private_dns {
        region.check_private_dns(&vpc, &offer, None)?;
    }
    let tags = tags::on_creation(form, "vpc-endpoint")?;
    if region.endpoints.iter().filter(|endpoint| endpoint.vpc == vpc).count() >= MAX_ENDPOINTS {
        return Err(ApiError::new(
            "VpcEndpointLimitExceeded",
            "The maximum number of VPC endpoints has been reached.",
        ));
    }

    let id = region.fresh("vpce");
    let label = region.fresh("x")[2..10].to_owned();
    for subnet in &subnets {
        region.add_interface(&id, subnet, &groups)?;
    }
    region.endpoints.push(Endpoint {
        id: id.clone(),
        vpc,
        service: offer.name,
        subnets: subnets.into_iter().map(|subnet| subnet.id).collect(),
        groups,
        private_dns,
        policy: form.get("PolicyDocument").unwrap_or(OPEN_POLICY).to_owned(),
        label,
        created: context.now,
        settled_at: context.now + context.settings.pending,
        visible_at: context.now + context.settings.visible_after,
        modifying_until: context.now,
        gone_at: None,
        failure: context.settings.endpoint_failure.clone(),
        tags,
    });
    if let Some(token) = token {
        region.tokens.push(Token { token: token.to_owned(), fingerprint, endpoint: id.clone() });
    }
    created(region, &id, token, context)
}

fn created(region: &Region, id: &str, token: Option<&str>, context: &Context<'_>) -> Result<Xml, ApiError> {
    let endpoint = region
        .endpoints
        .iter()
        .find(|endpoint| endpoint.id == id)
        .ok_or_else(|| not_found("InvalidVpcEndpointId.NotFound", id))?;
    let mut xml = Xml::default();
    xml.node("vpcEndpoint", |xml| write(xml, region, endpoint, context)).optional("clientToken", token);
    Ok(xml)
}

fn write(xml: &mut Xml, region: &Region, endpoint: &Endpoint, context: &Context<'_>) {
    let offer = region.offer(&endpoint.service, context).ok();
    let interfaces: Vec<&Interface> =
        region.interfaces.iter().filter(|interface| interface.endpoint == endpoint.id).collect();
    let mut names: Vec<(String, &str)> = Vec::new();
    if let Some(offer) = &offer {
        let domain = format!("{}.{}.vpce.{}", offer.short, region.name, region.dns_suffix());
        names.push((format!("{}-{}.{domain}", endpoint.id, endpoint.label), HOSTED_ZONE));
        for interface in &interfaces {
            if let Ok(subnet) = region.subnet(&interface.subnet) {
                names.push((
                    format!("{}-{}-{}.{domain}", endpoint.id, endpoint.label, subnet.zone),
                    HOSTED_ZONE,
                ));
            }
        }
        if endpoint.private_dns {
            // The private zone has no id before the endpoint is there.
            let pending = endpoint.state(context.now) == "pending";
            names.push((offer.private_dns.clone(), if pending { "ZONEIDPENDING" } else { PRIVATE_ZONE }));
        }
    }
    xml.text("vpcEndpointId", &endpoint.id)
        .text("vpcEndpointType", "Interface")
        .text("vpcId", &endpoint.vpc)
        .text("serviceName", &endpoint.service)
        .text("serviceRegion", &region.name)
        .text("state", endpoint.state(context.now))
        .text("policyDocument", &endpoint.policy)
        .list("routeTableIdSet", std::iter::empty::<()>(), |_, ()| {})
        .texts("subnetIdSet", &endpoint.subnets)
        .list("groupSet", &endpoint.groups, |xml, id| {
            xml.text("groupId", id).text("groupName", region.group_name(id));
        })
        .text("ipAddressType", "ipv4")
        .node("dnsOptions", |xml| {
            xml.text("dnsRecordIpType", "ipv4");
        })
        .text("privateDnsEnabled", endpoint.private_dns)
        .text("requesterManaged", false)
        .texts("networkInterfaceIdSet", interfaces.iter().map(|interface| &interface.id))
        .list("dnsEntrySet", &names, |xml, (name, zone)| {
            xml.text("dnsName", name).text("hostedZoneId", zone);
        })
        .text("creationTimestamp", clock::rfc3339(endpoint.created))
        .text("ownerId", &context.settings.account);
    if endpoint.state(context.now) == "failed"
        && let Some((code, message)) = &endpoint.failure
    {
        xml.node("lastError", |xml| {
            xml.text("code", code).text("message", message);
        });
    }
    tags::write(xml, &endpoint.tags);
}

/// `DescribeVpcEndpoints`
pub(super) fn describe(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let known = [
        "vpc-id",
        "service-name",
        "service-region",
        "vpc-endpoint-id",
        "vpc-endpoint-state",
        "vpc-endpoint-type",
        "ip-address-type",
    ];
    let filters = filter::read(form, &known)?;
    let ids = form.list("VpcEndpointId");
    for id in &ids {
        region.endpoint(id, context)?;
    }
    let found: Vec<&Endpoint> = region
        .endpoints
        .iter()
        .filter(|endpoint| {
            endpoint.visible_at <= context.now && (ids.is_empty() || ids.contains(&endpoint.id.as_str()))
        })
        .filter(|endpoint| {
            filter::passes(&filters, &endpoint.tags, |name| {
                vec![
                    match name {
                        "vpc-id" => endpoint.vpc.as_str(),
                        "service-name" => &endpoint.service,
                        "service-region" => &region.name,
                        "vpc-endpoint-id" => &endpoint.id,
                        "vpc-endpoint-state" => endpoint.state(context.now),
                        "vpc-endpoint-type" => "Interface",
                        _ => "ipv4",
                    }
                    .to_owned(),
                ]
            })
        })
        .collect();
    let (page, next) = filter::page(form, context.settings.page_size, !ids.is_empty(), found)?;
    let mut xml = Xml::default();
    xml.list("vpcEndpointSet", page, |xml, endpoint| write(xml, region, endpoint, context))
        .optional("nextToken", next);
    Ok(xml)
}

/// `DeleteVpcEndpoints`: answers 200 whatever happens to each, and works in the background.
pub(super) fn delete(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let ids = owned(form.list("VpcEndpointId"));
    if ids.is_empty() {
        return Err(super::form::missing("VpcEndpointId"));
    }
    let mut unsuccessful = Vec::new();
    for id in &ids {
        match region.endpoint(id, context) {
            Ok(endpoint) if endpoint.gone_at.is_some() => {}
            Ok(_) => {
                let gone_at = context.now + context.settings.deleting;
                for endpoint in region.endpoints.iter_mut().filter(|endpoint| endpoint.id == *id) {
                    endpoint.gone_at = Some(gone_at);
                }
            }
            Err(_) => unsuccessful.push(id),
        }
    }
    let mut xml = Xml::default();
    xml.list("unsuccessful", unsuccessful, |xml, id| {
        let error = not_found("InvalidVpcEndpoint.NotFound", id);
        xml.node("error", |xml| {
            xml.text("code", error.code).text("message", error.message);
        })
        .text("resourceId", id);
    });
    Ok(xml)
}

/// `ModifyVpcEndpoint`
pub(super) fn modify(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let endpoint = region.endpoint(form.required("VpcEndpointId")?, context)?.clone();
    let id = endpoint.id.as_str();
    if endpoint.state(context.now) == "pending" || context.now < endpoint.modifying_until {
        return Err(ApiError::new("OperationInProgress", "VpcEndpoint modify operation in progress"));
    }
    if endpoint.state(context.now) != "available" {
        return Err(ApiError::new(
            "IncorrectState",
            format!("The Vpc Endpoint Id '{id}' is in the state {}", endpoint.state(context.now)),
        ));
    }
    let offer = region.offer(&endpoint.service, context)?;
    let changed = |list: &[String], add: &str, remove: &str| {
        let (add, remove) = (owned(form.list(add)), owned(form.list(remove)));
        let mut list: Vec<String> = list.iter().filter(|item| !remove.contains(item)).cloned().collect();
        for item in add {
            if !list.contains(&item) {
                list.push(item);
            }
        }
        list
    };
    let subnets = changed(&endpoint.subnets, "AddSubnetId", "RemoveSubnetId");
    let groups = changed(&endpoint.groups, "AddSecurityGroupId", "RemoveSecurityGroupId");
    let checked = region.check_subnets(&endpoint.vpc, &offer, &subnets)?;
    region.check_groups(&endpoint.vpc, &groups, context)?;
    if groups.is_empty() {
        return Err(ApiError::new("InvalidParameter", "An endpoint needs at least one security group"));
    }
    let private_dns = form.flag("PrivateDnsEnabled")?.unwrap_or(endpoint.private_dns);
    if private_dns && !endpoint.private_dns {
        region.check_private_dns(&endpoint.vpc, &offer, Some(id))?;
    }
    let policy = match (form.get("PolicyDocument"), form.flag("ResetPolicy")?) {
        (Some(policy), _) => policy.to_owned(),
        (None, Some(true)) => OPEN_POLICY.to_owned(),
        (None, _) => endpoint.policy.clone(),
    };
    region.interfaces.retain(|i| i.endpoint != id || subnets.contains(&i.subnet));
    for interface in region.interfaces.iter_mut().filter(|i| i.endpoint == id) {
        interface.groups.clone_from(&groups);
    }
    for subnet in &checked {
        if !region.interfaces.iter().any(|i| i.endpoint == id && i.subnet == subnet.id) {
            region.add_interface(id, subnet, &groups)?;
        }
    }
    let modifying_until = context.now + context.settings.modifying;
    for target in region.endpoints.iter_mut().filter(|target| target.id == id) {
        target.subnets.clone_from(&subnets);
        target.groups.clone_from(&groups);
        target.private_dns = private_dns;
        target.policy.clone_from(&policy);
        target.modifying_until = modifying_until;
    }
    let mut xml = Xml::default();
    xml.text("return", true);
    Ok(xml)
}

/// `DescribeVpcEndpointServices`
pub(super) fn describe_services(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    let filters = filter::read(form, &["service-name", "service-type", "service-region", "owner"])?;
    let names = form.list("ServiceName");
    for name in &names {
        region.offer(name, context)?;
    }
    let offers: Vec<Offer> = region
        .offers(context)
        .into_iter()
        .filter(|offer| names.is_empty() || names.contains(&offer.name.as_str()))
        .filter(|offer| {
            filter::passes(&filters, &Tags::new(), |name| {
                vec![
                    match name {
                        "service-name" => offer.name.as_str(),
                        "service-type" => "Interface",
                        "service-region" => &region.name,
                        _ => "amazon",
                    }
                    .to_owned(),
                ]
            })
        })
        .collect();
    let (page, next) = filter::page(form, context.settings.page_size, !names.is_empty(), offers)?;
    let mut xml = Xml::default();
    xml.texts("serviceNameSet", page.iter().map(|offer| &offer.name));
    xml.list("serviceDetailSet", &page, |xml, offer| {
        xml.text("serviceName", &offer.name)
            .text("serviceId", format!("vpce-svc-{}", offer.short))
            .list("serviceType", ["Interface"], |xml, kind| {
                xml.text("serviceType", kind);
            })
            .text("serviceRegion", &region.name)
            .texts("availabilityZoneIdSet", offer.zones.iter().map(|zone| region.zone_id(zone)))
            .texts("availabilityZoneSet", &offer.zones)
            .text("owner", "amazon")
            .texts(
                "baseEndpointDnsNameSet",
                [format!("{}.{}.vpce.{}", offer.short, region.name, region.dns_suffix())],
            )
            .text("privateDnsName", &offer.private_dns)
            .list("privateDnsNameSet", [&offer.private_dns], |xml, name| {
                xml.text("privateDnsName", name);
            })
            .text("vpcEndpointPolicySupported", true)
            .text("acceptanceRequired", false)
            .text("managesVpcEndpoints", false)
            .list("tagSet", std::iter::empty::<()>(), |_, ()| {})
            .text("privateDnsNameVerificationState", "verified")
            .texts("supportedIpAddressTypeSet", ["ipv4"]);
    });
    xml.optional("nextToken", next);
    Ok(xml)
}
