//! The program `sandbox`.

use std::io::Write as _;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::world::{Options, World};

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
        /// The edge's port; a free one without
        #[arg(long, default_value_t = 4566)]
        port: u16,
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
        Command::Up { port } => up(port).await,
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

async fn up(port: u16) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let world = tokio::select! {
        world = World::start(Options { port, ..Options::default() }) => world?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    let mut out = std::io::stdout();
    for (name, value) in world.environment() {
        writeln!(out, "export {name}={value}")?;
    }
    out.flush()?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    world.stop().await;
    Ok(())
}
