//! The program `sandbox`.

use std::io::Write as _;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::ministack;
use crate::wire::no_proxy;
use crate::world::{self, Options, World};

#[derive(Debug, Parser)]
#[command(about = "AWS, CodeCommit, EKS and Kubernetes on one machine, for eks-flux-bootstrap")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One whole run, told as it happens, and nginx from the repository in the cluster
    Demo,
    /// Keeps the world up until Ctrl-C and prints its environment
    Up {
        /// The edge's port; 0 takes a free one
        #[arg(long, default_value_t = 4566)]
        port: u16,
        /// The Kubernetes API's port; 0 takes a free one
        #[arg(long, default_value_t = 0)]
        kubernetes_port: u16,
        /// Without the stack: `sandbox deploy` deploys it later
        #[arg(long)]
        empty: bool,
    },
    /// Deploys template.yaml and the built functions to the world of AWS_ENDPOINT_URL
    Deploy {
        /// Parameters of the template, NAME=VALUE
        parameters: Vec<String>,
    },
}

/// Runs the program.
///
/// # Errors
/// What it failed at.
pub async fn run() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("SANDBOX_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .init();
    match Cli::parse().command {
        Command::Demo => demo().await,
        Command::Up { port, kubernetes_port, empty } => {
            up(Options { port, kubernetes_port, ..Options::default() }, empty).await
        }
        Command::Deploy { parameters } => deploy(&parameters).await,
    }
}

async fn demo() -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut out = std::io::stdout();
    // Dropping the demo's future drops its world, which ends every process in it.
    tokio::select! {
        done = crate::demo::run(&mut out) => done,
        _ = interrupt.recv() => anyhow::bail!("interrupted; everything that was started is ended"),
        _ = terminate.recv() => anyhow::bail!("terminated; everything that was started is ended"),
    }
}

async fn up(options: Options, empty: bool) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let release = crate::demo::release(&options.root)?;
    let start = async {
        let world = World::start(options).await?;
        let machine = if empty {
            None
        } else {
            writeln!(std::io::stderr(), "Deploying template.yaml …")?;
            Some(world.deploy(Some(&release), &[]).await?.state_machine().to_owned())
        };
        anyhow::Ok((world, machine))
    };
    // A start that is broken off drops what it has started.
    let (world, machine) = tokio::select! {
        started = start => started?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    let mut out = std::io::stdout();
    write!(out, "{}", told(&world, machine.as_deref()))?;
    out.flush()?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    world.stop().await;
    Ok(())
}

/// What `up` prints: lines for a shell, which may be pasted whole.
fn told(world: &World, machine: Option<&str>) -> String {
    let bin = ministack::venv(&world.options().root).join("bin");
    let mut text = String::new();
    for (name, value) in world.environment() {
        text.push_str(&format!("export {name}={}\n", quoted(&value)));
    }
    text.push_str(&format!(
        "export PATH={}:$PATH SAM_CLI_TELEMETRY=0 AWS_PAGER=\n",
        quoted(&bin.display().to_string())
    ));
    text.push_str("# Git asks the AWS CLI for a user name and a password, as with the real CodeCommit:\n");
    // Only "get": the helper of this CLI does not know this flag with "store" and "erase".
    let helper =
        r#"!f() { test "$1" != get || aws codecommit credential-helper --ignore-host-check get; }; f"#;
    for (number, (name, value)) in
        [("credential.helper", ""), ("credential.helper", helper), ("credential.UseHttpPath", "true")]
            .iter()
            .enumerate()
    {
        text.push_str(&format!(
            "export GIT_CONFIG_KEY_{number}={name} GIT_CONFIG_VALUE_{number}='{value}'\n"
        ));
    }
    text.push_str("export GIT_CONFIG_COUNT=3\n");
    let examples = match machine {
        Some(machine) => {
            text.push_str(&format!("export STATE_MACHINE={machine}\n"));
            format!(
                "#   aws stepfunctions start-execution --state-machine-arn $STATE_MACHINE --input '{{\"cluster\": \"{}\"}}'\n\
                 #   aws stepfunctions list-executions --state-machine-arn $STATE_MACHINE\n\
                 # and when it has succeeded:\n\
                 #   git clone --branch flux-branch {}/{}-fluxcd\n\
                 #   kubectl get gitrepositories,kustomizations,deployments --all-namespaces\n",
                world.options().cluster,
                world.git_url(),
                world.options().cluster,
            )
        }
        None => format!(
            "#   {} deploy\n\
             #   aws codecommit create-repository --repository-name tryout\n\
             #   git clone {}/tryout\n\
             #   kubectl get namespaces\n",
            std::env::current_exe().unwrap_or_else(|_| "sandbox".into()).display(),
            world.git_url(),
        ),
    };
    text.push_str(&format!(
        "# Then, for example:\n{examples}#   curl {}/_sandbox/calls\n# Ctrl-C here ends it all.\n",
        world.edge().url()
    ));
    text
}

/// A word for a shell, in quotes where it needs them.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@%".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

async fn deploy(parameters: &[String]) -> anyhow::Result<()> {
    let told = |name: &str| {
        std::env::var(name).with_context(|| format!("{name} is not set; paste what `sandbox up` prints"))
    };
    let (edge, region) = (told("AWS_ENDPOINT_URL")?, told("AWS_REGION")?);
    let root = world::root();
    let sam = tokio::process::Command::new(ministack::venv(&root).join("bin/sam"));
    let release = crate::demo::release(&root)?;
    let stage = tempfile::tempdir()?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let deploying = async {
        let mut sam = world::prepare(&root, stage.path(), Some(&release), sam, &edge, &region).await?;
        sam.args(parameters).env("SAM_CLI_TELEMETRY", "0").env("TMPDIR", stage.path()).kill_on_drop(true);
        sam.env("NO_PROXY", no_proxy()).env("no_proxy", no_proxy());
        sam.status().await.context("sam does not run; `make setup` installs it")
    };
    let status = tokio::select! {
        status = deploying => status?,
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    };
    if !status.success() {
        bail!("sam deploy ended with {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (text, expected) in [
            ("http://127.0.0.1:4566", "http://127.0.0.1:4566"),
            ("/tmp/with space/kubeconfig", "'/tmp/with space/kubeconfig'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }
}
