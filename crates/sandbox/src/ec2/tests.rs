use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;

use super::*;
use crate::wire::Caller;

const SERVICE: &str = "com.amazonaws.eu-west-1.git-codecommit";

struct World {
    ec2: Ec2,
    seed: Seed,
}

impl World {
    fn new(change: impl FnOnce(&mut Settings)) -> World {
        let mut settings = Settings::default();
        change(&mut settings);
        let ec2 = Ec2::new(settings);
        let seed = ec2.seed();
        World { ec2, seed }
    }

    /// Sends a form as the wire has it, and answers with status and body.
    async fn send(&self, form: &str) -> (u16, String) {
        self.send_to("eu-west-1", form).await
    }

    async fn send_to(&self, region: &str, form: &str) -> (u16, String) {
        let request = http::Request::post("/")
            .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
            .body(Bytes::from(format!("{form}&Version=2016-11-15")))
            .expect("request");
        let caller =
            Caller { arn: "arn:aws:iam::000000000000:root".to_owned(), account: "000000000000".to_owned() };
        let call = Call {
            service: "ec2".to_owned(),
            action: String::new(),
            region: region.to_owned(),
            caller,
            request,
        };
        let reply = self.ec2.call(&call).await;
        let status = reply.status().as_u16();
        let body = reply.into_body().collect().await.expect("body").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    async fn good(&self, form: &str) -> String {
        let (status, body) = self.send(form).await;
        assert_eq!(status, 200, "{form}: {body}");
        body
    }

    /// Code and text of the error that a call must get.
    async fn bad(&self, form: &str) -> (String, String) {
        let (status, body) = self.send(form).await;
        assert!(status >= 400, "{form}: {body}");
        assert!(body.contains("<Response><Errors><Error>"), "{body}");
        (text(&body, "Code").to_owned(), text(&body, "Message").to_owned())
    }

    async fn group(&self, name: &str) -> String {
        let form = format!(
            "Action=CreateSecurityGroup&GroupName={name}&GroupDescription=d&VpcId={}",
            self.seed.vpc_id
        );
        text(&self.good(&form).await, "groupId").to_owned()
    }

    fn new_endpoint(&self, rest: &str) -> String {
        format!(
            "Action=CreateVpcEndpoint&VpcId={}&ServiceName={SERVICE}&VpcEndpointType=Interface{rest}",
            self.seed.vpc_id
        )
    }

    /// An endpoint with private DNS in both private subnets.
    async fn endpoint(&self, rest: &str) -> String {
        let subnets = &self.seed.private;
        let form = self.new_endpoint(&format!(
            "&SubnetId.1={}&SubnetId.2={}&PrivateDnsEnabled=true{rest}",
            subnets[0].id, subnets[1].id
        ));
        text(&self.good(&form).await, "vpcEndpointId").to_owned()
    }

    async fn state(&self, id: &str) -> String {
        let form = format!("Action=DescribeVpcEndpoints&VpcEndpointId.1={id}");
        text(&self.good(&form).await, "state").to_owned()
    }
}

/// The text of the first element of that name.
fn text<'a>(body: &'a str, name: &str) -> &'a str {
    all(body, name).first().copied().unwrap_or_else(|| panic!("no {name} in {body}"))
}

/// The texts of all elements of that name.
fn all<'a>(body: &'a str, name: &str) -> Vec<&'a str> {
    body.split(&format!("<{name}>"))
        .skip(1)
        .filter_map(|rest| rest.split(&format!("</{name}>")).next())
        .collect()
}

#[tokio::test]
async fn a_reply_has_the_form_of_the_query_protocol() {
    let world = World::new(|_| {});
    let body = world.good("Action=DescribeVpcs").await;
    assert!(body.starts_with(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<DescribeVpcsResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>"
    ));
    for (form, code) in [
        ("Action=RunInstances", "InvalidAction"),
        ("Action=DescribeVpcs&VpcIds.1=vpc-1", "UnknownParameter"),
        ("Action=DescribeVpcs&DryRun=true", "DryRunOperation"),
        ("Action=DescribeVpcAttribute&Attribute=enableDnsSupport", "MissingParameter"),
        ("Action=DescribeVpcs&Filter.1.Name=colour&Filter.1.Value.1=red", "InvalidParameterValue"),
        ("Action=DescribeVpcs&NextToken=nonsense", "InvalidParameterValue"),
    ] {
        assert_eq!(world.bad(form).await.0, code, "{form}");
    }
}

#[tokio::test]
async fn the_seed_is_a_network_for_a_cluster() {
    let world = World::new(|_| {});
    let vpc = &world.seed.vpc_id;
    for attribute in ["enableDnsSupport", "enableDnsHostnames"] {
        let form = format!("Action=DescribeVpcAttribute&VpcId={vpc}&Attribute={attribute}");
        let body = world.good(&form).await;
        assert!(body.contains(&format!("<{attribute}><value>true</value></{attribute}>")), "{body}");
    }
    for (subnets, target) in
        [(&world.seed.private, "<natGatewayId>nat-"), (&world.seed.public, "<gatewayId>igw-")]
    {
        assert_eq!(subnets.iter().map(|s| s.zone.as_str()).collect::<Vec<_>>(), ["eu-west-1a", "eu-west-1b"]);
        for subnet in subnets {
            let body = world
                .good(&format!(
                    "Action=DescribeRouteTables&Filter.1.Name=association.subnet-id&Filter.1.Value.1={}",
                    subnet.id
                ))
                .await;
            assert_eq!(all(&body, "propagatingVgwSet").len(), 1);
            assert!(
                body.contains(&format!("<destinationCidrBlock>0.0.0.0/0</destinationCidrBlock>{target}")),
                "{body}"
            );
        }
    }
    let main = "Action=DescribeRouteTables&Filter.1.Name=association.main&Filter.1.Value.1=true";
    assert_eq!(all(&world.good(main).await, "destinationCidrBlock"), ["10.0.0.0/16"]);
    // Another region has nothing of it.
    let (_, elsewhere) = world.send_to("us-east-1", "Action=DescribeVpcs").await;
    assert!(elsewhere.contains("<vpcSet></vpcSet>"), "{elsewhere}");
    let zones =
        world.good("Action=DescribeAvailabilityZones&Filter.1.Name=zone-id&Filter.1.Value.1=euw1-az2").await;
    assert_eq!(all(&zones, "zoneName"), ["eu-west-1b"]);
}

#[tokio::test]
async fn vpcs_and_subnets_can_be_made() {
    let world = World::new(|_| {});
    let body = world.good("Action=CreateVpc&CidrBlock=10.9.3.0/16").await;
    let vpc = text(&body, "vpcId").to_owned();
    assert_eq!(text(&body, "cidrBlock"), "10.9.0.0/16");
    // A new VPC resolves names and gives none.
    for (attribute, value) in [("enableDnsSupport", "true"), ("enableDnsHostnames", "false")] {
        let form = format!("Action=DescribeVpcAttribute&VpcId={vpc}&Attribute={attribute}");
        assert_eq!(text(&world.good(&form).await, "value"), value, "{attribute}");
    }
    world.good(&format!("Action=ModifyVpcAttribute&VpcId={vpc}&EnableDnsHostnames.Value=true")).await;
    let new = format!("Action=CreateSubnet&VpcId={vpc}");
    let body = world.good(&format!("{new}&CidrBlock=10.9.1.0/24&AvailabilityZone=eu-west-1c")).await;
    assert_eq!(text(&body, "availabilityZone"), "eu-west-1c");
    for (rest, code, words) in [
        ("&CidrBlock=10.9.1.128/25", "InvalidSubnet.Conflict", "conflicts with another subnet"),
        ("&CidrBlock=10.8.1.0/24", "InvalidSubnet.Range", "is invalid"),
        ("&CidrBlock=nonsense", "InvalidParameterValue", "not a valid CIDR block"),
        (
            "&CidrBlock=10.9.2.0/24&AvailabilityZone=eu-west-1z",
            "InvalidParameterValue",
            "eu-west-1a, eu-west-1b, eu-west-1c",
        ),
    ] {
        let (got, message) = world.bad(&format!("{new}{rest}")).await;
        assert_eq!(got, code, "{rest}");
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(world.bad("Action=CreateVpc&CidrBlock=10.0.0.0/8").await.0, "InvalidVpc.Range");
    assert_eq!(world.bad("Action=DescribeSubnets&SubnetId.1=subnet-0").await.0, "InvalidSubnetID.NotFound");
}

#[tokio::test]
async fn an_endpoint_becomes_available_and_goes_in_its_time() {
    let world = World::new(|_| {});
    let group = world.group("g").await;
    let id = world.endpoint(&format!("&SecurityGroupId.1={group}")).await;
    assert_eq!(world.state(&id).await, "pending");
    world.ec2.advance(Duration::from_secs(3));
    assert_eq!(world.state(&id).await, "available");

    let body = world
        .good(&format!(
            "Action=DescribeNetworkInterfaces&Filter.1.Name=group-id&Filter.1.Value.1={group}&Filter.2.Name=interface-type&Filter.2.Value.1=vpc_endpoint"
        ))
        .await;
    assert_eq!(all(&body, "description"), vec![format!("VPC Endpoint Interface {id}"); 2]);
    let delete = format!("Action=DeleteSecurityGroup&GroupId={group}");
    let in_use = ("DependencyViolation".to_owned(), format!("resource {group} has a dependent object"));
    assert_eq!(world.bad(&delete).await, in_use);

    // Deleting answers 200 whatever happens, and goes on in the background.
    let gone = format!("Action=DeleteVpcEndpoints&VpcEndpointId.1={id}&VpcEndpointId.2=vpce-0");
    let body = world.good(&gone).await;
    assert_eq!(all(&body, "resourceId"), ["vpce-0"]);
    assert_eq!(text(&body, "code"), "InvalidVpcEndpoint.NotFound");
    assert_eq!(world.state(&id).await, "deleting");
    assert_eq!(world.bad(&delete).await, in_use);
    world.ec2.advance(Duration::from_secs(2));
    let missing = world.bad(&format!("Action=DescribeVpcEndpoints&VpcEndpointId.1={id}")).await;
    assert_eq!(missing.0, "InvalidVpcEndpointId.NotFound");
    world.good(&delete).await;
    assert_eq!(world.bad(&delete).await.0, "InvalidGroup.NotFound");
}

#[tokio::test]
async fn an_endpoint_can_fail() {
    let failure = ("InvalidParameter".to_owned(), "no capacity".to_owned());
    let world = World::new(|settings| settings.endpoint_failure = Some(failure));
    let id = world.endpoint("").await;
    assert_eq!(world.state(&id).await, "pending");
    world.ec2.advance(Duration::from_secs(3));
    let body = world.good(&format!("Action=DescribeVpcEndpoints&VpcEndpointId.1={id}")).await;
    assert!(body.contains("<state>failed</state>"), "{body}");
    assert!(
        body.contains("<lastError><code>InvalidParameter</code><message>no capacity</message></lastError>")
    );
}

#[tokio::test]
async fn endpoints_conflict_as_the_real_ones_do() {
    let world = World::new(|settings| {
        for service in settings.services.iter_mut().filter(|service| service.name == "git-codecommit") {
            service.zones = vec!["a".to_owned()];
        }
    });
    let (private, public, vpc) = (&world.seed.private, &world.seed.public, &world.seed.vpc_id);
    for (rest, code, message) in [
        (
            format!("&SubnetId.1={}", private[1].id),
            "InvalidParameter",
            format!(
                "The VPC endpoint service {SERVICE} does not support the availability zone of the subnet: {}.",
                private[1].id
            ),
        ),
        (
            format!("&SubnetId.1={}&SubnetId.2={}", private[0].id, public[0].id),
            "DuplicateSubnetsInSameZone",
            format!(
                "Found another VPC endpoint subnet in the availability zone of {}. VPC endpoint subnets should be in different availability zones supported by the VPC endpoint service.",
                public[0].id
            ),
        ),
        (
            "&SubnetId.1=subnet-0".to_owned(),
            "InvalidSubnetID.NotFound",
            "The subnet ID 'subnet-0' does not exist".to_owned(),
        ),
        (
            "&SecurityGroupId.1=sg-0".to_owned(),
            "InvalidGroup.NotFound",
            "The security group 'sg-0' does not exist".to_owned(),
        ),
        (
            "&SecurityGroupId.1=x".to_owned(),
            "InvalidGroupId.Malformed",
            "Invalid id: &quot;x&quot; (expecting &quot;sg-...&quot;)".to_owned(),
        ),
        (
            "&RouteTableId.1=rtb-0".to_owned(),
            "UnknownParameter",
            "The parameter RouteTableId is not recognized".to_owned(),
        ),
    ] {
        assert_eq!(world.bad(&world.new_endpoint(&rest)).await, (code.to_owned(), message), "{rest}");
    }
    let gateway = format!("Action=CreateVpcEndpoint&VpcId={vpc}&ServiceName={SERVICE}");
    assert_eq!(
        world.bad(&gateway).await,
        (
            "InvalidParameter".to_owned(),
            "Endpoint type (Gateway) does not match available service types ([Interface]).".to_owned()
        )
    );
    let unknown = format!("Action=CreateVpcEndpoint&VpcId={vpc}&ServiceName=x&VpcEndpointType=Interface");
    assert_eq!(world.bad(&unknown).await.0, "InvalidServiceName");
    assert_eq!(world.bad("Action=DescribeVpcEndpointServices&ServiceName.1=x").await.0, "InvalidServiceName");
    let body = world.good(&format!("Action=DescribeVpcEndpointServices&ServiceName.1={SERVICE}")).await;
    assert!(body.contains("<availabilityZoneSet><item>eu-west-1a</item></availabilityZoneSet>"), "{body}");
}

#[tokio::test]
async fn private_dns_needs_the_vpcs_attributes_and_an_unused_name() {
    let world = World::new(|_| {});
    let vpc = world.seed.vpc_id.clone();
    let form = world.new_endpoint("&PrivateDnsEnabled=true");
    let off = format!(
        "Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC attributes set to true for {vpc}"
    );
    for (support, hostnames) in [(true, false), (false, true)] {
        world.ec2.set_dns(&vpc, support, hostnames);
        assert_eq!(world.bad(&form).await, ("InvalidParameter".to_owned(), off.clone()));
    }
    world.ec2.set_dns(&vpc, true, true);
    let id = world.endpoint("").await;
    let conflict = (
        "InvalidParameter".to_owned(),
        format!(
            "private-dns-enabled cannot be set because there is already a conflicting DNS domain for git-codecommit.eu-west-1.amazonaws.com in the VPC {vpc}"
        ),
    );
    assert_eq!(world.bad(&form).await, conflict);
    // Without private DNS there may be any number.
    let plain = world.good(&world.new_endpoint("&PrivateDnsEnabled=false")).await;
    assert!(plain.contains("<privateDnsEnabled>false</privateDnsEnabled>"));
    // The name is free again when the endpoint is gone, and not while it is going.
    world.good(&format!("Action=DeleteVpcEndpoints&VpcEndpointId.1={id}")).await;
    assert_eq!(world.bad(&form).await, conflict);
    world.ec2.advance(Duration::from_secs(2));
    world.ec2.add_private_zone(&vpc, "git-codecommit.eu-west-1.amazonaws.com");
    assert_eq!(world.bad(&form).await, conflict);
}

#[tokio::test]
async fn a_client_token_stands_for_one_endpoint() {
    let world = World::new(|_| {});
    let tags = "&TagSpecification.1.ResourceType=vpc-endpoint&TagSpecification.1.Tag.1.Key=a&TagSpecification.1.Tag.1.Value=b";
    let first = world.endpoint(&format!("&ClientToken=t{tags}")).await;
    world.ec2.advance(Duration::from_secs(3));
    assert_eq!(world.endpoint(&format!("&ClientToken=t{tags}")).await, first);
    let (code, message) = world.bad(&world.new_endpoint("&ClientToken=t")).await;
    assert_eq!(code, "IdempotentParameterMismatch");
    assert_eq!(message, "The request uses the same client token as a previous, but non-identical request.");
    world.good(&format!("Action=DeleteVpcEndpoints&VpcEndpointId.1={first}")).await;
    world.ec2.advance(Duration::from_secs(2));
    assert_ne!(world.endpoint(&format!("&ClientToken=t{tags}")).await, first);
}

#[tokio::test]
async fn what_was_just_made_may_not_be_visible_yet() {
    let world = World::new(|settings| settings.visible_after = Duration::from_secs(1));
    let group = world.group("g").await;
    let id = world.endpoint("").await;
    let by_id = format!("Action=DescribeVpcEndpoints&VpcEndpointId.1={id}");
    assert_eq!(
        world.bad(&by_id).await,
        ("InvalidVpcEndpointId.NotFound".to_owned(), format!("The Vpc Endpoint Id '{id}' does not exist"))
    );
    assert!(all(&world.good("Action=DescribeVpcEndpoints").await, "vpcEndpointId").is_empty());
    let tag = format!("Action=CreateTags&ResourceId.1={id}&Tag.1.Key=a&Tag.1.Value=b");
    assert_eq!(world.bad(&tag).await.0, "InvalidVpcEndpointId.NotFound");
    let rule = format!(
        "Action=AuthorizeSecurityGroupIngress&GroupId={group}&IpProtocol=tcp&FromPort=443&ToPort=443&CidrIp=10.0.0.0/8"
    );
    assert_eq!(world.bad(&rule).await.0, "InvalidGroup.NotFound");
    world.ec2.advance(Duration::from_secs(1));
    for form in [by_id, tag, rule] {
        world.good(&form).await;
    }
}

#[tokio::test]
async fn endpoints_are_filtered() {
    let world = World::new(|_| {});
    let id = world
        .endpoint("&TagSpecification.1.ResourceType=vpc-endpoint&TagSpecification.1.Tag.1.Key=owner&TagSpecification.1.Tag.1.Value=stack-1")
        .await;
    let other = world.good(&world.new_endpoint("&PrivateDnsEnabled=false")).await;
    let other = text(&other, "vpcEndpointId");
    for (filters, expected) in [
        (vec![("vpc-id", world.seed.vpc_id.as_str())], vec![id.as_str(), other]),
        (vec![("vpc-id", "vpc-0")], vec![]),
        (vec![("service-name", SERVICE)], vec![&id, other]),
        (vec![("vpc-endpoint-state", "pending")], vec![&id, other]),
        // As the wire spells states, not as the model does.
        (vec![("vpc-endpoint-state", "Pending")], vec![]),
        (vec![("vpc-endpoint-type", "Interface"), ("tag:owner", "stack-*")], vec![&id]),
        (vec![("vpc-endpoint-id", other)], vec![other]),
        (vec![("tag-key", "owner")], vec![&id]),
    ] {
        let mut form = "Action=DescribeVpcEndpoints".to_owned();
        for (index, (name, value)) in filters.iter().enumerate() {
            form.push_str(&format!("&Filter.{0}.Name={name}&Filter.{0}.Value.1={value}", index + 1));
        }
        assert_eq!(all(&world.good(&form).await, "vpcEndpointId"), expected, "{filters:?}");
    }
}

#[tokio::test]
async fn endpoints_can_be_changed_when_they_are_available() {
    let world = World::new(|settings| settings.modifying = Duration::from_secs(5));
    let id = world.endpoint("").await;
    let group = world.group("g").await;
    let private = &world.seed.private;
    let change = format!(
        "Action=ModifyVpcEndpoint&VpcEndpointId={id}&RemoveSubnetId.1={}&AddSecurityGroupId.1={group}",
        private[1].id
    );
    let busy = ("OperationInProgress".to_owned(), "VpcEndpoint modify operation in progress".to_owned());
    assert_eq!(world.bad(&change).await, busy);
    world.ec2.advance(Duration::from_secs(3));
    world.good(&change).await;
    assert_eq!(world.bad(&change).await, busy);
    let body = world.good(&format!("Action=DescribeVpcEndpoints&VpcEndpointId.1={id}")).await;
    assert!(body.contains(&format!("<subnetIdSet><item>{}</item></subnetIdSet>", private[0].id)), "{body}");
    assert!(body.contains(&format!("<groupId>{group}</groupId><groupName>g</groupName>")), "{body}");
    world.ec2.advance(Duration::from_secs(5));
    let twice =
        format!("Action=ModifyVpcEndpoint&VpcEndpointId={id}&AddSubnetId.1={}", world.seed.public[0].id);
    assert_eq!(world.bad(&twice).await.0, "DuplicateSubnetsInSameZone");
    let off = format!("Action=ModifyVpcEndpoint&VpcEndpointId={id}&PrivateDnsEnabled=false");
    world.good(&off).await;
    let missing = "Action=ModifyVpcEndpoint&VpcEndpointId=vpce-0";
    assert_eq!(world.bad(missing).await.0, "InvalidVpcEndpointId.NotFound");
}

#[tokio::test]
async fn group_names_are_unique_in_a_vpc_in_any_spelling() {
    let world = World::new(|_| {});
    let id = world.group("flux-git").await;
    let vpc = &world.seed.vpc_id;
    for (name, code, message) in [
        (
            "Flux-Git",
            "InvalidGroup.Duplicate",
            format!("The security group 'Flux-Git' already exists for VPC '{vpc}'"),
        ),
        (
            "sg-mine",
            "InvalidParameterValue",
            "Invalid value 'sg-mine' for groupName. Group names may not be in the format sg-*.".to_owned(),
        ),
        ("default", "InvalidParameterValue", "Cannot use reserved security group name: default".to_owned()),
    ] {
        let form = format!("Action=CreateSecurityGroup&GroupName={name}&GroupDescription=d&VpcId={vpc}");
        assert_eq!(world.bad(&form).await, (code.to_owned(), message));
    }
    let umlaut = format!("Action=CreateSecurityGroup&GroupName=x&GroupDescription=%C3%BC&VpcId={vpc}");
    assert!(world.bad(&umlaut).await.1.starts_with("Invalid security group description."));
    // The same name in another VPC is another group.
    let other = text(&world.good("Action=CreateVpc&CidrBlock=10.1.0.0/16").await, "vpcId").to_owned();
    let form = format!("Action=CreateSecurityGroup&GroupName=flux-git&GroupDescription=d&VpcId={other}");
    assert_ne!(text(&world.good(&form).await, "groupId"), id);
    let found = world
        .good(&format!(
            "Action=DescribeSecurityGroups&Filter.1.Name=group-name&Filter.1.Value.1=flux-git&Filter.2.Name=vpc-id&Filter.2.Value.1={vpc}"
        ))
        .await;
    assert_eq!(text(&found, "groupId"), id);
    assert_eq!(all(&found, "groupName"), ["flux-git"]);
}

#[tokio::test]
async fn rules_are_canonical_and_all_or_nothing() {
    let world = World::new(|_| {});
    let id = world.group("g").await;
    let rule = |action: &str, cidrs: &[&str]| {
        let mut form = format!(
            "Action={action}SecurityGroupIngress&GroupId={id}&IpPermissions.1.IpProtocol=tcp&IpPermissions.1.FromPort=443&IpPermissions.1.ToPort=443"
        );
        for (index, cidr) in cidrs.iter().enumerate() {
            form.push_str(&format!("&IpPermissions.1.IpRanges.{}.CidrIp={cidr}", index + 1));
        }
        form
    };
    let ranges = || async {
        let body = world.good(&format!("Action=DescribeSecurityGroups&GroupId.1={id}")).await;
        all(text(&body, "ipPermissions"), "cidrIp").into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    world.good(&rule("Authorize", &["10.0.0.18/24"])).await;
    assert_eq!(ranges().await, ["10.0.0.0/24"]);
    let (code, message) = world.bad(&rule("Authorize", &["10.0.1.0/24", "10.0.0.99/24"])).await;
    assert_eq!(code, "InvalidPermission.Duplicate");
    assert_eq!(
        message,
        "the specified rule &quot;peer: 10.0.0.0/24, TCP, from port: 443, to port: 443, ALLOW&quot; already exists"
    );
    assert_eq!(ranges().await, ["10.0.0.0/24"]);
    let twice = world.bad(&rule("Authorize", &["10.0.1.0/24", "10.0.1.9/24"])).await;
    assert_eq!(twice.1, "The same permission must not appear multiple times");
    assert_eq!(world.bad(&rule("Authorize", &["10.0.1/24"])).await.1, "CIDR block 10.0.1/24 is malformed");
    assert_eq!(world.bad(&rule("Authorize", &[])).await.0, "MissingParameter");
    world.good(&rule("Authorize", &["10.0.1.0/24", "10.0.2.0/24"])).await;
    assert_eq!(world.bad(&rule("Revoke", &["10.0.9.0/24"])).await.0, "InvalidPermission.NotFound");
    world.good(&rule("Revoke", &["10.0.1.7/24"])).await;
    assert_eq!(ranges().await, ["10.0.0.0/24", "10.0.2.0/24"]);
    let listed = world
        .good(&format!("Action=DescribeSecurityGroupRules&Filter.1.Name=group-id&Filter.1.Value.1={id}"))
        .await;
    assert_eq!(all(&listed, "isEgress"), ["true", "false", "false"]);
    let first = all(&listed, "securityGroupRuleId")[1].to_owned();
    world
        .good(&format!("Action=RevokeSecurityGroupIngress&GroupId={id}&SecurityGroupRuleId.1={first}"))
        .await;
    assert_eq!(ranges().await, ["10.0.2.0/24"]);
    // A group that another one's rule names cannot go.
    let user = world.group("user").await;
    world
        .good(&format!(
            "Action=AuthorizeSecurityGroupIngress&GroupId={user}&IpPermissions.1.IpProtocol=-1&IpPermissions.1.Groups.1.GroupId={id}"
        ))
        .await;
    assert_eq!(world.bad(&format!("Action=DeleteSecurityGroup&GroupId={id}")).await.0, "DependencyViolation");
    let default = "Action=DescribeSecurityGroups&Filter.1.Name=group-name&Filter.1.Value.1=default";
    let default = text(&world.good(default).await, "groupId").to_owned();
    assert_eq!(world.bad(&format!("Action=DeleteSecurityGroup&GroupId={default}")).await.0, "CannotDelete");
}

#[tokio::test]
async fn tags_are_set_listed_and_removed() {
    let world = World::new(|_| {});
    let group = world.group("g").await;
    let endpoint = world.endpoint("").await;
    world
        .good(&format!(
            "Action=CreateTags&ResourceId.1={group}&ResourceId.2={endpoint}&Tag.1.Key=owner&Tag.1.Value=x&Tag.2.Key=cluster%2Fdemo&Tag.2.Value=true"
        ))
        .await;
    let listed = |rest: &str| {
        let form = format!("Action=DescribeTags{rest}");
        let world = &world;
        async move {
            let body = world.good(&form).await;
            let values = all(&body, "value").into_iter().map(str::to_owned);
            all(&body, "key").into_iter().map(str::to_owned).zip(values).collect::<Vec<_>>()
        }
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let of_group = format!("&Filter.1.Name=resource-id&Filter.1.Value.1={group}");
    assert_eq!(listed(&of_group).await, [pair("cluster/demo", "true"), pair("owner", "x")]);
    let by_kind =
        "&Filter.1.Name=resource-type&Filter.1.Value.1=vpc-endpoint&Filter.2.Name=key&Filter.2.Value.1=owner";
    assert_eq!(listed(by_kind).await, [pair("owner", "x")]);
    // A tag goes only with the value that is named.
    let delete = format!("Action=DeleteTags&ResourceId.1={group}&Tag.1.Key=owner");
    world.good(&format!("{delete}&Tag.1.Value=y")).await;
    assert_eq!(listed(&of_group).await.len(), 2);
    world.good(&delete).await;
    assert_eq!(listed(&of_group).await, [pair("cluster/demo", "true")]);
    for (form, code) in [
        (
            format!("Action=CreateTags&ResourceId.1={group}&ResourceId.2=vpce-0&Tag.1.Key=z&Tag.1.Value=z"),
            "InvalidVpcEndpointId.NotFound",
        ),
        (
            format!("Action=CreateTags&ResourceId.1={group}&Tag.1.Key=aws:z&Tag.1.Value=z"),
            "InvalidParameterValue",
        ),
        (
            world.new_endpoint(
                "&PrivateDnsEnabled=false&TagSpecification.1.ResourceType=vpc&TagSpecification.1.Tag.1.Key=a",
            ),
            "InvalidParameterValue",
        ),
    ] {
        assert_eq!(world.bad(&form).await.0, code, "{form}");
    }
    assert_eq!(listed(&of_group).await, [pair("cluster/demo", "true")]);
}

#[tokio::test]
async fn lists_come_in_pages() {
    for (settings, first, sizes) in [(2, "", vec![2, 2]), (1000, "&MaxResults=5", vec![4])] {
        let world = World::new(|s| s.page_size = settings);
        let (mut seen, mut token) = (Vec::new(), String::new());
        for size in sizes {
            let body = world.good(&format!("Action=DescribeSubnets{first}{token}")).await;
            let page = all(&body, "subnetId");
            assert_eq!(page.len(), size);
            seen.extend(page.into_iter().map(str::to_owned));
            token = all(&body, "nextToken").first().map_or(String::new(), |t| format!("&NextToken={t}"));
        }
        assert!(token.is_empty());
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 4);
    }
    let world = World::new(|_| {});
    assert_eq!(world.bad("Action=DescribeSubnets&MaxResults=4").await.0, "InvalidParameterValue");
    let both = format!("Action=DescribeVpcs&VpcId.1={}&MaxResults=5", world.seed.vpc_id);
    assert_eq!(world.bad(&both).await.0, "InvalidParameterCombination");
}
