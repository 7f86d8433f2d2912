use std::time::{Duration, SystemTime, UNIX_EPOCH};

use replies::{Exchange, Replies, on};
use serde_json::{Value, json};

use super::*;

const ALIAS: &str = "alias/eks-flux-bootstrap/demo/fluxcd";
const TARGET: &str = "stack/demo/fluxcd";
const CREATED: u64 = 1_700_000_000;

fn arn(id: &str) -> String {
    format!("arn:aws:kms:eu-west-1:111122223333:key/{id}")
}

fn metadata(id: &str, state: &str) -> Value {
    json!({"KeyId": id, "Arn": arn(id), "KeyState": state, "KeyManager": "CUSTOMER", "KeySpec": "SYMMETRIC_DEFAULT",
        "KeyUsage": "ENCRYPT_DECRYPT", "Origin": "AWS_KMS", "Enabled": state == "Enabled", "CreationDate": CREATED as f64})
}

fn described(asked: &str, id: &str, state: &str) -> Exchange {
    on("DescribeKey").with(asked).json(json!({"KeyMetadata": metadata(id, state)}))
}

fn absent(asked: &str) -> Exchange {
    on("DescribeKey").with(asked).error(
        400,
        "NotFoundException",
        &format!("Alias arn:aws:kms:eu-west-1:111122223333:{ALIAS} is not found."),
    )
}

fn tags(id: &str, tags: &[(&str, &str)]) -> Exchange {
    let tags: Vec<Value> = tags.iter().map(|(k, v)| json!({"TagKey": k, "TagValue": v})).collect();
    on("ListResourceTags").with(&arn(id)).json(json!({"Tags": tags, "Truncated": false}))
}

fn ours(id: &str) -> Exchange {
    tags(id, &[(OWNER_TAG, TARGET)])
}

fn unfinished(id: &str) -> Exchange {
    tags(id, &[(OWNER_TAG, TARGET), (UNFINISHED_TAG, "true")])
}

fn index(keys: &[(&str, bool)]) -> Exchange {
    let list: Vec<Value> = keys
        .iter()
        .map(|(id, unfinished)| {
            let mut tags = vec![json!({"Key": OWNER_TAG, "Value": TARGET})];
            if *unfinished {
                tags.push(json!({"Key": UNFINISHED_TAG, "Value": "true"}));
            }
            json!({"ResourceARN": arn(id), "Tags": tags})
        })
        .collect();
    on("GetResources")
        .with(TARGET)
        .with("kms:key")
        .json(json!({"PaginationToken": "", "ResourceTagMappingList": list}))
}

fn rotation(on_: bool) -> Exchange {
    on("GetKeyRotationStatus").json(json!({"KeyRotationEnabled": on_}))
}

fn done(call: &str, id: &str) -> Exchange {
    on(call).with(&arn(id)).json(json!({}))
}

fn scheduled(id: &str) -> Exchange {
    on("ScheduleKeyDeletion")
        .with(&arn(id))
        .with("\"PendingWindowInDays\":7")
        .json(json!({"KeyId": arn(id), "DeletionDate": 1_700_604_800.0, "KeyState": "PendingDeletion"}))
}

fn made(id: &str) -> Exchange {
    on("CreateKey").json(json!({"KeyMetadata": metadata(id, "Enabled")}))
}

fn taken() -> Exchange {
    on("CreateAlias").error(
        400,
        "AlreadyExistsException",
        &format!("An alias with the name arn:aws:kms:eu-west-1:111122223333:{ALIAS} already exists"),
    )
}

fn input(request: Value) -> Input {
    serde_json::from_value(json!({
        "request": request,
        "cluster": {"name": "demo", "arn": "arn:aws:eks:eu-west-1:111122223333:cluster/demo", "endpoint": "https://k",
            "certificateAuthority": "QQ==", "accessEntryCreatedAt": "2026-01-01T00:00:00Z"},
    }))
    .expect("input")
}

fn step(replies: &Replies, now: SystemTime) -> Step {
    let config = replies.config();
    Step {
        kms: Client::new(&config),
        tagging: Transport::with_connector(&config, replies.connector()),
        stack: Stack { name: "stack".to_owned() },
        clock: Clock::Fixed(now),
    }
}

async fn run_at(age: u64, exchanges: Vec<Exchange>) -> Result<Output> {
    let replies = Replies::new(exchanges);
    let now = UNIX_EPOCH + Duration::from_secs(CREATED + age);
    let result = step(&replies, now).apply(input(json!({"cluster": "demo"}))).await;
    replies.finish();
    result
}

async fn run(exchanges: Vec<Exchange>) -> Result<Output> {
    run_at(86_400, exchanges).await
}

fn changes(output: &Output) -> Vec<(&str, &str, Change)> {
    output.resources.iter().map(|r| (r.kind.as_str(), r.id.as_str(), r.change)).collect()
}

#[tokio::test]
async fn a_first_run_makes_key_alias_and_rotation() {
    let output = run(vec![
        absent(ALIAS),
        index(&[]),
        made("k1")
            .without("Policy")
            .with(r#"{"TagKey":"eks-flux-bootstrap:owner","TagValue":"stack/demo/fluxcd"}"#)
            .with(r#"{"TagKey":"eks-flux-bootstrap:unfinished","TagValue":"true"}"#),
        on("CreateAlias").with(ALIAS).with(&arn("k1")).json(json!({})),
        rotation(false),
        done("EnableKeyRotation", "k1"),
        done("UntagResource", "k1").with(UNFINISHED_TAG),
    ])
    .await
    .expect("made");
    assert_eq!(output.key, Key { arn: arn("k1"), alias: ALIAS.to_owned() });
    assert_eq!(
        changes(&output),
        [("AWS::KMS::Key", "k1", Change::Created), ("AWS::KMS::Alias", ALIAS, Change::Created)]
    );
    assert_eq!(
        output.resources[1].arn.as_deref(),
        Some(format!("arn:aws:kms:eu-west-1:111122223333:{ALIAS}").as_str())
    );
}

#[tokio::test]
async fn a_second_run_writes_nothing() {
    let output =
        run(vec![described(ALIAS, "k1", "Enabled"), ours("k1"), index(&[("k1", false)]), rotation(true)])
            .await
            .expect("found");
    assert_eq!(
        changes(&output),
        [("AWS::KMS::Key", "k1", Change::Unchanged), ("AWS::KMS::Alias", ALIAS, Change::Unchanged)]
    );
}

#[tokio::test]
async fn a_key_of_ours_is_converged() {
    for (state, exchanges, detail) in [
        ("Disabled", vec![done("EnableKey", "k1"), rotation(true)], "it was disabled and is enabled again"),
        (
            "PendingDeletion",
            vec![done("CancelKeyDeletion", "k1"), done("EnableKey", "k1"), rotation(true)],
            "its deletion was scheduled and is cancelled",
        ),
        ("Enabled", vec![rotation(false), done("EnableKeyRotation", "k1")], "its rotation was off and is on"),
        (
            "Disabled",
            vec![done("EnableKey", "k1"), rotation(false), done("EnableKeyRotation", "k1")],
            "it was disabled and is enabled again; its rotation was off and is on",
        ),
    ] {
        let mut all = vec![described(ALIAS, "k1", state), ours("k1"), index(&[])];
        all.extend(exchanges);
        let output = run(all).await.expect(state);
        assert_eq!(output.resources[0].change, Change::Updated);
        assert_eq!(output.resources[0].detail.as_deref(), Some(detail));
    }
}

#[tokio::test]
async fn a_foreign_key_is_adopted_or_refused_and_never_changed() {
    let fine = run(vec![described(ALIAS, "f", "Enabled"), tags("f", &[("team", "x")]), index(&[])])
        .await
        .expect("adopted");
    assert_eq!(
        changes(&fine),
        [("AWS::KMS::Key", "f", Change::Adopted), ("AWS::KMS::Alias", ALIAS, Change::Adopted)]
    );
    for (state, name, words) in [
        ("Disabled", ErrorName::Conflict, "is disabled"),
        ("PendingDeletion", ErrorName::Conflict, "kms:CancelKeyDeletion"),
        ("PendingImport", ErrorName::Conflict, "PendingImport"),
        ("Unavailable", ErrorName::Conflict, "Unavailable"),
        ("Updating", ErrorName::Transient, "Updating"),
    ] {
        let error =
            run(vec![described(ALIAS, "f", state), tags("f", &[(OWNER_TAG, "other/x/y")]), index(&[])])
                .await
                .expect_err(state);
        assert_eq!(error.name, name, "{state}");
        assert!(error.message.contains(words) && error.message.contains(&arn("f")), "{}", error.message);
    }
    for (field, value) in [("KeySpec", "RSA_2048"), ("KeyUsage", "SIGN_VERIFY"), ("KeyManager", "AWS")] {
        let mut key = metadata("f", "Enabled");
        key[field] = json!(value);
        let error =
            run(vec![on("DescribeKey").json(json!({"KeyMetadata": key})), tags("f", &[]), index(&[])])
                .await
                .expect_err(field);
        assert_eq!(error.name, ErrorName::Conflict);
        assert!(error.message.contains("symmetric"), "{}", error.message);
    }
}

#[tokio::test]
async fn the_named_alias_is_used() {
    let replies = Replies::new([described("alias/mine", "f", "Enabled"), tags("f", &[]), index(&[])]);
    let output = step(&replies, UNIX_EPOCH)
        .apply(input(json!({"cluster": "demo", "key": {"alias": "alias/mine"}})))
        .await
        .expect("adopted");
    assert_eq!(output.key.alias, "alias/mine");
    replies.finish();
}

#[tokio::test]
async fn a_lost_race_leaves_no_orphan_enabled() {
    // The winner is a run of the same target.
    let output = run(vec![
        absent(ALIAS),
        index(&[]),
        made("loser"),
        taken(),
        described(ALIAS, "winner", "Enabled"),
        unfinished("winner"),
        scheduled("loser"),
        rotation(true),
        done("UntagResource", "winner"),
    ])
    .await
    .expect("the winner's key");
    assert_eq!(output.key.arn, arn("winner"));
    assert_eq!(
        changes(&output),
        [
            ("AWS::KMS::Key", "winner", Change::Updated),
            ("AWS::KMS::Alias", ALIAS, Change::Unchanged),
            ("AWS::KMS::Key", "loser", Change::Updated)
        ]
    );
    // The winner is somebody else's key that cannot be used: the orphan goes all the same.
    let error = run(vec![
        absent(ALIAS),
        index(&[]),
        made("loser"),
        taken(),
        described(ALIAS, "f", "Disabled"),
        tags("f", &[]),
        scheduled("loser"),
    ])
    .await
    .expect_err("conflict");
    assert_eq!(error.name, ErrorName::Conflict);
}

#[tokio::test]
async fn an_own_alias_whose_reply_was_lost_is_no_race() {
    let output = run(vec![
        absent(ALIAS),
        index(&[]),
        made("k1"),
        taken(),
        described(ALIAS, "k1", "Enabled"),
        unfinished("k1"),
        rotation(true),
        done("UntagResource", "k1"),
    ])
    .await
    .expect("own key");
    assert_eq!(output.resources[0].change, Change::Created);
}

#[tokio::test]
async fn the_key_of_a_crashed_run_is_used_by_the_next() {
    let output = run(vec![
        absent(ALIAS),
        index(&[("gone", true), ("dying", true), ("foreign", true), ("orphan", true), ("served", false)]),
        absent(&arn("gone")),
        described(&arn("dying"), "dying", "PendingDeletion"),
        unfinished("dying"),
        described(&arn("foreign"), "foreign", "Enabled"),
        tags("foreign", &[(OWNER_TAG, "other/x/y")]),
        described(&arn("orphan"), "orphan", "Enabled"),
        unfinished("orphan"),
        described(&arn("served"), "served", "Enabled"),
        ours("served"),
        on("CreateAlias").with(&arn("served")).json(json!({})),
        rotation(true),
        // What was never finished is cleaned up, if it is still there and still ours.
        absent(&arn("gone")),
        described(&arn("dying"), "dying", "PendingDeletion"),
        unfinished("dying"),
        described(&arn("foreign"), "foreign", "Enabled"),
        tags("foreign", &[(OWNER_TAG, "other/x/y")]),
        described(&arn("orphan"), "orphan", "Enabled"),
        unfinished("orphan"),
        scheduled("orphan"),
    ])
    .await
    .expect("reused");
    assert_eq!(
        changes(&output),
        [
            ("AWS::KMS::Key", "served", Change::Updated),
            ("AWS::KMS::Alias", ALIAS, Change::Created),
            ("AWS::KMS::Key", "orphan", Change::Updated)
        ]
    );
    assert_eq!(output.resources[0].detail.as_deref(), Some("it was ours and had no alias"));
}

#[tokio::test]
async fn an_orphan_that_the_index_showed_late_is_scheduled_for_deletion() {
    let output = run(vec![
        described(ALIAS, "k1", "Enabled"),
        ours("k1"),
        index(&[("k1", false), ("orphan", true), ("finished", true), ("old", false)]),
        rotation(true),
        described(&arn("orphan"), "orphan", "Enabled"),
        unfinished("orphan"),
        scheduled("orphan"),
        // The index lags: this one was finished meanwhile.
        described(&arn("finished"), "finished", "Enabled"),
        ours("finished"),
    ])
    .await
    .expect("cleaned up");
    assert_eq!(output.resources[2].id, "orphan");
    assert!(output.resources[2].detail.as_deref().is_some_and(|d| d.contains("2023-11-21T22:13:20Z")));
}

#[tokio::test]
async fn somebody_else_may_have_scheduled_the_orphan() {
    let output = run(vec![
        absent(ALIAS),
        index(&[]),
        made("loser"),
        taken(),
        described(ALIAS, "winner", "Enabled"),
        ours("winner"),
        on("ScheduleKeyDeletion").error(
            400,
            "KMSInvalidStateException",
            &format!("{} is pending deletion.", arn("loser")),
        ),
        rotation(true),
    ])
    .await
    .expect("fine");
    assert_eq!(output.resources.len(), 2);
}

#[tokio::test]
async fn errors_of_key_creation_say_what_to_do() {
    for (code, text, name, words) in [
        (
            "MalformedPolicyDocumentException",
            "The new key policy will not allow you to update the key policy in the future.",
            ErrorName::Denied,
            "Allow kms:PutKeyPolicy",
        ),
        (
            "MalformedPolicyDocumentException",
            "Policy contains a statement with one or more invalid principals.",
            ErrorName::Transient,
            "tried again",
        ),
        (
            "MalformedPolicyDocumentException",
            "Syntax errors in policy.",
            ErrorName::Internal,
            "Syntax errors",
        ),
        ("LimitExceededException", "You have reached your limit of keys.", ErrorName::Unsupported, "quota"),
        (
            "AccessDeniedException",
            "User: x is not authorized to perform: kms:TagResource",
            ErrorName::Denied,
            "kms:TagResource",
        ),
        ("KMSInternalException", "internal", ErrorName::Transient, "tried again"),
        ("ThrottlingException", "Rate exceeded", ErrorName::Transient, "tried again"),
    ] {
        let error = run(vec![absent(ALIAS), index(&[]), on("CreateKey").error(400, code, text)])
            .await
            .expect_err(text);
        assert_eq!(error.name, name, "{text}");
        assert!(error.message.contains(words), "{}", error.message);
        assert!(error.message.contains(ALIAS), "{}", error.message);
    }
}

#[tokio::test]
async fn a_lost_reply_to_create_key_makes_no_second_key() {
    let replies = Replies::new([absent(ALIAS), index(&[]), on("CreateKey").lost()]);
    let config =
        replies.config().into_builder().retry_config(RetryConfig::standard().with_max_attempts(3)).build();
    let step = Step { kms: Client::new(&config), ..step(&replies, UNIX_EPOCH) };
    let error = step.apply(input(json!({"cluster": "demo"}))).await.expect_err("lost");
    assert_eq!(error.name, ErrorName::Transient);
    replies.finish();
}

#[tokio::test]
async fn a_refusal_of_a_new_key_passes_and_of_an_old_one_does_not() {
    for (age, name) in [(10, ErrorName::Transient), (301, ErrorName::Denied)] {
        let error = run_at(
            age,
            vec![
                described(ALIAS, "k1", "Enabled"),
                ours("k1"),
                index(&[]),
                on("GetKeyRotationStatus").error(400, "AccessDeniedException", "not authorized"),
            ],
        )
        .await
        .expect_err("refused");
        assert_eq!(error.name, name, "{age}");
        assert!(error.message.contains("kms:GetKeyRotationStatus"), "{}", error.message);
    }
}

#[tokio::test]
async fn what_kms_does_not_know_everywhere_yet_is_tried_again() {
    for failing in [
        vec![on("CreateAlias").error(
            400,
            "NotFoundException",
            &format!("Key '{}' does not exist", arn("k1")),
        )],
        vec![
            on("CreateAlias").json(json!({})),
            on("GetKeyRotationStatus").error(400, "NotFoundException", "Key does not exist"),
        ],
        vec![
            on("CreateAlias").json(json!({})),
            rotation(false),
            on("EnableKeyRotation").error(400, "DisabledException", &format!("{} is disabled.", arn("k1"))),
        ],
        vec![taken(), absent(ALIAS)],
    ] {
        let mut all = vec![absent(ALIAS), index(&[]), made("k1")];
        all.extend(failing);
        let error = run(all).await.expect_err("not yet");
        assert_eq!(error.name, ErrorName::Transient, "{}", error.message);
    }
    let error = run(vec![
        described(ALIAS, "k1", "PendingDeletion"),
        ours("k1"),
        index(&[]),
        done("CancelKeyDeletion", "k1"),
        on("EnableKey").error(
            400,
            "KMSInvalidStateException",
            &format!("{} is pending deletion.", arn("k1")),
        ),
    ])
    .await
    .expect_err("not yet");
    assert_eq!(error.name, ErrorName::Transient);
}

#[tokio::test]
async fn the_tag_index_is_read_to_its_end_and_its_errors_are_named() {
    let output = run(vec![
        described(ALIAS, "k1", "Enabled"),
        ours("k1"),
        on("GetResources").with("\"PaginationToken\":\"\"").json(
            json!({"PaginationToken": "p2", "ResourceTagMappingList": [{"ResourceARN": arn("k1"), "Tags": []}]}),
        ),
        on("GetResources").with("\"PaginationToken\":\"p2\"").json(json!({"ResourceTagMappingList": []})),
        rotation(true),
    ])
    .await;
    assert!(output.is_ok(), "{output:?}");
    for (status, code, name) in [
        (400, "AccessDeniedException", ErrorName::Denied),
        (400, "ThrottledException", ErrorName::Transient),
        (500, "InternalServiceException", ErrorName::Transient),
    ] {
        let error =
            run(vec![absent(ALIAS), on("GetResources").error(status, code, "text")]).await.expect_err(code);
        assert_eq!(error.name, name, "{code}");
        assert!(error.message.starts_with("tag:GetResources"), "{}", error.message);
    }
}

#[tokio::test]
async fn bad_input_makes_no_call() {
    let replies = Replies::new([]);
    let error = step(&replies, UNIX_EPOCH)
        .apply(input(json!({"cluster": "demo", "key": {"alias": "alias/aws/x"}})))
        .await
        .expect_err("bad");
    assert_eq!(error.name, ErrorName::InvalidInput);
    replies.finish();
}
