//! Deploying the shipped template with the built functions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, anyhow, bail};

use tokio::process::Command;

use super::archive::{self, Source};
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
        let (edge, region) = (self.edge().url(), &self.options().region);
        let mut sam = prepare(
            &self.options().root,
            &self.folder().join("stage"),
            release,
            self.program("sam"),
            &edge,
            region,
        )
        .await?;
        sam.args(parameters.iter().map(|(name, value)| format!("{name}={value}")));
        let output = sam.output().await.context("sam does not run; `make setup` installs it")?;
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

/// Packs the functions and completes a `sam` command so that it deploys them to the world whose edge
/// has this address. What is added to its arguments are further parameters of the template.
///
/// # Errors
/// Where a function is not built.
pub async fn prepare(
    root: &Path,
    stage: &Path,
    release: Option<&Release>,
    mut sam: Command,
    edge: &str,
    region: &str,
) -> anyhow::Result<Command> {
    let template = {
        let (root, stage, release) = (root.to_owned(), stage.to_owned(), release.cloned());
        tokio::task::spawn_blocking(move || stage_all(&root, &stage, release.as_ref())).await??
    };
    sam.current_dir(stage)
        .args(["deploy", "--stack-name", STACK, "--resolve-s3", "--region", region])
        .args(["--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset", "--no-progressbar"])
        .arg("--no-fail-on-empty-changeset")
        .arg("--template-file")
        .arg(&template)
        .arg("--parameter-overrides")
        .arg(format!("GitEndpoint={edge}"))
        // The pause between two looks at the stack, which is made in a second or two here.
        .env("SAM_CLI_POLL_DELAY", "0.3")
        .stdin(Stdio::null());
    Ok(sam)
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

/// Packs each function, and writes a template that names the archives.
fn stage_all(root: &Path, stage: &Path, release: Option<&Release>) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(stage)?;
    let path = root.join("template.yaml");
    let template = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let uris: Vec<&str> = template.lines().filter_map(|line| property(line, "CodeUri")).collect();
    let archives: Vec<anyhow::Result<PathBuf>> = std::thread::scope(|scope| {
        let packing: Vec<_> =
            uris.iter().map(|uri| scope.spawn(move || archive(root, uri, release))).collect();
        let joined = packing.into_iter().map(|thread| match thread.join() {
            Ok(archive) => archive,
            Err(_) => Err(anyhow!("packing a function panicked")),
        });
        joined.collect()
    });
    let archives = archives.into_iter().collect::<anyhow::Result<Vec<PathBuf>>>()?;
    let mut archives = uris.iter().zip(archives).collect::<BTreeMap<_, _>>();
    let mut built = String::new();
    for line in template.lines() {
        built.push_str(&match (property(line, "CodeUri"), property(line, "DefinitionUri")) {
            (Some(uri), _) => match archives.remove(&uri) {
                Some(archive) => line.replace(uri, &archive.display().to_string()),
                None => bail!("{uri} occurs twice in {}", path.display()),
            },
            (_, Some(uri)) => line.replace(uri, &root.join(uri).display().to_string()),
            _ => line.to_owned(),
        });
        built.push('\n');
    }
    let path = stage.join("template.yaml");
    std::fs::write(&path, built)?;
    Ok(path)
}

/// The value of a property that stands alone on a line.
fn property<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    Some(line.trim_start().strip_prefix(name)?.strip_prefix(':')?.trim())
}

/// A function as Lambda gets it: `bootstrap`, and beside it what is packaged with it.
fn archive(root: &Path, uri: &str, release: Option<&Release>) -> anyhow::Result<PathBuf> {
    let function = uri.trim_start_matches("functions/").trim_end_matches('/');
    let binary = target(root).join("debug").join(function);
    if !binary.exists() {
        bail!("{} is missing; `make binaries` builds it", binary.display());
    }
    let mut sources = vec![Source { name: "bootstrap".to_owned(), path: binary, program: true }];
    if let (Some(release), true) = (release, function.starts_with("flux_")) {
        let entries = std::fs::read_dir(&release.folder)
            .with_context(|| format!("reading {}", release.folder.display()))?;
        for entry in entries {
            let entry = entry?;
            if entry.path().extension().is_some_and(|extension| extension == "yaml") {
                let name =
                    format!("flux-release/{}/{}", release.version, entry.file_name().to_string_lossy());
                sources.push(Source { name, path: entry.path(), program: false });
            }
        }
        sources.sort_by(|left, right| left.name.cmp(&right.name));
    }
    archive::of(&target(root).join("sandbox"), function, &sources)
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
