//! The demo: one whole run as a user would make it, told as it happens.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::clock;
use crate::progress::Progress;
use crate::world::{Ended, Options, Release, World};

/// The version of a request that names none (`step::request`; the sandbox knows the steps only over
/// the wire).
pub const DEFAULT_VERSION: &str = "v2.9.4";
/// How long a bar of the timeline is that lasts as long as the execution.
const BAR: usize = 48;

/// Starts a world, deploys the stack, bootstraps the cluster, shows the report, and proves that what
/// is committed arrives in the cluster.
///
/// # Errors
/// What went wrong, for people.
pub async fn run(out: &mut impl Write) -> anyhow::Result<()> {
    let began = Instant::now();
    let options = Options {
        wait_scale: 0.1,
        credential_delay: Duration::from_secs(2),
        endpoint_delay: Duration::from_secs(4),
        rollout_delay: Duration::from_secs(3),
        ..Options::default()
    };
    let release = release(&options.root)?;
    title(out, "A local AWS with an EKS Fargate cluster named demo")?;
    let world = World::start(options).await?;
    writeln!(out, "  {} (waits of the state machine run at a tenth)", world.edge().url())?;

    title(out, "sam deploy: template.yaml, eight functions, one state machine")?;
    let deploying = Instant::now();
    let deployment = world.deploy(Some(&release), &[]).await?;
    writeln!(out, "  {} in {:.1} s", deployment.state_machine(), deploying.elapsed().as_secs_f64())?;
    writeln!(out, "  Flux {} from {}", release.version, described(&release))?;

    let mut request = json!({"cluster": "demo"});
    // What is packaged is found by its version; the request's default is another one.
    if release.version != DEFAULT_VERSION {
        request["flux"] = json!({"version": release.version});
    }
    title(out, &format!("Execution with {request}"))?;
    let mut progress = Progress::default();
    let execution = deployment.executions().start(&request).await?;
    let mut told = Ok(());
    let ended = deployment
        .executions()
        .follow(&execution, Duration::from_secs(300), |history| {
            for line in progress.feed(history) {
                told = writeln!(out, "{line}").and_then(|()| out.flush());
            }
        })
        .await?;
    told?;
    report(out, &ended)?;
    title(out, &format!("Timeline: {:.1} s, branches side by side (█ work, ░ wait)", progress.seconds()))?;
    write!(out, "{}", progress.timeline(BAR))?;

    title(out, "The proof: nginx, from the repository into the cluster")?;
    prove(out, &world, &ended.output).await?;
    writeln!(out, "\nDone in {:.0} s. `make sandbox` keeps such a world up.", began.elapsed().as_secs_f64())?;
    world.stop().await;
    Ok(())
}

/// The release that `FLUX_RELEASE_DIR` names (`…/v2.9.4`), or the miniature one of this repository.
///
/// # Errors
/// Where `FLUX_RELEASE_DIR` names something else.
pub fn release(root: &std::path::Path) -> anyhow::Result<Release> {
    let named = std::env::var_os("FLUX_RELEASE_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let folder = named.unwrap_or_else(|| root.join("crates/flux/miniature/v2.9.4"));
    let version = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut rest = version.chars();
    let is_version = rest.next() == Some('v') && rest.next().is_some_and(|digit| digit.is_ascii_digit());
    // The functions would look elsewhere for what is not packaged with them.
    if !is_version || !folder.join("source-controller.yaml").is_file() {
        bail!(
            "FLUX_RELEASE_DIR is {}, and must be an unpacked Flux release in a folder that has its version as \
             its name, as …/v2.9.4",
            folder.display()
        );
    }
    Ok(Release { version, folder })
}

fn described(release: &Release) -> &'static str {
    if release.folder.ends_with("crates/flux/miniature/v2.9.4") {
        "the miniature release of this repository (set FLUX_RELEASE_DIR for Flux's own)"
    } else {
        "FLUX_RELEASE_DIR"
    }
}

fn title(out: &mut impl Write, text: &str) -> std::io::Result<()> {
    writeln!(out, "\n── {text}")?;
    out.flush()
}

/// The resources of a report, one a line.
fn report(out: &mut impl Write, ended: &Ended) -> anyhow::Result<()> {
    let report = match &ended.failure {
        None => ended.output.clone(),
        Some((error, cause)) => serde_json::from_str(cause)
            .unwrap_or_else(|_| json!({"status": "FAILED", "error": error, "message": cause})),
    };
    title(out, &format!("Report: {}", text(&report["status"])))?;
    for resource in report["resources"].as_array().into_iter().flatten() {
        let name = resource["arn"].as_str().or(resource["id"].as_str()).unwrap_or_default();
        writeln!(out, "  {:<9} {:<38} {name}", text(&resource["change"]), text(&resource["type"]))?;
    }
    if ended.failure.is_some() {
        // A run that Step Functions itself ended has no report, and so no step.
        let step = report["step"].as_str().map_or_else(String::new, |step| format!(" in {step}"));
        bail!("the run failed{step}: {}: {}", text(&report["error"]), text(&report["message"]));
    }
    let flux = &report["flux"];
    writeln!(out, "  Flux {} Ready at {}", text(&flux["version"]), text(&flux["revision"]))?;
    Ok(())
}

/// Commits an nginx Deployment through the CodeCommit API and waits until Flux has it in the cluster.
async fn prove(out: &mut impl Write, world: &World, report: &Value) -> anyhow::Result<()> {
    let (repository, branch) = (text(&report["repository"]["name"]), text(&report["repository"]["branch"]));
    let path = format!("{}/nginx.yaml", text(&report["flux"]["path"]));
    let namespace = text(&report["flux"]["namespace"]);
    let head =
        aws(world, &["codecommit", "get-branch", "--repository-name", repository, "--branch-name", branch])
            .await?["branch"]["commitId"]
            .clone();
    let manifest = world.folder().join("nginx.yaml");
    tokio::fs::write(&manifest, NGINX).await?;
    let content = format!("fileb://{}", manifest.display());
    let committed = aws(
        world,
        &[
            "codecommit",
            "put-file",
            "--repository-name",
            repository,
            "--branch-name",
            branch,
            "--parent-commit-id",
            text(&head),
            "--file-path",
            &path,
            "--file-content",
            &content,
            "--commit-message",
            "Add nginx",
        ],
    )
    .await?;
    let commit = text(&committed["commitId"]).to_owned();
    writeln!(
        out,
        "  $ aws codecommit put-file --repository-name {repository} --branch-name {branch} --file-path {path} …"
    )?;
    writeln!(out, "  commit {commit}")?;

    let cluster = world.kubernetes();
    let source = ("source.toolkit.fluxcd.io/v1", "GitRepository");
    let sync = ("kustomize.toolkit.fluxcd.io/v1", "Kustomization");
    let of = |(version, kind): (&str, &str)| {
        cluster.get(version, kind, namespace, namespace).unwrap_or(Value::Null)
    };
    let ask = |(version, kind): (&str, &str)| {
        let annotations = json!({"reconcile.fluxcd.io/requestedAt": commit});
        let metadata = json!({"name": namespace, "namespace": namespace, "annotations": annotations});
        cluster.apply("demo", &json!({"apiVersion": version, "kind": kind, "metadata": metadata}))
    };
    writeln!(
        out,
        "  $ flux reconcile kustomization {namespace} --with-source   (else Flux looks every 30 s)"
    )?;
    ask(source)?;
    let revision = format!("{branch}@sha1:{commit}");
    let began = Instant::now();
    let mut asked_sync = false;
    let (git, sync, nginx) = loop {
        let objects = (of(source), of(sync));
        if objects.0["status"]["artifact"]["revision"] == *revision && !asked_sync {
            ask(sync)?;
            asked_sync = true;
        }
        let nginx = cluster.get("apps/v1", "Deployment", "default", "nginx").unwrap_or(Value::Null);
        let available = nginx["status"]["availableReplicas"].as_u64().unwrap_or(0);
        if objects.1["status"]["lastAppliedRevision"] == *revision && available > 0 {
            break (objects.0, objects.1, nginx);
        }
        if began.elapsed() > Duration::from_secs(60) {
            bail!("nginx is not in the cluster after 60 s: {}", objects.1["status"]);
        }
        clock::sleep(Duration::from_millis(200)).await;
    };
    writeln!(out, "\n  {:<26} {:<6} REVISION / IMAGE", "OBJECT", "READY")?;
    for (name, object) in [("gitrepository/", &git), ("kustomization/", &sync)] {
        let name = format!("{name}{namespace}");
        let revision = object["status"]["artifact"]["revision"]
            .as_str()
            .or(object["status"]["lastAppliedRevision"].as_str())
            .unwrap_or_default();
        writeln!(out, "  {name:<26} {:<6} {revision}", ready(object))?;
    }
    let replicas = format!(
        "{}/{}",
        nginx["status"]["availableReplicas"],
        nginx["spec"]["replicas"].as_u64().unwrap_or(1)
    );
    let image = text(&nginx["spec"]["template"]["spec"]["containers"][0]["image"]);
    writeln!(out, "  {:<26} {replicas:<6} {image}", "deployment/nginx")?;
    Ok(())
}

const NGINX: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx
  namespace: default
  labels:
    app: nginx
spec:
  replicas: 1
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
    spec:
      containers:
      - name: nginx
        image: public.ecr.aws/nginx/nginx:1.29
        ports:
        - containerPort: 80
";

fn ready(object: &Value) -> &str {
    object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready")
        .map_or("-", |condition| text(&condition["status"]))
}

/// Runs the AWS CLI against the world; its JSON.
async fn aws(world: &World, arguments: &[&str]) -> anyhow::Result<Value> {
    let output = world.program("aws").args(arguments).args(["--output", "json"]).output().await?;
    if !output.status.success() {
        bail!("aws {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("reading the AWS CLI's output")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
