//! The step over scripted replies of CodeCommit and KMS.

use replies::{Exchange, Replies, on};
use repo_seed::{Input, Output, Step};
use serde_json::{Value, json};
use step::clock::Clock;
use step::runtime::Stack;
use step::{Change, ErrorName, StepError};

const KEY: &str = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab";
const OTHER_KEY: &str = "arn:aws:kms:eu-west-1:123456789012:key/99999999-12ab-34cd-56ef-1234567890ab";
const ARN: &str = "arn:aws:codecommit:eu-west-1:123456789012:demo-fluxcd";

fn input() -> Input {
    let text = include_str!("../../../events/function-repo_seed.json");
    step::request::parse_json(&serde_json::from_str::<Value>(text).expect("JSON")).expect("an input")
}

async fn apply(script: impl IntoIterator<Item = Exchange>) -> Result<Output, StepError> {
    let replies = Replies::new(script);
    let step = Step::new(&replies.config(), Stack { name: "stack".to_owned() })
        .with_clock(Clock::Fixed(std::time::UNIX_EPOCH));
    let output = step.apply(input()).await;
    replies.finish();
    output
}

fn metadata(key: &str, default: Option<&str>) -> Value {
    let mut metadata =
        json!({"repositoryName": "demo-fluxcd", "repositoryId": "r-1", "Arn": ARN, "kmsKeyId": key});
    if let Some(default) = default {
        metadata["defaultBranch"] = json!(default);
    }
    json!({ "repositoryMetadata": metadata })
}

fn there(key: &str, default: Option<&str>) -> Exchange {
    on("GetRepository").json(metadata(key, default))
}

fn missing() -> Exchange {
    on("GetRepository").error(400, "RepositoryDoesNotExistException", "demo-fluxcd does not exist")
}

fn tags(owner: Option<&str>) -> Exchange {
    let tags = owner.map_or(json!({}), |owner| json!({"eks-flux-bootstrap:owner": owner}));
    on("ListTagsForResource").with(ARN).json(json!({ "tags": tags }))
}

fn ours() -> Exchange {
    tags(Some("stack/demo/fluxcd"))
}

fn create() -> Exchange {
    on("CreateRepository")
        .with(&format!(r#""kmsKeyId":"{KEY}""#))
        .with(r#""eks-flux-bootstrap:owner":"stack/demo/fluxcd""#)
        .with(r#""repositoryDescription":"What Flux runs in EKS cluster demo"#)
}

fn branch(id: &str) -> Exchange {
    on("GetBranch").json(json!({"branch": {"commitId": id}}))
}

fn no_branch() -> Exchange {
    on("GetBranch").error(400, "BranchDoesNotExistException", "no branch")
}

fn folder(path: &str, names: &[&str]) -> Exchange {
    let files: Vec<Value> =
        names.iter().map(|n| json!({"relativePath": n, "blobId": "b", "fileMode": "NORMAL"})).collect();
    on("GetFolder")
        .with(&format!(r#""folderPath":"{path}""#))
        .json(json!({"commitId": "c", "folderPath": path, "treeId": "t", "files": files}))
}

fn no_folder() -> Exchange {
    on("GetFolder").with(r#""folderPath":"eks-fargate/applications""#).error(
        400,
        "FolderDoesNotExistException",
        "no folder",
    )
}

fn commit(id: &str) -> Exchange {
    on("CreateCommit")
        .with(r#""filePath":"eks-fargate/applications/.gitkeep""#)
        .json(json!({"commitId": id, "treeId": "t"}))
}

/// The head, and what was done to the repository and to the branch.
fn summary(output: &Output) -> (&str, Change, Change) {
    (&output.repository.commit_id, output.resources[0].change, output.resources[1].change)
}

#[tokio::test]
async fn converges() {
    let seeded = || [branch("c1"), folder("eks-fargate/applications", &[".gitkeep"])];
    let with = |head: Vec<Exchange>, tail: Vec<Exchange>| -> Vec<Exchange> {
        head.into_iter().chain(tail).collect()
    };
    use Change::{Adopted, Created, Unchanged, Updated};
    for (name, script, expected) in [
        (
            "nothing there",
            vec![
                missing(),
                create().json(metadata(KEY, None)),
                no_branch(),
                there(KEY, None),
                no_branch(),
                there(KEY, None),
                commit("c1").with(r#""filePath":"README.md""#),
            ],
            ("c1", Created, Created),
        ),
        (
            "second run",
            with(vec![there(KEY, Some("flux-branch")), ours()], seeded().into()),
            ("c1", Unchanged, Unchanged),
        ),
        (
            "the key's id alone",
            with(
                vec![there("1234abcd-12ab-34cd-56ef-1234567890ab", Some("flux-branch")), ours()],
                seeded().into(),
            ),
            ("c1", Unchanged, Unchanged),
        ),
        (
            "a README that was deleted stays deleted",
            with(
                vec![there(KEY, Some("flux-branch")), ours()],
                vec![branch("c9"), folder("eks-fargate/applications", &["app.yaml"])],
            ),
            ("c9", Unchanged, Unchanged),
        ),
        (
            "ours under another key",
            with(
                vec![
                    there(OTHER_KEY, Some("flux-branch")),
                    ours(),
                    on("UpdateRepositoryEncryptionKey").with(KEY).json(json!({"repositoryId": "r-1"})),
                ],
                seeded().into(),
            ),
            ("c1", Updated, Unchanged),
        ),
        (
            "foreign under the same key",
            with(vec![there(KEY, Some("flux-branch")), tags(None)], seeded().into()),
            ("c1", Adopted, Adopted),
        ),
        (
            "another target's, under the AWS managed key, with other history",
            vec![
                there(OTHER_KEY, Some("main")),
                tags(Some("stack/other/fluxcd")),
                on("DescribeKey")
                    .with(OTHER_KEY)
                    .json(json!({"KeyMetadata": {"KeyId": "9", "KeyManager": "AWS"}})),
                no_branch(),
                there(OTHER_KEY, Some("main")),
                folder("/", &["readme.rst"]),
                no_branch(),
                there(OTHER_KEY, Some("main")),
                branch("m1"),
                on("CreateBranch").with("m1").json(json!({})),
                no_folder(),
                commit("c2").with(r#""parentCommitId":"m1""#),
            ],
            ("c2", Adopted, Created),
        ),
        (
            "an earlier run stopped before the first commit",
            vec![
                there(KEY, None),
                ours(),
                no_branch(),
                there(KEY, None),
                no_branch(),
                there(KEY, None),
                commit("c1").with(r#""filePath":"README.md""#),
            ],
            ("c1", Unchanged, Created),
        ),
        (
            "an earlier run stopped between the branch and its first commit",
            vec![
                there(KEY, Some("main")),
                ours(),
                branch("m1"),
                no_folder(),
                folder("/", &["src"]),
                branch("m1"),
                folder("/", &["src"]),
                no_folder(),
                commit("c2").with(r#""filePath":"README.md""#),
            ],
            ("c2", Unchanged, Updated),
        ),
        (
            "a duplicate run made the repository",
            with(
                vec![
                    missing(),
                    create().error(400, "RepositoryNameExistsException", "exists"),
                    there(KEY, Some("flux-branch")),
                    ours(),
                ],
                seeded().into(),
            ),
            ("c1", Unchanged, Unchanged),
        ),
        (
            "the key settles",
            with(
                vec![
                    missing(),
                    create().error(400, "EncryptionKeyNotFoundException", "no key"),
                    create().json(metadata(KEY, None)),
                ],
                seeded().into(),
            ),
            ("c1", Created, Unchanged),
        ),
    ] {
        let output = apply(script).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(summary(&output), expected, "{name}");
        assert_eq!(output.repository.arn, ARN);
        assert_eq!(output.repository.id, "r-1");
        assert_eq!(output.repository.branch, "flux-branch");
    }
}

#[tokio::test]
async fn refuses_with_a_way_out() {
    for (script, name, text) in [
        (
            vec![
                there(OTHER_KEY, Some("main")),
                tags(None),
                on("DescribeKey").json(json!({"KeyMetadata": {"KeyId": "9", "KeyManager": "CUSTOMER"}})),
            ],
            ErrorName::Conflict,
            "key.alias",
        ),
        (
            vec![
                there(OTHER_KEY, Some("main")),
                tags(None),
                on("DescribeKey").error(400, "NotFoundException", "Key not found"),
            ],
            ErrorName::Conflict,
            "another repository in repository.name",
        ),
        (
            vec![
                missing(),
                create().error(
                    400,
                    "OperationNotAllowedException",
                    "CreateRepository request is not allowed because there is no existing repository in this AWS \
                     account or AWS Organization",
                ),
            ],
            ErrorName::Unsupported,
            "AWS Support",
        ),
        (
            vec![missing(), create().error(400, "RepositoryLimitExceededException", "too many")],
            ErrorName::Unsupported,
            "Service Quotas",
        ),
        (
            [missing()]
                .into_iter()
                .chain((0..8).map(|_| create().error(400, "EncryptionKeyAccessDeniedException", "denied")))
                .collect(),
            ErrorName::Denied,
            "kms:GenerateDataKeyWithoutPlaintext",
        ),
        (
            vec![missing(), create().error(400, "EncryptionKeyInvalidUsageException", "asymmetric")],
            ErrorName::Conflict,
            "symmetric",
        ),
        (
            vec![there(OTHER_KEY, None), ours(), on("UpdateRepositoryEncryptionKey").error(400, "EncryptionKeyRequiredException", "a key is required")],
            ErrorName::Internal,
            "EncryptionKeyRequiredException",
        ),
        (
            vec![on("GetRepository").error(400, "AccessDeniedException", "no")],
            ErrorName::Denied,
            "codecommit:GetRepository",
        ),
    ] {
        let error = apply(script).await.expect_err(text);
        assert_eq!(error.name, name, "{error}");
        assert!(error.message.contains(text) && error.message.contains("demo-fluxcd"), "{text}: {error}");
    }
}

#[tokio::test]
async fn a_bad_request_names_its_field_before_any_call() {
    let replies = Replies::default();
    let step = Step::new(&replies.config(), Stack { name: "stack".to_owned() });
    let mut input = input();
    input.request.repository.branch = "a..b".to_owned();
    let error = step.apply(input).await.expect_err("a bad branch");
    assert_eq!(error.name, ErrorName::InvalidInput);
    assert!(error.message.starts_with("repository.branch"), "{error}");
    replies.finish();
}
