//! The step against bytes as EKS and EC2 send and take them.

use std::time::UNIX_EPOCH;

use cluster::{Output, Settings, Step};
use replies::{Exchange, Replies, on};
use serde_json::{Value, json};
use step::clock::Clock;
use step::runtime::Stack;
use step::{Change, ErrorName, Request, StepError};
use transport::Transport;

const ROLE: &str = "arn:aws:iam::123456789012:role/eks-flux-bootstrap/flux";
const ENTRY: &str =
    "/clusters/demo/access-entries/arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Feks-flux-bootstrap%2Fflux";
const ADMIN: &str = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy";
const VPC: &str = "vpc-0a1b2c3d";
/// 2026-01-02T03:04:05Z
const MADE: u64 = 1_767_323_045;

async fn run_as(replies: &Replies, request: Value, settings: Settings) -> Result<Output, StepError> {
    let config = replies.config();
    let transport = Transport::with_connector(&config, replies.connector());
    let client = ec2::Client::with_transport(transport, Clock::Fixed(UNIX_EPOCH));
    let step = Step::with_client(&config, client, Stack { name: "stack".to_owned() }, settings);
    let request: Request = serde_json::from_value(request).expect("a request");
    step.apply(request).await
}

fn settings() -> Settings {
    Settings::new(ROLE, None).expect("settings")
}

async fn succeeds_with(request: Value, exchanges: Vec<Exchange>) -> Output {
    let replies = Replies::new(exchanges);
    let output = run_as(&replies, request, settings()).await;
    let seen = replies.seen();
    replies.finish();
    output.unwrap_or_else(|error| panic!("{error}: {seen:?}"))
}

async fn succeeds(exchanges: Vec<Exchange>) -> Output {
    succeeds_with(json!({"cluster": "demo"}), exchanges).await
}

async fn fails_with(request: Value, exchanges: Vec<Exchange>) -> StepError {
    let replies = Replies::new(exchanges);
    let result = run_as(&replies, request, settings()).await;
    let seen = replies.seen();
    replies.finish();
    let error = result.expect_err("an error");
    // Whatever is missing, it is said before anything is written.
    if matches!(error.name, ErrorName::PrerequisiteMissing) {
        assert!(!seen.iter().any(|call| call.starts_with("POST")), "{seen:?}");
    }
    error
}

async fn fails(exchanges: Vec<Exchange>) -> StepError {
    fails_with(json!({"cluster": "demo"}), exchanges).await
}

fn described() -> Value {
    json!({
        "name": "demo",
        "arn": "arn:aws:eks:eu-west-1:123456789012:cluster/demo",
        "status": "ACTIVE",
        "endpoint": "https://demo.example",
        "certificateAuthority": {"data": "LS0t"},
        "resourcesVpcConfig": {
            "vpcId": VPC,
            "subnetIds": ["subnet-0000000b", "subnet-0000000a", "subnet-0000000f"],
            "endpointPublicAccess": true
        },
        "accessConfig": {"authenticationMode": "API_AND_CONFIG_MAP"}
    })
}

fn describe(cluster: Value) -> Exchange {
    on("GET /clusters/demo").json(json!({ "cluster": cluster }))
}

fn list_profiles(names: &[&str]) -> Exchange {
    on("GET /clusters/demo/fargate-profiles").json(json!({ "fargateProfileNames": names }))
}

fn profile(name: &str, status: &str, selectors: Value) -> Exchange {
    on(&format!("GET /clusters/demo/fargate-profiles/{name}")).json(json!({"fargateProfile": {
        "fargateProfileName": name,
        "status": status,
        "selectors": selectors,
        "subnets": ["subnet-0000000a", "subnet-0000000c"]
    }}))
}

fn profiles() -> Vec<Exchange> {
    vec![list_profiles(&["fp"]), profile("fp", "ACTIVE", json!([{"namespace": "flux*"}]))]
}

fn attribute(name: &str, value: bool) -> Exchange {
    on("DescribeVpcAttribute").with(&format!("Attribute={name}")).xml(&format!(
        "<DescribeVpcAttributeResponse><vpcId>{VPC}</vpcId><{name}><value>{value}</value></{name}></DescribeVpcAttributeResponse>"
    ))
}

fn dns(support: bool, hostnames: bool) -> Vec<Exchange> {
    vec![attribute("enableDnsSupport", support), attribute("enableDnsHostnames", hostnames)]
}

fn subnets(list: &[(&str, &str, &str)]) -> Exchange {
    let items: String = list
        .iter()
        .map(|(id, cidr, zone)| {
            format!("<item><subnetId>{id}</subnetId><vpcId>{VPC}</vpcId>{cidr}<availabilityZone>{zone}</availabilityZone></item>")
        })
        .collect();
    on("DescribeSubnets")
        .xml(&format!("<DescribeSubnetsResponse><subnetSet>{items}</subnetSet></DescribeSubnetsResponse>"))
}

fn four_subnets() -> Exchange {
    subnets(&[
        ("subnet-0000000f", "<cidrBlock>10.0.9.0/24</cidrBlock>", "eu-west-1a"),
        ("subnet-0000000b", "<cidrBlock>10.0.2.0/24</cidrBlock>", "eu-west-1b"),
        ("subnet-0000000a", "<cidrBlock>10.0.1.7/24</cidrBlock>", "eu-west-1a"),
        ("subnet-0000000c", "<cidrBlock>10.0.3.0/24</cidrBlock>", "eu-west-1c"),
    ])
    // Those of the cluster and of its Fargate profile.
    .with("Filter.1.Value.1=subnet-0000000a&Filter.1.Value.2=subnet-0000000b&Filter.1.Value.3=subnet-0000000c&Filter.1.Value.4=subnet-0000000f")
}

fn table(associations: &str, destination: &str, target: &str) -> String {
    format!(
        "<item><routeTableId>rtb-1</routeTableId><vpcId>{VPC}</vpcId><associationSet>{associations}</associationSet><routeSet><item><destinationCidrBlock>10.0.0.0/16</destinationCidrBlock><gatewayId>local</gatewayId></item><item>{destination}{target}</item></routeSet></item>"
    )
}

fn of(subnet: &str) -> String {
    format!("<item><main>false</main><subnetId>{subnet}</subnetId></item>")
}

const MAIN: &str = "<item><main>true</main></item>";
const DEFAULT: &str = "<destinationCidrBlock>0.0.0.0/0</destinationCidrBlock>";
const DEFAULT6: &str = "<destinationIpv6CidrBlock>::/0</destinationIpv6CidrBlock>";
const IGW: &str = "<gatewayId>igw-1</gatewayId>";
const NAT: &str = "<natGatewayId>nat-1</natGatewayId>";
const EGRESS: &str = "<egressOnlyInternetGatewayId>eigw-1</egressOnlyInternetGatewayId>";

fn tables(list: &[String]) -> Exchange {
    on("DescribeRouteTables").with(VPC).xml(&format!(
        "<DescribeRouteTablesResponse><routeTableSet>{}</routeTableSet></DescribeRouteTablesResponse>",
        list.concat()
    ))
}

fn one_public() -> Exchange {
    tables(&[table(MAIN, DEFAULT, NAT), table(&of("subnet-0000000f"), DEFAULT, IGW)])
}

fn preflight() -> Vec<Exchange> {
    let mut calls = vec![describe(described())];
    calls.extend(profiles());
    calls.extend(dns(true, true));
    calls.extend([four_subnets(), one_public()]);
    calls
}

fn entry(tags: Value, kind: &str) -> Value {
    json!({
        "clusterName": "demo",
        "principalArn": ROLE,
        "accessEntryArn": "arn:aws:eks:eu-west-1:123456789012:access-entry/demo/role/123456789012/flux/1",
        "createdAt": MADE,
        "modifiedAt": MADE,
        "tags": tags,
        "type": kind
    })
}

fn ours() -> Value {
    entry(json!({"eks-flux-bootstrap:owner": "stack"}), "STANDARD")
}

fn no_entry() -> Exchange {
    on(&format!("GET {ENTRY}")).error(
        404,
        "ResourceNotFoundException",
        "The specified principalArn could not be found. You can view your available access entries with 'list-access-entries'.",
    )
}

fn describe_entry(entry: Value) -> Exchange {
    on(&format!("GET {ENTRY}")).json(json!({ "accessEntry": entry }))
}

fn policies(list: Value) -> Exchange {
    on(&format!("GET {ENTRY}/access-policies"))
        .json(json!({"clusterName": "demo", "principalArn": ROLE, "associatedAccessPolicies": list}))
}

fn admin(scope: &str) -> Value {
    json!([
        {"policyArn": "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy", "accessScope": {"type": "cluster"}, "associatedAt": MADE},
        {"policyArn": ADMIN, "accessScope": {"type": scope}, "associatedAt": MADE + 1}
    ])
}

fn create_entry() -> Exchange {
    on("POST /clusters/demo/access-entries")
        .with(ROLE)
        .with("STANDARD")
        .with("\"eks-flux-bootstrap:owner\":\"stack\"")
}

fn associate() -> Exchange {
    on(&format!("POST {ENTRY}/access-policies")).with(ADMIN).with("\"type\":\"cluster\"").json(json!({
        "associatedAccessPolicy": {"policyArn": ADMIN, "accessScope": {"type": "cluster"}, "associatedAt": MADE + 2}
    }))
}

fn with(mut calls: Vec<Exchange>, more: impl IntoIterator<Item = Exchange>) -> Vec<Exchange> {
    calls.extend(more);
    calls
}

#[tokio::test]
async fn the_first_call_makes_the_access_entry() {
    let output = succeeds(with(
        preflight(),
        [no_entry(), create_entry().json(json!({"accessEntry": ours()})), associate()],
    ))
    .await;
    assert_eq!(output.resources.len(), 1);
    assert_eq!(output.resources[0].change, Change::Created);
    assert_eq!(output.resources[0].id, ROLE);
    let wire = serde_json::to_value(&output).expect("JSON");
    assert_eq!(
        wire["cluster"],
        json!({
            "name": "demo",
            "arn": "arn:aws:eks:eu-west-1:123456789012:cluster/demo",
            "endpoint": "https://demo.example",
            "certificateAuthority": "LS0t",
            "accessEntryCreatedAt": "2026-01-02T03:04:07Z"
        })
    );
    assert_eq!(
        wire["network"],
        json!({"vpcId": VPC, "subnets": [
            {"id": "subnet-0000000a", "cidr": "10.0.1.0/24", "availabilityZone": "eu-west-1a"},
            {"id": "subnet-0000000b", "cidr": "10.0.2.0/24", "availabilityZone": "eu-west-1b"},
            {"id": "subnet-0000000c", "cidr": "10.0.3.0/24", "availabilityZone": "eu-west-1c"}
        ]})
    );
    assert_eq!(
        wire["git"],
        json!({"url": "https://git-codecommit.eu-west-1.amazonaws.com/v1/repos/demo-fluxcd"})
    );
    // The steps behind this one take the request from here, with its defaults.
    assert_eq!(wire["request"]["flux"]["namespace"], "fluxcd");
    serde_json::from_value::<Request>(wire["request"].clone()).expect("a request");
}

#[tokio::test]
async fn the_second_call_writes_nothing() {
    for (found, change) in [(ours(), Change::Unchanged), (entry(json!({}), "STANDARD"), Change::Adopted)] {
        let output = succeeds(with(preflight(), [describe_entry(found), policies(admin("cluster"))])).await;
        assert_eq!(output.resources[0].change, change);
        assert_eq!(output.cluster.access_entry_created_at, "2026-01-02T03:04:06Z");
    }
}

#[tokio::test]
async fn an_entry_with_less_than_the_policy_gets_it() {
    for list in [json!([]), admin("namespace")] {
        let output = succeeds(with(preflight(), [describe_entry(ours()), policies(list), associate()])).await;
        assert_eq!(output.resources[0].change, Change::Updated);
    }
}

#[tokio::test]
async fn the_race_for_the_entry_is_lost_gracefully() {
    let taken = || {
        create_entry().error(
            409,
            "ResourceInUseException",
            "The specified access entry resource is already in use on this cluster.",
        )
    };
    let output = succeeds(with(
        preflight(),
        [no_entry(), taken(), describe_entry(ours()), policies(admin("cluster"))],
    ))
    .await;
    assert_eq!(output.resources[0].change, Change::Unchanged);
    let error = fails(with(preflight(), [no_entry(), taken(), no_entry()])).await;
    assert_eq!(error.name, ErrorName::Transient);
}

#[tokio::test]
async fn refusals_of_the_entry_have_their_names() {
    let mode = "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to perform this operation.";
    for (calls, name, part) in [
        (
            vec![on(&format!("GET {ENTRY}")).error(400, "InvalidRequestException", mode)],
            ErrorName::Unsupported,
            "authenticationMode=API_AND_CONFIG_MAP",
        ),
        (
            vec![no_entry(), create_entry().error(400, "InvalidRequestException", mode)],
            ErrorName::Unsupported,
            "authenticationMode=API_AND_CONFIG_MAP",
        ),
        (
            vec![
                no_entry(),
                create_entry().error(
                    400,
                    "InvalidParameterException",
                    "The specified principalArn is invalid: invalid principal",
                ),
            ],
            ErrorName::Transient,
            "does not know the role yet",
        ),
        (
            vec![no_entry(), create_entry().error(400, "InvalidParameterException", "something else")],
            ErrorName::Internal,
            "something else",
        ),
        (
            vec![no_entry(), create_entry().error(403, "AccessDeniedException", "not authorized")],
            ErrorName::Denied,
            "eks:CreateAccessEntry",
        ),
        (
            vec![
                describe_entry(ours()),
                policies(json!([])),
                on(&format!("POST {ENTRY}/access-policies")).error(
                    404,
                    "ResourceNotFoundException",
                    "The specified principalArn could not be found.",
                ),
            ],
            ErrorName::Transient,
            "does not know it yet",
        ),
        (
            vec![describe_entry(entry(json!({}), "EC2_LINUX"))],
            ErrorName::Conflict,
            "aws eks delete-access-entry",
        ),
    ] {
        let error = fails(with(preflight(), calls)).await;
        assert_eq!(error.name, name, "{}", error.message);
        assert!(error.message.contains(part), "{}", error.message);
    }
}

#[tokio::test]
async fn an_unknown_cluster_is_named_with_its_region() {
    let error = fails(vec![on("GET /clusters/demo").error(
        404,
        "ResourceNotFoundException",
        "No cluster found for name: demo.",
    )])
    .await;
    assert_eq!(error.name, ErrorName::PrerequisiteMissing);
    assert!(error.message.contains("named demo in the region eu-west-1"), "{}", error.message);
}

#[tokio::test]
async fn bad_input_is_refused_before_any_call() {
    let error = fails_with(json!({"cluster": "-x"}), vec![]).await;
    assert_eq!(error.name, ErrorName::InvalidInput);
}

#[tokio::test]
async fn everything_that_is_missing_comes_at_once() {
    let mut cluster = described();
    cluster["status"] = json!("CREATING");
    cluster["endpoint"] = Value::Null;
    let mut calls = vec![describe(cluster), list_profiles(&[])];
    calls.extend(dns(false, false));
    calls.extend([
        subnets(&[
            ("subnet-0000000a", "<cidrBlock>10.0.1.0/24</cidrBlock>", "eu-west-1a"),
            ("subnet-0000000b", "<cidrBlock>10.0.2.0/24</cidrBlock>", "eu-west-1b"),
        ]),
        tables(&[table(MAIN, DEFAULT, IGW)]),
    ]);
    let error = fails(calls).await;
    assert_eq!(error.name, ErrorName::PrerequisiteMissing);
    for part in [
        "demo is CREATING",
        "no active Fargate profile runs all of Flux's controllers in the namespace fluxcd: the cluster has no Fargate profile",
        "enableDnsSupport of vpc-0a1b2c3d is off",
        "enableDnsHostnames of vpc-0a1b2c3d is off",
        "subnet-0000000f does not exist",
        "none of the subnets subnet-0000000a, subnet-0000000b is private",
    ] {
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
    assert_eq!(error.message.matches("\n- ").count(), 6, "{}", error.message);
}

#[tokio::test]
async fn config_map_mode_is_unsupported_with_the_way_out_and_the_rest() {
    for access in [Value::Null, json!({"authenticationMode": "CONFIG_MAP"})] {
        let mut cluster = described();
        cluster["accessConfig"] = access;
        let start = |hostnames: bool| {
            let mut calls = vec![describe(cluster.clone())];
            calls.extend(profiles());
            calls.extend(dns(true, hostnames));
            calls.extend([four_subnets(), one_public()]);
            calls
        };
        let error = fails(start(true)).await;
        assert_eq!(error.name, ErrorName::Unsupported);
        assert!(
            error.message.contains(
                "update-cluster-config --name demo --access-config authenticationMode=API_AND_CONFIG_MAP"
            ),
            "{}",
            error.message
        );
        let error = fails(start(false)).await;
        assert_eq!(error.name, ErrorName::Unsupported);
        assert!(error.message.contains("enableDnsHostnames"), "{}", error.message);
    }
}

#[tokio::test]
async fn states_of_the_cluster() {
    for (status, name) in [
        ("UPDATING", None),
        ("DELETING", Some(ErrorName::PrerequisiteMissing)),
        ("FAILED", Some(ErrorName::PrerequisiteMissing)),
        ("PENDING", Some(ErrorName::PrerequisiteMissing)),
        ("SOMETHING", Some(ErrorName::PrerequisiteMissing)),
    ] {
        let mut cluster = described();
        cluster["status"] = json!(status);
        let mut calls = preflight();
        calls[0] = describe(cluster);
        match name {
            None => {
                succeeds(with(calls, [describe_entry(ours()), policies(admin("cluster"))])).await;
            }
            Some(name) => {
                let error = fails(calls).await;
                assert_eq!(error.name, name);
                assert!(error.message.contains(&format!("demo is {status}")), "{}", error.message);
            }
        }
    }
}

#[tokio::test]
async fn routes_tell_private_from_public() {
    // For each: what the three tables are, and which of a, b, c and f are private.
    let all = ["a", "b", "c", "f"];
    for (list, private) in [
        (vec![table(MAIN, DEFAULT, NAT)], &all[..]),
        (vec![table(MAIN, DEFAULT6, EGRESS)], &all[..]),
        (vec![table(MAIN, "<destinationCidrBlock>8.8.8.8/32</destinationCidrBlock>", IGW)], &all[..]),
        // The main table counts only for subnets without one of their own.
        (vec![table(MAIN, DEFAULT, IGW), table(&of("subnet-0000000b"), DEFAULT, NAT)], &["b"][..]),
        (vec![table(MAIN, DEFAULT, NAT), table(&of("subnet-0000000b"), DEFAULT6, IGW)], &["a", "c", "f"][..]),
        (
            vec![
                table(&format!("{}{}", of("subnet-0000000a"), of("subnet-0000000c")), DEFAULT, IGW),
                table(MAIN, "", ""),
            ],
            &["b", "f"][..],
        ),
    ] {
        let mut calls = preflight();
        calls.pop();
        calls.push(tables(&list));
        let output = succeeds(with(calls, [describe_entry(ours()), policies(admin("cluster"))])).await;
        let found: Vec<&str> =
            output.network.subnets.iter().map(|subnet| &subnet.id["subnet-0000000".len()..]).collect();
        assert_eq!(found, private);
    }
}

#[tokio::test]
async fn the_request_may_name_the_subnets() {
    let request =
        json!({"cluster": "demo", "network": {"subnetIds": ["subnet-0000000f", "subnet-0000000f"]}});
    let start = || {
        let mut calls = vec![describe(described())];
        calls.extend(profiles());
        calls.extend(dns(true, true));
        calls
    };
    // Taken as they are: no look at route tables.
    let found = subnets(&[("subnet-0000000f", "<cidrBlock>10.0.9.0/24</cidrBlock>", "eu-west-1a")]);
    let output = succeeds_with(
        request.clone(),
        with(start(), [found, describe_entry(ours()), policies(admin("cluster"))]),
    )
    .await;
    assert_eq!(output.network.subnets.len(), 1);

    let error = fails_with(request.clone(), with(start(), [subnets(&[])])).await;
    assert!(error.message.contains("subnet-0000000f does not exist"), "{}", error.message);

    let six = subnets(&[("subnet-0000000f", "", "eu-west-1a")]);
    let error = fails_with(request, with(start(), [six])).await;
    assert!(error.message.contains("has no IPv4 block"), "{}", error.message);
}

#[tokio::test]
async fn the_request_may_name_the_vpc() {
    let request = |subnets: Value| json!({"cluster": "demo", "network": {"vpcId": "vpc-0000000e", "subnetIds": subnets}});
    let start = || with(vec![describe(described())], profiles());
    let gone = on("DescribeVpcAttribute").with("VpcId=vpc-0000000e").raw(
        400,
        "text/xml",
        b"<Response><Errors><Error><Code>InvalidVpcID.NotFound</Code><Message>The vpc ID 'vpc-0000000e' does not exist</Message></Error></Errors></Response>",
    );
    let error = fails_with(request(json!([])), with(start(), [gone])).await;
    assert_eq!(error.name, ErrorName::PrerequisiteMissing);
    assert!(error.message.contains("vpc-0000000e does not exist"), "{}", error.message);

    // The named subnet is in the cluster's VPC.
    let mut calls = with(start(), dns(true, true));
    calls.push(subnets(&[("subnet-0000000f", "<cidrBlock>10.0.9.0/24</cidrBlock>", "eu-west-1a")]));
    let error = fails_with(request(json!(["subnet-0000000f"])), calls).await;
    assert!(error.message.contains("subnet-0000000f is in vpc-0a1b2c3d, not in vpc-0000000e"));

    // Without named subnets, all private ones of that VPC.
    let there = on("DescribeSubnets").with("Filter.1.Name=vpc-id&Filter.1.Value.1=vpc-0000000e").xml(
        "<DescribeSubnetsResponse><subnetSet><item><subnetId>subnet-00000001</subnetId><vpcId>vpc-0000000e</vpcId><cidrBlock>10.9.0.0/24</cidrBlock><availabilityZone>eu-west-1a</availabilityZone></item></subnetSet></DescribeSubnetsResponse>",
    );
    let mut calls = with(start(), dns(true, true));
    calls.extend([
        there,
        on("DescribeRouteTables")
            .with("vpc-0000000e")
            .xml("<DescribeRouteTablesResponse><routeTableSet/></DescribeRouteTablesResponse>"),
        describe_entry(ours()),
        policies(admin("cluster")),
    ]);
    let output = succeeds_with(request(json!([])), calls).await;
    assert_eq!(output.network.vpc_id, "vpc-0000000e");
    assert_eq!(output.network.subnets[0].id, "subnet-00000001");
}

#[tokio::test]
async fn profiles_are_read_page_by_page_and_may_vanish() {
    let mut calls = vec![
        describe(described()),
        on("GET /clusters/demo/fargate-profiles")
            .json(json!({"fargateProfileNames": ["default", "gone"], "nextToken": "more"})),
        profile("default", "ACTIVE", json!([{"namespace": "default"}, {"namespace": "kube-system"}])),
        on("GET /clusters/demo/fargate-profiles/gone").error(
            404,
            "ResourceNotFoundException",
            "No Fargate Profile found with name: gone.",
        ),
        list_profiles(&["fp"]).with("nextToken=more"),
        profile("fp", "ACTIVE", json!([{"namespace": "flux?d"}, {"namespace": "fluxcd"}])),
    ];
    calls.extend(dns(true, true));
    calls.extend([four_subnets(), one_public(), describe_entry(ours()), policies(admin("cluster"))]);
    succeeds(calls).await;
}

#[tokio::test]
async fn profiles_that_do_not_do_say_why() {
    for (status, selectors, part) in [
        ("CREATING", json!([{"namespace": "fluxcd"}]), "the profile fp selects it and is CREATING"),
        ("CREATE_FAILED", json!([{"namespace": "*"}]), "is CREATE_FAILED"),
        (
            "ACTIVE",
            json!([{"namespace": "fluxcd", "labels": {"app": "source-controller"}}]),
            "only for pods with the labels {app=source-controller}",
        ),
        ("ACTIVE", json!([{"namespace": "default"}]), "none of fp selects it"),
    ] {
        let mut calls = vec![describe(described()), list_profiles(&["fp"]), profile("fp", status, selectors)];
        calls.extend(dns(true, true));
        calls.extend([
            subnets(&[
                ("subnet-0000000a", "<cidrBlock>10.0.1.0/24</cidrBlock>", "eu-west-1a"),
                ("subnet-0000000b", "<cidrBlock>10.0.2.0/24</cidrBlock>", "eu-west-1a"),
                ("subnet-0000000f", "<cidrBlock>10.0.9.0/24</cidrBlock>", "eu-west-1a"),
            ]),
            one_public(),
        ]);
        let error = fails(calls).await;
        assert_eq!(error.name, ErrorName::PrerequisiteMissing);
        assert!(error.message.contains(part), "{}", error.message);
        assert_eq!(error.message.matches("\n- ").count(), 1, "{}", error.message);
    }
}

#[tokio::test]
async fn partitions() {
    let in_partition = |partition: &str, region: &str| {
        let mut cluster = described();
        cluster["arn"] = json!(format!("arn:{partition}:eks:{region}:123456789012:cluster/demo"));
        cluster
    };
    // Without CodeCommit.
    let error = fails(vec![describe(in_partition("aws-iso", "us-iso-east-1"))]).await;
    assert_eq!(error.name, ErrorName::Unsupported);
    assert!(error.message.contains("CodeCommit is not offered"), "{}", error.message);
    // Without Fargate.
    let mut calls = vec![describe(in_partition("aws-us-gov", "us-gov-west-1")), list_profiles(&[])];
    calls.extend(dns(true, true));
    calls.extend([
        subnets(&[
            ("subnet-0000000a", "<cidrBlock>10.0.1.0/24</cidrBlock>", "us-gov-west-1a"),
            ("subnet-0000000b", "<cidrBlock>10.0.2.0/24</cidrBlock>", "us-gov-west-1a"),
            ("subnet-0000000f", "<cidrBlock>10.0.9.0/24</cidrBlock>", "us-gov-west-1a"),
        ]),
        one_public(),
    ]);
    let error = fails(calls).await;
    assert_eq!(error.name, ErrorName::Unsupported);
    assert!(error.message.contains("GovCloud"), "{}", error.message);
    // With names of its own.
    let mut calls = preflight();
    calls[0] = describe(in_partition("aws-cn", "cn-north-1"));
    calls.extend([
        no_entry(),
        create_entry().json(json!({"accessEntry": ours()})),
        on(&format!("POST {ENTRY}/access-policies"))
            .with("arn:aws-cn:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy")
            .json(json!({})),
    ]);
    let output = succeeds(calls).await;
    assert_eq!(output.git.url, "https://git-codecommit.cn-north-1.amazonaws.com.cn/v1/repos/demo-fluxcd");
    assert_eq!(output.cluster.access_entry_created_at, "2026-01-02T03:04:05Z");
}

#[tokio::test]
async fn the_git_endpoint_may_be_set() {
    let replies = Replies::new(with(preflight(), [describe_entry(ours()), policies(admin("cluster"))]));
    let settings = Settings::new(ROLE, Some("http://127.0.0.1:4566/")).expect("settings");
    let request = json!({"cluster": "demo", "repository": {"name": "gitops"}});
    let output = run_as(&replies, request, settings).await.expect("output");
    assert_eq!(output.git.url, "http://127.0.0.1:4566/v1/repos/gitops");
    replies.finish();
}

#[test]
fn the_role_is_a_role() {
    for (arn, good) in [
        (ROLE, true),
        ("arn:aws-cn:iam::123456789012:role/flux", true),
        ("arn:aws:sts::123456789012:assumed-role/flux/session", false),
        ("arn:aws:iam::123456789012:user/flux", false),
        ("flux", false),
    ] {
        assert_eq!(Settings::new(arn, Some("")).is_ok(), good, "{arn}");
    }
}

#[tokio::test]
async fn throttling_and_lost_connections_are_transient() {
    for reply in [
        on("GET /clusters/demo").error(429, "ThrottlingException", "Rate exceeded"),
        on("GET /clusters/demo").error(500, "ServerException", "Internal"),
        on("GET /clusters/demo").lost(),
    ] {
        assert_eq!(fails(vec![reply]).await.name, ErrorName::Transient);
    }
}

#[test]
fn the_sample_events_are_requests() {
    for sample in [
        include_str!("../../../events/function-cluster.json"),
        include_str!("../../../events/smallest.json"),
        include_str!("../../../events/full.json"),
    ] {
        serde_json::from_str::<Request>(sample).expect("a request").check().expect("a good one");
    }
}
