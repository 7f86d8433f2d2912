//! Whole runs: the shipped template, state machine and functions in the local world.
//!
//! With `FLUX_RELEASE_DIR` set they take the real Flux release, else the miniature one.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use sandbox::demo;
use sandbox::edge::{Filter, Rule};
use sandbox::world::{Deployment, Ended, Options, World};
use serde_json::{Value, json};
use tokio::process::Command;

const LIMIT: Duration = Duration::from_secs(180);

async fn deployed(options: Options) -> anyhow::Result<(World, Deployment)> {
    let release = demo::release(&options.root)?;
    let world = World::start(options).await?;
    let deployment = world.deploy(Some(&release), &[]).await?;
    Ok((world, deployment))
}

/// The AWS CLI against the world; its JSON.
async fn aws(world: &World, arguments: &[&str]) -> anyhow::Result<Value> {
    // The CLI takes SQS' address from nowhere but this flag.
    let endpoint = ["--endpoint-url", &world.edge().url()].map(str::to_owned);
    let output =
        world.program("aws").args(arguments).args(["--output", "json"]).args(endpoint).output().await?;
    ensure!(
        output.status.success(),
        "aws {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    if output.stdout.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&output.stdout).context("the AWS CLI's output")
}

fn succeeded(ended: &Ended) -> &Value {
    assert_eq!(ended.status, "SUCCEEDED", "{:?}", ended.failure);
    &ended.output
}

/// The failure report of a run, which is its cause.
fn failed(ended: &Ended) -> Value {
    assert_eq!(ended.status, "FAILED", "{}", ended.output);
    let (error, cause) = ended.failure.clone().expect("failure");
    let report: Value = serde_json::from_str(&cause).unwrap_or_else(|_| panic!("{error}: {cause}"));
    assert_eq!(report["error"], error);
    report
}

fn changes(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    report["resources"]
        .as_array()
        .expect("resources")
        .iter()
        .map(|resource| (text(&resource["type"]), text(&resource["change"])))
        .collect()
}

/// What a report says was done about one resource.
fn change_of<'a>(report: &'a Value, kind: &str, id: &str) -> &'a str {
    report["resources"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|resource| resource["type"] == kind && resource["id"] == id)
        .map_or("not in the report", |resource| resource["change"].as_str().unwrap_or_default())
}

/// What the functions wrote since a mark, on AWS and on Kubernetes.
fn writes(world: &World, mark: u64, kubernetes_mark: usize) -> Vec<String> {
    let filter = Filter { write: Some(true), caller: Some("assumed-role".to_owned()), ..Filter::after(mark) };
    let aws = world.edge().calls_where(&filter).into_iter().map(|call| call.name());
    let kubernetes = world.kubernetes().requests();
    let cluster = kubernetes[kubernetes_mark..]
        .iter()
        .filter(|request| request.is_write() && request.user.contains(":assumed-role/"))
        .map(|request| format!("{} {}", request.verb, request.path));
    aws.chain(cluster).collect()
}

const BAD: [(&str, &str); 14] = [
    (r#"{}"#, "cluster"),
    (r#"{"cluster": "no spaces"}"#, "cluster"),
    (r#"{"cluster": 7}"#, "cluster"),
    (r#"{"cluster": "demo", "colour": "red"}"#, "colour"),
    (r#"{"cluster": "demo", "network": {"vpcId": "main"}}"#, "network.vpcId"),
    (r#"{"cluster": "demo", "key": {"deletionWindowDays": 3}}"#, "key.deletionWindowDays"),
    (r#"{"cluster": "demo", "repository": {"name": "x.git"}}"#, "repository.name"),
    (r#"{"cluster": "demo", "repository": {"branch": "a..b"}}"#, "repository.branch"),
    (r#"{"cluster": "demo", "credentials": {"recoveryWindowDays": 31}}"#, "credentials.recoveryWindowDays"),
    (r#"{"cluster": "demo", "wait": {"seconds": 0}}"#, "wait.seconds"),
    (r#"{"cluster": "demo", "flux": {"namespace": "Flux"}}"#, "flux.namespace"),
    (r#"{"cluster": "demo", "flux": {"path": "../up"}}"#, "flux.path"),
    (r#"{"cluster": "demo", "flux": {"interval": "soon"}}"#, "flux.interval"),
    (r#"{"cluster": "demo", "flux": {"components": ["source-controller"]}}"#, "flux.components"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_then_a_fresh_run_then_a_second_one() -> anyhow::Result<()> {
    let (world, deployment) = deployed(Options::quick()).await?;
    let executions = deployment.executions();

    // Bad input: our error name, the path of the field, and no call at all but the logs' own.
    let mark = world.edge().mark();
    for (input, field) in BAD {
        let report = failed(&executions.run(&serde_json::from_str(input)?, LIMIT).await?);
        assert_eq!(report["error"], "InvalidInput", "{input}: {report}");
        assert_eq!(report["step"], "cluster");
        let message = report["message"].as_str().unwrap_or_default();
        assert!(message.starts_with(field) || message.contains(&format!("`{field}`")), "{input}: {message}");
    }
    let filter = Filter { caller: Some("assumed-role".to_owned()), ..Filter::after(mark) };
    let calls: Vec<String> = world.edge().calls_where(&filter).iter().map(|call| call.name()).collect();
    assert!(calls.is_empty(), "{calls:?}");

    // What is missing is said before anything is written.
    let report = failed(&executions.run(&json!({"cluster": "missing"}), LIMIT).await?);
    assert_eq!(report["error"], "PrerequisiteMissing");
    assert!(report["message"].as_str().is_some_and(|m| m.contains("missing")), "{report}");
    let elsewhere = json!({"cluster": "demo", "flux": {"namespace": "elsewhere"}});
    let report = failed(&executions.run(&elsewhere, LIMIT).await?);
    assert_eq!(report["error"], "PrerequisiteMissing");
    assert!(report["message"].as_str().is_some_and(|m| m.contains("Fargate profile")), "{report}");
    assert_eq!(writes(&world, mark, 0), Vec::<String>::new());

    // Events of the end are caught by a queue, as a subscriber would.
    let queue = aws(&world, &["sqs", "create-queue", "--queue-name", "ends"]).await?["QueueUrl"].clone();
    let queue = queue.as_str().context("queue")?.to_owned();
    let pattern = r#"{"source": [{"prefix": ""}]}"#;
    aws(&world, &["events", "put-rule", "--name", "ends", "--event-pattern", pattern]).await?;
    let target =
        format!("Id=ends,Arn=arn:aws:sqs:{}:{}:ends", world.options().region, world.options().account);
    aws(&world, &["events", "put-targets", "--rule", "ends", "--targets", &target]).await?;

    // A fresh run makes everything.
    let ended = executions.run(&json!({"cluster": "demo"}), LIMIT).await?;
    let report = succeeded(&ended);
    let made = changes(report);
    for kind in [
        "AWS::EKS::AccessEntry",
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::VPCEndpoint",
        "AWS::KMS::Key",
        "AWS::CodeCommit::Repository",
        "AWS::IAM::User",
        "AWS::SecretsManager::Secret",
        "GitRepository",
        "Kustomization",
    ] {
        assert!(made.contains(&(kind.to_owned(), "created".to_owned())), "{kind}: {made:?}");
    }
    let head = report["flux"]["revision"].as_str().and_then(|r| r.split(':').nth(1)).context("revision")?;
    let flux = world.kubernetes();
    for (version, kind) in [
        ("source.toolkit.fluxcd.io/v1", "GitRepository"),
        ("kustomize.toolkit.fluxcd.io/v1", "Kustomization"),
    ] {
        let object = flux.get(version, kind, "fluxcd", "fluxcd").with_context(|| kind.to_owned())?;
        assert!(object["status"].to_string().contains(head), "{object}");
    }

    // The key has the root-principal policy and rotates.
    let alias = "alias/eks-flux-bootstrap/demo/fluxcd";
    let key = aws(&world, &["kms", "describe-key", "--key-id", alias]).await?["KeyMetadata"]["KeyId"].clone();
    let key = key.as_str().context("KeyId")?;
    let policy = aws(&world, &["kms", "get-key-policy", "--key-id", key, "--policy-name", "default"]).await?;
    let root = format!("arn:aws:iam::{}:root", world.options().account);
    assert!(policy["Policy"].as_str().is_some_and(|policy| policy.contains(&root)), "{policy}");
    let rotation = aws(&world, &["kms", "get-key-rotation-status", "--key-id", key]).await?;
    assert_eq!(rotation["KeyRotationEnabled"], true);

    // The three Flux files are in the repository, for a stock git client with the stored credential.
    let secret = aws(
        &world,
        &["secretsmanager", "get-secret-value", "--secret-id", "eks-flux-bootstrap/demo/fluxcd/git"],
    )
    .await?;
    let secret: Value = serde_json::from_str(secret["SecretString"].as_str().context("SecretString")?)?;
    let (user, password) =
        (secret["username"].as_str().context("user")?, secret["password"].as_str().context("password")?);
    let url = secret["url"].as_str().context("url")?;
    assert_eq!(report["repository"]["url"], url);
    let clone = tempfile::tempdir()?;
    let git = Git { folder: clone.path(), user, password };
    git.run(&["clone", "--quiet", "--branch", "flux-branch", url, "."]).await?;
    let folder = clone.path().join("eks-fargate/applications/fluxcd");
    for file in ["gotk-components.yaml", "gotk-sync.yaml", "kustomization.yaml"] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    assert!(clone.path().join("README.md").is_file());
    let sync = std::fs::read_to_string(folder.join("gotk-sync.yaml"))?;
    assert!(sync.contains(&format!("url: {url}")) && sync.contains("interval: 30s"), "{sync}");

    // A second run finds it all and writes nothing, on AWS or on Kubernetes.
    let (mark, kubernetes_mark) = (world.edge().mark(), world.kubernetes().requests().len());
    let again = executions.run(&json!({"cluster": "demo"}), LIMIT).await?;
    let second = changes(succeeded(&again));
    assert!(second.iter().all(|(_, change)| change == "unchanged"), "{second:?}");
    assert!(second.len() > 10, "{second:?}");
    assert_eq!(writes(&world, mark, kubernetes_mark), Vec::<String>::new());

    // Another repository or path for a cluster that Flux already runs is refused before any write:
    // the running Flux keeps its credential.
    let (mark, kubernetes_mark) = (world.edge().mark(), world.kubernetes().requests().len());
    for other in [json!({"repository": {"name": "other"}}), json!({"flux": {"path": "other/path"}})] {
        let mut request = json!({"cluster": "demo"});
        request.as_object_mut().context("object")?.extend(other.as_object().cloned().context("object")?);
        let report = failed(&executions.run(&request, LIMIT).await?);
        assert_eq!(report["error"], "Conflict", "{report}");
        assert_eq!(report["step"], "flux_install", "{report}");
    }
    assert_eq!(writes(&world, mark, kubernetes_mark), Vec::<String>::new());

    // What is pushed arrives in the cluster, and what a person edited stays.
    std::fs::write(folder.parent().context("parent")?.join("config.yaml"), CONFIG_MAP)?;
    std::fs::write(clone.path().join("README.md"), "Ours now.\n")?;
    git.run(&["add", "."]).await?;
    git.run(&["-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "--quiet", "-m", "Edit"])
        .await?;
    git.run(&["push", "--quiet"]).await?;
    let third = executions.run(&json!({"cluster": "demo"}), LIMIT).await?;
    let third = succeeded(&third);
    let pushed = git.run(&["rev-parse", "HEAD"]).await?;
    assert_eq!(third["flux"]["revision"], format!("flux-branch@sha1:{}", pushed.trim()));
    let arrived = world.kubernetes().get("v1", "ConfigMap", "default", "from-git").context("from-git")?;
    assert_eq!(arrived["data"]["greeting"], "hello");
    git.run(&["fetch", "--quiet"]).await?;
    assert_eq!(git.run(&["show", "origin/flux-branch:README.md"]).await?, "Ours now.\n");

    // The password is where it belongs and nowhere else.
    ensure!(password.len() > 20, "a password that short could be found by chance");
    let mut places = vec![("edge".to_owned(), serde_json::to_string(&world.edge().calls())?)];
    for arn in executions.list().await? {
        places.push((arn.clone(), serde_json::to_string(&executions.history(&arn).await?)?));
    }
    let groups = aws(&world, &["logs", "describe-log-groups"]).await?;
    let groups = groups["logGroups"].as_array().context("groups")?.clone();
    for group in groups.iter().filter_map(|group| group["logGroupName"].as_str()) {
        let events = aws(&world, &["logs", "filter-log-events", "--log-group-name", group]).await?;
        places.push((group.to_owned(), events.to_string()));
    }
    let mut events = String::new();
    loop {
        let batch = aws(
            &world,
            &[
                "sqs",
                "receive-message",
                "--queue-url",
                &queue,
                "--max-number-of-messages",
                "10",
                "--visibility-timeout",
                "300",
            ],
        )
        .await?;
        if batch["Messages"].as_array().is_none_or(Vec::is_empty) {
            break;
        }
        events.push_str(&batch.to_string());
    }
    for expected in ["Bootstrap Succeeded", "referenceCreated", "referenceUpdated"] {
        assert!(events.contains(expected), "no event {expected}: {events}");
    }
    places.push(("events".to_owned(), events));
    places.push(("git".to_owned(), git.run(&["log", "-p", "--all"]).await?));
    assert!(places.len() > 15, "{}", places.len());
    for (place, text) in &places {
        assert!(!text.contains(password), "the password is in {place}");
    }
    world.stop().await;
    Ok(())
}

const CONFIG_MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: from-git
  namespace: default
data:
  greeting: hello
";

/// A stock git client. It gets the credential by a helper when the server asks for one, so that no
/// command line and no error text holds it.
struct Git<'a> {
    folder: &'a Path,
    user: &'a str,
    password: &'a str,
}

impl Git<'_> {
    async fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let helper = r#"!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$GIT_USER" "$GIT_PASSWORD"; }; f"#;
        let output = Command::new("git")
            .current_dir(self.folder)
            .args(["-c", &format!("credential.helper={helper}")])
            .args(arguments)
            .env("GIT_USER", self.user)
            .env("GIT_PASSWORD", self.password)
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("HOME", self.folder)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        if !output.status.success() {
            bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_starts_a_run_in_which_the_credential_takes_ten_seconds() -> anyhow::Result<()> {
    let slow = Options { credential_delay: Duration::from_secs(10), ..Options::quick() };
    let (world, deployment) = deployed(slow).await?;
    let event: Value = serde_json::from_str(include_str!("../../events/bootstrap-requested.json"))?;
    let began = Instant::now();
    let mut detail = event["detail"].clone();
    // The scaled pause is 1 s, so that the run waits by probing and not by one long sleep.
    detail["wait"] = json!({"seconds": 50, "timeoutSeconds": 3000});
    let arn = deployment.executions().request(&detail).await?;
    let ended = deployment.executions().follow(&arn, LIMIT, |_| {}).await?;
    let report = succeeded(&ended);
    assert!(report["probes"].as_u64().is_some_and(|probes| (3..=30).contains(&probes)), "{report}");
    assert!(began.elapsed() >= Duration::from_secs(10));
    let refused = world
        .edge()
        .calls_where(&Filter { service: Some("git".to_owned()), ..Filter::after(0) })
        .iter()
        .filter(|call| call.status == 403)
        .count();
    assert!(refused >= 2, "{refused}");
    world.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_branch_and_a_wait_without_end_are_reported_and_healed() -> anyhow::Result<()> {
    let (world, deployment) = deployed(Options::quick()).await?;
    let executions = deployment.executions();
    let request = json!({"cluster": "demo", "wait": {"seconds": 1, "timeoutSeconds": 10}});

    // One step of a branch is refused: the others end, and the report says what they made.
    let refused = Rule::on("codecommit", "CreateRepository").error(400, "AccessDeniedException", "no");
    world.edge().set_rules(vec![refused]);
    let report = failed(&executions.run(&request, LIMIT).await?);
    assert_eq!((&report["step"], &report["error"]), (&json!("repo_seed"), &json!("Denied")), "{report}");
    assert!(
        report["message"].as_str().is_some_and(|m| m.contains("codecommit:CreateRepository")),
        "{report}"
    );
    let made = changes(&report);
    for kind in ["AWS::KMS::Key", "AWS::EC2::VPCEndpoint", "AWS::SecretsManager::Secret", "Deployment"] {
        assert!(made.contains(&(kind.to_owned(), "created".to_owned())), "{kind}: {made:?}");
    }

    // A credential that never works ends in NotReady with the Git endpoint's last answer.
    world.edge().set_rules(vec![Rule::on("git", "*").error(403, "Forbidden", "")]);
    let report = failed(&executions.run(&request, LIMIT).await?);
    assert_eq!((&report["step"], &report["error"]), (&json!("wait"), &json!("NotReady")), "{report}");
    assert!(report["message"].as_str().is_some_and(|m| m.contains("403")), "{report}");

    world.edge().set_rules(Vec::new());
    succeeded(&executions.run(&request, LIMIT).await?);
    world.stop().await;
    Ok(())
}

/// A release of another version: Flux's manifests name theirs only in the images' tags.
fn as_version(
    release: &sandbox::world::Release,
    version: &str,
    folder: &Path,
) -> anyhow::Result<sandbox::world::Release> {
    let copy = folder.join(version);
    std::fs::create_dir_all(&copy)?;
    for file in std::fs::read_dir(&release.folder)? {
        let file = file?;
        std::fs::copy(file.path(), copy.join(file.file_name()))?;
    }
    Ok(sandbox::world::Release { version: version.to_owned(), folder: copy })
}

fn versions(world: &World) -> Vec<String> {
    let deployments = world.kubernetes().list("apps/v1", "Deployment", Some("fluxcd"));
    let version = |object: &Value| {
        object["metadata"]["labels"]["app.kubernetes.io/version"].as_str().map(str::to_owned)
    };
    deployments.iter().filter_map(version).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_goes_through_the_repository_and_a_step_back_is_refused() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let options = Options::quick();
    let newer = demo::release(&options.root)?;
    let older = as_version(&newer, "v2.9.3", folder.path())?;
    let world = World::start(options).await?;
    let request = |version: &str| json!({"cluster": "demo", "flux": {"version": version}});

    let deployment = world.deploy(Some(&older), &[]).await?;
    let report = deployment.executions().run(&request("v2.9.3"), LIMIT).await?;
    assert_eq!(succeeded(&report)["flux"]["version"], "v2.9.3");

    let deployment = world.deploy(Some(&newer), &[]).await?;
    let mark = world.kubernetes().requests().len();
    let report = deployment.executions().run(&request("v2.9.4"), LIMIT).await?;
    assert_eq!(change_of(succeeded(&report), "GitRepository", "fluxcd/fluxcd"), "unchanged");
    assert_eq!(succeeded(&report)["flux"]["version"], "v2.9.4");
    assert_eq!(versions(&world), ["v2.9.4"; 4]);
    // It is Flux that brought the new controllers, from the commit.
    let applied = world.kubernetes().requests()[mark..]
        .iter()
        .filter(|request| request.is_write() && request.path.contains("/deployments/"))
        .count();
    assert_eq!(applied, 0);

    let deployment = world.deploy(Some(&older), &[]).await?;
    let (mark, kubernetes_mark) = (world.edge().mark(), world.kubernetes().requests().len());
    let report = failed(&deployment.executions().run(&request("v2.9.3"), LIMIT).await?);
    assert_eq!(report["error"], "Conflict", "{report}");
    assert!(
        report["message"].as_str().is_some_and(|m| m.contains("v2.9.4") && m.contains("v2.9.3")),
        "{report}"
    );
    assert_eq!(writes(&world, mark, kubernetes_mark), Vec::<String>::new());

    let asked = json!({"cluster": "demo", "flux": {"version": "v2.9.3", "allowDowngrade": true}});
    let report = deployment.executions().run(&asked, LIMIT).await?;
    assert_eq!(succeeded(&report)["flux"]["version"], "v2.9.3");
    assert_eq!(versions(&world), ["v2.9.3"; 4]);
    world.stop().await;
    Ok(())
}

/// A rule that refuses an action for want of a permission.
fn denied(service: &str, action: &str) -> Rule {
    Rule::on(service, action).error(400, "AccessDeniedException", "no")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_fails_half_way_says_what_it_has_made() -> anyhow::Result<()> {
    let (world, deployment) = deployed(Options::quick()).await?;
    let executions = deployment.executions();
    let request = json!({"cluster": "demo"});

    world.edge().set_rules(vec![denied("eks", "AssociateAccessPolicy")]);
    let report = failed(&executions.run(&request, LIMIT).await?);
    assert_eq!((&report["step"], &report["error"]), (&json!("cluster"), &json!("Denied")), "{report}");
    let text = report["message"].as_str().context("message")?;
    assert!(text.contains("eks:AssociateAccessPolicy") && !text.contains("In place"), "{text}");
    assert_eq!(changes(&report), [("AWS::EKS::AccessEntry".to_owned(), "created".to_owned())]);

    world.edge().set_rules(vec![
        denied("ec2", "CreateVpcEndpoint"),
        Rule::on("kms", "CreateAlias").error(400, "LimitExceededException", "Alias limit"),
    ]);
    let report = failed(&executions.run(&request, LIMIT).await?);
    assert_eq!(report["step"], "endpoint", "{report}");
    assert_eq!(report["alsoFailed"], json!(["key: Unsupported"]), "{report}");
    let made = changes(&report);
    for kind in ["AWS::EC2::SecurityGroup", "AWS::KMS::Key"] {
        assert!(made.contains(&(kind.to_owned(), "created".to_owned())), "{report}");
    }

    world
        .edge()
        .set_rules(vec![denied("codecommit", "CreateCommit"), denied("secretsmanager", "CreateSecret")]);
    let report = failed(&executions.run(&request, LIMIT).await?);
    assert_eq!(report["step"], "repo_seed", "{report}");
    assert_eq!(report["alsoFailed"], json!(["credentials: Denied"]), "{report}");
    for (kind, id) in [
        ("AWS::CodeCommit::Repository", "demo-fluxcd"),
        ("AWS::IAM::User", "demo-fluxcd-git"),
        ("AWS::IAM::UserPolicy", "demo-fluxcd-git/git-and-key"),
    ] {
        assert_eq!(change_of(&report, kind, id), "created", "{report}");
    }
    // The credential that no secret could hold is gone again, so it is not in the list.
    let kinds: Vec<String> = changes(&report).into_iter().map(|(kind, _)| kind).collect();
    assert!(!kinds.iter().any(|kind| kind.contains("Credential") || kind.contains("Secret")), "{kinds:?}");

    world.edge().set_rules(Vec::new());
    succeeded(&executions.run(&request, LIMIT).await?);
    world.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wait_comes_to_its_end() -> anyhow::Result<()> {
    let never = Duration::from_secs(3600);
    let options = Options { endpoint_delay: never, rollout_delay: never, ..Options::quick() };
    let release = demo::release(&options.root)?;
    let world = World::start(options).await?;
    let deployment = world.deploy(Some(&release), &[("EndpointPollTries", "3")]).await?;
    let executions = deployment.executions();
    let request = json!({"cluster": "demo", "flux": {"timeoutSeconds": 60}});

    // The endpoint stays pending and no pod starts: both branches give up by themselves.
    let report = failed(&executions.run(&request, LIMIT).await?);
    assert_eq!((&report["step"], &report["error"]), (&json!("endpoint"), &json!("NotReady")), "{report}");
    assert!(report["message"].as_str().is_some_and(|m| m.contains("is pending")), "{report}");
    assert_eq!(report["alsoFailed"], json!(["flux_install: NotReady"]), "{report}");
    let made = changes(&report);
    for kind in
        ["AWS::EC2::VPCEndpoint", "AWS::EC2::SecurityGroup", "AWS::CodeCommit::Repository", "Deployment"]
    {
        assert!(made.contains(&(kind.to_owned(), "created".to_owned())), "{kind}: {made:?}");
    }
    world.stop().await;

    // No pod starts, and all else is well.
    let (world, deployment) = deployed(Options { rollout_delay: never, ..Options::quick() }).await?;
    let report = failed(&deployment.executions().run(&request, LIMIT).await?);
    assert_eq!((&report["step"], &report["error"]), (&json!("flux_install"), &json!("NotReady")), "{report}");
    assert!(report["message"].as_str().is_some_and(|m| m.contains("0 of 4 controllers run")), "{report}");
    assert_eq!(report["alsoFailed"], json!([]), "{report}");
    world.stop().await;

    // The probe passes and Flux is refused ever after, as with a credential that was just reset.
    let (world, deployment) = deployed(Options::quick()).await?;
    world.edge().set_rules(vec![Rule::on("git", "*").skip(1).error(403, "Forbidden", "")]);
    let report = failed(&deployment.executions().run(&request, LIMIT).await?);
    assert_eq!((&report["step"], &report["error"]), (&json!("flux_sync"), &json!("NotReady")), "{report}");
    let message = report["message"].as_str().unwrap_or_default();
    assert!(message.contains("within 60 s") && message.contains("GitOperationFailed"), "{message}");
    assert_eq!(change_of(&report, "Kustomization", "fluxcd/fluxcd"), "created", "{report}");
    world.edge().set_rules(Vec::new());
    succeeded(&deployment.executions().run(&request, LIMIT).await?);
    world.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_that_is_there_is_adopted() -> anyhow::Result<()> {
    let (world, deployment) = deployed(Options::quick()).await?;
    // As most are made: empty, and under the key that AWS manages.
    aws(&world, &["codecommit", "create-repository", "--repository-name", "theirs"]).await?;
    let input = json!({"cluster": "demo", "repository": {"name": "theirs"}});
    let ended = deployment.executions().run(&input, LIMIT).await?;
    let made = changes(succeeded(&ended));
    let adopted = ("AWS::CodeCommit::Repository".to_owned(), "adopted".to_owned());
    assert!(made.contains(&adopted), "{made:?}");
    let again = deployment.executions().run(&input, LIMIT).await?;
    let made = changes(succeeded(&again));
    assert!(made.iter().all(|(_, change)| change == "unchanged" || change == "adopted"), "{made:?}");
    world.stop().await;
    Ok(())
}
