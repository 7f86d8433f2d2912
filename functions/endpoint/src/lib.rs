//! The step `endpoint`: an interface endpoint for Git over HTTPS with private DNS, so that the
//! cluster's pods reach CodeCommit under its public name without a way to the internet.
//!
//! A VPC can have one endpoint with private DNS for a service. It is therefore shared by all
//! clusters of the VPC: whoever comes second adds the blocks of its subnets to the group and its own
//! tag to both. An endpoint that is not ours and does the job is adopted, and nothing is added to
//! it. The step answers at once with the endpoint's state; the state machine asks again.
//!
//! <https://docs.aws.amazon.com/vpc/latest/privatelink/create-interface-endpoint.html>

mod found;

use std::time::{Duration, UNIX_EPOCH};

use aws_config::SdkConfig;
use ec2::{Cidr, Client, Endpoint, EndpointService, Error, Group, NewEndpoint, Tag};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use step::clock::Clock;
use step::facts::{Cluster, Network, Subnet};
use step::names::{OWNER_TAG, Owner, SECURITY_GROUP};
use step::runtime::Stack;
use step::{Change, Request, Resource, Result, StepError, ledger};

use found::{Found, is_available, is_ours, judge};

/// EC2's text for a private DNS name that is taken in the VPC
/// (hashicorp/terraform-provider-aws#17535); the code, `InvalidParameter`, has other causes too.
const DNS_CONFLICT: &str = "conflicting DNS domain";
/// EC2's text for a subnet in a zone without the service
/// (terraform-aws-modules/terraform-aws-vpc#462).
const ZONE_NOT_OFFERED: &str = "does not support the availability zone of the subnet";
/// How a text about a VPC without DNS names what is off.
const DNS_ATTRIBUTES: [&str; 2] = ["enableDnsSupport", "enableDnsHostnames"];
/// The pauses before looking again for what EC2 says is there and does not show yet.
const LOOK_AGAIN: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(2)];
/// What the rules of the group say about themselves.
const RULE: &str = "Git over HTTPS from a private subnet";

/// The payload.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// The user's request.
    pub request: Request,
    /// From `cluster`.
    pub cluster: Cluster,
    /// From `cluster`.
    pub network: Network,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Whether the endpoint can be used.
    pub ready: bool,
    /// Why not; empty when ready.
    pub because: String,
    /// `vpce-…`
    pub endpoint_id: String,
    /// Its state as EC2 sent it.
    pub state: String,
    /// The endpoint, and the group where it is ours.
    pub resources: Vec<Resource>,
}

/// The step with its client.
#[derive(Debug, Clone)]
pub struct Step {
    ec2: Client,
    stack: Stack,
    service: String,
    clock: Clock,
}

/// The last part of the endpoint service's name: `GIT_SERVICE`, or `git-codecommit`. The other one
/// that AWS has is `git-codecommit-fips`.
pub fn service_from_env() -> String {
    std::env::var("GIT_SERVICE")
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "git-codecommit".to_owned())
}

/// What is wanted, as it follows from the payload.
struct Want<'a> {
    cluster: &'a Cluster,
    network: &'a Network,
    owner: Owner,
    /// The names that the service may have in this region, the likelier one first.
    services: Vec<String>,
    /// The blocks of the private subnets, sorted.
    from: Vec<Cidr>,
}

impl Want<'_> {
    fn tags(&self) -> [Tag; 2] {
        [Tag::new(OWNER_TAG, self.owner.shared()), self.cluster_tag()]
    }

    fn cluster_tag(&self) -> Tag {
        Tag::new(self.owner.cluster_tag(), "true")
    }

    fn arn(&self, resource: &str) -> String {
        let cluster = self.cluster;
        format!("arn:{}:ec2:{}:{}:{resource}", cluster.partition(), cluster.region(), cluster.account())
    }

    fn endpoint(&self, id: &str, change: Change) -> Resource {
        Resource::new("AWS::EC2::VPCEndpoint", id, change).arn(self.arn(&format!("vpc-endpoint/{id}")))
    }

    fn group(&self, id: &str, change: Change) -> Resource {
        Resource::new("AWS::EC2::SecurityGroup", id, change).arn(self.arn(&format!("security-group/{id}")))
    }

    fn is_ours(&self, endpoint: &Endpoint) -> bool {
        is_ours(endpoint, &self.owner.shared())
    }

    fn is_our_group(&self, group: &Group) -> bool {
        group.group_name == SECURITY_GROUP && group.tag(OWNER_TAG) == Some(self.owner.shared().as_str())
    }

    /// The blocks that a group does not let in by a rule for them or for a wider block.
    fn shut_out(&self, let_in: &[Cidr]) -> Vec<Cidr> {
        self.from.iter().filter(|block| !let_in.iter().any(|rule| rule.covers(block))).copied().collect()
    }
}

impl Step {
    /// Makes the client.
    pub fn new(config: &SdkConfig, stack: Stack, service: String) -> Self {
        Step::with_client(Client::new(config), stack, service, Clock::System)
    }

    /// The same over a client and a clock of the caller's.
    pub fn with_client(ec2: Client, stack: Stack, service: String, clock: Clock) -> Self {
        Step { ec2, stack, service, clock }
    }

    /// Makes sure that the VPC has the endpoint, and says how far it is.
    ///
    /// # Errors
    /// `Conflict` where something foreign or dead is in the way, `PrerequisiteMissing` where no
    /// subnet is in a zone of the service or the VPC's DNS is off, `Unsupported` where the region
    /// has no such service or a quota is used up, `Denied`, `Transient`.
    pub async fn apply(&self, input: Input) -> Result<Output> {
        input.request.check()?;
        let want = self.want(&input)?;
        match self.look(&want).await? {
            Found::Nothing => self.make(&want).await,
            found => self.keep(&want, found).await,
        }
    }

    fn want<'a>(&self, input: &'a Input) -> Result<Want<'a>> {
        let region = input.cluster.region();
        let mut services = vec![format!("com.amazonaws.{region}.{}", self.service)];
        if input.cluster.partition() == "aws-cn" {
            // In China some services are named this way, and which of them differs by region.
            services.push(format!("cn.com.amazonaws.{region}.{}", self.service));
        }
        let mut from = Vec::new();
        for (index, subnet) in input.network.subnets.iter().enumerate() {
            from.push(subnet.cidr.parse::<Cidr>().map_err(|()| {
                StepError::invalid_input(format!(
                    "network.subnets[{index}].cidr: {:?} is not an IPv4 block such as 10.0.0.0/24",
                    subnet.cidr
                ))
            })?);
        }
        from.sort();
        from.dedup();
        if from.is_empty() {
            return Err(StepError::invalid_input("network.subnets: no subnet to put the endpoint in"));
        }
        Ok(Want {
            cluster: &input.cluster,
            network: &input.network,
            owner: Owner::new(&self.stack.name, &input.request),
            services,
            from,
        })
    }

    async fn look(&self, want: &Want<'_>) -> Result<Found> {
        let vpc = &want.network.vpc_id;
        let endpoints = self.ec2.endpoints(vpc, &want.services).await.map_err(|error| explain(error, vpc))?;
        Ok(judge(endpoints, &want.owner.shared()))
    }

    /// Deals with what is there.
    async fn keep(&self, want: &Want<'_>, found: Found) -> Result<Output> {
        match found {
            Found::Live(endpoint) if want.is_ours(&endpoint) => self.keep_ours(want, endpoint).await,
            Found::Live(endpoint) => self.adopt(want, endpoint).await,
            Found::Leaving(endpoint) => {
                let id = &endpoint.vpc_endpoint_id;
                let because = format!(
                    "the endpoint {id} of {} is being deleted and keeps its private DNS name until it is gone; then a new one is made",
                    want.network.vpc_id
                );
                Ok(Output {
                    ready: false,
                    because,
                    endpoint_id: id.clone(),
                    state: endpoint.state,
                    resources: Vec::new(),
                })
            }
            Found::Dead(endpoint) => Err(dead(&endpoint)),
            Found::WithoutPrivateDns(endpoint) => Err(StepError::conflict(format!(
                "the endpoint {} in {} was made by this stack and has its private DNS turned off, so pods do not reach it under CodeCommit's name. Turn it on (aws ec2 modify-vpc-endpoint --vpc-endpoint-id {} --private-dns-enabled) or delete the endpoint, then start again",
                endpoint.vpc_endpoint_id, want.network.vpc_id, endpoint.vpc_endpoint_id
            ))),
            Found::Nothing => Err(StepError::internal("an endpoint that is not there cannot be kept")),
        }
    }

    /// Lets this cluster's subnets in to the stack's own endpoint, and marks it as used by the cluster.
    async fn keep_ours(&self, want: &Want<'_>, endpoint: Endpoint) -> Result<Output> {
        let id = endpoint.vpc_endpoint_id.clone();
        let groups = self.groups_of(&endpoint).await?;
        if groups.len() < endpoint.group_ids().len() {
            return Err(StepError::transient(format!(
                "{id}: EC2 does not show all of its security groups yet. The step looks again"
            )));
        }
        let mut resources = Vec::new();
        let tag = want.cluster_tag();
        let resource = if endpoint.tag(&tag.key).is_some() {
            want.endpoint(&id, Change::Unchanged)
        } else {
            let ids = [id.clone()];
            self.ec2.tag(&ids, &[tag]).await.map_err(|error| explain(error, &id))?;
            want.endpoint(&id, Change::Updated).detail("now shared by this cluster")
        };
        ledger::note(&resource);
        resources.push(resource);
        match groups.iter().find(|group| want.is_our_group(group)) {
            Some(group) => resources.push(self.update_group(want, group).await?),
            // Somebody gave our endpoint other groups. They are not ours to change.
            None => {
                self.check_groups(want, &endpoint, &groups)?;
            }
        }
        Ok(report(endpoint, resources))
    }

    /// Takes an endpoint of somebody else's as it is, unless it certainly shuts the cluster out.
    async fn adopt(&self, want: &Want<'_>, endpoint: Endpoint) -> Result<Output> {
        let groups = self.groups_of(&endpoint).await?;
        let certain = self.check_groups(want, &endpoint, &groups)?;
        let mut detail = match endpoint.tag(OWNER_TAG) {
            Some(stack) => format!("belongs to the stack {stack}; nothing was added to it"),
            None => "was in the VPC already; nothing was added to it".to_owned(),
        };
        if !certain {
            detail.push_str(". The rules of its groups do not tell by blocks whether pods may reach it");
        }
        let resource = want.endpoint(&endpoint.vpc_endpoint_id, Change::Adopted).detail(detail);
        Ok(report(endpoint, vec![resource]))
    }

    async fn groups_of(&self, endpoint: &Endpoint) -> Result<Vec<Group>> {
        let ids = endpoint.group_ids();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.ec2.groups_by_id(&ids).await.map_err(|error| explain(error, &ids.join(", ")))
    }

    /// Whether groups that are not ours to change let all private subnets in. False where their
    /// rules name groups or prefix lists, from which that cannot be told.
    fn check_groups(&self, want: &Want<'_>, endpoint: &Endpoint, groups: &[Group]) -> Result<bool> {
        let let_in: Vec<Cidr> = groups.iter().flat_map(Group::https_from).collect();
        let missing = want.shut_out(&let_in);
        if missing.is_empty() {
            return Ok(true);
        }
        if groups.is_empty() || groups.iter().any(Group::https_by_reference) {
            return Ok(false);
        }
        Err(StepError::conflict(format!(
            "the endpoint {} in {} holds CodeCommit's name in this VPC, and its security groups ({}) do not let TCP 443 in from {}. They do not belong to this stack and were left alone: add that rule, then start again",
            endpoint.vpc_endpoint_id,
            want.network.vpc_id,
            endpoint.group_ids().join(", "),
            listed(&missing)
        )))
    }

    /// Makes the group and the endpoint.
    async fn make(&self, want: &Want<'_>) -> Result<Output> {
        let service = self.offered(want).await?;
        let mut subnets = choose(&want.network.subnets, &service)?;
        let (group_id, group) = self.ensure_group(want).await?;
        let vpc = &want.network.vpc_id;
        loop {
            let subnet_ids: Vec<String> = subnets.iter().map(|subnet| subnet.id.clone()).collect();
            let token = self.client_token(want, &service.service_name, &subnet_ids, &group_id);
            let created = self
                .ec2
                .create_endpoint(&NewEndpoint {
                    vpc_id: vpc,
                    service_name: &service.service_name,
                    subnet_ids: &subnet_ids,
                    group_ids: std::slice::from_ref(&group_id),
                    client_token: &token,
                    tags: &want.tags(),
                })
                .await;
            let error = match created {
                Ok(endpoint) => {
                    let detail = format!("{} in {}", service.service_name, subnet_ids.join(", "));
                    let resource = want.endpoint(&endpoint.vpc_endpoint_id, Change::Created).detail(detail);
                    return Ok(report(endpoint, vec![resource, group]));
                }
                Err(error) => error,
            };
            let text = error.message();
            if text.contains(DNS_CONFLICT) {
                return self.after_conflict(want, &service, text, group).await;
            }
            if text.contains(ZONE_NOT_OFFERED) {
                // The list of zones was wrong about this one; the text names the subnet.
                let before = subnets.len();
                let text = text.to_owned();
                subnets.retain(|subnet| !text.contains(&subnet.id));
                if subnets.len() < before && !subnets.is_empty() {
                    continue;
                }
                return Err(StepError::prerequisite_missing(format!(
                    "no private subnet of {vpc} is in a zone in which {} is offered: {text}. Name a private subnet in another zone under network.subnetIds, then start again",
                    service.service_name
                )));
            }
            if DNS_ATTRIBUTES.iter().any(|attribute| text.contains(attribute)) {
                return Err(StepError::prerequisite_missing(format!(
                    "{vpc}: private DNS needs enableDnsSupport and enableDnsHostnames. Turn both on (aws ec2 modify-vpc-attribute --vpc-id {vpc} --enable-dns-support, and again with --enable-dns-hostnames), then start again"
                )));
            }
            return Err(explain(error, &format!("{} in {vpc}", service.service_name)));
        }
    }

    /// Finds the service in this region.
    async fn offered(&self, want: &Want<'_>) -> Result<EndpointService> {
        for name in &want.services {
            let service = self.ec2.endpoint_service(name).await.map_err(|error| explain(error, name))?;
            if let Some(service) = service {
                return Ok(service);
            }
        }
        Err(not_offered(&want.services.join(" or ")))
    }

    /// The private DNS name is taken: by an endpoint that appeared since the look (then the race is
    /// lost, and that one is kept), or by something that no endpoint explains.
    async fn after_conflict(
        &self,
        want: &Want<'_>,
        service: &EndpointService,
        text: &str,
        group: Resource,
    ) -> Result<Output> {
        for pause in LOOK_AGAIN {
            match self.look(want).await? {
                found @ (Found::Live(_) | Found::Leaving(_)) => {
                    let mut output = self.keep(want, found).await?;
                    match output.resources.iter_mut().find(|resource| resource.id == group.id) {
                        // What this call did to the group is more than what the second look found.
                        Some(known) if known.change == Change::Unchanged => *known = group,
                        Some(_) => {}
                        None => output.resources.push(group),
                    }
                    return Ok(output);
                }
                _ => self.clock.sleep(pause).await,
            }
        }
        let name = service.private_dns_name.as_deref().unwrap_or(&service.service_name);
        Err(StepError::conflict(format!(
            "{}: {text}. No endpoint with private DNS for this service is in the VPC, so a Route 53 private hosted zone (or a profile) for {name} holds the name. Remove its association with the VPC, or let it lead to an interface endpoint of {} with private DNS, then start again",
            want.network.vpc_id, service.service_name
        )))
    }

    /// The stack's group in the VPC, with a rule for each private subnet.
    async fn ensure_group(&self, want: &Want<'_>) -> Result<(String, Resource)> {
        let vpc = &want.network.vpc_id;
        if let Some(group) = self.our_group(want).await? {
            return Ok((group.group_id.clone(), self.update_group(want, &group).await?));
        }
        let description = format!("Git over HTTPS to CodeCommit, made by the stack {}", want.owner.stack);
        let created = self.ec2.create_group(vpc, SECURITY_GROUP, &description, &want.tags()).await;
        match created {
            Ok(id) => {
                let resource =
                    want.group(&id, Change::Created).detail(format!("lets in {}", listed(&want.from)));
                ledger::note(&resource);
                self.let_in(want, &id, &[]).await?;
                Ok((id, resource))
            }
            Err(error) if error.code() == "InvalidGroup.Duplicate" => {
                for pause in LOOK_AGAIN {
                    if let Some(group) = self.our_group(want).await? {
                        return Ok((group.group_id.clone(), self.update_group(want, &group).await?));
                    }
                    self.clock.sleep(pause).await;
                }
                // Names are compared without case, a filter is not.
                let all = self.ec2.groups(vpc, None).await.map_err(|error| explain(error, vpc))?;
                match all.iter().find(|group| group.group_name.eq_ignore_ascii_case(SECURITY_GROUP)) {
                    Some(group) => Err(foreign_group(want, group)),
                    None => Err(StepError::transient(format!(
                        "{vpc}: EC2 says that the security group {SECURITY_GROUP} exists and does not show it yet. The step is tried again"
                    ))),
                }
            }
            Err(error) => Err(explain(error, &format!("{SECURITY_GROUP} in {vpc}"))),
        }
    }

    async fn our_group(&self, want: &Want<'_>) -> Result<Option<Group>> {
        let vpc = &want.network.vpc_id;
        let groups = self.ec2.groups(vpc, Some(SECURITY_GROUP)).await.map_err(|error| explain(error, vpc))?;
        match groups.into_iter().next() {
            Some(group) if want.is_our_group(&group) => Ok(Some(group)),
            Some(group) => Err(foreign_group(want, &group)),
            None => Ok(None),
        }
    }

    /// Adds to our group what this cluster needs.
    async fn update_group(&self, want: &Want<'_>, group: &Group) -> Result<Resource> {
        ledger::note(&want.group(&group.group_id, Change::Unchanged));
        let added = self.let_in(want, &group.group_id, &group.https_from()).await?;
        if !added.is_empty() {
            ledger::note(&want.group(&group.group_id, Change::Updated));
        }
        let tag = want.cluster_tag();
        let tagged = group.tag(&tag.key).is_some();
        if !tagged {
            let ids = [group.group_id.clone()];
            self.ec2.tag(&ids, &[tag]).await.map_err(|error| explain(error, &group.group_id))?;
        }
        let change = if added.is_empty() && tagged { Change::Unchanged } else { Change::Updated };
        let resource = want.group(&group.group_id, change);
        Ok(match added.as_slice() {
            [] => resource,
            added => resource.detail(format!("lets in {} as well", listed(added))),
        })
    }

    /// Adds the rules that are missing, and answers with their blocks.
    async fn let_in(&self, want: &Want<'_>, group_id: &str, let_in: &[Cidr]) -> Result<Vec<Cidr>> {
        let missing = want.shut_out(let_in);
        if missing.is_empty() {
            return Ok(missing);
        }
        match self.ec2.allow_https(group_id, &missing, RULE).await {
            Ok(()) => return Ok(missing),
            Err(error) if error.code() == "InvalidPermission.Duplicate" => {}
            Err(error) => return Err(explain(error, group_id)),
        }
        // One rule that is there already makes EC2 refuse all of them; one by one, it is success.
        for block in &missing {
            match self.ec2.allow_https(group_id, std::slice::from_ref(block), RULE).await {
                Err(error) if error.code() != "InvalidPermission.Duplicate" => {
                    return Err(explain(error, group_id));
                }
                _ => {}
            }
        }
        Ok(missing)
    }

    /// A token that two tries at the same thing share, and that a later one, after the endpoint was
    /// deleted by hand, does not: EC2 would answer that one with the deleted endpoint.
    fn client_token(&self, want: &Want<'_>, service: &str, subnets: &[String], group: &str) -> String {
        let seconds =
            self.clock.now().duration_since(UNIX_EPOCH).map(|since| since.as_secs()).unwrap_or_default();
        let parts = [
            want.owner.stack.as_str(),
            want.owner.cluster.as_str(),
            want.network.vpc_id.as_str(),
            service,
            group,
            &subnets.join(","),
            &(seconds / 300).to_string(),
        ];
        let digest = Sha256::digest(parts.join("\n").as_bytes());
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The first subnet by id of each zone in which the service is offered: EC2 takes one a zone.
fn choose<'a>(subnets: &'a [Subnet], service: &EndpointService) -> Result<Vec<&'a Subnet>> {
    let mut sorted: Vec<&Subnet> = subnets.iter().collect();
    sorted.sort_by(|a, b| a.id.cmp(&b.id));
    let mut chosen: Vec<&Subnet> = Vec::new();
    for subnet in sorted {
        let offered = service.availability_zone_set.contains(&subnet.availability_zone);
        if offered && !chosen.iter().any(|other| other.availability_zone == subnet.availability_zone) {
            chosen.push(subnet);
        }
    }
    if chosen.is_empty() {
        let mut zones: Vec<&str> = subnets.iter().map(|subnet| subnet.availability_zone.as_str()).collect();
        zones.sort_unstable();
        zones.dedup();
        return Err(StepError::prerequisite_missing(format!(
            "{} is offered in {}, and the private subnets are in {}. Name a private subnet in one of its zones under network.subnetIds, then start again",
            service.service_name,
            service.availability_zone_set.join(", "),
            zones.join(", ")
        )));
    }
    Ok(chosen)
}

/// The answer about an endpoint.
fn report(endpoint: Endpoint, resources: Vec<Resource>) -> Output {
    let id = &endpoint.vpc_endpoint_id;
    let ready = is_available(&endpoint.state);
    let because = if ready {
        String::new()
    } else if ec2::state_is(&endpoint.state, &["pendingAcceptance"]) {
        format!("the endpoint {id} waits for the service's owner to accept it (pendingAcceptance)")
    } else if ec2::state_is(&endpoint.state, &["pending"]) {
        format!("the endpoint {id} is pending: EC2 makes its interfaces, which takes one to three minutes")
    } else {
        format!("the endpoint {id} is {:?}", endpoint.state)
    };
    Output { ready, because, endpoint_id: endpoint.vpc_endpoint_id, state: endpoint.state, resources }
}

fn dead(endpoint: &Endpoint) -> StepError {
    let cause = endpoint.failure().map(|text| format!(" ({text})")).unwrap_or_default();
    StepError::conflict(format!(
        "the endpoint {} is {}{cause} and will not become available. Delete it (aws ec2 delete-vpc-endpoints --vpc-endpoint-ids {}), then start again",
        endpoint.vpc_endpoint_id, endpoint.state, endpoint.vpc_endpoint_id
    ))
}

fn foreign_group(want: &Want<'_>, group: &Group) -> StepError {
    let whose = match group.tag(OWNER_TAG) {
        Some(stack) => format!("belongs to the stack {stack}"),
        None => format!("does not carry this stack's tag {OWNER_TAG}"),
    };
    StepError::conflict(format!(
        "the security group {} ({}) in {} {whose}, so it was left alone. Delete it (a group keeps its name), then start again",
        group.group_id, group.group_name, want.network.vpc_id
    ))
}

fn not_offered(service: &str) -> StepError {
    StepError::unsupported(format!(
        "the endpoint service {service} is not offered in this region. Use a region that has CodeCommit, or set the stack's GitService to one that this region offers"
    ))
}

/// What EC2's codes mean here, beyond what they mean everywhere.
fn explain(error: Error, resource: &str) -> StepError {
    let text = error.message();
    match error.code() {
        "InvalidServiceName" => not_offered(resource),
        "VpcEndpointLimitExceeded" | "SecurityGroupLimitExceeded" | "RulesPerSecurityGroupLimitExceeded" => {
            StepError::unsupported(format!(
                "{resource}: {text} ({}). Raise this quota in Service Quotas, or delete what is not needed, then start again",
                error.code()
            ))
        }
        "InsufficientFreeAddressesInSubnet" => StepError::prerequisite_missing(format!(
            "{resource}: {text}. The endpoint takes one address in a subnet of each zone: free some, or name other private subnets under network.subnetIds, then start again"
        )),
        "InvalidVpcID.NotFound"
        | "InvalidVpcId.NotFound"
        | "InvalidSubnetID.NotFound"
        | "InvalidSubnetId.NotFound" => StepError::prerequisite_missing(format!(
            "{resource}: {text}. It was deleted since the cluster was looked at: start again"
        )),
        "IdempotentParameterMismatch" => StepError::transient(format!(
            "{resource}: another execution asks for the same endpoint in another way ({text}). The step looks again"
        )),
        _ => error.on(resource),
    }
}

fn listed(blocks: &[Cidr]) -> String {
    blocks.iter().map(Cidr::to_string).collect::<Vec<_>>().join(", ")
}
