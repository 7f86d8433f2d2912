//! The request: what a user gives to the state machine.
//!
//! `{"cluster": "demo"}` is enough; everything else has the defaults of the recipe that this
//! replaces. Unknown fields and values out of AWS's, Kubernetes' or Flux's bounds are refused with
//! the path of the field, before any call is made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Result, StepError};

/// The whole request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Request {
    /// Name of the EKS cluster, in the account and region of the stack.
    #[schemars(length(min = 1, max = 100), regex(pattern = r"^[0-9A-Za-z][A-Za-z0-9_-]*$"))]
    pub cluster: String,
    /// `apply` makes, `plan` says what that would do and writes nothing.
    #[serde(default)]
    pub mode: Mode,
    /// What becomes of what this execution made, where it fails.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// How long the stack may talk to the cluster's Kubernetes API.
    #[serde(default)]
    pub cluster_access: ClusterAccess,
    /// VPC and subnets, where the cluster's own should not be used.
    #[serde(default)]
    pub network: NetworkOptions,
    /// The customer-managed KMS key.
    #[serde(default)]
    pub key: KeyOptions,
    /// The CodeCommit repository.
    #[serde(default)]
    pub repository: RepositoryOptions,
    /// The IAM user with Git credentials, and the secret that holds them.
    #[serde(default)]
    pub credentials: CredentialsOptions,
    /// The wait until the Git credentials work.
    #[serde(default)]
    pub wait: WaitOptions,
    /// Flux.
    #[serde(default)]
    pub flux: FluxOptions,
}

/// Whether a run writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It does.
    #[default]
    Apply,
    /// It only says what it would write.
    Plan,
}

/// What becomes of what a failed execution made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// It stays, and the next run goes on from there.
    #[default]
    Keep,
    /// It is removed; what was there before stays.
    Rollback,
}

/// How long the access entry of the stack's Flux role lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClusterAccess {
    /// Until the teardown.
    #[default]
    Permanent,
    /// Until the end of the run.
    Temporary,
}

/// VPC and subnets. Both are taken from the cluster where absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NetworkOptions {
    /// `vpc-…`; must be the VPC whose private DNS the cluster's pods use.
    pub vpc_id: Option<String>,
    /// `subnet-…`; taken as they are, without a look at their route tables.
    pub subnet_ids: Vec<String>,
    /// Takes over a foreign security group that is in the way.
    pub adopt: bool,
}

/// The KMS key behind an alias.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KeyOptions {
    /// `alias/…`; default `alias/eks-flux-bootstrap/<cluster>/<namespace>`.
    pub alias: Option<String>,
    /// Days between a teardown and the key's deletion.
    #[schemars(range(min = 7, max = 30))]
    pub deletion_window_days: u8,
    /// Takes over a foreign key behind the alias: it is tagged as ours, and from then on treated so.
    pub adopt: bool,
}

impl Default for KeyOptions {
    fn default() -> Self {
        KeyOptions { alias: None, deletion_window_days: 7, adopt: false }
    }
}

/// The CodeCommit repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RepositoryOptions {
    /// Default `<cluster>-<namespace>`.
    pub name: Option<String>,
    /// The branch that Flux follows; made when it is missing.
    pub branch: String,
    /// Shown in the CodeCommit console.
    pub description: Option<String>,
    /// Takes over a foreign repository of that name: it is tagged as ours, and from then on treated so.
    pub adopt: bool,
}

impl Default for RepositoryOptions {
    fn default() -> Self {
        RepositoryOptions { name: None, branch: "flux-branch".to_owned(), description: None, adopt: false }
    }
}

/// The IAM user and the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CredentialsOptions {
    /// Default `<cluster>-<namespace>-git`.
    pub user_name: Option<String>,
    /// Default `eks-flux-bootstrap/<cluster>/<namespace>/git`.
    pub secret_name: Option<String>,
    /// Days in which a deleted secret can be restored.
    #[schemars(range(min = 7, max = 30))]
    pub recovery_window_days: u8,
    /// Takes over a foreign secret of that name: it is tagged as ours, and its value replaced.
    pub adopt: bool,
}

impl Default for CredentialsOptions {
    fn default() -> Self {
        CredentialsOptions { user_name: None, secret_name: None, recovery_window_days: 7, adopt: false }
    }
}

/// How to wait for the Git credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WaitOptions {
    /// Pause between two probes of the Git endpoint, in seconds.
    #[schemars(range(min = 1, max = 300))]
    pub seconds: u32,
    /// When to give up, in seconds since the first probe.
    #[schemars(range(min = 10, max = 3600))]
    pub timeout_seconds: u32,
}

impl Default for WaitOptions {
    fn default() -> Self {
        WaitOptions { seconds: 5, timeout_seconds: 300 }
    }
}

/// Flux's options, under the names that its CLI gives them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FluxOptions {
    /// Version of the release, `v2.9.4`.
    #[schemars(regex(pattern = r"^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$"))]
    pub version: String,
    /// Whether a version older than the one that runs may be installed.
    pub allow_downgrade: bool,
    /// Where the release comes from when the functions do not carry it: `s3://bucket/prefix`, the
    /// address of a `manifests.tar.gz`, or nothing for Flux's own release address.
    pub release: Option<String>,
    /// SHA-256 of the `manifests.tar.gz`, 64 hexadecimal digits; checked where given.
    pub sha256: Option<String>,
    /// The namespace of the controllers, and the name of GitRepository and Kustomization.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// The folder of the repository that Flux applies.
    pub path: String,
    /// How often Flux looks at the repository, as Go writes durations.
    pub interval: String,
    /// Whether the controllers watch all namespaces.
    pub watch_all_namespaces: bool,
    /// The controllers; source-controller and kustomize-controller must be among them.
    pub components: Vec<String>,
    /// More controllers: image-reflector-controller, image-automation-controller, source-watcher.
    pub components_extra: Vec<String>,
    /// The registry of the controllers' images.
    pub registry: String,
    /// Name of a Secret of the namespace with the registry's credentials.
    pub image_pull_secret: Option<String>,
    /// Whether network policies shut the namespace off.
    pub network_policy: bool,
    /// `debug`, `info` or `error`.
    pub log_level: LogLevel,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// Taint keys that the controllers tolerate.
    pub toleration_keys: Vec<String>,
    /// Name of the in-cluster Secret with the Git credentials.
    pub secret_name: String,
    /// Whether Git submodules are fetched too.
    pub recurse_submodules: bool,
    /// Requests and limits of each controller; Fargate wants them equal.
    pub resources: Resources,
    /// How long to wait for the controllers, and then for the sync, in seconds each.
    #[schemars(range(min = 60, max = 3600))]
    pub timeout_seconds: u32,
}

/// The controllers' log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// The default.
    Info,
    /// Errors only.
    Error,
}

impl LogLevel {
    /// As the controllers' flag takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Error => "error",
        }
    }
}

/// Requests and limits of a controller, as Kubernetes writes quantities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Resources {
    /// Fargate rounds up to 0.25, 0.5, 1, 2 … vCPU.
    pub cpu: String,
    /// Fargate adds 256 MiB and rounds up.
    pub memory: String,
}

impl Default for Resources {
    /// Lands in Fargate's smallest vCPU size with 1 GB.
    fn default() -> Self {
        Resources { cpu: "250m".to_owned(), memory: "768Mi".to_owned() }
    }
}

/// The controllers that every install has.
pub const REQUIRED_COMPONENTS: [&str; 2] = ["source-controller", "kustomize-controller"];
/// The controllers of `flux bootstrap` by default, in its order.
pub const DEFAULT_COMPONENTS: [&str; 4] =
    ["source-controller", "kustomize-controller", "helm-controller", "notification-controller"];
/// The controllers that are installed on request.
pub const EXTRA_COMPONENTS: [&str; 3] =
    ["image-reflector-controller", "image-automation-controller", "source-watcher"];

impl Default for FluxOptions {
    fn default() -> Self {
        FluxOptions {
            version: "v2.9.4".to_owned(),
            allow_downgrade: false,
            release: None,
            sha256: None,
            namespace: "fluxcd".to_owned(),
            path: "eks-fargate/applications".to_owned(),
            interval: "30s".to_owned(),
            watch_all_namespaces: true,
            components: DEFAULT_COMPONENTS.map(str::to_owned).to_vec(),
            components_extra: Vec::new(),
            registry: "ghcr.io/fluxcd".to_owned(),
            image_pull_secret: None,
            network_policy: true,
            log_level: LogLevel::Info,
            cluster_domain: "cluster.local".to_owned(),
            toleration_keys: Vec::new(),
            secret_name: "flux-system".to_owned(),
            recurse_submodules: false,
            resources: Resources::default(),
            timeout_seconds: 900,
        }
    }
}

impl Request {
    /// Parses and checks a request.
    ///
    /// # Errors
    /// `InvalidInput`, whose text begins with the path of the field.
    pub fn parse(value: &Value) -> Result<Request> {
        if !value.is_object() {
            return Err(StepError::invalid_input(
                "request: must be a JSON object such as {\"cluster\": \"demo\"}",
            ));
        }
        let request: Request = parse_json(value)?;
        request.check()?;
        Ok(request)
    }

    /// Checks what the types alone cannot.
    ///
    /// # Errors
    /// `InvalidInput`, whose text begins with the path of the field.
    pub fn check(&self) -> Result<()> {
        check(
            "cluster",
            &self.cluster,
            is_cluster_name(&self.cluster),
            "1 to 100 letters, digits, hyphens and underscores, beginning with a letter or digit",
        )?;
        if let Some(id) = &self.network.vpc_id {
            check("network.vpcId", id, is_resource_id(id, "vpc-"), "an id such as vpc-0a1b2c3d")?;
        }
        for (index, id) in self.network.subnet_ids.iter().enumerate() {
            check(
                &format!("network.subnetIds[{index}]"),
                id,
                is_resource_id(id, "subnet-"),
                "an id such as subnet-0a1b2c3d",
            )?;
        }
        if let Some(alias) = &self.key.alias {
            check(
                "key.alias",
                alias,
                is_alias(alias),
                "alias/ and then letters, digits, /, _ and -, not alias/aws/, at most 256 characters",
            )?;
        }
        check_range("key.deletionWindowDays", self.key.deletion_window_days.into(), 7, 30)?;
        if let Some(name) = &self.repository.name {
            check(
                "repository.name",
                name,
                is_repository_name(name),
                "1 to 100 letters, digits, ., _ and -, not ending in .git",
            )?;
        }
        check(
            "repository.branch",
            &self.repository.branch,
            is_branch(&self.repository.branch),
            "a branch name as Git takes it, at most 256 characters, not 40 hexadecimal digits",
        )?;
        if let Some(text) = &self.repository.description {
            check("repository.description", text, text.chars().count() <= 1000, "at most 1000 characters")?;
        }
        if let Some(name) = &self.credentials.user_name {
            check("credentials.userName", name, is_user_name(name), "1 to 64 letters, digits and +=,.@_-")?;
        }
        if let Some(name) = &self.credentials.secret_name {
            check(
                "credentials.secretName",
                name,
                is_secret_name(name),
                "1 to 512 letters, digits and /_+=.@-, not ending in a hyphen and six characters",
            )?;
        }
        check_range("credentials.recoveryWindowDays", self.credentials.recovery_window_days.into(), 7, 30)?;
        check_range("wait.seconds", self.wait.seconds, 1, 300)?;
        check_range("wait.timeoutSeconds", self.wait.timeout_seconds, 10, 3600)?;
        self.flux.check()
    }
}

impl FluxOptions {
    /// The controllers to install: the components and then the extra ones.
    pub fn all_components(&self) -> Vec<&str> {
        self.components.iter().chain(&self.components_extra).map(String::as_str).collect()
    }

    fn check(&self) -> Result<()> {
        check("flux.version", &self.version, is_version(&self.version), "a release such as v2.9.4")?;
        if let Some(release) = &self.release {
            let known = release.strip_prefix("s3://").is_some_and(|rest| !rest.is_empty())
                || release.starts_with("https://");
            check("flux.release", release, known, "s3://bucket/prefix or an https:// address")?;
        }
        if let Some(sum) = &self.sha256 {
            check("flux.sha256", sum, is_hex(sum, 64), "64 hexadecimal digits")?;
        }
        check(
            "flux.namespace",
            &self.namespace,
            is_dns_label(&self.namespace),
            "1 to 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit",
        )?;
        let reserved = ["default", "kube-system", "kube-public", "kube-node-lease"];
        check(
            "flux.namespace",
            &self.namespace,
            !reserved.contains(&self.namespace.as_str()),
            "a namespace of Flux's own",
        )?;
        check(
            "flux.path",
            &self.path,
            is_path(&self.path),
            "a relative path inside the repository, without .., without empty parts",
        )?;
        check(
            "flux.interval",
            &self.interval,
            go_duration_millis(&self.interval).is_some_and(|ms| ms >= 1000),
            "a duration of a second or more as Go writes it, such as 30s or 1m30s",
        )?;
        for (index, name) in self.components.iter().enumerate() {
            check(
                &format!("flux.components[{index}]"),
                name,
                DEFAULT_COMPONENTS.contains(&name.as_str()),
                &format!("one of {}", DEFAULT_COMPONENTS.join(", ")),
            )?;
            check(
                &format!("flux.components[{index}]"),
                name,
                !self.components[..index].contains(name),
                "named once",
            )?;
        }
        for name in REQUIRED_COMPONENTS {
            if !self.components.iter().any(|c| c == name) {
                return Err(StepError::invalid_input(format!(
                    "flux.components: {name} is missing; Flux cannot sync without it"
                )));
            }
        }
        for (index, name) in self.components_extra.iter().enumerate() {
            check(
                &format!("flux.componentsExtra[{index}]"),
                name,
                EXTRA_COMPONENTS.contains(&name.as_str()),
                &format!("one of {}", EXTRA_COMPONENTS.join(", ")),
            )?;
            check(
                &format!("flux.componentsExtra[{index}]"),
                name,
                !self.components_extra[..index].contains(name),
                "named once",
            )?;
        }
        check(
            "flux.registry",
            &self.registry,
            is_registry(&self.registry),
            "a registry's host and path, without a scheme",
        )?;
        if let Some(name) = &self.image_pull_secret {
            check("flux.imagePullSecret", name, is_dns_subdomain(name), "the name of a Secret")?;
        }
        check(
            "flux.clusterDomain",
            &self.cluster_domain,
            is_dns_subdomain(&self.cluster_domain),
            "a DNS domain such as cluster.local",
        )?;
        for (index, key) in self.toleration_keys.iter().enumerate() {
            check(
                &format!("flux.tolerationKeys[{index}]"),
                key,
                is_qualified_name(key),
                "a taint key such as dedicated or example.com/dedicated",
            )?;
        }
        check(
            "flux.secretName",
            &self.secret_name,
            is_dns_subdomain(&self.secret_name),
            "the name of a Secret",
        )?;
        let cpu = cpu_millis(&self.resources.cpu);
        check(
            "flux.resources.cpu",
            &self.resources.cpu,
            cpu.is_some_and(|m| (1..=16_000).contains(&m)),
            "a quantity such as 250m or 1, at most 16",
        )?;
        let memory = memory_mebibytes(&self.resources.memory);
        check(
            "flux.resources.memory",
            &self.resources.memory,
            memory.is_some_and(|m| (64..=122_880).contains(&m)),
            "a quantity such as 768Mi or 1Gi, from 64Mi to 120Gi",
        )?;
        check_range("flux.timeoutSeconds", self.timeout_seconds, 60, 3600)
    }
}

/// Parses JSON into a type, so that a failure names the field by its path.
///
/// # Errors
/// `InvalidInput`, whose text begins with the path of the field.
pub fn parse_json<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T> {
    // Serde would take an array for a struct and complain of its length.
    if !value.is_object() {
        return Err(StepError::invalid_input(
            "request: must be a JSON object such as {\"cluster\": \"demo\"}",
        ));
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { "request".to_owned() } else { path };
        StepError::invalid_input(format!("{path}: {}", error.inner()))
    })
}

fn check(path: &str, value: &str, good: bool, expected: &str) -> Result<()> {
    if good {
        return Ok(());
    }
    let shown: String = value.chars().take(80).collect();
    Err(StepError::invalid_input(format!("{path}: {shown:?} is not {expected}")))
}

fn check_range(path: &str, value: u32, min: u32, max: u32) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(StepError::invalid_input(format!("{path}: {value} is not from {min} to {max}")))
}

fn is_cluster_name(name: &str) -> bool {
    (1..=100).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

fn is_resource_id(id: &str, prefix: &str) -> bool {
    id.strip_prefix(prefix)
        .is_some_and(|rest| (8..=32).contains(&rest.len()) && rest.chars().all(|c| c.is_ascii_hexdigit()))
}

fn is_alias(alias: &str) -> bool {
    alias.len() <= 256
        && !alias.starts_with("alias/aws/")
        && alias.strip_prefix("alias/").is_some_and(|rest| {
            !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric() || "/_-".contains(c))
        })
}

fn is_repository_name(name: &str) -> bool {
    (1..=100).contains(&name.len())
        && !name.ends_with(".git")
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// The rules of `git check-ref-format`, and CodeCommit's length.
fn is_branch(name: &str) -> bool {
    let bad = |c: char| c.is_ascii_control() || " ~^:?*[\\\u{7f}".contains(c);
    (1..=256).contains(&name.len())
        && !is_hex(name, 40)
        && name != "@"
        && !name.starts_with(['-', '/'])
        && !name.ends_with(['/', '.'])
        && !name.contains("..")
        && !name.contains("@{")
        && !name.chars().any(bad)
        && name.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"))
}

fn is_user_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || "+=,.@_-".contains(c))
}

fn is_secret_name(name: &str) -> bool {
    let own_suffix = name
        .rsplit_once('-')
        .is_some_and(|(_, tail)| tail.len() == 6 && tail.chars().all(|c| c.is_ascii_alphanumeric()));
    (1..=512).contains(&name.len())
        && !own_suffix
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "/_+=.@-".contains(c))
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit())
}

fn is_version(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('v') else { return false };
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3
        && numbers.iter().all(|n| !n.is_empty() && n.len() <= 6 && n.chars().all(|c| c.is_ascii_digit()))
        && pre.is_none_or(|p| {
            !p.is_empty() && p.len() <= 64 && p.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c))
        })
}

fn is_dns_label(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|c| edge(c) || c == '-')
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = text.rsplit_once('/').map_or((None, text), |(p, n)| (Some(p), n));
    let edge = |c: char| c.is_ascii_alphanumeric();
    prefix.is_none_or(is_dns_subdomain)
        && (1..=63).contains(&name.len())
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| edge(c) || "-_.".contains(c))
}

/// CodeCommit takes at most 4,096 characters and 20 directories; the namespace's own folder and
/// its files come below this path.
fn is_path(path: &str) -> bool {
    let path = path.strip_prefix("./").unwrap_or(path);
    let parts: Vec<&str> = path.split('/').collect();
    path.len() <= 1024
        && parts.len() <= 18
        && parts.iter().all(|part| {
            !part.is_empty()
                && *part != "."
                && *part != ".."
                && *part != ".git"
                && part.chars().all(|c| !c.is_control() && c != '\\')
        })
}

fn is_registry(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && !text.contains("://")
        && text.split('/').all(|part| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c))
        })
}

/// Milliseconds of a duration as Go's `time.ParseDuration` reads it, for the units that make
/// sense here. `None` where Go would refuse it, and for a sign.
pub fn go_duration_millis(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0f64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let factor = match &rest[..unit_end] {
            "ms" => 1.0,
            "s" => 1000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            _ => return None,
        };
        total += number * factor;
        rest = &rest[unit_end..];
    }
    // Beyond a year nobody means it, and Go's own limit is 290 years.
    (total <= 366.0 * 24.0 * 3_600_000.0).then_some(total as u64)
}

/// Thousandths of a CPU of a Kubernetes quantity.
pub fn cpu_millis(text: &str) -> Option<u64> {
    if let Some(millis) = text.strip_suffix('m') {
        return digits(millis);
    }
    match text.split_once('.') {
        None => digits(text).and_then(|n| n.checked_mul(1000)),
        Some((whole, part)) if (1..=3).contains(&part.len()) => {
            let part = digits(&format!("{part:0<3}"))?;
            digits(whole)?.checked_mul(1000)?.checked_add(part)
        }
        Some(_) => None,
    }
}

/// Whole MiB of a Kubernetes quantity in `Mi` or `Gi`.
pub fn memory_mebibytes(text: &str) -> Option<u64> {
    if let Some(n) = text.strip_suffix("Mi") {
        return digits(n);
    }
    text.strip_suffix("Gi").and_then(digits).and_then(|n| n.checked_mul(1024))
}

fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// The JSON Schema of the request, as it is committed beside the state machine.
pub fn json_schema() -> Value {
    schemars::schema_for!(Request).to_value()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_cluster_alone_is_enough() {
        let request = Request::parse(&json!({"cluster": "demo"})).expect("valid");
        assert_eq!(request.repository.branch, "flux-branch");
        assert_eq!(request.flux.path, "eks-fargate/applications");
        assert_eq!(request.flux.namespace, "fluxcd");
        assert_eq!(request.flux.interval, "30s");
        assert_eq!(request.key.deletion_window_days, 7);
        assert!(request.flux.watch_all_namespaces);
    }

    #[test]
    fn bad_input_names_its_field() {
        for (input, path) in [
            (json!({}), "request: missing field `cluster`"),
            (json!({"cluster": ""}), "cluster"),
            (json!({"cluster": "-x"}), "cluster"),
            (json!({"cluster": 7}), "cluster"),
            (json!([]), "request"),
            (json!({"cluster": "demo", "color": "red"}), "color"),
            (json!({"cluster": "demo", "flux": {"namespcae": "x"}}), "flux.namespcae"),
            (json!({"cluster": "demo", "network": {"vpcId": "10.0.0.0/16"}}), "network.vpcId"),
            (
                json!({"cluster": "demo", "network": {"subnetIds": ["subnet-0a1b2c3d", "x"]}}),
                "network.subnetIds[1]",
            ),
            (json!({"cluster": "demo", "key": {"alias": "alias/aws/x"}}), "key.alias"),
            (json!({"cluster": "demo", "key": {"deletionWindowDays": 3}}), "key.deletionWindowDays"),
            (json!({"cluster": "demo", "repository": {"name": "x.git"}}), "repository.name"),
            (json!({"cluster": "demo", "repository": {"branch": "a..b"}}), "repository.branch"),
            (
                json!({"cluster": "demo", "repository": {"branch": "0123456789012345678901234567890123456789"}}),
                "repository.branch",
            ),
            (
                json!({"cluster": "demo", "credentials": {"secretName": "git-abcdef"}}),
                "credentials.secretName",
            ),
            (
                json!({"cluster": "demo", "credentials": {"recoveryWindowDays": 31}}),
                "credentials.recoveryWindowDays",
            ),
            (json!({"cluster": "demo", "credentials": {"userName": "a b"}}), "credentials.userName"),
            (json!({"cluster": "demo", "wait": {"seconds": 0}}), "wait.seconds"),
            (json!({"cluster": "demo", "wait": {"seconds": -1}}), "wait.seconds"),
            (json!({"cluster": "demo", "flux": {"version": "latest"}}), "flux.version"),
            (json!({"cluster": "demo", "flux": {"namespace": "Flux"}}), "flux.namespace"),
            (json!({"cluster": "demo", "flux": {"namespace": "kube-system"}}), "flux.namespace"),
            (json!({"cluster": "demo", "flux": {"path": "../x"}}), "flux.path"),
            (json!({"cluster": "demo", "flux": {"path": "/x"}}), "flux.path"),
            (json!({"cluster": "demo", "flux": {"interval": "30"}}), "flux.interval"),
            (json!({"cluster": "demo", "flux": {"interval": "1ms"}}), "flux.interval"),
            (json!({"cluster": "demo", "flux": {"components": ["source-controller"]}}), "flux.components"),
            (json!({"cluster": "demo", "flux": {"componentsExtra": ["helm"]}}), "flux.componentsExtra[0]"),
            (json!({"cluster": "demo", "flux": {"logLevel": "loud"}}), "flux.logLevel"),
            (json!({"cluster": "demo", "flux": {"registry": "https://x"}}), "flux.registry"),
            (json!({"cluster": "demo", "flux": {"resources": {"memory": "1"}}}), "flux.resources.memory"),
        ] {
            let error = Request::parse(&input).expect_err(&input.to_string());
            assert_eq!(error.name, crate::ErrorName::InvalidInput);
            assert!(error.message.starts_with(path), "{input}: {}", error.message);
        }
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("30s", Some(30_000)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("10m0s", Some(600_000)),
            ("30", None),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("1d", None),
            ("1..5s", None),
            ("99999999h", None),
        ] {
            assert_eq!(go_duration_millis(text), expected, "{text}");
        }
    }

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        assert_eq!(cpu_millis("250m"), Some(250));
        assert_eq!(cpu_millis("1"), Some(1000));
        assert_eq!(cpu_millis("0.25"), Some(250));
        assert_eq!(cpu_millis("0.2555"), None);
        assert_eq!(cpu_millis("1 m"), None);
        assert_eq!(memory_mebibytes("768Mi"), Some(768));
        assert_eq!(memory_mebibytes("1Gi"), Some(1024));
        assert_eq!(memory_mebibytes("1G"), None);
        assert_eq!(memory_mebibytes("99999999999999999999Gi"), None);
    }
}
