//! The whole local world, started and stopped as one.

mod archive;
mod deploy;
mod executions;
mod keys;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use self::deploy::{Deployment, Release, prepare};
pub use self::executions::{Ended, Executions};

use crate::codecommit::{self, CodeCommit};
use crate::ec2::{self, Ec2};
use crate::edge::{Backends, Bound, Edge};
use crate::eks::{Eks, Seed, Selector, Tokens};
use crate::iam::Iam;
use crate::kubernetes::{self, ApiServer, FargateSelector};
use crate::ministack::{self, MiniStack, ROOT_KEY, Upstream};
use crate::wire::{EventSink, no_proxy};

/// How a world is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// The project's folder.
    pub root: PathBuf,
    /// The edge's port; 0 takes a free one.
    pub port: u16,
    /// The Kubernetes API's port; 0 takes a free one.
    pub kubernetes_port: u16,
    /// Its one region.
    pub region: String,
    /// Its one account, twelve digits.
    pub account: String,
    /// Factor on the waits and retry pauses of state machines.
    pub wait_scale: f64,
    /// How long a new Git credential stays unusable.
    pub credential_delay: Duration,
    /// How long a new interface endpoint is `pending`.
    pub endpoint_delay: Duration,
    /// How long a pod takes to start.
    pub rollout_delay: Duration,
    /// How long the cluster does not yet know a new access entry.
    pub access_delay: Duration,
    /// The name of the cluster that is there from the start.
    pub cluster: String,
    /// Its authentication mode.
    pub mode: String,
    /// The namespaces that its Fargate profile selects.
    pub namespaces: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            root: root(),
            port: 0,
            kubernetes_port: 0,
            region: "eu-west-1".to_owned(),
            account: "123456789012".to_owned(),
            wait_scale: 0.1,
            credential_delay: Duration::from_millis(500),
            endpoint_delay: Duration::from_secs(2),
            rollout_delay: Duration::from_secs(2),
            access_delay: Duration::ZERO,
            cluster: "demo".to_owned(),
            mode: "API_AND_CONFIG_MAP".to_owned(),
            // `default` is for what users deploy: the demo puts nginx there.
            namespaces: ["fluxcd", "kube-system", "default"].map(str::to_owned).to_vec(),
        }
    }
}

impl Options {
    /// As little waiting as there can be, for tests.
    pub fn quick() -> Options {
        Options {
            wait_scale: 0.02,
            credential_delay: Duration::ZERO,
            endpoint_delay: Duration::from_millis(300),
            rollout_delay: Duration::from_millis(300),
            ..Options::default()
        }
    }
}

/// The project's folder: where this crate was built from, or else the working folder.
pub fn root() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match built.canonicalize() {
        Ok(built) if built.join("template.yaml").exists() => built,
        _ => std::env::current_dir().unwrap_or_default(),
    }
}

/// A running world. Dropping it ends everything in it.
#[derive(Debug)]
pub struct World {
    options: Options,
    // The order of the fields is the order of their end.
    edge: Edge,
    kubernetes: Arc<ApiServer>,
    ministack: MiniStack,
    ec2: Arc<Ec2>,
    codecommit: Arc<CodeCommit>,
    eks: Arc<Eks>,
    iam: Arc<Iam>,
    folder: TempDir,
}

impl World {
    /// Starts MiniStack, the edge and what is played behind it.
    ///
    /// # Errors
    /// Where one of them does not start; what has started is ended again.
    pub async fn start(options: Options) -> anyhow::Result<World> {
        // The sandbox itself speaks TLS only as a server; a second call finds a provider installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Repositories are Git's own; without it a run would fail in its middle.
        let git = tokio::process::Command::new("git").arg("--version").output().await;
        if !git.is_ok_and(|output| output.status.success()) {
            bail!("git does not run; the local world needs it on the PATH");
        }
        let folder = TempDir::with_prefix("sandbox-").context("making the world's folder")?;
        let bound = Bound::take(options.port).await?;
        let ministack = MiniStack::start(&ministack::Settings {
            venv: ministack::venv(&options.root),
            folder: folder.path().to_owned(),
            endpoint: bound.url(),
            region: options.region.clone(),
            account: options.account.clone(),
            wait_scale: options.wait_scale,
        })
        .await?;
        let upstream = ministack.upstream().clone();
        let iam = Arc::new(Iam::new(upstream.clone(), &options.region, &options.account, &bound.url()));
        iam.set_delay(options.credential_delay);
        let eks = Arc::new(Eks::new(upstream.clone(), &options.region, &options.account));
        eks.set_access_delay(options.access_delay);
        let codecommit = Arc::new(
            CodeCommit::new(
                codecommit::Settings {
                    root: folder.path().join("repositories"),
                    base_url: bound.url(),
                    region: options.region.clone(),
                    account: options.account.clone(),
                },
                iam.clone(),
                Arc::new(Events { upstream: upstream.clone(), region: options.region.clone() }),
            )
            .with_keys(Arc::new(keys::Keys::new(upstream.clone(), &options.region))),
        );
        iam.with_repositories(Box::new(keys::RepositoryKeys::new(
            Arc::downgrade(&codecommit),
            &options.region,
            &options.account,
        )));
        let ec2 = Arc::new(Ec2::new(ec2::Settings {
            account: options.account.clone(),
            region: options.region.clone(),
            pending: options.endpoint_delay,
            ..ec2::Settings::default()
        }));
        let network = ec2.seed();
        let selectors: Vec<Selector> =
            options.namespaces.iter().map(|namespace| Selector::namespace(namespace)).collect();
        let tokens = Tokens::new(eks.clone(), &options.cluster, &bound.url());
        let kubernetes = Arc::new(
            ApiServer::start(
                kubernetes::Settings {
                    port: options.kubernetes_port,
                    cluster: options.cluster.clone(),
                    fargate: selectors.iter().map(fargate).collect(),
                    delays: kubernetes::Delays {
                        pod_start: options.rollout_delay,
                        ..kubernetes::Delays::default()
                    },
                    ..kubernetes::Settings::default()
                },
                Arc::new(tokens),
            )
            .await?,
        );
        eks.seed(Seed {
            name: options.cluster.clone(),
            vpc: network.vpc_id.clone(),
            subnets: network.private.iter().chain(&network.public).map(|subnet| subnet.id.clone()).collect(),
            private_subnets: network.private.iter().map(|subnet| subnet.id.clone()).collect(),
            group: network.cluster_group_id.clone(),
            mode: options.mode.clone(),
            endpoint: kubernetes.endpoint(),
            authority: kubernetes.ca_pem(),
            profiles: vec![("flux".to_owned(), selectors)],
        });
        eks.on_profiles({
            let (kubernetes, cluster) = (Arc::downgrade(&kubernetes), options.cluster.clone());
            Box::new(move |name, selectors| {
                if let (Some(kubernetes), true) = (kubernetes.upgrade(), name == cluster) {
                    kubernetes.set_fargate(selectors.iter().map(fargate).collect());
                }
            })
        });
        let edge = bound.serve(Backends {
            upstream,
            codecommit: codecommit.clone(),
            ec2: ec2.clone(),
            eks: eks.clone(),
            iam: iam.clone(),
        });
        let world = World { options, edge, kubernetes, ministack, ec2, codecommit, eks, iam, folder };
        let path = world.kubeconfig();
        std::fs::write(&path, world.kubernetes.kubeconfig())
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(world)
    }

    /// Ends everything and waits for the end.
    pub async fn stop(self) {
        // Waiting for processes blocks.
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }

    /// How it was started.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Where all calls pass.
    pub fn edge(&self) -> &Edge {
        &self.edge
    }

    /// The way around the edge, to what MiniStack plays.
    pub fn upstream(&self) -> &Upstream {
        self.ministack.upstream()
    }

    /// The repositories.
    pub fn codecommit(&self) -> &Arc<CodeCommit> {
        &self.codecommit
    }

    /// The clusters.
    pub fn eks(&self) -> &Arc<Eks> {
        &self.eks
    }

    /// The cluster's Kubernetes API.
    pub fn kubernetes(&self) -> &Arc<ApiServer> {
        &self.kubernetes
    }

    /// The networks.
    pub fn ec2(&self) -> &Arc<Ec2> {
        &self.ec2
    }

    /// The Git credentials.
    pub fn iam(&self) -> &Arc<Iam> {
        &self.iam
    }

    /// The folder that ends with the world.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A kubeconfig of the cluster's administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder().join("kubeconfig")
    }

    /// The address for Git, without a repository's name.
    pub fn git_url(&self) -> String {
        format!("{}/v1/repos", self.edge.url())
    }

    /// What other processes need in their environment to use this world's AWS.
    pub fn environment(&self) -> Vec<(String, String)> {
        let region = &self.options.region;
        [
            ("AWS_ENDPOINT_URL", self.edge.url()),
            ("AWS_ACCESS_KEY_ID", ROOT_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", ROOT_KEY.to_owned()),
            ("AWS_REGION", region.clone()),
            ("AWS_DEFAULT_REGION", region.clone()),
            ("KUBECONFIG", self.kubeconfig().display().to_string()),
            ("NO_PROXY", no_proxy()),
            ("no_proxy", no_proxy()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }

    /// A program of the Python environment (`aws`, `sam`), told of this world and of nothing else.
    pub fn program(&self, name: &str) -> tokio::process::Command {
        let bin = ministack::venv(&self.options.root).join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = tokio::process::Command::new(bin.join(name));
        command
            .kill_on_drop(true)
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("HOME", self.folder.path())
            // What a program leaves that is killed goes with the world.
            .env("TMPDIR", ministack::temporary(self.folder.path()))
            .env("AWS_CONFIG_FILE", self.folder.path().join("no-config"))
            .env("AWS_SHARED_CREDENTIALS_FILE", self.folder.path().join("no-credentials"))
            .env("AWS_PAGER", "")
            .env("SAM_CLI_TELEMETRY", "0")
            .env_remove("AWS_PROFILE")
            .env_remove("AWS_SESSION_TOKEN")
            .envs(self.environment());
        command
    }
}

fn fargate(selector: &Selector) -> FargateSelector {
    FargateSelector {
        profile: selector.profile.clone(),
        namespace: selector.namespace.clone(),
        labels: selector.labels.clone(),
    }
}

/// Publishes CodeCommit's events on MiniStack's default bus.
struct Events {
    upstream: Upstream,
    region: String,
}

impl EventSink for Events {
    fn publish(&self, source: &str, detail_type: &str, resources: Vec<String>, detail: Value) {
        let entry = json!({
            "Source": source, "DetailType": detail_type, "Resources": resources, "Detail": detail.to_string(),
        });
        let (upstream, region) = (self.upstream.clone(), self.region.clone());
        // Events are best effort, as CodeCommit's are.
        tokio::spawn(async move {
            if let Err(error) = upstream.publish(&region, entry).await {
                tracing::warn!(error = %error, "an event was not published");
            }
        });
    }
}
