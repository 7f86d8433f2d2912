//! A small typed client for the few EC2 calls that the functions make.
//!
//! EC2's SDK crate takes longer to compile than the rest of the workspace together. These are nine
//! calls of its query protocol (`Action=…` in a form, XML back), sent signed through
//! [`transport::Transport`]. Names on the wire are those of EC2's service model 2016-11-15.
//!
//! Throttling and EC2's own passing failures are tried again here, a few times, with jitter; so is
//! a "not found" about something that was only just made, since EC2 is eventually consistent.
//! Every write that this client offers may be repeated: a second `CreateVpcEndpoint` with the same
//! client token answers with the first one's endpoint, and the others answer with a code that says
//! that the thing is there already.

mod cidr;
mod error;
mod types;
mod wire;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use aws_config::SdkConfig;
use serde::de::DeserializeOwned;
use step::clock::Clock;
use transport::Transport;

pub use cidr::Cidr;
pub use error::{Error, Result};
pub use types::{
    Endpoint, EndpointService, Group, LastError, NewEndpoint, Permission, Route, RouteTable, Subnet, Tag,
    state_is,
};
use wire::{Form, Items};

/// How often one call is sent, at most.
const ATTEMPTS: u32 = 4;
/// The pause before the second attempt; each later one is twice as long, and jitter shortens it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// How long one attempt may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// More than any page that EC2 sends.
const LIMIT: usize = 8 * 1024 * 1024;
/// A VPC has at most 200 subnets and route tables unless quotas were raised; a service that pages
/// for ever is a bug, not a large account.
const PAGES: usize = 100;

/// The client.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Transport,
    clock: Clock,
}

impl Client {
    /// Uses region, credentials and endpoint of the AWS configuration.
    pub fn new(config: &SdkConfig) -> Self {
        Client::with_transport(Transport::new(config), Clock::System)
    }

    /// The same over a transport and a clock of the caller's.
    pub fn with_transport(transport: Transport, clock: Clock) -> Self {
        Client { transport, clock }
    }

    /// Those of the subnets that exist, from `DescribeSubnets`.
    ///
    /// Asked for by filter: by id, EC2 answers with an error about the first one that is missing,
    /// and a list of all that are missing is more use.
    ///
    /// # Errors
    /// Whatever EC2 answers.
    pub async fn subnets(&self, ids: &[String]) -> Result<Vec<Subnet>> {
        let mut found = Vec::new();
        // EC2 takes at most 200 values in one filter.
        for chunk in ids.chunks(200) {
            let values: Vec<&str> = chunk.iter().map(String::as_str).collect();
            found.extend(self.describe_subnets("subnet-id", &values).await?);
        }
        found.retain(|subnet: &Subnet| ids.contains(&subnet.subnet_id));
        Ok(found)
    }

    /// All subnets of a VPC, from `DescribeSubnets`.
    ///
    /// # Errors
    /// Whatever EC2 answers.
    pub async fn subnets_of_vpc(&self, vpc_id: &str) -> Result<Vec<Subnet>> {
        let mut found = self.describe_subnets("vpc-id", &[vpc_id]).await?;
        found.retain(|subnet| subnet.vpc_id == vpc_id);
        Ok(found)
    }

    async fn describe_subnets(&self, filter: &str, values: &[&str]) -> Result<Vec<Subnet>> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page {
            #[serde(default)]
            subnet_set: Items<Subnet>,
            next_token: Option<String>,
        }
        let form = Form::new("DescribeSubnets").filter(1, filter, values);
        self.all(form, |page: Page| (page.subnet_set.item, page.next_token)).await
    }

    /// The route tables of a VPC, from `DescribeRouteTables`.
    ///
    /// # Errors
    /// Whatever EC2 answers.
    pub async fn route_tables(&self, vpc_id: &str) -> Result<Vec<RouteTable>> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page {
            #[serde(default)]
            route_table_set: Items<RouteTable>,
            next_token: Option<String>,
        }
        let form = Form::new("DescribeRouteTables").filter(1, "vpc-id", &[vpc_id]);
        let mut tables = self.all(form, |page: Page| (page.route_table_set.item, page.next_token)).await?;
        tables.retain(|table| table.vpc_id == vpc_id);
        Ok(tables)
    }

    /// A VPC's `enableDnsSupport`, from `DescribeVpcAttribute`.
    ///
    /// # Errors
    /// `InvalidVpcID.NotFound`, and whatever else EC2 answers.
    pub async fn dns_support(&self, vpc_id: &str) -> Result<bool> {
        let value = self.vpc_attribute(vpc_id, "enableDnsSupport").await?.enable_dns_support;
        Ok(value.is_some_and(|attribute| attribute.value))
    }

    /// A VPC's `enableDnsHostnames`, from `DescribeVpcAttribute`.
    ///
    /// # Errors
    /// `InvalidVpcID.NotFound`, and whatever else EC2 answers.
    pub async fn dns_hostnames(&self, vpc_id: &str) -> Result<bool> {
        let value = self.vpc_attribute(vpc_id, "enableDnsHostnames").await?.enable_dns_hostnames;
        Ok(value.is_some_and(|attribute| attribute.value))
    }

    async fn vpc_attribute(&self, vpc_id: &str, attribute: &str) -> Result<types::VpcAttributes> {
        let form = Form::new("DescribeVpcAttribute").set("VpcId", vpc_id).set("Attribute", attribute);
        self.call(&form).await
    }

    /// The security groups of a VPC, or those with one name, from `DescribeSecurityGroups`.
    ///
    /// # Errors
    /// Whatever EC2 answers.
    pub async fn groups(&self, vpc_id: &str, name: Option<&str>) -> Result<Vec<Group>> {
        let mut form = Form::new("DescribeSecurityGroups").filter(1, "vpc-id", &[vpc_id]);
        if let Some(name) = name {
            form = form.filter(2, "group-name", &[name]);
        }
        let mut groups = self.describe_groups(form).await?;
        groups.retain(|group| group.vpc_id == vpc_id && name.is_none_or(|name| group.group_name == name));
        Ok(groups)
    }

    /// Those of the security groups that exist, from `DescribeSecurityGroups`.
    ///
    /// # Errors
    /// Whatever EC2 answers.
    pub async fn groups_by_id(&self, ids: &[String]) -> Result<Vec<Group>> {
        let values: Vec<&str> = ids.iter().map(String::as_str).collect();
        let form = Form::new("DescribeSecurityGroups").filter(1, "group-id", &values);
        let mut groups = self.describe_groups(form).await?;
        groups.retain(|group| ids.contains(&group.group_id));
        Ok(groups)
    }

    async fn describe_groups(&self, form: Form) -> Result<Vec<Group>> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page {
            #[serde(default)]
            security_group_info: Items<Group>,
            next_token: Option<String>,
        }
        self.all(form, |page: Page| (page.security_group_info.item, page.next_token)).await
    }

    /// Makes a security group and answers with its id.
    ///
    /// # Errors
    /// `InvalidGroup.Duplicate`, where the VPC has a group of that name in any spelling, and
    /// whatever else EC2 answers.
    pub async fn create_group(
        &self,
        vpc_id: &str,
        name: &str,
        description: &str,
        tags: &[Tag],
    ) -> Result<String> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Reply {
            group_id: String,
        }
        let form = Form::new("CreateSecurityGroup")
            .set("GroupName", name)
            .set("GroupDescription", description)
            .set("VpcId", vpc_id)
            .tag_specification("security-group", tags);
        let reply: Reply = self.call(&form).await?;
        Ok(reply.group_id)
    }

    /// Lets TCP port 443 in from these blocks, by `AuthorizeSecurityGroupIngress`.
    ///
    /// # Errors
    /// `InvalidPermission.Duplicate`, where any one of them is let in already (then none of the
    /// others was added), and whatever else EC2 answers.
    pub async fn allow_https(&self, group_id: &str, from: &[Cidr], description: &str) -> Result<()> {
        let mut form = Form::new("AuthorizeSecurityGroupIngress")
            .set("GroupId", group_id)
            .set("IpPermissions.1.IpProtocol", "tcp")
            .set("IpPermissions.1.FromPort", "443")
            .set("IpPermissions.1.ToPort", "443");
        for (index, cidr) in from.iter().enumerate() {
            let range = format!("IpPermissions.1.IpRanges.{}", index + 1);
            form = form
                .set(&format!("{range}.CidrIp"), &cidr.to_string())
                .set(&format!("{range}.Description"), description);
        }
        self.call_settling::<wire::Ignored>(&form).await.map(|_| ())
    }

    /// The endpoints for any of these services in a VPC, in every state, from
    /// `DescribeVpcEndpoints`.
    ///
    /// # Errors
    /// Whatever EC2 answers.
    pub async fn endpoints(&self, vpc_id: &str, services: &[String]) -> Result<Vec<Endpoint>> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page {
            #[serde(default)]
            vpc_endpoint_set: Items<Endpoint>,
            next_token: Option<String>,
        }
        let values: Vec<&str> = services.iter().map(String::as_str).collect();
        let form = Form::new("DescribeVpcEndpoints").filter(1, "vpc-id", &[vpc_id]).filter(
            2,
            "service-name",
            &values,
        );
        let mut endpoints =
            self.all(form, |page: Page| (page.vpc_endpoint_set.item, page.next_token)).await?;
        endpoints.retain(|endpoint| endpoint.vpc_id == vpc_id && services.contains(&endpoint.service_name));
        Ok(endpoints)
    }

    /// An endpoint service as the account sees it, from `DescribeVpcEndpointServices`; nothing
    /// where the region does not offer it (`InvalidServiceName`, or an empty list).
    ///
    /// # Errors
    /// Whatever else EC2 answers.
    pub async fn endpoint_service(&self, name: &str) -> Result<Option<EndpointService>> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page {
            #[serde(default)]
            service_detail_set: Items<EndpointService>,
            next_token: Option<String>,
        }
        let form = Form::new("DescribeVpcEndpointServices").set("ServiceName.1", name);
        let services =
            match self.all(form, |page: Page| (page.service_detail_set.item, page.next_token)).await {
                Ok(services) => services,
                Err(error) if error.code() == "InvalidServiceName" => Vec::new(),
                Err(error) => return Err(error),
            };
        Ok(services.into_iter().find(|service| service.service_name == name))
    }

    /// Makes an interface endpoint with private DNS, and answers with it as it then is.
    ///
    /// # Errors
    /// Whatever EC2 answers; several causes share the code `InvalidParameter` and differ in text.
    pub async fn create_endpoint(&self, new: &NewEndpoint<'_>) -> Result<Endpoint> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Reply {
            vpc_endpoint: Endpoint,
        }
        let form = Form::new("CreateVpcEndpoint")
            .set("VpcId", new.vpc_id)
            // Without it, EC2 takes the request to be for a gateway.
            .set("VpcEndpointType", "Interface")
            .set("ServiceName", new.service_name)
            .list("SubnetId", new.subnet_ids)
            .list("SecurityGroupId", new.group_ids)
            .set("PrivateDnsEnabled", "true")
            .set("ClientToken", new.client_token)
            .tag_specification("vpc-endpoint", new.tags);
        let reply: Reply = self.call_settling(&form).await?;
        Ok(reply.vpc_endpoint)
    }

    /// Sets tags on resources by `CreateTags`; other tags stay.
    ///
    /// # Errors
    /// Whatever EC2 answers.
    pub async fn tag(&self, resources: &[String], tags: &[Tag]) -> Result<()> {
        let form = Form::new("CreateTags").list("ResourceId", resources).tags("", tags);
        self.call_settling::<wire::Ignored>(&form).await.map(|_| ())
    }

    /// Reads page after page.
    async fn all<P, T>(&self, form: Form, split: impl Fn(P) -> (Vec<T>, Option<String>)) -> Result<Vec<T>>
    where
        P: DeserializeOwned,
    {
        let mut items = Vec::new();
        let mut page = form.clone();
        for _ in 0..PAGES {
            let (more, next) = split(self.call(&page).await?);
            items.extend(more);
            match next.filter(|token| !token.is_empty()) {
                Some(token) => page = form.clone().set("NextToken", &token),
                None => return Ok(items),
            }
        }
        Err(Error::Step(step::StepError::internal(format!("ec2:{}: more than {PAGES} pages", form.action()))))
    }

    async fn call<T: DeserializeOwned>(&self, form: &Form) -> Result<T> {
        self.retrying(form, |error| error.passes()).await
    }

    /// For calls that name what may have been made a moment ago.
    async fn call_settling<T: DeserializeOwned>(&self, form: &Form) -> Result<T> {
        self.retrying(form, |error| error.passes() || error.is_not_found_yet()).await
    }

    async fn retrying<T: DeserializeOwned>(&self, form: &Form, again: impl Fn(&Error) -> bool) -> Result<T> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            match self.once(form).await {
                Err(error) if attempt < ATTEMPTS && again(&error) => {
                    tracing::info!(
                        action = form.action(),
                        code = error.code(),
                        attempt,
                        "EC2 is asked again"
                    );
                    self.clock.sleep(jittered(pause)).await;
                    pause *= 2;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    async fn once<T: DeserializeOwned>(&self, form: &Form) -> Result<T> {
        let region = self.transport.region()?;
        let fallback = format!("https://ec2.{region}.{}", dns_suffix(&region));
        let address = self.transport.endpoint("ec2", &fallback);
        let request = http::Request::post(format!("{address}/"))
            .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
            .body(form.encoded().into_bytes())
            .map_err(|_| {
                step::StepError::internal(format!("{address} is not an address (AWS_ENDPOINT_URL)"))
            })?;
        let reply = self.transport.send_signed("ec2", request, TIMEOUT, LIMIT).await?;
        wire::read(form.action(), reply.status().as_u16(), reply.body())
    }
}

/// Between half and all of a pause, so that executions that were throttled together do not come
/// back together.
fn jittered(pause: Duration) -> Duration {
    // A fresh `RandomState` is seeded at random, which is all the randomness that jitter needs.
    let random = RandomState::new().build_hasher().finish() % 1000;
    pause / 2 + pause * (random as u32) / 2000
}

/// The DNS suffix of a region's services, from the region's name.
pub fn dns_suffix(region: &str) -> &'static str {
    for (prefix, suffix) in [
        ("cn-", "amazonaws.com.cn"),
        ("us-iso-", "c2s.ic.gov"),
        ("us-isob-", "sc2s.sgov.gov"),
        ("us-isof-", "csp.hci.ic.gov"),
        ("eu-isoe-", "cloud.adc-e.uk"),
        ("eusc-", "amazonaws.eu"),
    ] {
        if region.starts_with(prefix) {
            return suffix;
        }
    }
    "amazonaws.com"
}
