//! Deploying the shipped template with the built functions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::{Executions, World};

const STACK: &str = "eks-flux-bootstrap";

/// Where the Flux release comes from that is packaged with the functions which need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// `v2.9.4`
    pub version: String,
    /// A folder with the nine files.
    pub folder: PathBuf,
}

/// A deployed stack.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// Its outputs.
    pub outputs: BTreeMap<String, String>,
    executions: Executions,
}

impl Deployment {
    /// Its state machine's executions.
    pub fn executions(&self) -> &Executions {
        &self.executions
    }

    /// The state machine's ARN.
    pub fn state_machine(&self) -> &str {
        self.outputs.get("StateMachineArn").map(String::as_str).unwrap_or_default()
    }
}

impl World {
    /// Deploys `template.yaml` with `sam deploy`, with the functions from `target/debug` and further
    /// parameters of the template.
    ///
    /// # Errors
    /// Where a function is not built or `sam` fails; the error holds its output.
    pub async fn deploy(
        &self,
        release: Option<&Release>,
        parameters: &[(&str, &str)],
    ) -> anyhow::Result<Deployment> {
        let root = self.options().root.clone();
        let stage = self.folder().join("stage");
        let template = {
            let (root, stage, release) = (root.clone(), stage.clone(), release.cloned());
            tokio::task::spawn_blocking(move || stage_all(&root, &stage, release.as_ref())).await??
        };
        let mut overrides = vec![format!("GitEndpoint={}", self.edge().url())];
        overrides.extend(parameters.iter().map(|(name, value)| format!("{name}={value}")));
        let output = self
            .program("sam")
            .current_dir(&stage)
            .args(["deploy", "--stack-name", STACK, "--resolve-s3", "--region", &self.options().region])
            .args(["--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset", "--no-progressbar"])
            .arg("--no-fail-on-empty-changeset")
            .arg("--template-file")
            .arg(&template)
            .arg("--parameter-overrides")
            .args(overrides)
            .stdin(std::process::Stdio::null())
            .output()
            .await
            .context("running sam deploy")?;
        if !output.status.success() {
            bail!(
                "sam deploy failed: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        self.deployment().await
    }

    /// The stack that is deployed in this world.
    ///
    /// # Errors
    /// Where there is none.
    pub async fn deployment(&self) -> anyhow::Result<Deployment> {
        let region = &self.options().region;
        let parameters = [("Action", "DescribeStacks"), ("Version", "2010-05-15"), ("StackName", STACK)];
        let answer = self.upstream().query("cloudformation", region, &parameters).await?;
        if answer.status != 200 {
            bail!("the stack {STACK} is not deployed");
        }
        let outputs = outputs(&answer.body);
        let machine = outputs.get("StateMachineArn").context("the stack has no output StateMachineArn")?;
        let executions = Executions::new(self.upstream().clone(), region, machine);
        Ok(Deployment { outputs, executions })
    }
}

/// The outputs in the XML of DescribeStacks.
fn outputs(body: &str) -> BTreeMap<String, String> {
    let text = |from: &str, name: &str| {
        let start = from.find(&format!("<{name}>"))? + name.len() + 2;
        let end = from[start..].find(&format!("</{name}>"))? + start;
        Some(from[start..end].replace("&amp;", "&"))
    };
    body.split("<OutputKey>")
        .skip(1)
        .filter_map(|part| {
            let key = part.split('<').next()?.to_owned();
            Some((key, text(part, "OutputValue")?))
        })
        .collect()
}

/// Puts each function's folder together, and a template that names those folders.
fn stage_all(root: &Path, stage: &Path, release: Option<&Release>) -> anyhow::Result<PathBuf> {
    let template_path = root.join("template.yaml");
    let template = std::fs::read_to_string(&template_path)
        .with_context(|| format!("reading {}", template_path.display()))?;
    let mut built = String::new();
    for line in template.lines() {
        built.push_str(&match line.trim_start().split_once(": ") {
            Some(("CodeUri", uri)) => {
                let function = uri.trim().trim_start_matches("functions/");
                let folder = stage_function(root, stage, function, release)?;
                line.replace(uri, &folder.display().to_string())
            }
            Some(("DefinitionUri", uri)) => line.replace(uri, &root.join(uri.trim()).display().to_string()),
            _ => line.to_owned(),
        });
        built.push('\n');
    }
    let path = stage.join("template.yaml");
    std::fs::write(&path, built)?;
    Ok(path)
}

/// A function's folder as Lambda sees it: `bootstrap`, and beside it what is packaged with it.
fn stage_function(
    root: &Path,
    stage: &Path,
    function: &str,
    release: Option<&Release>,
) -> anyhow::Result<PathBuf> {
    let folder = stage.join(function);
    std::fs::create_dir_all(&folder)?;
    let binary = target(root).join("debug").join(function);
    let bootstrap = folder.join("bootstrap");
    std::fs::copy(&binary, &bootstrap)
        .with_context(|| format!("copying {}; `make binaries` builds it", binary.display()))?;
    // A debug binary is mostly symbols, which nobody looks at here and which have to be uploaded.
    let stripped = std::process::Command::new("strip").arg(&bootstrap).status();
    if !stripped.is_ok_and(|status| status.success()) {
        tracing::debug!(function, "strip is not here; the binary is deployed with its symbols");
    }
    if let (Some(release), true) = (release, function.starts_with("flux_")) {
        let to = folder.join("flux-release").join(&release.version);
        std::fs::create_dir_all(&to)?;
        for entry in std::fs::read_dir(&release.folder)
            .with_context(|| format!("reading {}", release.folder.display()))?
        {
            let entry = entry?;
            if entry.path().extension().is_some_and(|extension| extension == "yaml") {
                std::fs::copy(entry.path(), to.join(entry.file_name()))?;
            }
        }
    }
    Ok(folder)
}

/// Where cargo builds to.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_read_from_the_description() {
        let body = "<Outputs><member><OutputKey>A</OutputKey><OutputValue>x&amp;y</OutputValue></member>\
                    <member><OutputKey>B</OutputKey><OutputValue>2</OutputValue></member></Outputs>";
        let expected = [("A", "x&y"), ("B", "2")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(outputs(body), BTreeMap::from(expected));
    }
}
