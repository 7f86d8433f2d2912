//! The client against bytes as EC2 sends and takes them.

use std::time::UNIX_EPOCH;

use ec2::{Cidr, Client, Error, NewEndpoint, Tag};
use replies::{Exchange, Replies, on};
use step::ErrorName;
use step::clock::Clock;
use transport::Transport;

fn client(replies: &Replies) -> Client {
    let transport = Transport::with_connector(&replies.config(), replies.connector());
    Client::with_transport(transport, Clock::Fixed(UNIX_EPOCH))
}

fn fails(exchange: Exchange, status: u16, code: &str, message: &str) -> Exchange {
    let body = format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors><RequestID>6a1b</RequestID></Response>"#
    );
    exchange.raw(status, "text/xml;charset=UTF-8", body.as_bytes())
}

#[tokio::test]
async fn pages_are_followed_and_filters_are_not_trusted() {
    let subnet = |id: &str| {
        format!(
            "<item><subnetId>{id}</subnetId><state>available</state><vpcId>vpc-1</vpcId><cidrBlock>10.0.0.0/24</cidrBlock><availabilityZone>eu-west-1a</availabilityZone><tagSet/></item>"
        )
    };
    let replies = Replies::new([
        on("DescribeSubnets")
            .with("Version=2016-11-15")
            .with("Filter.1.Name=subnet-id&Filter.1.Value.1=subnet-1&Filter.1.Value.2=subnet-2")
            .xml(&format!(
                r#"<DescribeSubnetsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId><subnetSet>{}</subnetSet><nextToken>more==</nextToken></DescribeSubnetsResponse>"#,
                subnet("subnet-1")
            )),
        on("DescribeSubnets").with("NextToken=more==").xml(&format!(
            "<DescribeSubnetsResponse><subnetSet>{}{}</subnetSet><nextToken/></DescribeSubnetsResponse>",
            subnet("subnet-2"),
            subnet("subnet-other")
        )),
    ]);
    let found =
        client(&replies).subnets(&["subnet-1".to_owned(), "subnet-2".to_owned()]).await.expect("subnets");
    let ids: Vec<&str> = found.iter().map(|subnet| subnet.subnet_id.as_str()).collect();
    assert_eq!(ids, ["subnet-1", "subnet-2"]);
    replies.finish();
}

#[tokio::test]
async fn an_empty_set_is_an_empty_list() {
    let replies = Replies::new([on("DescribeVpcEndpoints")
        .with("Filter.1.Name=vpc-id&Filter.1.Value.1=vpc-1")
        .with("Filter.2.Name=service-name&Filter.2.Value.1=com.amazonaws.eu-west-1.git-codecommit")
        .xml("<DescribeVpcEndpointsResponse><vpcEndpointSet/></DescribeVpcEndpointsResponse>")]);
    let services = ["com.amazonaws.eu-west-1.git-codecommit".to_owned()];
    assert!(client(&replies).endpoints("vpc-1", &services).await.expect("endpoints").is_empty());
    replies.finish();
}

#[tokio::test]
async fn an_endpoint_is_read_whole() {
    let replies = Replies::new([on("DescribeVpcEndpoints").xml(
        "<DescribeVpcEndpointsResponse><vpcEndpointSet><item><vpcEndpointId>vpce-1</vpcEndpointId><vpcEndpointType>Interface</vpcEndpointType><vpcId>vpc-1</vpcId><serviceName>svc</serviceName><state>failed</state><policyDocument>{}</policyDocument><routeTableIdSet/><subnetIdSet><item>subnet-1</item><item>subnet-2</item></subnetIdSet><groupSet><item><groupId>sg-1</groupId><groupName>n</groupName></item></groupSet><privateDnsEnabled>true</privateDnsEnabled><requesterManaged>false</requesterManaged><dnsEntrySet><item><dnsName>x</dnsName></item></dnsEntrySet><creationTimestamp>2026-01-01T00:00:00.000Z</creationTimestamp><tagSet><item><key>k</key><value>v</value></item></tagSet><ownerId>123456789012</ownerId><lastError><message>no room</message><code>Full</code></lastError></item></vpcEndpointSet></DescribeVpcEndpointsResponse>",
    )]);
    let found = client(&replies).endpoints("vpc-1", &["svc".to_owned()]).await.expect("endpoints");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].subnet_id_set, ["subnet-1", "subnet-2"]);
    assert_eq!(found[0].group_ids(), ["sg-1"]);
    assert!(found[0].private_dns_enabled);
    assert_eq!(found[0].tag("k"), Some("v"));
    assert_eq!(found[0].failure().as_deref(), Some("Full: no room"));
    replies.finish();
}

#[tokio::test]
async fn groups_are_read_with_their_rules() {
    let rule = |protocol: &str, ports: &str, cidr: &str| {
        format!(
            "<item><ipProtocol>{protocol}</ipProtocol>{ports}<groups/><ipRanges><item><cidrIp>{cidr}</cidrIp></item></ipRanges><ipv6Ranges/><prefixListIds/></item>"
        )
    };
    let rules = [
        rule("tcp", "<fromPort>443</fromPort><toPort>443</toPort>", "10.0.0.18/24"),
        rule("tcp", "<fromPort>0</fromPort><toPort>65535</toPort>", "10.0.1.0/24"),
        rule("-1", "", "10.0.2.0/24"),
        rule("udp", "<fromPort>443</fromPort><toPort>443</toPort>", "10.0.3.0/24"),
        rule("tcp", "<fromPort>22</fromPort><toPort>22</toPort>", "10.0.4.0/24"),
    ]
    .concat();
    let replies = Replies::new([on("DescribeSecurityGroups")
        .with("Filter.2.Name=group-name&Filter.2.Value.1=n")
        .xml(&format!(
            "<DescribeSecurityGroupsResponse><securityGroupInfo><item><ownerId>1</ownerId><groupId>sg-1</groupId><groupName>n</groupName><groupDescription>d</groupDescription><vpcId>vpc-1</vpcId><ipPermissions>{rules}</ipPermissions><ipPermissionsEgress/></item></securityGroupInfo></DescribeSecurityGroupsResponse>"
        ))]);
    let groups = client(&replies).groups("vpc-1", Some("n")).await.expect("groups");
    let from: Vec<String> = groups[0].https_from().iter().map(Cidr::to_string).collect();
    assert_eq!(from, ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"]);
    assert!(!groups[0].https_by_reference());
    replies.finish();
}

#[tokio::test]
async fn writes_go_out_as_botocore_writes_them() {
    let tags = [Tag::new("k", "v"), Tag::new("k2", "a b")];
    let replies = Replies::new([
        on("CreateSecurityGroup")
            .with("GroupName=n&GroupDescription=d&VpcId=vpc-1&TagSpecification.1.ResourceType=security-group&TagSpecification.1.Tag.1.Key=k&TagSpecification.1.Tag.1.Value=v&TagSpecification.1.Tag.2.Key=k2&TagSpecification.1.Tag.2.Value=a+b")
            .xml("<CreateSecurityGroupResponse><requestId>r</requestId><groupId>sg-1</groupId></CreateSecurityGroupResponse>"),
        on("AuthorizeSecurityGroupIngress")
            .with("GroupId=sg-1&IpPermissions.1.IpProtocol=tcp&IpPermissions.1.FromPort=443&IpPermissions.1.ToPort=443&IpPermissions.1.IpRanges.1.CidrIp=10.0.0.0/24&IpPermissions.1.IpRanges.1.Description=x&IpPermissions.1.IpRanges.2.CidrIp=10.0.1.0/24")
            .xml("<AuthorizeSecurityGroupIngressResponse><requestId>r</requestId><return>true</return></AuthorizeSecurityGroupIngressResponse>"),
        on("CreateVpcEndpoint")
            .with("VpcId=vpc-1&VpcEndpointType=Interface&ServiceName=svc&SubnetId.1=a&SubnetId.2=b&SecurityGroupId.1=sg-1&PrivateDnsEnabled=true&ClientToken=t&TagSpecification.1.ResourceType=vpc-endpoint&TagSpecification.1.Tag.1.Key=k")
            .xml("<CreateVpcEndpointResponse><vpcEndpoint><vpcEndpointId>vpce-1</vpcEndpointId><state>pending</state></vpcEndpoint></CreateVpcEndpointResponse>"),
        on("CreateTags")
            .with("ResourceId.1=vpce-1&ResourceId.2=sg-1&Tag.1.Key=k&Tag.1.Value=v")
            .xml("<CreateTagsResponse><requestId>r</requestId><return>true</return></CreateTagsResponse>"),
    ]);
    let client = client(&replies);
    assert_eq!(client.create_group("vpc-1", "n", "d", &tags).await.expect("group"), "sg-1");
    let from = ["10.0.0.18/24", "10.0.1.0/24"].map(|text| text.parse().expect("block"));
    client.allow_https("sg-1", &from, "x").await.expect("rule");
    let new = NewEndpoint {
        vpc_id: "vpc-1",
        service_name: "svc",
        subnet_ids: &["a".to_owned(), "b".to_owned()],
        group_ids: &["sg-1".to_owned()],
        client_token: "t",
        tags: &tags,
    };
    assert_eq!(client.create_endpoint(&new).await.expect("endpoint").state, "pending");
    client.tag(&["vpce-1".to_owned(), "sg-1".to_owned()], &tags).await.expect("tags");
    replies.finish();
}

#[tokio::test]
async fn attributes_and_services_are_read() {
    let replies = Replies::new([
        on("DescribeVpcAttribute").with("VpcId=vpc-1&Attribute=enableDnsSupport").xml(
            "<DescribeVpcAttributeResponse><vpcId>vpc-1</vpcId><enableDnsSupport><value>true</value></enableDnsSupport></DescribeVpcAttributeResponse>",
        ),
        on("DescribeVpcAttribute").with("Attribute=enableDnsHostnames").xml(
            "<DescribeVpcAttributeResponse><vpcId>vpc-1</vpcId><enableDnsHostnames><value>false</value></enableDnsHostnames></DescribeVpcAttributeResponse>",
        ),
        on("DescribeVpcEndpointServices").with("ServiceName.1=svc").xml(
            "<DescribeVpcEndpointServicesResponse><serviceNameSet><item>svc</item></serviceNameSet><serviceDetailSet><item><serviceName>svc</serviceName><serviceType><item><serviceType>Interface</serviceType></item></serviceType><availabilityZoneSet><item>eu-west-1a</item><item>eu-west-1b</item></availabilityZoneSet><privateDnsName>git.example</privateDnsName></item></serviceDetailSet></DescribeVpcEndpointServicesResponse>",
        ),
        fails(
            on("DescribeVpcEndpointServices"),
            400,
            "InvalidServiceName",
            "The Vpc Endpoint Service 'other' does not exist",
        ),
    ]);
    let client = client(&replies);
    assert!(client.dns_support("vpc-1").await.expect("attribute"));
    assert!(!client.dns_hostnames("vpc-1").await.expect("attribute"));
    let service = client.endpoint_service("svc").await.expect("service").expect("offered");
    assert_eq!(service.availability_zone_set, ["eu-west-1a", "eu-west-1b"]);
    assert_eq!(client.endpoint_service("other").await.expect("no service"), None);
    replies.finish();
}

#[tokio::test]
async fn throttling_is_tried_again_and_then_transient() {
    let throttled =
        || fails(on("DescribeRouteTables"), 503, "RequestLimitExceeded", "Request limit exceeded.");
    let replies = Replies::new([
        throttled(),
        throttled(),
        on("DescribeRouteTables")
            .xml("<DescribeRouteTablesResponse><routeTableSet/></DescribeRouteTablesResponse>"),
    ]);
    assert!(client(&replies).route_tables("vpc-1").await.expect("tables").is_empty());
    replies.finish();

    let replies = Replies::new((0..4).map(|_| throttled()));
    let error = client(&replies).route_tables("vpc-1").await.expect_err("throttled").on("vpc-1");
    assert_eq!(error.name, ErrorName::Transient);
    assert!(error.message.contains("ec2:DescribeRouteTables on vpc-1: RequestLimitExceeded"));
    replies.finish();
}

#[tokio::test]
async fn what_was_just_made_may_not_be_found_yet() {
    let missing = || {
        fails(
            on("AuthorizeSecurityGroupIngress"),
            400,
            "InvalidGroup.NotFound",
            "The security group 'sg-1' does not exist",
        )
    };
    let replies = Replies::new([
        missing(),
        on("AuthorizeSecurityGroupIngress")
            .xml("<AuthorizeSecurityGroupIngressResponse><return>true</return></AuthorizeSecurityGroupIngressResponse>"),
        fails(on("CreateTags"), 400, "InvalidVpcEndpointId.NotFound", "The Vpc Endpoint Id 'vpce-1' does not exist"),
        on("CreateTags").xml("<CreateTagsResponse><return>true</return></CreateTagsResponse>"),
    ]);
    let from = ["10.0.0.0/24".parse().expect("block")];
    client(&replies).allow_https("sg-1", &from, "x").await.expect("rule");
    client(&replies).tag(&["vpce-1".to_owned()], &[Tag::new("k", "v")]).await.expect("tags");
    replies.finish();

    let replies = Replies::new((0..4).map(|_| missing()));
    let error = client(&replies).allow_https("sg-1", &from, "x").await.expect_err("missing").on("sg-1");
    assert_eq!(error.name, ErrorName::Transient);
    replies.finish();
}

#[tokio::test]
async fn errors_keep_code_and_text_and_lose_the_encoded_part() {
    for (reply, code, message, name) in [
        (
            fails(
                on("CreateTags"),
                403,
                "UnauthorizedOperation",
                "You are not authorized to perform this operation. Encoded authorization failure message: AbCd",
            ),
            "UnauthorizedOperation",
            "You are not authorized to perform this operation",
            ErrorName::Denied,
        ),
        (
            on("CreateTags").xml_error(400, "InvalidAction", "The action is not known"),
            "InvalidAction",
            "The action is not known",
            ErrorName::Internal,
        ),
        (
            on("CreateTags").raw(400, "text/html", b"<html>proxy"),
            "UnreadableReply",
            "the reply is not what EC2 answers",
            ErrorName::Transient,
        ),
    ] {
        let replies = Replies::new([reply]);
        let error = client(&replies).tag(&["x".to_owned()], &[]).await.expect_err("error");
        assert_eq!((error.code(), error.message()), (code, message));
        assert_eq!(error.on("x").name, name);
        replies.finish();
    }
}

#[tokio::test]
async fn a_lost_connection_is_transient() {
    let replies = Replies::new([on("CreateTags").lost()]);
    let error = client(&replies).tag(&["x".to_owned()], &[]).await.expect_err("error");
    assert!(matches!(error, Error::Step(_)));
    assert_eq!(error.on("x").name, ErrorName::Transient);
    replies.finish();
}
