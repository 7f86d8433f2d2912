//! Security groups and their rules.

use time::OffsetDateTime;

use super::cidr::{Cidr, canonical_v6};
use super::form::{Form, invalid, missing};
use super::network::arn;
use super::tags::{self, Tags};
use super::xml::Xml;
use super::{Context, Region, filter};
use crate::wire::ApiError;

/// A group has at most this many rules in one direction, unless the quota was raised.
const MAX_RULES: usize = 60;

/// A security group.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) id: String,
    pub(super) vpc: String,
    pub(super) name: String,
    description: String,
    rules: Vec<Rule>,
    pub(super) tags: Tags,
    pub(super) visible_at: OffsetDateTime,
}

/// One rule: one protocol, port range and peer.
#[derive(Debug, Clone)]
struct Rule {
    id: String,
    egress: bool,
    protocol: String,
    ports: Option<(i64, i64)>,
    peer: Peer,
    description: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Peer {
    V4(Cidr),
    V6(String),
    Group(String),
    Prefix(String),
}

impl Rule {
    /// Whether the two allow the same; the description doesn't count.
    fn same(&self, other: &Rule) -> bool {
        (self.egress, &self.protocol, self.ports, &self.peer)
            == (other.egress, &other.protocol, other.ports, &other.peer)
    }

    fn peer_text(&self) -> String {
        match &self.peer {
            Peer::V4(cidr) => cidr.to_string(),
            Peer::V6(text) | Peer::Group(text) | Peer::Prefix(text) => text.clone(),
        }
    }
}

impl Region {
    /// A group that calls can see already.
    pub(super) fn group(&self, id: &str, context: &Context<'_>) -> Result<&Group, ApiError> {
        if !id.starts_with("sg-") {
            return Err(ApiError::new(
                "InvalidGroupId.Malformed",
                format!("Invalid id: \"{id}\" (expecting \"sg-...\")"),
            ));
        }
        self.groups.iter().find(|group| group.id == id && group.visible_at <= context.now).ok_or_else(|| {
            ApiError::new("InvalidGroup.NotFound", format!("The security group '{id}' does not exist"))
        })
    }

    /// A group's name, for lists of groups.
    pub(super) fn group_name(&self, id: &str) -> &str {
        self.groups.iter().find(|group| group.id == id).map_or("", |group| &group.name)
    }

    /// The group that a VPC's interfaces get where none is named.
    pub(super) fn default_group(&self, vpc: &str) -> Option<String> {
        self.groups.iter().find(|g| g.vpc == vpc && g.name == "default").map(|g| g.id.clone())
    }
}

/// Makes a group that lets everything out.
pub(super) fn add(
    region: &mut Region,
    vpc: &str,
    name: &str,
    description: &str,
    tags: Tags,
    context: &Context<'_>,
) -> String {
    let (id, rule) = (region.fresh("sg"), region.fresh("sgr"));
    let all = Cidr::parse("0.0.0.0/0").map(Peer::V4);
    let rules = all.map(|peer| Rule {
        id: rule,
        egress: true,
        protocol: "-1".to_owned(),
        ports: None,
        peer,
        description: None,
    });
    region.groups.push(Group {
        id: id.clone(),
        vpc: vpc.to_owned(),
        name: name.to_owned(),
        description: description.to_owned(),
        rules: rules.into_iter().collect(),
        tags,
        visible_at: if name == "default" {
            context.now
        } else {
            context.now + context.settings.visible_after
        },
    });
    id
}

/// `CreateSecurityGroup`
pub(super) fn create(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let name = form.required("GroupName")?;
    let description = form.required("GroupDescription")?;
    let vpc = form.get("VpcId").ok_or_else(|| {
        ApiError::new(
            "VPCIdNotSpecified",
            "No default VPC for this user. GroupName is only supported for EC2-Classic and default VPC.",
        )
    })?;
    let vpc = region.vpc(vpc)?.id.clone();
    if name.to_ascii_lowercase().starts_with("sg-") {
        return Err(ApiError::new(
            "InvalidParameterValue",
            format!("Invalid value '{name}' for groupName. Group names may not be in the format sg-*."),
        ));
    }
    if !valid_text(name) {
        return Err(invalid(
            "GroupName",
            name,
            "Character sets beyond a-zA-Z0-9. _-:/()#,@[]+=&;{}!$* or more than 255 characters are not supported",
        ));
    }
    if !valid_text(description) {
        return Err(ApiError::new(
            "InvalidParameterValue",
            "Invalid security group description. Valid descriptions are strings less than 256 characters from the following set:  a-zA-Z0-9. _-:/()#,@[]+=&;{}!$*",
        ));
    }
    if name.eq_ignore_ascii_case("default") {
        return Err(ApiError::new(
            "InvalidParameterValue",
            "Cannot use reserved security group name: default",
        ));
    }
    let tags = tags::on_creation(form, "security-group")?;
    if region.groups.iter().any(|group| group.vpc == vpc && group.name.eq_ignore_ascii_case(name)) {
        return Err(ApiError::new(
            "InvalidGroup.Duplicate",
            format!("The security group '{name}' already exists for VPC '{vpc}'"),
        ));
    }
    let id = add(region, &vpc, name, description, tags.clone(), context);
    let mut xml = Xml::default();
    xml.text("return", true)
        .text("groupId", &id)
        .text("securityGroupArn", arn(region, context, "security-group", &id));
    tags::write(&mut xml, &tags);
    Ok(xml)
}

fn valid_text(text: &str) -> bool {
    text.len() <= 255
        && text.chars().all(|c| c.is_ascii_alphanumeric() || ". _-:/()#,@[]+=&;{}!$*".contains(c))
}

/// `DescribeSecurityGroups`
pub(super) fn describe(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let known = [
        "group-id",
        "group-name",
        "vpc-id",
        "description",
        "owner-id",
        "ip-permission.cidr",
        "ip-permission.from-port",
        "ip-permission.to-port",
        "ip-permission.protocol",
        "ip-permission.group-id",
        "egress.ip-permission.cidr",
        "egress.ip-permission.protocol",
    ];
    let filters = filter::read(form, &known)?;
    let ids = form.list("GroupId");
    for id in &ids {
        region.group(id, context)?;
    }
    if let Some(name) = form.list("GroupName").first() {
        return Err(ApiError::new(
            "InvalidGroup.NotFound",
            format!("The security group '{name}' does not exist in default VPC"),
        ));
    }
    let found: Vec<&Group> = region
        .groups
        .iter()
        .filter(|group| {
            group.visible_at <= context.now && (ids.is_empty() || ids.contains(&group.id.as_str()))
        })
        .filter(|group| {
            let rules = |egress: bool, value: fn(&Rule) -> String| {
                group.rules.iter().filter(|rule| rule.egress == egress).map(value).collect()
            };
            filter::passes(&filters, &group.tags, |name| match name {
                "group-id" => vec![group.id.clone()],
                "group-name" => vec![group.name.clone()],
                "vpc-id" => vec![group.vpc.clone()],
                "description" => vec![group.description.clone()],
                "ip-permission.cidr" | "ip-permission.group-id" => rules(false, Rule::peer_text),
                "ip-permission.from-port" => rules(false, |r| r.ports.map_or(-1, |p| p.0).to_string()),
                "ip-permission.to-port" => rules(false, |r| r.ports.map_or(-1, |p| p.1).to_string()),
                "ip-permission.protocol" => rules(false, |r| r.protocol.clone()),
                "egress.ip-permission.cidr" => rules(true, Rule::peer_text),
                "egress.ip-permission.protocol" => rules(true, |r| r.protocol.clone()),
                _ => vec![context.settings.account.clone()],
            })
        })
        .collect();
    let (page, next) = filter::page(form, context.settings.page_size, !ids.is_empty(), found)?;
    let mut xml = Xml::default();
    xml.list("securityGroupInfo", page, |xml, group| {
        xml.text("ownerId", &context.settings.account)
            .text("groupId", &group.id)
            .text("groupName", &group.name)
            .text("groupDescription", &group.description)
            .text("vpcId", &group.vpc)
            .text("securityGroupArn", arn(region, context, "security-group", &group.id));
        write_permissions(xml, "ipPermissions", group, false, context);
        write_permissions(xml, "ipPermissionsEgress", group, true, context);
        tags::write(xml, &group.tags);
    })
    .optional("nextToken", next);
    Ok(xml)
}

/// EC2 shows rules of the same protocol and ports as one permission with several peers.
fn write_permissions(xml: &mut Xml, name: &str, group: &Group, egress: bool, context: &Context<'_>) {
    let mut permissions: Vec<Vec<&Rule>> = Vec::new();
    for rule in group.rules.iter().filter(|rule| rule.egress == egress) {
        match permissions.iter_mut().find(|p| p[0].protocol == rule.protocol && p[0].ports == rule.ports) {
            Some(permission) => permission.push(rule),
            None => permissions.push(vec![rule]),
        }
    }
    xml.list(name, permissions, |xml, rules| {
        xml.text("ipProtocol", &rules[0].protocol)
            .optional("fromPort", rules[0].ports.map(|p| p.0))
            .optional("toPort", rules[0].ports.map(|p| p.1));
        let of = |wanted: fn(&Peer) -> bool| rules.iter().filter(move |rule| wanted(&rule.peer));
        xml.list("groups", of(|p| matches!(p, Peer::Group(_))), |xml, rule| {
            xml.text("userId", &context.settings.account)
                .text("groupId", rule.peer_text())
                .optional("description", rule.description.as_ref());
        })
        .list("ipRanges", of(|p| matches!(p, Peer::V4(_))), |xml, rule| {
            xml.text("cidrIp", rule.peer_text()).optional("description", rule.description.as_ref());
        })
        .list("ipv6Ranges", of(|p| matches!(p, Peer::V6(_))), |xml, rule| {
            xml.text("cidrIpv6", rule.peer_text()).optional("description", rule.description.as_ref());
        })
        .list("prefixListIds", of(|p| matches!(p, Peer::Prefix(_))), |xml, rule| {
            xml.text("prefixListId", rule.peer_text()).optional("description", rule.description.as_ref());
        });
    });
}

/// The rules that a call names, either as `IpPermissions` or by the old single parameters.
fn rules(region: &Region, form: &Form, egress: bool, context: &Context<'_>) -> Result<Vec<Rule>, ApiError> {
    let mut permissions = form.nodes("IpPermissions");
    if form.get("IpProtocol").is_some() {
        permissions.push(form.clone());
    }
    let mut rules: Vec<Rule> = Vec::new();
    for permission in &permissions {
        let protocol = match permission.required("IpProtocol")?.to_ascii_lowercase().as_str() {
            "-1" | "all" => "-1".to_owned(),
            "tcp" | "6" => "tcp".to_owned(),
            "udp" | "17" => "udp".to_owned(),
            "icmp" | "1" => "icmp".to_owned(),
            "icmpv6" | "58" => "icmpv6".to_owned(),
            number if number.parse::<u8>().is_ok() => number.to_owned(),
            other => {
                return Err(ApiError::new(
                    "InvalidParameterValue",
                    format!("Invalid value '{other}' for IP protocol. Unknown protocol."),
                ));
            }
        };
        let ports = match (permission.number("FromPort")?, permission.number("ToPort")?) {
            _ if protocol == "-1" => None,
            (Some(from), Some(to)) if protocol.starts_with("icmp") => Some((from, to)),
            (Some(from), Some(to)) if (0..=65535).contains(&from) && (from..=65535).contains(&to) => {
                Some((from, to))
            }
            (None, None) if protocol != "tcp" && protocol != "udp" => None,
            (Some(from), Some(to)) => {
                return Err(ApiError::new(
                    "InvalidParameterValue",
                    format!("Invalid TCP/UDP port range ({from}:{to})"),
                ));
            }
            _ => {
                return Err(ApiError::new(
                    "InvalidParameterValue",
                    "Invalid value 'Must specify both from and to ports with TCP/UDP.' for portRange.",
                ));
            }
        };
        for (peer, description) in peers(region, permission, context)? {
            if description.as_deref().is_some_and(|text| !valid_text(text)) {
                return Err(ApiError::new(
                    "InvalidParameterValue",
                    "Invalid rule description. Valid descriptions are strings less than 256 characters from the following set:  a-zA-Z0-9. _-:/()#,@[]+=&;{}!$*",
                ));
            }
            let rule =
                Rule { id: String::new(), egress, protocol: protocol.clone(), ports, peer, description };
            if rules.iter().any(|other| other.same(&rule)) {
                return Err(ApiError::new(
                    "InvalidParameterValue",
                    "The same permission must not appear multiple times",
                ));
            }
            rules.push(rule);
        }
    }
    Ok(rules)
}

fn peers(
    region: &Region,
    permission: &Form,
    context: &Context<'_>,
) -> Result<Vec<(Peer, Option<String>)>, ApiError> {
    let malformed =
        |text: &str| ApiError::new("InvalidParameterValue", format!("CIDR block {text} is malformed"));
    let mut peers = Vec::new();
    if let Some(text) = permission.get("CidrIp") {
        peers.push((Peer::V4(Cidr::parse(text).ok_or_else(|| malformed(text))?), None));
    }
    for range in permission.nodes("IpRanges") {
        let text = range.required("CidrIp")?;
        let cidr = Cidr::parse(text).ok_or_else(|| malformed(text))?;
        peers.push((Peer::V4(cidr), range.get("Description").map(str::to_owned)));
    }
    for range in permission.nodes("Ipv6Ranges") {
        let text = range.required("CidrIpv6")?;
        let cidr = canonical_v6(text).ok_or_else(|| malformed(text))?;
        peers.push((Peer::V6(cidr), range.get("Description").map(str::to_owned)));
    }
    for group in permission.nodes("Groups") {
        let id = region.group(group.required("GroupId")?, context)?.id.clone();
        peers.push((Peer::Group(id), group.get("Description").map(str::to_owned)));
    }
    for list in permission.nodes("PrefixListIds") {
        let id = list.required("PrefixListId")?.to_owned();
        peers.push((Peer::Prefix(id), list.get("Description").map(str::to_owned)));
    }
    Ok(peers)
}

/// `AuthorizeSecurityGroupIngress`
pub(super) fn authorize_ingress(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    authorize(region, form, context, false)
}

/// `AuthorizeSecurityGroupEgress`
pub(super) fn authorize_egress(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    authorize(region, form, context, true)
}

fn authorize(region: &mut Region, form: &Form, context: &Context<'_>, egress: bool) -> Result<Xml, ApiError> {
    let id = region.group(form.required("GroupId")?, context)?.id.clone();
    let mut new = rules(region, form, egress, context)?;
    if new.is_empty() {
        return Err(missing("ipPermissions"));
    }
    let group = region.group(&id, context)?;
    // One rule that is there already refuses the whole call.
    if let Some(rule) = new.iter().find(|rule| group.rules.iter().any(|other| other.same(rule))) {
        let ports = rule.ports.map_or_else(
            || "ALL".to_owned(),
            |(from, to)| format!("{}, from port: {from}, to port: {to}", rule.protocol.to_uppercase()),
        );
        return Err(ApiError::new(
            "InvalidPermission.Duplicate",
            format!("the specified rule \"peer: {}, {ports}, ALLOW\" already exists", rule.peer_text()),
        ));
    }
    if group.rules.iter().filter(|rule| rule.egress == egress).count() + new.len() > MAX_RULES {
        return Err(ApiError::new(
            "RulesPerSecurityGroupLimitExceeded",
            "The maximum number of rules per security group has been reached.",
        ));
    }
    for rule in &mut new {
        rule.id = region.fresh("sgr");
    }
    let mut xml = Xml::default();
    xml.text("return", true);
    write_rules(&mut xml, "securityGroupRuleSet", new.iter().map(|rule| (id.as_str(), rule)), context);
    if let Some(group) = region.groups.iter_mut().find(|group| group.id == id) {
        group.rules.extend(new);
    }
    Ok(xml)
}

/// `RevokeSecurityGroupIngress`
pub(super) fn revoke_ingress(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    revoke(region, form, context, false)
}

/// `RevokeSecurityGroupEgress`
pub(super) fn revoke_egress(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    revoke(region, form, context, true)
}

fn revoke(region: &mut Region, form: &Form, context: &Context<'_>, egress: bool) -> Result<Xml, ApiError> {
    let id = region.group(form.required("GroupId")?, context)?.id.clone();
    let named = rules(region, form, egress, context)?;
    let by_id = form.list("SecurityGroupRuleId");
    if named.is_empty() && by_id.is_empty() {
        return Err(missing("ipPermissions"));
    }
    let group = region.group(&id, context)?;
    let gone = |rule: &Rule| {
        rule.egress == egress
            && (by_id.contains(&rule.id.as_str()) || named.iter().any(|other| other.same(rule)))
    };
    if named.iter().any(|rule| !group.rules.iter().any(|other| other.same(rule))) {
        return Err(ApiError::new(
            "InvalidPermission.NotFound",
            "The specified rule does not exist in this security group.",
        ));
    }
    if let Some(id) = by_id.iter().find(|id| !group.rules.iter().any(|r| r.id == **id && r.egress == egress))
    {
        return Err(ApiError::new(
            "InvalidSecurityGroupRuleId.NotFound",
            format!("The security group rule ID '{id}' does not exist"),
        ));
    }
    let mut xml = Xml::default();
    xml.text("return", true);
    let revoked = group.rules.iter().filter(|rule| gone(rule)).map(|rule| (id.as_str(), rule));
    write_rules(&mut xml, "revokedSecurityGroupRuleSet", revoked, context);
    if let Some(group) = region.groups.iter_mut().find(|group| group.id == id) {
        group.rules.retain(|rule| !gone(rule));
    }
    Ok(xml)
}

/// `DescribeSecurityGroupRules`
pub(super) fn describe_rules(
    region: &mut Region,
    form: &Form,
    context: &Context<'_>,
) -> Result<Xml, ApiError> {
    let filters = filter::read(form, &["group-id", "security-group-rule-id"])?;
    let ids = form.list("SecurityGroupRuleId");
    let found: Vec<(&str, &Rule)> = region
        .groups
        .iter()
        .filter(|group| group.visible_at <= context.now)
        .flat_map(|group| group.rules.iter().map(|rule| (group.id.as_str(), rule)))
        .filter(|(_, rule)| ids.is_empty() || ids.contains(&rule.id.as_str()))
        .filter(|(group, rule)| {
            filter::passes(&filters, &Tags::new(), |name| {
                vec![if name == "group-id" { (*group).to_owned() } else { rule.id.clone() }]
            })
        })
        .collect();
    let (page, next) = filter::page(form, context.settings.page_size, !ids.is_empty(), found)?;
    let mut xml = Xml::default();
    write_rules(&mut xml, "securityGroupRuleSet", page, context);
    xml.optional("nextToken", next);
    Ok(xml)
}

fn write_rules<'a>(
    xml: &mut Xml,
    name: &str,
    rules: impl IntoIterator<Item = (&'a str, &'a Rule)>,
    context: &Context<'_>,
) {
    xml.list(name, rules, |xml, (group, rule)| {
        xml.text("securityGroupRuleId", &rule.id)
            .text("groupId", group)
            .text("groupOwnerId", &context.settings.account)
            .text("isEgress", rule.egress)
            .text("ipProtocol", &rule.protocol)
            .text("fromPort", rule.ports.map_or(-1, |p| p.0))
            .text("toPort", rule.ports.map_or(-1, |p| p.1));
        match &rule.peer {
            Peer::V4(cidr) => xml.text("cidrIpv4", cidr),
            Peer::V6(text) => xml.text("cidrIpv6", text),
            Peer::Prefix(text) => xml.text("prefixListId", text),
            Peer::Group(id) => xml.node("referencedGroupInfo", |xml| {
                xml.text("groupId", id).text("userId", &context.settings.account);
            }),
        };
        xml.optional("description", rule.description.as_ref());
    });
}

/// `DeleteSecurityGroup`
pub(super) fn delete(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let group = region.group(form.required("GroupId")?, context)?;
    let id = group.id.clone();
    if group.name == "default" {
        return Err(ApiError::new(
            "CannotDelete",
            format!("the specified group: \"{id}\" name: \"default\" cannot be deleted by a user"),
        ));
    }
    let used = region.interfaces.iter().any(|interface| interface.groups.contains(&id));
    let referenced = region
        .groups
        .iter()
        .any(|group| group.id != id && group.rules.iter().any(|rule| rule.peer == Peer::Group(id.clone())));
    if used || referenced {
        return Err(ApiError::new("DependencyViolation", format!("resource {id} has a dependent object")));
    }
    region.groups.retain(|group| group.id != id);
    let mut xml = Xml::default();
    xml.text("return", true).text("groupId", id);
    Ok(xml)
}
