//! The step over scripted replies of IAM and Secrets Manager.

use std::time::{Duration, SystemTime};

use credentials::secret::next_version;
use credentials::{Input, Output, Step};
use replies::{Exchange, Replies, on};
use serde_json::{Value, json};
use step::clock::Clock;
use step::runtime::{Stack, may_be_logged};
use step::{Change, ErrorName, StepError};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const KEY: &str = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab";
const URL: &str = "https://git-codecommit.eu-west-1.amazonaws.com/v1/repos/demo-fluxcd";
const SECRET: &str = "eks-flux-bootstrap/demo/fluxcd/git";
const ARN: &str =
    "arn:aws:secretsmanager:eu-west-1:123456789012:secret:eks-flux-bootstrap/demo/fluxcd/git-AbCdEf";
const OURS: &str = "stack/demo/fluxcd";
/// The password of every credential here. It may be in requests that store it, and nowhere else.
const SENTINEL: &str = "sentinel+Passw0rd/=";

/// 2026-01-02T03:04:05Z.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_323_045)
}
const LONG_AGO: &str = "2025-06-01T00:00:00Z";
/// IAM's answer while it does not know a new user's path: the resource is named without it.
const REFUSED: &str = "User: arn:aws:sts::123456789012:assumed-role/r/s is not authorized to perform: \
    iam:PutUserPolicy on resource: user demo-fluxcd-git because no identity-based policy allows it";
const JUST_NOW: &str = "2026-01-02T03:03:50Z";

fn input() -> Input {
    let text = include_str!("../../../events/function-credentials.json");
    step::request::parse_json(&serde_json::from_str::<Value>(text).expect("JSON")).expect("an input")
}

/// What all tests log at the most talkative level, through the filter that the functions use.
static LOG: std::sync::Mutex<Vec<u8>> = std::sync::Mutex::new(Vec::new());
static LOGGED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOGGED.fetch_add(bytes.len(), std::sync::atomic::Ordering::Relaxed);
        LOG.lock().expect("the log").write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs the step. Whatever comes of it, the password is neither in that nor in the log.
async fn apply(script: impl IntoIterator<Item = Exchange>) -> Result<Output, StepError> {
    // The first test installs it, the others find it.
    let _ = tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| Log))
        .with(filter_fn(may_be_logged))
        .try_init();
    tracing::trace!("a test begins");
    let replies = Replies::new(script);
    let step =
        Step::new(&replies.config(), Stack { name: "stack".to_owned() }).with_clock(Clock::Fixed(now()));
    let result = step.apply(input()).await;
    replies.finish();
    let shown = match &result {
        Ok(output) => format!("{output:?}{}", serde_json::to_string(output).expect("JSON")),
        Err(error) => format!("{error:?}{error}"),
    };
    assert!(!shown.contains(SENTINEL), "{shown}");
    assert!(!format!("{step:?}").contains(SENTINEL));
    let log = std::mem::take(&mut *LOG.lock().expect("the log"));
    for line in String::from_utf8_lossy(&log).lines() {
        assert!(!line.contains(SENTINEL), "the log: {line}");
    }
    result
}

fn result(action: &str, inner: &str) -> String {
    format!("<{action}Response><{action}Result>{inner}</{action}Result></{action}Response>")
}

fn user_xml(path: &str, owner: Option<&str>) -> String {
    let tags = owner.map_or(String::new(), |owner| {
        format!("<Tags><member><Key>eks-flux-bootstrap:owner</Key><Value>{owner}</Value></member></Tags>")
    });
    format!(
        "<User><Path>{path}</Path><UserName>demo-fluxcd-git</UserName><UserId>AIDA1</UserId>\
         <Arn>arn:aws:iam::123456789012:user{path}demo-fluxcd-git</Arn>\
         <CreateDate>{LONG_AGO}</CreateDate>{tags}</User>"
    )
}

fn user() -> Exchange {
    on("GetUser").xml(&result("GetUser", &user_xml("/eks-flux-bootstrap/", Some(OURS))))
}

fn no_user() -> Exchange {
    on("GetUser").xml_error(404, "NoSuchEntity", "The user with name demo-fluxcd-git cannot be found.")
}

fn create_user() -> Exchange {
    on("CreateUser").with("Path=/eks-flux-bootstrap/").with(OURS)
}

fn user_created() -> Exchange {
    create_user().xml(&result("CreateUser", &user_xml("/eks-flux-bootstrap/", None)))
}

fn policy_document() -> Value {
    json!({"Version": "2012-10-17", "Statement": [
        {"Sid": "Git", "Effect": "Allow", "Action": ["codecommit:GitPull", "codecommit:GitPush"],
         "Resource": "arn:aws:codecommit:eu-west-1:123456789012:demo-fluxcd"},
        {"Sid": "Key", "Effect": "Allow", "Resource": KEY,
         "Action": ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey",
                    "kms:GenerateDataKeyWithoutPlaintext", "kms:DescribeKey"]}]})
}

fn policy_is(document: &Value) -> Exchange {
    // IAM percent-encodes the document; other white space is the same policy.
    let pretty = serde_json::to_string_pretty(document).expect("JSON");
    let encoded: String = pretty.bytes().map(|byte| format!("%{byte:02X}")).collect();
    on("GetUserPolicy").with("PolicyName=git-and-key").xml(&result(
        "GetUserPolicy",
        &format!("<UserName>u</UserName><PolicyName>git-and-key</PolicyName><PolicyDocument>{encoded}</PolicyDocument>"),
    ))
}

fn policy() -> Exchange {
    policy_is(&policy_document())
}

fn put_policy() -> Exchange {
    on("PutUserPolicy").with("codecommit:GitPush").with(KEY)
}

fn policy_put() -> Exchange {
    put_policy().xml("<PutUserPolicyResponse/>")
}

fn list(credentials: &[(&str, &str, &str)]) -> Exchange {
    let members: String = credentials
        .iter()
        .map(|(id, status, created)| {
            format!(
                "<member><UserName>demo-fluxcd-git</UserName><Status>{status}</Status>\
                 <ServiceUserName>{id}-at-123456789012</ServiceUserName><CreateDate>{created}</CreateDate>\
                 <ServiceSpecificCredentialId>{id}</ServiceSpecificCredentialId>\
                 <ServiceName>codecommit.amazonaws.com</ServiceName></member>"
            )
        })
        .collect();
    on("ListServiceSpecificCredentials").with("ServiceName=codecommit.amazonaws.com").xml(&result(
        "ListServiceSpecificCredentials",
        &format!("<ServiceSpecificCredentials>{members}</ServiceSpecificCredentials>"),
    ))
}

fn issue() -> Exchange {
    on("CreateServiceSpecificCredential").with("ServiceName=codecommit.amazonaws.com")
}

fn issued(id: &str) -> Exchange {
    issue().xml(&result(
        "CreateServiceSpecificCredential",
        &format!(
            "<ServiceSpecificCredential><CreateDate>2026-01-02T03:04:05Z</CreateDate>\
             <ServiceName>codecommit.amazonaws.com</ServiceName>\
             <ServiceUserName>{id}-at-123456789012</ServiceUserName><ServicePassword>{SENTINEL}</ServicePassword>\
             <ServiceSpecificCredentialId>{id}</ServiceSpecificCredentialId><UserName>demo-fluxcd-git</UserName>\
             <Status>Active</Status></ServiceSpecificCredential>"
        ),
    ))
}

fn deleted(id: &str) -> Exchange {
    on("DeleteServiceSpecificCredential")
        .with(&format!("ServiceSpecificCredentialId={id}"))
        .xml("<DeleteServiceSpecificCredentialResponse/>")
}

fn no_secret() -> Exchange {
    on("DescribeSecret").error(
        400,
        "ResourceNotFoundException",
        "Secrets Manager can't find the specified secret.",
    )
}

/// The secret as it should be, holding a credential (or nothing) in version `v1`.
fn description(holds: Option<&str>) -> Value {
    let mut tags = vec![json!({"Key": "eks-flux-bootstrap:owner", "Value": OURS})];
    let mut versions = json!({});
    if let Some(id) = holds {
        tags.push(json!({"Key": "eks-flux-bootstrap:credential", "Value": format!("{id}@v1")}));
        tags.push(json!({"Key": "eks-flux-bootstrap:url", "Value": URL}));
        versions["v1"] = json!(["AWSCURRENT"]);
    }
    json!({"ARN": ARN, "Name": SECRET, "KmsKeyId": KEY, "Tags": tags, "VersionIdsToStages": versions})
}

fn secret(holds: Option<&str>) -> Exchange {
    secret_with(holds, json!({}))
}

/// The same with some fields changed.
fn secret_with(holds: Option<&str>, changes: Value) -> Exchange {
    let mut description = description(holds);
    for (field, value) in changes.as_object().expect("an object") {
        description[field] = value.clone();
    }
    on("DescribeSecret").with(SECRET).json(description)
}

fn value(id: &str, url: &str) -> Exchange {
    let value = json!({"username": format!("{id}-at-123456789012"), "password": SENTINEL, "url": url,
                       "credentialId": id, "createdAt": LONG_AGO});
    value_is(&value.to_string())
}

fn value_is(text: &str) -> Exchange {
    on("GetSecretValue").json(json!({"ARN": ARN, "VersionId": "v1", "SecretString": text}))
}

fn create_secret(id: &str) -> Exchange {
    on("CreateSecret")
        .with(SENTINEL)
        .with(&format!(r#"\"credentialId\":\"{id}\""#))
        .with(&format!(r#"\"url\":\"{URL}\""#))
        .with(&format!(r#""KmsKeyId":"{KEY}""#))
        .with(&format!(r#""Value":"{OURS}""#))
        .with(&format!(r#""Value":"{id}@{}""#, empty_version()))
}

fn empty_version() -> String {
    next_version(SECRET, &Default::default())
}

fn after_v1() -> String {
    next_version(SECRET, &[("v1".to_owned(), vec!["AWSCURRENT".to_owned()])].into())
}

fn secret_created(id: &str) -> Exchange {
    create_secret(id).json(json!({"ARN": ARN, "Name": SECRET, "VersionId": empty_version()}))
}

fn put(id: &str, version: &str) -> Exchange {
    on("PutSecretValue")
        .with(SENTINEL)
        .with(&format!(r#"\"credentialId\":\"{id}\""#))
        .with(&format!(r#""ClientRequestToken":"{version}""#))
}

fn was_put(id: &str, version: &str) -> Exchange {
    put(id, version).json(json!({"ARN": ARN, "VersionId": version, "VersionStages": ["AWSCURRENT"]}))
}

fn tagged(id: &str, version: &str) -> Exchange {
    on("TagResource").with(&format!(r#""Value":"{id}@{version}""#)).json(json!({}))
}

/// A look that finds the user with its policy.
fn look(secret: Exchange, credentials: &[(&str, &str, &str)]) -> Vec<Exchange> {
    vec![user(), secret, policy(), list(credentials)]
}

fn then(mut look: Vec<Exchange>, calls: Vec<Exchange>) -> Vec<Exchange> {
    look.extend(calls);
    look
}

const A: (&str, &str, &str) = ("ACCA1", "Active", LONG_AGO);
const B: (&str, &str, &str) = ("ACCA2", "Active", LONG_AGO);

#[tokio::test]
async fn converges() {
    use Change::{Created, Unchanged, Updated};
    let marked = json!({"DeletedDate": 1_767_000_000});
    let exists = |call: Exchange| {
        call.error(400, "ResourceExistsException", "The operation failed because the secret already exists.")
    };
    let in_use = |call: Exchange| {
        call.error(
            400,
            "ResourceExistsException",
            "You can't use ClientRequestToken x because that value is already in use for a version of secret s.",
        )
    };
    for (name, script, id, changes) in [
        (
            "nothing there",
            vec![
                no_user(),
                no_secret(),
                user_created(),
                policy_put(),
                issued("ACCA1"),
                secret_created("ACCA1"),
            ],
            "ACCA1",
            [Created, Created, Created, Created],
        ),
        (
            "second run: no write and no password read",
            look(secret(Some("ACCA1")), &[A]),
            "ACCA1",
            [Unchanged; 4],
        ),
        (
            "the user settles",
            vec![
                no_user(),
                no_secret(),
                user_created(),
                put_policy().xml_error(
                    404,
                    "NoSuchEntity",
                    "The user with name demo-fluxcd-git cannot be found.",
                ),
                put_policy().xml_error(403, "AccessDenied", REFUSED),
                policy_put(),
                issue().xml_error(409, "EntityTemporarilyUnmodifiable", "just re-created"),
                issue().xml_error(409, "ConcurrentModification", "another request"),
                issue().xml_error(403, "AccessDenied", REFUSED),
                issued("ACCA1"),
                create_secret("ACCA1").error(400, "EncryptionFailure", "can't encrypt with this key"),
                secret_created("ACCA1"),
            ],
            "ACCA1",
            [Created, Created, Created, Created],
        ),
        (
            "stopped after the user",
            vec![
                user(),
                no_secret(),
                on("GetUserPolicy").xml_error(
                    404,
                    "NoSuchEntity",
                    "The user policy with name git-and-key cannot be found.",
                ),
                list(&[]),
                policy_put(),
                issued("ACCA1"),
                secret_created("ACCA1"),
            ],
            "ACCA1",
            [Unchanged, Created, Created, Created],
        ),
        (
            "stopped between credential and secret: a new one is stored, then the old one deleted",
            then(look(no_secret(), &[A]), vec![issued("ACCA2"), secret_created("ACCA2"), deleted("ACCA1")]),
            "ACCA2",
            [Unchanged, Unchanged, Created, Created],
        ),
        (
            "stopped twice there: the slot of the oldest is freed first",
            then(
                look(no_secret(), &[("ACCA1", "Active", JUST_NOW), ("ACCA0", "Active", LONG_AGO)]),
                vec![deleted("ACCA0"), issued("ACCA3"), secret_created("ACCA3"), deleted("ACCA1")],
            ),
            "ACCA3",
            [Unchanged, Unchanged, Created, Created],
        ),
        (
            "an inactive one is freed before an active one",
            then(
                look(no_secret(), &[("ACCA1", "Active", LONG_AGO), ("ACCA2", "Inactive", JUST_NOW)]),
                vec![deleted("ACCA2"), issued("ACCA3"), secret_created("ACCA3"), deleted("ACCA1")],
            ),
            "ACCA3",
            [Unchanged, Unchanged, Created, Created],
        ),
        (
            "a secret without a value",
            then(
                look(secret(None), &[]),
                vec![issued("ACCA1"), was_put("ACCA1", &empty_version()), tagged("ACCA1", &empty_version())],
            ),
            "ACCA1",
            [Unchanged, Unchanged, Created, Updated],
        ),
        (
            "stopped between the value and its tags",
            then(
                look(secret_with(None, json!({"VersionIdsToStages": {"v1": ["AWSCURRENT"]}})), &[A]),
                vec![value("ACCA1", URL), tagged("ACCA1", "v1")],
            ),
            "ACCA1",
            [Unchanged, Unchanged, Unchanged, Updated],
        ),
        (
            "a value that a person wrote, without the id",
            then(
                look(
                    secret_with(
                        Some("ACCA2"),
                        json!({"VersionIdsToStages": {"v2": ["AWSCURRENT"], "v1": ["AWSPREVIOUS"]}}),
                    ),
                    &[A],
                ),
                vec![
                    value_is(
                        &json!({"username": "ACCA1-at-123456789012", "password": SENTINEL, "url": URL})
                            .to_string(),
                    ),
                    tagged("ACCA1", "v2"),
                ],
            ),
            "ACCA1",
            [Unchanged, Unchanged, Unchanged, Updated],
        ),
        (
            "the credential is gone",
            then(
                look(secret(Some("ACCA1")), &[]),
                vec![issued("ACCA2"), was_put("ACCA2", &after_v1()), tagged("ACCA2", &after_v1())],
            ),
            "ACCA2",
            [Unchanged, Unchanged, Created, Updated],
        ),
        (
            "the credential is inactive",
            then(
                look(secret(Some("ACCA1")), &[("ACCA1", "Inactive", LONG_AGO)]),
                vec![
                    issued("ACCA2"),
                    was_put("ACCA2", &after_v1()),
                    tagged("ACCA2", &after_v1()),
                    deleted("ACCA1"),
                ],
            ),
            "ACCA2",
            [Unchanged, Unchanged, Created, Updated],
        ),
        (
            "another one that no secret holds is deleted, the one in use is kept",
            then(look(secret(Some("ACCA2")), &[A, B]), vec![deleted("ACCA1")]),
            "ACCA2",
            [Unchanged, Unchanged, Updated, Unchanged],
        ),
        (
            "while a rotation is under way the other one stays",
            look(
                secret_with(
                    Some("ACCA2"),
                    json!({"VersionIdsToStages": {"v1": ["AWSCURRENT"], "v2": ["AWSPENDING"]}}),
                ),
                &[A, B],
            ),
            "ACCA2",
            [Unchanged; 4],
        ),
        (
            "another key",
            then(
                look(secret_with(Some("ACCA1"), json!({"KmsKeyId": "alias/old"})), &[A]),
                vec![on("UpdateSecret").with(&format!(r#""KmsKeyId":"{KEY}""#)).json(json!({"ARN": ARN}))],
            ),
            "ACCA1",
            [Unchanged, Unchanged, Unchanged, Updated],
        ),
        (
            "the key by its id",
            look(
                secret_with(Some("ACCA1"), json!({"KmsKeyId": "1234abcd-12ab-34cd-56ef-1234567890ab"})),
                &[A],
            ),
            "ACCA1",
            [Unchanged; 4],
        ),
        (
            "another address: the same password with the new one",
            then(
                look(
                    secret_with(
                        None,
                        json!({"VersionIdsToStages": {"v1": ["AWSCURRENT"]}, "Tags": [
                            {"Key": "eks-flux-bootstrap:owner", "Value": OURS},
                            {"Key": "eks-flux-bootstrap:credential", "Value": "ACCA1@v1"},
                            {"Key": "eks-flux-bootstrap:url", "Value": "https://old"}]}),
                    ),
                    &[A],
                ),
                vec![
                    value("ACCA1", "https://old"),
                    was_put("ACCA1", &after_v1()).with(&format!(r#"\"url\":\"{URL}\""#)),
                    tagged("ACCA1", &after_v1()),
                ],
            ),
            "ACCA1",
            [Unchanged, Unchanged, Unchanged, Updated],
        ),
        (
            "scheduled for deletion, credential still there: restored",
            then(
                look(secret_with(Some("ACCA1"), marked.clone()), &[A]),
                vec![on("RestoreSecret").with(SECRET).json(json!({"ARN": ARN}))],
            ),
            "ACCA1",
            [Unchanged, Unchanged, Unchanged, Updated],
        ),
        (
            "scheduled for deletion after a teardown: restored and refilled",
            vec![
                no_user(),
                secret_with(Some("ACCA1"), marked.clone()),
                user_created(),
                policy_put(),
                on("RestoreSecret").json(json!({"ARN": ARN})),
                issued("ACCA2"),
                was_put("ACCA2", &after_v1()),
                tagged("ACCA2", &after_v1()),
            ],
            "ACCA2",
            [Created, Created, Created, Updated],
        ),
        (
            "another policy",
            vec![
                user(),
                secret(Some("ACCA1")),
                policy_is(&json!({"Version": "2012-10-17", "Statement": []})),
                list(&[A]),
                policy_put(),
            ],
            "ACCA1",
            [Unchanged, Updated, Unchanged, Unchanged],
        ),
        (
            "a duplicate run makes the user first",
            then(
                vec![no_user(), no_secret(), create_user().xml_error(409, "EntityAlreadyExists", "exists")],
                look(secret(Some("ACCA1")), &[A]),
            ),
            "ACCA1",
            [Unchanged; 4],
        ),
        (
            "a duplicate run stores first: its credential counts, ours goes",
            then(
                then(look(no_secret(), &[A]), vec![issued("ACCA2"), exists(create_secret("ACCA2"))]),
                then(look(secret(Some("ACCA1")), &[A, B]), vec![deleted("ACCA2")]),
            ),
            "ACCA1",
            [Unchanged, Unchanged, Updated, Unchanged],
        ),
        (
            "a repeated CreateSecret meets its own secret: the credential is kept",
            then(
                then(look(no_secret(), &[]), vec![issued("ACCA2"), exists(create_secret("ACCA2"))]),
                look(secret(Some("ACCA2")), &[B]),
            ),
            "ACCA2",
            [Unchanged; 4],
        ),
        (
            "the secret was made empty meanwhile: the credential at hand fills it",
            then(
                then(look(no_secret(), &[]), vec![issued("ACCA2"), exists(create_secret("ACCA2"))]),
                then(
                    look(secret(None), &[B]),
                    vec![was_put("ACCA2", &empty_version()), tagged("ACCA2", &empty_version())],
                ),
            ),
            "ACCA2",
            [Unchanged, Unchanged, Created, Updated],
        ),
        (
            "of two refills one wins",
            then(
                then(
                    look(secret(Some("ACCA0")), &[A]),
                    vec![issued("ACCA2"), in_use(put("ACCA2", &after_v1()))],
                ),
                then(look(secret(Some("ACCA1")), &[A, B]), vec![deleted("ACCA2")]),
            ),
            "ACCA1",
            [Unchanged, Unchanged, Updated, Unchanged],
        ),
        (
            "the third of three runs",
            then(
                then(
                    look(no_secret(), &[]),
                    vec![issue().xml_error(409, "LimitExceeded", "Cannot exceed quota")],
                ),
                look(secret(Some("ACCA1")), &[A]),
            ),
            "ACCA1",
            [Unchanged; 4],
        ),
        (
            "a version id of Secrets Manager's own choice is tagged",
            then(
                look(no_secret(), &[]),
                vec![
                    issued("ACCA1"),
                    create_secret("ACCA1").json(json!({"ARN": ARN, "VersionId": "v9"})),
                    tagged("ACCA1", "v9"),
                ],
            ),
            "ACCA1",
            [Unchanged, Unchanged, Created, Created],
        ),
    ] {
        let output = apply(script).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        let got: Vec<Change> = output.resources.iter().map(|r| r.change).collect();
        assert_eq!(got, changes, "{name}");
        assert_eq!(output.credentials.credential_id, id, "{name}");
        assert_eq!(output.credentials.secret_arn, ARN, "{name}");
        assert_eq!(output.credentials.user_name, "demo-fluxcd-git", "{name}");
    }
}

#[tokio::test]
async fn refuses_with_a_way_out() {
    let foreign =
        |owner: Option<&str>| on("GetUser").xml(&result("GetUser", &user_xml("/eks-flux-bootstrap/", owner)));
    let stored = |call: Exchange, unused: bool| {
        let mut calls = then(look(no_secret(), &[]), vec![issued("ACCA1"), call]);
        if unused {
            calls.push(deleted("ACCA1"));
        }
        calls
    };
    let marked = json!({"DeletedDate": 1_767_000_000, "Tags": []});
    for (script, name, text) in [
        (vec![foreign(None)], ErrorName::Conflict, "credentials.userName"),
        (vec![foreign(Some("other/demo/fluxcd"))], ErrorName::Conflict, "belongs to other/demo/fluxcd"),
        (
            vec![on("GetUser").xml(&result("GetUser", &user_xml("/", Some(OURS))))],
            ErrorName::Conflict,
            "outside of the path",
        ),
        (vec![no_user(), secret_with(None, json!({"Tags": []}))], ErrorName::Conflict, "credentials.secretName"),
        (vec![no_user(), secret_with(None, marked)], ErrorName::Conflict, "--force-delete-without-recovery"),
        (
            (0..4)
                .flat_map(|_| [no_user(), no_secret(), create_user().xml_error(409, "EntityAlreadyExists", "exists")])
                .collect(),
            ErrorName::Conflict,
            "upper and lower case",
        ),
        (
            vec![no_user(), no_secret(), create_user().xml_error(403, "AccessDenied", "not authorized")],
            ErrorName::Denied,
            "iam:CreateUser",
        ),
        (
            [no_user(), no_secret(), user_created()]
                .into_iter()
                .chain((0..6).map(|_| put_policy().xml_error(403, "AccessDenied", REFUSED)))
                .collect(),
            ErrorName::Transient,
            "The user is new",
        ),
        (
            vec![
                on("GetUser").xml(
                    &result("GetUser", &user_xml("/eks-flux-bootstrap/", Some(OURS))).replace(LONG_AGO, JUST_NOW),
                ),
                no_secret(),
                on("GetUserPolicy").xml_error(403, "AccessDenied", REFUSED),
            ],
            ErrorName::Transient,
            "The user is new",
        ),
        (
            vec![user(), no_secret(), on("GetUserPolicy").xml_error(403, "AccessDenied", REFUSED)],
            ErrorName::Denied,
            "iam:GetUserPolicy",
        ),
        (
            vec![
                no_user(),
                no_secret(),
                user_created(),
                put_policy().xml_error(400, "MalformedPolicyDocument", "Syntax errors in policy."),
            ],
            ErrorName::Internal,
            "Syntax errors",
        ),
        (
            [no_user(), no_secret(), user_created()]
                .into_iter()
                .chain((0..6).map(|_| {
                    put_policy().xml_error(
                        400,
                        "MalformedPolicyDocument",
                        "Policy contains a statement with one or more invalid principals.",
                    )
                }))
                .collect(),
            ErrorName::Transient,
            "principal",
        ),
        (
            then(
                look(no_secret(), &[]),
                vec![issue().xml_error(
                    404,
                    "NoSuchEntity",
                    "No such service codecommit.amazonaws.com is supported for Service Specific Credentials",
                )],
            ),
            ErrorName::Unsupported,
            "region",
        ),
        (
            look(no_secret(), &[("ACCA1", "Active", JUST_NOW), ("ACCA2", "Active", JUST_NOW)]),
            ErrorName::Transient,
            "ACCA1, ACCA2",
        ),
        // A lost answer: the credential may exist, and the next run deletes it.
        (then(look(no_secret(), &[]), vec![issue().lost()]), ErrorName::Transient, "iam:CreateServiceSpecificCredential"),
        // The secret is certainly not stored: the credential goes at once.
        (
            stored(create_secret("ACCA1").error(400, "InvalidRequestException",
                "You can't create this secret because a secret with this name is already scheduled for deletion."), true),
            ErrorName::Transient,
            "free again",
        ),
        (
            stored(create_secret("ACCA1").error(400, "InvalidRequestException", "Something else."), true),
            ErrorName::Conflict,
            "credentials.secretName",
        ),
        (
            stored(create_secret("ACCA1").error(400, "LimitExceededException", "too many secrets"), true),
            ErrorName::Unsupported,
            "too many",
        ),
        (
            stored(create_secret("ACCA1").error(400, "AccessDeniedException", "not authorized to perform"), true),
            ErrorName::Denied,
            "secretsmanager:CreateSecret",
        ),
        // A service that repeats what it was sent.
        (
            stored(
                create_secret("ACCA1").error(400, "ValidationException", &format!("Value '{SENTINEL}' at 'secretString'")),
                true,
            ),
            ErrorName::InvalidInput,
            "[hidden]",
        ),
        // The outcome is unknown: the credential must live.
        (stored(create_secret("ACCA1").lost(), false), ErrorName::Transient, "secretsmanager:CreateSecret"),
        (stored(create_secret("ACCA1").error(500, "InternalServiceError", "oops"), false), ErrorName::Transient, "oops"),
        // The value is stored, and only its tags are not.
        (
            then(
                look(secret(None), &[]),
                vec![
                    issued("ACCA1"),
                    was_put("ACCA1", &empty_version()),
                    on("TagResource").error(400, "AccessDeniedException", "not authorized to perform"),
                ],
            ),
            ErrorName::Denied,
            "secretsmanager:TagResource",
        ),
        (
            (0..4)
                .flat_map(|_| {
                    then(
                        look(secret_with(Some("ACCA1"), json!({"DeletedDate": 1_767_000_000})), &[A]),
                        vec![on("RestoreSecret").error(400, "InvalidRequestException",
                            "You can't perform this operation on the secret because it was marked for deletion.")],
                    )
                })
                .collect(),
            ErrorName::Transient,
            "restores it",
        ),
        (
            look(secret_with(Some("ACCA1"), json!({"KmsKeyId": "alias/old"})), &[A])
                .into_iter()
                .chain((0..6).map(|_| on("UpdateSecret").error(400, "AccessDeniedException", "Access to KMS is not allowed")))
                .collect(),
            ErrorName::Denied,
            "kms:Encrypt",
        ),
        (
            look(secret_with(Some("ACCA1"), json!({"KmsKeyId": "alias/old"})), &[A])
                .into_iter()
                .chain((0..6).map(|_| on("UpdateSecret").error(400, "DecryptionFailure", "can't decrypt")))
                .collect(),
            ErrorName::Conflict,
            "aws kms describe-key",
        ),
    ] {
        let error = apply(script).await.expect_err(text);
        assert_eq!(error.name, name, "{error}");
        assert!(error.message.contains(text), "{text}: {error}");
        assert!(
            error.message.contains("demo-fluxcd-git") || error.message.contains(SECRET),
            "names no resource: {error}"
        );
    }
}

/// Replies that carry the password and cannot be read, at every place that gets one.
#[tokio::test]
async fn an_unreadable_reply_shows_no_password() {
    let broken_xml = format!(
        "<CreateServiceSpecificCredentialResponse><CreateServiceSpecificCredentialResult>\
         <ServiceSpecificCredential><ServicePassword>{SENTINEL}</ServicePassword><CreateDate>{SENTINEL}</Cre"
    );
    let untagged = || secret_with(None, json!({"VersionIdsToStages": {"v1": ["AWSCURRENT"]}}));
    for script in [
        then(look(no_secret(), &[]), vec![issue().xml(&broken_xml)]),
        then(look(no_secret(), &[]), vec![issue().raw(500, "text/html", SENTINEL.as_bytes())]),
        then(
            look(untagged(), &[A]),
            vec![on("GetSecretValue").raw(
                200,
                "application/x-amz-json-1.1",
                format!("{{\"SecretString\":\"{SENTINEL}").as_bytes(),
            )],
        ),
        then(
            look(no_secret(), &[]),
            vec![
                issued("ACCA1"),
                create_secret("ACCA1").raw(200, "application/x-amz-json-1.1", SENTINEL.as_bytes()),
            ],
        ),
    ] {
        let error = apply(script).await.expect_err("unreadable");
        assert_eq!(error.name, ErrorName::Transient, "{error}");
    }
    // A value that is no JSON is replaced, not shown.
    let output = apply(then(
        look(untagged(), &[A]),
        vec![
            value_is(SENTINEL),
            issued("ACCA2"),
            was_put("ACCA2", &after_v1()),
            tagged("ACCA2", &after_v1()),
            deleted("ACCA1"),
        ],
    ))
    .await
    .expect("healed");
    assert_eq!(output.credentials.credential_id, "ACCA2");
}

#[tokio::test]
async fn the_log_is_looked_at() {
    apply(look(secret(Some("ACCA1")), &[A])).await.expect("unchanged");
    assert!(LOGGED.load(std::sync::atomic::Ordering::Relaxed) > 0, "nothing was logged");
}
