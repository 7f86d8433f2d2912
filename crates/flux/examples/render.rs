//! Writes what a bootstrap would commit, for anyone who wants to see it before.
//!
//! `cargo run -p flux --example render -- --release DIR --options FILE.json --out DIR`
//!
//! DIR holds a Flux release's files (or is its `manifests.tar.gz`); FILE.json the request's `flux`
//! object, and beside its fields `url` and `branch`. Whatever is absent has its default.

use std::error::Error;
use std::path::PathBuf;

use flux::release::Release;
use flux::render::render;
use step::Request;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut release, mut options, mut out) = (None, None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().map(PathBuf::from);
        match flag.as_str() {
            "--release" => release = value,
            "--options" => options = value,
            "--out" => out = value,
            _ => return Err(format!("{flag} is not known; {USAGE}").into()),
        }
    }
    let (Some(release), Some(out)) = (release, out) else { return Err(USAGE.into()) };

    let mut given = match options {
        Some(file) => serde_json::from_slice(&std::fs::read(file)?)?,
        None => serde_json::json!({}),
    };
    let mut text = |field: &str, default: &str| match given.as_object_mut().and_then(|map| map.remove(field))
    {
        None => Ok(default.to_owned()),
        Some(serde_json::Value::String(text)) => Ok(text),
        Some(other) => Err(format!("{field}: {other} is not a text")),
    };
    let url = text("url", "https://git-codecommit.us-east-1.amazonaws.com/v1/repos/REPO")?;
    let branch = text("branch", "flux-branch")?;
    // The checks of a whole request hold here, too.
    let request =
        serde_json::json!({ "cluster": "example", "repository": { "branch": branch }, "flux": given });
    let options = Request::parse(&request)?.flux;

    let release = if release.is_dir() {
        Release::from_dir(&options.version, &release)?
    } else {
        Release::from_tar_gz(&options.version, &std::fs::read(release)?, options.sha256.as_deref())?
    };
    std::fs::create_dir_all(&out)?;
    for (name, content) in render(&release, &options, &url, &branch)?.files() {
        std::fs::write(out.join(name), content)?;
    }
    Ok(())
}

const USAGE: &str = "use: render --release DIR --options FILE.json --out DIR";
