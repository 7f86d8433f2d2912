//! The step against bytes as EC2 sends and takes them.

use std::time::{Duration, UNIX_EPOCH};

use endpoint::{Input, Output, Step};
use replies::{Exchange, Replies, on};
use serde_json::json;
use step::clock::Clock;
use step::runtime::Stack;
use step::{Change, ErrorName, StepError};
use transport::Transport;

const SERVICE: &str = "com.amazonaws.eu-west-1.git-codecommit";
const VPC: &str = "vpc-0a1b2c3d";
const OWN: &str = "eks-flux-bootstrap:owner";
const DEMO: &str = "eks-flux-bootstrap:cluster/demo";

/// Three private subnets, the first two in one zone.
fn input() -> Input {
    serde_json::from_value(json!({
        "request": {"cluster": "demo"},
        "cluster": {
            "name": "demo",
            "arn": "arn:aws:eks:eu-west-1:123456789012:cluster/demo",
            "endpoint": "https://demo.example",
            "certificateAuthority": "LS0t",
            "accessEntryCreatedAt": "2026-01-02T03:04:05Z"
        },
        "network": {"vpcId": VPC, "subnets": [
            {"id": "subnet-0000000a", "cidr": "10.0.1.0/24", "availabilityZone": "eu-west-1a"},
            {"id": "subnet-0000000b", "cidr": "10.0.2.0/24", "availabilityZone": "eu-west-1a"},
            {"id": "subnet-0000000c", "cidr": "10.0.3.0/24", "availabilityZone": "eu-west-1b"}
        ]}
    }))
    .expect("input")
}

async fn run(replies: &Replies) -> Result<Output, StepError> {
    let transport = Transport::with_connector(&replies.config(), replies.connector());
    let clock = Clock::Fixed(UNIX_EPOCH + Duration::from_secs(1_767_323_045));
    let client = ec2::Client::with_transport(transport, clock);
    let step =
        Step::with_client(client, Stack { name: "stack".to_owned() }, "git-codecommit".to_owned(), clock);
    step.apply(input()).await
}

async fn succeeds(exchanges: Vec<Exchange>) -> Output {
    let replies = Replies::new(exchanges);
    let output = run(&replies).await;
    let seen = replies.seen();
    replies.finish();
    output.unwrap_or_else(|error| panic!("{error}: {seen:?}"))
}

async fn fails(exchanges: Vec<Exchange>) -> StepError {
    let replies = Replies::new(exchanges);
    let error = run(&replies).await.expect_err("an error");
    replies.finish();
    error
}

fn refused(exchange: Exchange, code: &str, message: &str) -> Exchange {
    let body = format!(
        "<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors><RequestID>r</RequestID></Response>"
    );
    exchange.raw(400, "text/xml;charset=UTF-8", body.as_bytes())
}

fn tags(tags: &[(&str, &str)]) -> String {
    let items: String =
        tags.iter().map(|(k, v)| format!("<item><key>{k}</key><value>{v}</value></item>")).collect();
    format!("<tagSet>{items}</tagSet>")
}

fn vpce(id: &str, state: &str, private_dns: bool, tag_list: &[(&str, &str)]) -> String {
    format!(
        "<vpcEndpointId>{id}</vpcEndpointId><vpcEndpointType>Interface</vpcEndpointType><vpcId>{VPC}</vpcId><serviceName>{SERVICE}</serviceName><state>{state}</state><subnetIdSet><item>subnet-0000000a</item></subnetIdSet><groupSet><item><groupId>sg-1</groupId><groupName>x</groupName></item></groupSet><privateDnsEnabled>{private_dns}</privateDnsEnabled>{}",
        tags(tag_list)
    )
}

fn ours(state: &str) -> String {
    vpce("vpce-1", state, true, &[(OWN, "stack"), (DEMO, "true")])
}

fn endpoints(list: &[String]) -> Exchange {
    let items: String = list.iter().map(|item| format!("<item>{item}</item>")).collect();
    on("DescribeVpcEndpoints").with(&format!("Filter.1.Value.1={VPC}")).with(SERVICE).xml(&format!(
        "<DescribeVpcEndpointsResponse><vpcEndpointSet>{items}</vpcEndpointSet></DescribeVpcEndpointsResponse>"
    ))
}

fn services(zones: &[&str]) -> Exchange {
    let zones: String = zones.iter().map(|zone| format!("<item>{zone}</item>")).collect();
    on("DescribeVpcEndpointServices").with(SERVICE).xml(&format!(
        "<DescribeVpcEndpointServicesResponse><serviceDetailSet><item><serviceName>{SERVICE}</serviceName><availabilityZoneSet>{zones}</availabilityZoneSet><privateDnsName>git-codecommit.eu-west-1.amazonaws.com</privateDnsName></item></serviceDetailSet></DescribeVpcEndpointServicesResponse>"
    ))
}

fn group(name: &str, from: &[&str], references: bool, tag_list: &[(&str, &str)]) -> String {
    let ranges: String = from.iter().map(|cidr| format!("<item><cidrIp>{cidr}</cidrIp></item>")).collect();
    let groups = if references { "<item><groupId>sg-cluster</groupId></item>" } else { "" };
    format!(
        "<item><groupId>sg-1</groupId><groupName>{name}</groupName><vpcId>{VPC}</vpcId><ipPermissions><item><ipProtocol>tcp</ipProtocol><fromPort>443</fromPort><toPort>443</toPort><groups>{groups}</groups><ipRanges>{ranges}</ipRanges></item></ipPermissions>{}</item>",
        tags(tag_list)
    )
}

const NAME: &str = "eks-flux-bootstrap-git-codecommit";
const ALL: [&str; 3] = ["10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"];

fn our_group(from: &[&str]) -> String {
    group(NAME, from, false, &[(OWN, "stack"), (DEMO, "true")])
}

fn groups(list: &[String]) -> Exchange {
    on("DescribeSecurityGroups").xml(&format!(
        "<DescribeSecurityGroupsResponse><securityGroupInfo>{}</securityGroupInfo></DescribeSecurityGroupsResponse>",
        list.concat()
    ))
}

fn create_group() -> Exchange {
    on("CreateSecurityGroup")
        .with(&format!("GroupName={NAME}"))
        .with(&format!("Tag.1.Key={OWN}&TagSpecification.1.Tag.1.Value=stack"))
        .with(&format!("Tag.2.Key={DEMO}&TagSpecification.1.Tag.2.Value=true"))
        .xml("<CreateSecurityGroupResponse><groupId>sg-1</groupId></CreateSecurityGroupResponse>")
}

fn allow() -> Exchange {
    on("AuthorizeSecurityGroupIngress").with("GroupId=sg-1").xml(
        "<AuthorizeSecurityGroupIngressResponse><return>true</return></AuthorizeSecurityGroupIngressResponse>",
    )
}

fn create_endpoint() -> Exchange {
    on("CreateVpcEndpoint")
        .with("VpcEndpointType=Interface")
        .with("PrivateDnsEnabled=true")
        .with(&format!("ServiceName={SERVICE}"))
        .with("SecurityGroupId.1=sg-1")
}

fn created(exchange: Exchange) -> Exchange {
    exchange.xml(&format!(
        "<CreateVpcEndpointResponse><vpcEndpoint>{}</vpcEndpoint></CreateVpcEndpointResponse>",
        ours("pending")
    ))
}

fn tag_call(resource: &str) -> Exchange {
    on("CreateTags")
        .with(&format!("ResourceId.1={resource}&Tag.1.Key={DEMO}&Tag.1.Value=true"))
        .xml("<CreateTagsResponse><return>true</return></CreateTagsResponse>")
}

fn changes(output: &Output) -> Vec<(&str, Change)> {
    output.resources.iter().map(|resource| (resource.id.as_str(), resource.change)).collect()
}

#[tokio::test]
async fn it_is_made_with_one_subnet_a_zone_and_a_rule_a_subnet() {
    let output = succeeds(vec![
        endpoints(&[]),
        services(&["eu-west-1a", "eu-west-1b", "eu-west-1c"]),
        groups(&[]),
        create_group(),
        allow()
            .with("IpRanges.1.CidrIp=10.0.1.0/24")
            .with("IpRanges.2.CidrIp=10.0.2.0/24")
            .with("IpRanges.3.CidrIp=10.0.3.0/24"),
        created(create_endpoint())
            .with("SubnetId.1=subnet-0000000a&SubnetId.2=subnet-0000000c&SecurityGroupId.1")
            .with("ClientToken=")
            .with(&format!(
                "TagSpecification.1.ResourceType=vpc-endpoint&TagSpecification.1.Tag.1.Key={OWN}"
            )),
    ])
    .await;
    assert!(!output.ready);
    assert!(output.because.contains("pending"), "{}", output.because);
    assert_eq!((output.endpoint_id.as_str(), output.state.as_str()), ("vpce-1", "pending"));
    assert_eq!(changes(&output), [("vpce-1", Change::Created), ("sg-1", Change::Created)]);
    assert_eq!(
        output.resources[0].arn.as_deref(),
        Some("arn:aws:ec2:eu-west-1:123456789012:vpc-endpoint/vpce-1")
    );
    let wire = serde_json::to_value(&output).expect("JSON");
    assert_eq!(wire["endpointId"], "vpce-1");
    assert_eq!(wire["ready"], false);
}

#[tokio::test]
async fn the_second_call_writes_nothing() {
    // Rules as EC2 stores them, and one that is wider than asked for, are all that is needed.
    for from in [&ALL[..], &["10.0.0.0/16"][..], &["10.0.1.7/24", "10.0.2.0/24", "10.0.3.0/24"][..]] {
        let output = succeeds(vec![endpoints(&[ours("available")]), groups(&[our_group(from)])]).await;
        assert!(output.ready);
        assert_eq!(output.because, "");
        assert_eq!(changes(&output), [("vpce-1", Change::Unchanged), ("sg-1", Change::Unchanged)]);
    }
}

#[tokio::test]
async fn states_are_read_in_any_case_and_only_available_is_ready() {
    for (state, ready, because) in [
        ("available", true, ""),
        ("Available", true, ""),
        ("pending", false, "pending"),
        ("PendingAcceptance", false, "accept"),
        ("pendingAcceptance", false, "accept"),
        ("partial", false, "partial"),
        ("somethingNew", false, "somethingNew"),
    ] {
        let output = succeeds(vec![endpoints(&[ours(state)]), groups(&[our_group(&ALL)])]).await;
        assert_eq!(output.ready, ready, "{state}");
        assert!(output.because.contains(because), "{state}: {}", output.because);
        assert_eq!(output.state, state);
    }
}

#[tokio::test]
async fn dead_ones_of_ours_are_a_conflict_and_of_others_are_passed_by() {
    for state in ["failed", "Rejected", "expired"] {
        let error = fails(vec![endpoints(&[ours(state)])]).await;
        assert_eq!(error.name, ErrorName::Conflict);
        assert!(error.message.contains(state) && error.message.contains("vpce-1"), "{}", error.message);

        succeeds(vec![
            endpoints(&[vpce("vpce-9", state, true, &[])]),
            services(&["eu-west-1a"]),
            groups(&[our_group(&ALL)]),
            created(create_endpoint()),
        ])
        .await;
    }
}

#[tokio::test]
async fn one_that_is_leaving_is_waited_for() {
    for tag_list in [&[(OWN, "stack")][..], &[][..]] {
        let output = succeeds(vec![endpoints(&[vpce("vpce-9", "Deleting", true, tag_list)])]).await;
        assert!(!output.ready);
        assert!(output.because.contains("being deleted"), "{}", output.because);
        assert_eq!(output.resources, []);
    }
    // One that is gone is no reason to wait.
    succeeds(vec![
        endpoints(&[ours("deleted")]),
        services(&["eu-west-1a"]),
        groups(&[our_group(&ALL)]),
        created(create_endpoint()),
    ])
    .await;
}

#[tokio::test]
async fn a_foreign_one_with_private_dns_is_adopted_and_left_alone() {
    for (state, ready) in [("available", true), ("pending", false)] {
        let output = succeeds(vec![
            endpoints(&[vpce("vpce-9", state, true, &[])]),
            groups(&[group("theirs", &["10.0.0.0/8"], false, &[])]),
        ])
        .await;
        assert_eq!(output.ready, ready);
        assert_eq!(changes(&output), [("vpce-9", Change::Adopted)]);
    }
    let output = succeeds(vec![
        endpoints(&[vpce("vpce-9", "available", true, &[(OWN, "other")])]),
        groups(&[group(NAME, &[], true, &[(OWN, "other")])]),
    ])
    .await;
    let detail = output.resources[0].detail.as_deref().unwrap_or_default();
    assert!(detail.contains("the stack other") && detail.contains("do not tell"), "{detail}");
}

#[tokio::test]
async fn a_foreign_one_that_shuts_the_cluster_out_is_a_conflict() {
    let error = fails(vec![
        endpoints(&[vpce("vpce-9", "available", true, &[])]),
        groups(&[group("theirs", &["10.0.1.0/24"], false, &[])]),
    ])
    .await;
    assert_eq!(error.name, ErrorName::Conflict);
    assert!(error.message.contains("from 10.0.2.0/24, 10.0.3.0/24"), "{}", error.message);
}

#[tokio::test]
async fn one_without_private_dns_is_passed_by_unless_it_is_ours() {
    succeeds(vec![
        endpoints(&[vpce("vpce-9", "available", false, &[])]),
        services(&["eu-west-1a"]),
        groups(&[our_group(&ALL)]),
        created(create_endpoint()),
    ])
    .await;
    let error = fails(vec![endpoints(&[vpce("vpce-1", "available", false, &[(OWN, "stack")])])]).await;
    assert_eq!(error.name, ErrorName::Conflict);
    assert!(error.message.contains("--private-dns-enabled"), "{}", error.message);
}

#[tokio::test]
async fn a_second_cluster_of_the_vpc_adds_its_tag_and_its_rules() {
    let other = &[(OWN, "stack"), ("eks-flux-bootstrap:cluster/other", "true")][..];
    let output = succeeds(vec![
        endpoints(&[vpce("vpce-1", "available", true, other)]),
        groups(&[group(NAME, &["10.0.1.0/24"], false, other)]),
        tag_call("vpce-1"),
        allow().with("IpRanges.1.CidrIp=10.0.2.0/24").with("IpRanges.2.CidrIp=10.0.3.0/24"),
        tag_call("sg-1"),
    ])
    .await;
    assert!(output.ready);
    assert_eq!(changes(&output), [("vpce-1", Change::Updated), ("sg-1", Change::Updated)]);
}

#[tokio::test]
async fn a_group_of_ours_left_over_is_used_again() {
    let output = succeeds(vec![
        endpoints(&[]),
        services(&["eu-west-1a"]),
        groups(&[our_group(&ALL[..2])]),
        allow().with("IpRanges.1.CidrIp=10.0.3.0/24"),
        created(create_endpoint()),
    ])
    .await;
    assert_eq!(changes(&output), [("vpce-1", Change::Created), ("sg-1", Change::Updated)]);
}

#[tokio::test]
async fn a_foreign_group_of_the_name_is_a_conflict() {
    for (tag_list, text) in [(&[][..], "does not carry"), (&[(OWN, "other")][..], "the stack other")] {
        let error = fails(vec![
            endpoints(&[]),
            services(&["eu-west-1a"]),
            groups(&[group(NAME, &ALL, false, tag_list)]),
        ])
        .await;
        assert_eq!(error.name, ErrorName::Conflict);
        assert!(error.message.contains(text) && error.message.contains("sg-1"), "{}", error.message);
    }
    // In another spelling the filter does not show it, and EC2 refuses the name all the same.
    let none = || groups(&[]);
    let error = fails(vec![
        endpoints(&[]),
        services(&["eu-west-1a"]),
        none(),
        refused(on("CreateSecurityGroup"), "InvalidGroup.Duplicate", "The security group already exists"),
        none(),
        none(),
        none(),
        groups(&[group("EKS-flux-bootstrap-git-codecommit", &ALL, false, &[])]),
    ])
    .await;
    assert_eq!(error.name, ErrorName::Conflict);
    assert!(error.message.contains("EKS-flux"), "{}", error.message);
}

#[tokio::test]
async fn the_race_for_the_group_is_lost_gracefully() {
    let output = succeeds(vec![
        endpoints(&[]),
        services(&["eu-west-1a"]),
        groups(&[]),
        refused(on("CreateSecurityGroup"), "InvalidGroup.Duplicate", "The security group already exists"),
        groups(&[]),
        groups(&[our_group(&[])]),
        refused(allow(), "InvalidPermission.Duplicate", "the specified rule already exists"),
        allow().with("IpRanges.1.CidrIp=10.0.1.0/24"),
        refused(allow(), "InvalidPermission.Duplicate", "the specified rule already exists")
            .with("IpRanges.1.CidrIp=10.0.2.0/24"),
        allow().with("IpRanges.1.CidrIp=10.0.3.0/24"),
        created(create_endpoint()),
    ])
    .await;
    assert_eq!(changes(&output), [("vpce-1", Change::Created), ("sg-1", Change::Updated)]);
}

const CONFLICT: &str = "private-dns-enabled cannot be set because there is already a conflicting DNS domain for git-codecommit.eu-west-1.amazonaws.com in the VPC vpc-0a1b2c3d";

fn make_until_create() -> Vec<Exchange> {
    vec![endpoints(&[]), services(&["eu-west-1a"]), groups(&[]), create_group(), allow()]
}

#[tokio::test]
async fn the_race_for_the_name_is_lost_gracefully() {
    // To another cluster of this stack, which shares the group.
    let mut calls = make_until_create();
    let theirs = &[(OWN, "stack"), ("eks-flux-bootstrap:cluster/other", "true")][..];
    calls.extend([
        refused(create_endpoint(), "InvalidParameter", CONFLICT),
        endpoints(&[]),
        endpoints(&[vpce("vpce-1", "pending", true, theirs)]),
        groups(&[our_group(&ALL)]),
        tag_call("vpce-1"),
    ]);
    let output = succeeds(calls).await;
    assert!(!output.ready);
    assert_eq!(changes(&output), [("vpce-1", Change::Updated), ("sg-1", Change::Created)]);

    // To a stranger.
    let mut calls = make_until_create();
    calls.extend([
        refused(create_endpoint(), "InvalidParameter", CONFLICT),
        endpoints(&[vpce("vpce-9", "available", true, &[])]),
        groups(&[group("theirs", &["0.0.0.0/0"], false, &[])]),
    ]);
    let output = succeeds(calls).await;
    assert!(output.ready);
    assert_eq!(changes(&output), [("vpce-9", Change::Adopted), ("sg-1", Change::Created)]);

    // To one that is on its way out.
    let mut calls = make_until_create();
    calls.extend([
        refused(create_endpoint(), "InvalidParameter", CONFLICT),
        endpoints(&[vpce("vpce-9", "deleting", true, &[])]),
    ]);
    assert!(!succeeds(calls).await.ready);
}

#[tokio::test]
async fn a_name_that_no_endpoint_holds_is_explained() {
    let mut calls = make_until_create();
    calls.push(refused(create_endpoint(), "InvalidParameter", CONFLICT));
    calls.extend([endpoints(&[]), endpoints(&[]), endpoints(&[])]);
    let error = fails(calls).await;
    assert_eq!(error.name, ErrorName::Conflict);
    for part in ["Route 53 private hosted zone", "git-codecommit.eu-west-1.amazonaws.com", VPC] {
        assert!(error.message.contains(part), "{}", error.message);
    }
}

#[tokio::test]
async fn zones_without_the_service_are_left_out_beforehand() {
    succeeds(vec![
        endpoints(&[]),
        services(&["eu-west-1b"]),
        groups(&[our_group(&ALL)]),
        created(create_endpoint()).with("SubnetId.1=subnet-0000000c&SecurityGroupId.1"),
    ])
    .await;
    let error = fails(vec![endpoints(&[]), services(&["eu-west-1c"])]).await;
    assert_eq!(error.name, ErrorName::PrerequisiteMissing);
    for part in ["eu-west-1c", "eu-west-1a, eu-west-1b", "network.subnetIds"] {
        assert!(error.message.contains(part), "{}", error.message);
    }
}

#[tokio::test]
async fn a_zone_that_is_refused_all_the_same_is_left_out_then() {
    let refusal = |subnet: &str| {
        refused(
            create_endpoint(),
            "InvalidParameter",
            &format!(
                "The VPC endpoint service {SERVICE} does not support the availability zone of the subnet: {subnet}."
            ),
        )
    };
    let before = || vec![endpoints(&[]), services(&["eu-west-1a", "eu-west-1b"]), groups(&[our_group(&ALL)])];
    let mut calls = before();
    calls.extend([
        refusal("subnet-0000000a").with("SubnetId.1=subnet-0000000a&SubnetId.2=subnet-0000000c"),
        created(create_endpoint()).with("SubnetId.1=subnet-0000000c&SecurityGroupId.1"),
    ]);
    succeeds(calls).await;

    let mut calls = before();
    calls.extend([refusal("subnet-0000000a"), refusal("subnet-0000000c")]);
    let error = fails(calls).await;
    assert_eq!(error.name, ErrorName::PrerequisiteMissing);
    assert!(error.message.contains("network.subnetIds"), "{}", error.message);
}

#[tokio::test]
async fn a_region_without_the_service_is_unsupported() {
    for reply in [
        refused(
            on("DescribeVpcEndpointServices"),
            "InvalidServiceName",
            &format!("The Vpc Endpoint Service '{SERVICE}' does not exist"),
        ),
        on("DescribeVpcEndpointServices").xml(
            "<DescribeVpcEndpointServicesResponse><serviceDetailSet/></DescribeVpcEndpointServicesResponse>",
        ),
    ] {
        let error = fails(vec![endpoints(&[]), reply]).await;
        assert_eq!(error.name, ErrorName::Unsupported);
        assert!(error.message.contains(SERVICE), "{}", error.message);
    }
}

#[tokio::test]
async fn each_refusal_has_its_name_and_says_what_to_do() {
    for (code, message, name, part) in [
        (
            "InvalidParameter",
            "Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC attributes set to true for vpc-0a1b2c3d",
            ErrorName::PrerequisiteMissing,
            "modify-vpc-attribute --vpc-id vpc-0a1b2c3d",
        ),
        ("InvalidServiceName", "no such service", ErrorName::Unsupported, "not offered"),
        ("VpcEndpointLimitExceeded", "too many", ErrorName::Unsupported, "quota"),
        ("InsufficientFreeAddressesInSubnet", "full", ErrorName::PrerequisiteMissing, "free some"),
        ("InvalidSubnetID.NotFound", "gone", ErrorName::PrerequisiteMissing, "start again"),
        ("IdempotentParameterMismatch", "differs", ErrorName::Transient, "looks again"),
        ("UnauthorizedOperation", "You are not authorized", ErrorName::Denied, "ec2:CreateVpcEndpoint"),
        ("InvalidParameter", "something else", ErrorName::Internal, "something else"),
    ] {
        let error = fails(vec![
            endpoints(&[]),
            services(&["eu-west-1a"]),
            groups(&[our_group(&ALL)]),
            refused(create_endpoint(), code, message),
        ])
        .await;
        assert_eq!(error.name, name, "{code}: {}", error.message);
        assert!(error.message.contains(part), "{code}: {}", error.message);
    }
}

#[tokio::test]
async fn a_group_that_ec2_does_not_know_yet_is_asked_for_again() {
    let mut calls = make_until_create();
    calls.extend([
        refused(create_endpoint(), "InvalidGroup.NotFound", "The security group 'sg-1' does not exist"),
        created(create_endpoint()),
    ]);
    succeeds(calls).await;
}

#[test]
fn the_sample_event_is_an_input() {
    let sample = include_str!("../../../events/function-endpoint.json");
    serde_json::from_str::<Input>(sample).expect("the sample fits");
}
