//! A Flux release: the files of `manifests.tar.gz`, one per controller beside `rbac.yaml` and
//! `policies.yaml`.
//!
//! Flux's manifests belong to Flux and are not part of this repository. They come from what was
//! packaged with the function, from an S3 prefix, from an address, or from Flux's own release page,
//! in this order. Whatever the source, they are read with limits and checked to be Flux's.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use serde_json::Value;
use sha2::{Digest, Sha256};
use step::request::FluxOptions;
use step::{Result, StepError};
use transport::Transport;

use crate::object;
use crate::yaml;

/// Folder under `LAMBDA_TASK_ROOT` that packaged releases lie in.
const PACKAGED: &str = "flux-release";
/// Where Flux publishes its releases.
const PUBLISHED: &str = "https://github.com/fluxcd/flux2/releases/download";
const ARCHIVE: &str = "manifests.tar.gz";
/// The group that all of Flux's custom resources end in.
const GROUP: &str = ".fluxcd.io";
/// Files that are no controller's.
const SHARED_FILES: [&str; 2] = ["rbac.yaml", "policies.yaml"];

// A release has nine files, 80 KB packed and 360 KB unpacked; these limits leave room for growth and
// none for an archive that was made to fill the memory.
const MAX_PACKED: usize = 8 << 20;
const MAX_UNPACKED: u64 = 32 << 20;
const MAX_ENTRIES: usize = 64;

const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_REDIRECTS: usize = 5;

/// The manifests of one Flux release.
#[derive(Debug, Clone, PartialEq)]
pub struct Release {
    version: String,
    files: BTreeMap<String, File>,
}

#[derive(Debug, Clone, PartialEq)]
struct File {
    text: String,
    objects: Vec<Value>,
}

impl Release {
    /// Takes file name → text, and checks that it is Flux's.
    ///
    /// # Errors
    /// `InvalidInput` with the file's name, where one is not YAML or not Flux's.
    pub fn new(version: &str, files: BTreeMap<String, String>) -> Result<Release> {
        let mut release = Release { version: version.to_owned(), files: BTreeMap::new() };
        for (name, text) in files {
            let objects = release.parse(&name, &text)?;
            release.check_file(&name, &objects)?;
            release.files.insert(name, File { text, objects });
        }
        Ok(release)
    }

    /// Reads the `*.yaml` files of a folder.
    ///
    /// # Errors
    /// `InvalidInput`, where it cannot be read or is not Flux's.
    pub fn from_dir(version: &str, dir: &Path) -> Result<Release> {
        let failed = |path: &Path, error: &std::io::Error| {
            StepError::invalid_input(format!("Flux {version}: {} cannot be read: {error}", path.display()))
        };
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(dir).map_err(|error| failed(dir, &error))? {
            let path = entry.map_err(|error| failed(dir, &error))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.ends_with(".yaml") && path.is_file() {
                let text = std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
                files.insert(name.to_owned(), text);
            }
        }
        Release::new(version, files)
    }

    /// Reads a `manifests.tar.gz`. Where `sha256` is given, it must be the archive's.
    ///
    /// # Errors
    /// `InvalidInput`, where the archive has another hash, breaks a limit or is not Flux's.
    pub fn from_tar_gz(version: &str, archive: &[u8], sha256: Option<&str>) -> Result<Release> {
        let refused = |what: String| StepError::invalid_input(format!("Flux {version}: {ARCHIVE}: {what}"));
        if archive.len() > MAX_PACKED {
            return Err(refused(format!("it has more than {MAX_PACKED} bytes")));
        }
        if let Some(expected) = sha256 {
            let actual: String = Sha256::digest(archive).iter().map(|byte| format!("{byte:02x}")).collect();
            if !actual.eq_ignore_ascii_case(expected) {
                return Err(refused(format!(
                    "its SHA-256 is {actual}, but flux.sha256 is {expected}. Take the archive from a place you trust, or correct the sum"
                )));
            }
        }
        let unreadable = |error: std::io::Error| refused(format!("it cannot be unpacked: {error}"));
        let mut files = BTreeMap::new();
        let mut left = MAX_UNPACKED;
        // The limit holds for the whole stream, so that padding and headers count too.
        let stream = flate2::read::GzDecoder::new(archive).take(MAX_UNPACKED + 1);
        let mut tar = tar::Archive::new(stream);
        for (index, entry) in tar.entries().map_err(unreadable)?.enumerate() {
            let entry = entry.map_err(unreadable)?;
            if index >= MAX_ENTRIES {
                return Err(refused(format!("it has more than {MAX_ENTRIES} entries")));
            }
            let path = entry.path().map_err(unreadable)?.into_owned();
            let name = entry_name(&path).ok_or_else(|| {
                refused(format!("{} does not lie in the archive's own folder", path.display()))
            })?;
            let kind = entry.header().entry_type();
            if kind.is_dir() || kind.is_pax_global_extensions() {
                continue;
            }
            if !kind.is_file() {
                return Err(refused(format!("{} is neither a file nor a folder", path.display())));
            }
            if !name.ends_with(".yaml") {
                continue;
            }
            let mut text = String::new();
            let mut limited = entry.take(left + 1);
            limited.read_to_string(&mut text).map_err(|error| match error.kind() {
                std::io::ErrorKind::InvalidData => refused(format!("{name} is not text")),
                _ => unreadable(error),
            })?;
            left = left
                .checked_sub(text.len() as u64)
                .ok_or_else(|| refused(format!("it unpacks to more than {MAX_UNPACKED} bytes")))?;
            if files.insert(name.clone(), text).is_some() {
                return Err(refused(format!("it has {name} twice")));
            }
        }
        Release::new(version, files)
    }

    /// `v2.9.4`
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The files' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// A file's text.
    ///
    /// # Errors
    /// `InvalidInput`, where the release lacks the file.
    pub fn text(&self, file: &str) -> Result<&str> {
        Ok(&self.file(file)?.text)
    }

    /// Checks that everything is there that the options ask for.
    ///
    /// # Errors
    /// `InvalidInput` with the name of the first missing file.
    pub fn check(&self, options: &FluxOptions) -> Result<()> {
        self.file("rbac.yaml")?;
        if options.network_policy {
            self.file("policies.yaml")?;
        }
        for component in options.all_components() {
            self.file(&format!("{component}.yaml"))?;
        }
        Ok(())
    }

    /// A copy of a file's objects, in the file's order.
    pub(crate) fn objects(&self, file: &str) -> Result<Vec<Value>> {
        Ok(self.file(file)?.objects.clone())
    }

    /// Parses text that stands for the file.
    pub(crate) fn parse(&self, file: &str, text: &str) -> Result<Vec<Value>> {
        let objects =
            yaml::read(text).map_err(|error| self.bad(file, &format!("it is not YAML: {error}")))?;
        for object in &objects {
            let whole = !object::kind(object).is_empty()
                && object["apiVersion"].is_string()
                && !object::name(object).is_empty();
            if !whole {
                return Err(self.bad(file, "it holds something that is no Kubernetes object"));
            }
        }
        Ok(objects)
    }

    /// An error about one of the files.
    pub(crate) fn bad(&self, file: &str, what: &str) -> StepError {
        StepError::invalid_input(format!(
            "Flux {}: {file}: {what}. Take the release's own {ARCHIVE}, or name another flux.release",
            self.version
        ))
    }

    fn file(&self, name: &str) -> Result<&File> {
        self.files.get(name).ok_or_else(|| self.bad(name, "the release does not have this file"))
    }

    /// A controller's file has custom resources of Flux and a Deployment of the file's name; the
    /// shared files have neither.
    fn check_file(&self, name: &str, objects: &[Value]) -> Result<()> {
        if objects.is_empty() {
            return Err(self.bad(name, "it holds no object"));
        }
        if SHARED_FILES.contains(&name) {
            let foreign = objects.iter().find(|object| {
                let (group, _) = object::group_version(object);
                !(group.is_empty() || group.ends_with(".k8s.io"))
            });
            return match foreign {
                Some(object) => Err(self.bad(
                    name,
                    &format!("it is not Flux's: it holds {} {}", object::kind(object), object::name(object)),
                )),
                None => Ok(()),
            };
        }
        let Some(controller) = name.strip_suffix(".yaml") else { return Ok(()) };
        let deployed = objects.iter().any(|object| {
            object::kind(object) == "Deployment"
                && object::name(object) == controller
                && object["metadata"]["labels"]["app.kubernetes.io/part-of"] == "flux"
        });
        let defined = objects.iter().any(|object| {
            object::kind(object) == "CustomResourceDefinition"
                && object["spec"]["group"].as_str().is_some_and(|group| group.ends_with(GROUP))
        });
        if deployed && defined {
            return Ok(());
        }
        Err(self.bad(name, &format!("it is not Flux's: it defines no {controller} of Flux")))
    }
}

/// The name of an entry of the archive's own folder; `None` for anything deeper or outside.
fn entry_name(path: &Path) -> Option<String> {
    let mut names = path.components().filter(|part| *part != Component::CurDir);
    match (names.next(), names.next()) {
        (None, _) => Some(String::new()),
        (Some(Component::Normal(name)), None) => name.to_str().map(str::to_owned),
        _ => None,
    }
}

/// Loads releases, and keeps the last one for the next call: a step is polled, and a warm function
/// should not fetch the same archive each time.
#[derive(Debug)]
pub struct Releases {
    transport: Transport,
    kept: tokio::sync::Mutex<Option<(FluxOptions, Arc<Release>)>>,
}

impl Releases {
    /// Loads over this transport.
    pub fn new(transport: Transport) -> Self {
        Releases { transport, kept: tokio::sync::Mutex::default() }
    }

    /// The release that the options ask for.
    ///
    /// # Errors
    /// As [`load`].
    pub async fn get(&self, options: &FluxOptions) -> Result<Arc<Release>> {
        let mut kept = self.kept.lock().await;
        if let Some((of, release)) = kept.as_ref()
            && of == options
        {
            return Ok(release.clone());
        }
        let release = Arc::new(load(&self.transport, options).await?);
        *kept = Some((options.clone(), release.clone()));
        Ok(release)
    }
}

/// Loads the release that the options ask for: packaged with the function, or from `flux.release`,
/// or from Flux's release page.
///
/// # Errors
/// `InvalidInput`, where the release is not Flux's, lacks a controller or has another SHA-256;
/// `Transient`, where it cannot be fetched now; `Denied`, where S3 refuses it.
pub async fn load(transport: &Transport, options: &FluxOptions) -> Result<Release> {
    let root = std::env::var_os("LAMBDA_TASK_ROOT").map(PathBuf::from);
    load_from(root.as_deref(), transport, options).await
}

/// The same with the folder that the function was unpacked to.
///
/// # Errors
/// As [`load`].
pub async fn load_from(root: Option<&Path>, transport: &Transport, options: &FluxOptions) -> Result<Release> {
    let version = options.version.as_str();
    let sha256 = options.sha256.as_deref();
    let release = match packaged(root, version, sha256)? {
        Some(release) => release,
        None => {
            let archive = match options.release.as_deref() {
                Some(address) if address.starts_with("s3://") => from_s3(transport, address, version).await?,
                Some(address) => from_https(transport, address).await?,
                None => from_https(transport, &format!("{PUBLISHED}/{version}/{ARCHIVE}")).await?,
            };
            Release::from_tar_gz(version, &archive, sha256)?
        }
    };
    release.check(options)?;
    Ok(release)
}

fn packaged(root: Option<&Path>, version: &str, sha256: Option<&str>) -> Result<Option<Release>> {
    let Some(folder) = root.map(|root| root.join(PACKAGED)) else { return Ok(None) };
    let archive = folder.join(format!("{version}.tar.gz"));
    if archive.is_file() {
        let bytes = std::fs::read(&archive).map_err(|error| {
            StepError::internal(format!("Flux {version}: {} cannot be read: {error}", archive.display()))
        })?;
        return Release::from_tar_gz(version, &bytes, sha256).map(Some);
    }
    let files = folder.join(version);
    if !files.is_dir() {
        return Ok(None);
    }
    if sha256.is_some() {
        return Err(StepError::invalid_input(format!(
            "flux.sha256: the functions carry Flux {version} as single files, which have no sum of their own. Leave flux.sha256 out, or package the archive"
        )));
    }
    Release::from_dir(version, &files).map(Some)
}

/// `s3://bucket/prefix` holds `<version>/manifests.tar.gz`, as Flux's release page does.
async fn from_s3(transport: &Transport, address: &str, version: &str) -> Result<Vec<u8>> {
    let path = address.strip_prefix("s3://").unwrap_or(address);
    let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
    let prefix = prefix.trim_matches('/');
    let key =
        [prefix, version, ARCHIVE].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    let region = transport.region()?;
    let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    // The bucket stands in the path, where any name is allowed, dots too.
    let endpoint = transport.endpoint("s3", &format!("https://s3.{region}.{suffix}"));
    let request =
        Request::get(format!("{endpoint}/{}/{}", encoded(bucket), encoded(&key))).body(Vec::new()).map_err(
            |_| StepError::invalid_input(format!("flux.release: {address:?} is not s3://bucket/prefix")),
        )?;
    let reply = transport.send_signed("s3", request, TIMEOUT, MAX_PACKED).await?;
    if reply.status() == StatusCode::OK {
        return Ok(reply.into_body());
    }
    let resource = format!("s3://{bucket}/{key}");
    let body = String::from_utf8_lossy(reply.body()).into_owned();
    let tag = |name: &str| -> Option<&str> {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
    };
    let code = tag("Code").unwrap_or("Unknown");
    match (reply.status().as_u16(), code) {
        (404, _) => Err(StepError::invalid_input(format!(
            "flux.release: {resource} does not exist ({code}). Put Flux's {ARCHIVE} there, for example with `make bundle-flux`"
        ))),
        (301 | 307, _) => Err(StepError::invalid_input(format!(
            "flux.release: the bucket {bucket} is in another region than {region}. Use a bucket of this region"
        ))),
        (status, _) => Err(StepError::from_code(
            "s3:GetObject",
            &resource,
            code,
            tag("Message").unwrap_or("no message"),
            Some(status),
        )),
    }
}

/// A plain download. Flux's release page answers with a redirect to its storage.
async fn from_https(transport: &Transport, address: &str) -> Result<Vec<u8>> {
    let mut url = address.to_owned();
    for _ in 0..=MAX_REDIRECTS {
        let request = Request::get(&url)
            .header("user-agent", "eks-flux-bootstrap")
            .body(Vec::new())
            .map_err(|_| StepError::invalid_input(format!("flux.release: {address} is not an address")))?;
        let reply = transport.send(request, TIMEOUT, MAX_PACKED).await?;
        if !reply.status().is_redirection() {
            return downloaded(address, reply);
        }
        url = redirected(&url, &reply).ok_or_else(|| {
            StepError::invalid_input(format!(
                "flux.release: {address} leads to an address that is not https://"
            ))
        })?;
    }
    Err(StepError::invalid_input(format!(
        "flux.release: {address} is redirected more than {MAX_REDIRECTS} times"
    )))
}

fn downloaded(address: &str, reply: Response<Vec<u8>>) -> Result<Vec<u8>> {
    match reply.status().as_u16() {
        200 => Ok(reply.into_body()),
        404 | 410 => Err(StepError::invalid_input(format!(
            "flux.version: there is no release at {address}. Name a version that Flux has released, or package one with `make bundle-flux`"
        ))),
        status @ (401 | 403) => Err(StepError::denied(format!(
            "{address} answers with HTTP {status}. Put the release where the functions may read it, for example under an s3:// prefix"
        ))),
        status @ (408 | 429 | 500..) => Err(StepError::transient(format!(
            "{address} answers with HTTP {status}. The step is tried again; an s3:// prefix or a packaged release does without that address"
        ))),
        status => Err(StepError::invalid_input(format!(
            "flux.release: {address} answers with HTTP {status} instead of an archive"
        ))),
    }
}

/// Where a redirect leads, if that is an `https://` address of the same or another host.
fn redirected(from: &str, reply: &Response<Vec<u8>>) -> Option<String> {
    let target = reply.headers().get("location")?.to_str().ok()?;
    if target.starts_with("https://") {
        return Some(target.to_owned());
    }
    let host = from.strip_prefix("https://")?.split('/').next()?;
    target.starts_with('/').then(|| format!("https://{host}{target}"))
}

/// Percent-encodes a path as S3's signature wants it.
fn encoded(path: &str) -> String {
    path.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
