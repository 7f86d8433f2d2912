//! Where a release comes from, and what is refused.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use flux::release::{Release, load_from};
use replies::{Exchange, Replies, on};
use sha2::{Digest, Sha256};
use step::ErrorName;
use step::request::FluxOptions;
use transport::Transport;

fn miniature() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("miniature/v2.9.4")
}

fn texts() -> BTreeMap<String, String> {
    let release = Release::from_dir("v2.9.4", &miniature()).expect("the miniature release");
    release.names().map(|name| (name.to_owned(), release.text(name).expect("there").to_owned())).collect()
}

fn packed(tar: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(tar).expect("packed");
    gzip.finish().expect("packed")
}

fn header(kind: tar::EntryType, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header
}

/// An archive of files, with names as they are, even where `tar` would not write them.
fn archive<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = header(tar::EntryType::Regular, content.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.append(&header, content).expect("appended");
    }
    packed(&tar.into_inner().expect("finished"))
}

fn whole() -> Vec<u8> {
    let texts = texts();
    archive(texts.iter().map(|(name, text)| (name.as_str(), text.as_bytes())))
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02X}")).collect()
}

#[test]
fn an_archive_is_read_as_the_folder_is() {
    let bytes = whole();
    let release = Release::from_tar_gz("v2.9.4", &bytes, Some(&sum(&bytes))).expect("reads");
    assert_eq!(release, Release::from_dir("v2.9.4", &miniature()).expect("reads"));
    let texts = texts();
    let dotted: Vec<(String, &str)> =
        texts.iter().map(|(name, text)| (format!("./{name}"), text.as_str())).collect();
    let bytes = archive(
        [("./", b"".as_slice()), ("./README.md", b"not read")]
            .into_iter()
            .filter(|(name, _)| *name != "./")
            .chain(dotted.iter().map(|(name, text)| (name.as_str(), text.as_bytes()))),
    );
    assert_eq!(Release::from_tar_gz("v2.9.4", &bytes, None).expect("reads"), release);
}

#[test]
fn a_bad_archive_is_refused() {
    let link = |kind| {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = header(kind, 0);
        tar.append_link(&mut header, "rbac.yaml", "/etc/passwd").expect("appended");
        packed(&tar.into_inner().expect("finished"))
    };
    let many: Vec<String> = (0..70).map(|index| format!("{index}.txt")).collect();
    let zeros = vec![b' '; 40 << 20];
    let good = whole();
    for (what, bytes, text) in [
        ("no gzip", b"no archive".to_vec(), "cannot be unpacked"),
        ("no tar", packed(&[b'x'; 2000]), "cannot be unpacked"),
        ("cut off", good[..good.len() / 2].to_vec(), "cannot be unpacked"),
        ("a path out of it", archive([("../rbac.yaml", b"a: b".as_slice())]), "../rbac.yaml"),
        ("an absolute path", archive([("/etc/rbac.yaml", b"a: b".as_slice())]), "/etc/rbac.yaml"),
        ("a folder's file", archive([("sub/rbac.yaml", b"a: b".as_slice())]), "sub/rbac.yaml"),
        ("a symbolic link", link(tar::EntryType::Symlink), "neither a file nor a folder"),
        ("a hard link", link(tar::EntryType::Link), "neither a file nor a folder"),
        ("a pipe", link(tar::EntryType::Fifo), "neither a file nor a folder"),
        (
            "many entries",
            archive(many.iter().map(|name| (name.as_str(), b"".as_slice()))),
            "more than 64 entries",
        ),
        ("a bomb", archive([("rbac.yaml", zeros.as_slice())]), "unpack"),
        ("bytes that are no text", archive([("rbac.yaml", b"\xff\xfe".as_slice())]), "rbac.yaml is not text"),
        ("a file twice", archive([("a.yaml", b"".as_slice()), ("a.yaml", b"")]), "a.yaml twice"),
    ] {
        let error = Release::from_tar_gz("v2.9.4", &bytes, None).expect_err(what);
        assert_eq!(error.name, ErrorName::InvalidInput, "{what}");
        assert!(error.message.contains(text), "{what}: {error}");
    }
    let error = Release::from_tar_gz("v2.9.4", &good, Some(&"0".repeat(64))).expect_err("another sum");
    assert!(error.message.contains(&sum(&good).to_lowercase()), "{error}");
}

#[test]
fn what_is_not_flux_is_refused_by_the_files_name() {
    let foreign = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: helm-controller}\n";
    for (file, text, what) in [
        ("helm-controller.yaml", "a: [", "not YAML"),
        ("helm-controller.yaml", "just text", "no Kubernetes object"),
        ("helm-controller.yaml", "", "no object"),
        ("helm-controller.yaml", foreign, "not Flux's"),
        ("rbac.yaml", "apiVersion: x.example.com/v1\nkind: X\nmetadata: {name: x}\n", "not Flux's"),
        ("unknown.yaml", foreign, "not Flux's"),
    ] {
        let mut files = texts();
        files.insert(file.to_owned(), text.to_owned());
        let error = Release::new("v2.9.4", files).expect_err(what);
        assert_eq!(error.name, ErrorName::InvalidInput);
        assert!(error.message.contains(file) && error.message.contains(what), "{error}");
    }
}

#[test]
fn missing_files_are_named() {
    for (file, without, text) in [
        ("helm-controller.yaml", FluxOptions::default(), "helm-controller.yaml"),
        ("rbac.yaml", FluxOptions::default(), "rbac.yaml"),
        ("policies.yaml", FluxOptions::default(), "policies.yaml"),
        ("policies.yaml", FluxOptions { network_policy: false, ..FluxOptions::default() }, ""),
        ("source-watcher.yaml", FluxOptions::default(), ""),
        (
            "source-watcher.yaml",
            FluxOptions { components_extra: vec!["source-watcher".to_owned()], ..FluxOptions::default() },
            "source-watcher.yaml",
        ),
    ] {
        let mut files = texts();
        files.remove(file);
        let result = Release::new("v2.9.4", files).expect("a release").check(&without);
        match result {
            Ok(()) => assert_eq!(text, "", "{file}"),
            Err(error) => assert!(!text.is_empty() && error.message.contains(text), "{error}"),
        }
    }
}

async fn loaded(
    root: Option<&Path>,
    options: &FluxOptions,
    exchanges: Vec<Exchange>,
) -> Result<Release, step::StepError> {
    let replies = Replies::new(exchanges);
    let transport = Transport::with_connector(&replies.config(), replies.connector());
    let result = load_from(root, &transport, options).await;
    replies.finish();
    result
}

#[tokio::test]
async fn packaged_files_come_first_and_nothing_is_fetched() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("flux-release/v2.9.4");
    std::fs::create_dir_all(&folder).expect("made");
    for (name, text) in texts() {
        std::fs::write(folder.join(name), text).expect("written");
    }
    let options = FluxOptions { release: Some("s3://bucket/flux".to_owned()), ..FluxOptions::default() };
    loaded(Some(root.path()), &options, vec![]).await.expect("the folder");

    let summed = FluxOptions { sha256: Some(sum(&whole())), ..FluxOptions::default() };
    let error = loaded(Some(root.path()), &summed, vec![]).await.expect_err("a folder has no sum");
    assert!(error.message.starts_with("flux.sha256"), "{error}");
    std::fs::write(root.path().join("flux-release/v2.9.4.tar.gz"), whole()).expect("written");
    loaded(Some(root.path()), &summed, vec![]).await.expect("the archive");
}

#[tokio::test]
async fn an_s3_prefix_is_read_with_a_signature() {
    let options =
        FluxOptions { release: Some("s3://my.bucket/a flux/".to_owned()), ..FluxOptions::default() };
    let call = "GET /my.bucket/a%20flux/v2.9.4/manifests.tar.gz";
    let get = || on(call);
    loaded(None, &options, vec![get().raw(200, "application/gzip", &whole())]).await.expect("loads");
    for (reply, name, text) in [
        (
            get().xml_error(404, "NoSuchKey", "x"),
            ErrorName::InvalidInput,
            "s3://my.bucket/a flux/v2.9.4/manifests.tar.gz",
        ),
        (get().xml_error(403, "AccessDenied", "no"), ErrorName::Denied, "s3:GetObject"),
        (get().xml_error(503, "SlowDown", "x"), ErrorName::Transient, "SlowDown"),
        (
            get().raw(301, "text/xml", b"<Error><Code>PermanentRedirect</Code></Error>"),
            ErrorName::InvalidInput,
            "another region",
        ),
    ] {
        let error = loaded(None, &options, vec![reply]).await.expect_err(text);
        assert_eq!(error.name, name, "{error}");
        assert!(error.message.contains(text), "{error}");
    }
}

#[tokio::test]
async fn an_address_is_followed_and_its_sum_is_checked() {
    let bytes = whole();
    let published = "GET /fluxcd/flux2/releases/download/v2.9.4/manifests.tar.gz";
    let moved =
        || on(published).raw(302, "text/plain", b"").header("location", "https://storage.example/file");
    let options = FluxOptions { sha256: Some(sum(&bytes)), ..FluxOptions::default() };
    let found = on("GET /file").raw(200, "application/gzip", &bytes);
    loaded(None, &options, vec![moved(), found]).await.expect("loads");

    let own =
        FluxOptions { release: Some("https://mirror.example/m.tar.gz".to_owned()), ..FluxOptions::default() };
    let get = || on("GET /m.tar.gz");
    loaded(None, &own, vec![get().raw(200, "application/gzip", &bytes)]).await.expect("loads");
    for (replies, name, text) in [
        (
            vec![get().raw(404, "text/plain", b"")],
            ErrorName::InvalidInput,
            "no release at https://mirror.example",
        ),
        (vec![get().raw(403, "text/plain", b"")], ErrorName::Denied, "HTTP 403"),
        (vec![get().raw(503, "text/plain", b"")], ErrorName::Transient, "HTTP 503"),
        (vec![get().raw(200, "text/html", b"<html>")], ErrorName::InvalidInput, "cannot be unpacked"),
        (
            vec![get().raw(302, "text/plain", b"").header("location", "http://storage.example/file")],
            ErrorName::InvalidInput,
            "not https://",
        ),
        (
            (0..6).map(|_| get().raw(302, "text/plain", b"").header("location", "/m.tar.gz")).collect(),
            ErrorName::InvalidInput,
            "redirected more than",
        ),
    ] {
        let error = loaded(None, &own, replies).await.expect_err(text);
        assert_eq!(error.name, name, "{error}");
        assert!(error.message.contains(text), "{error}");
    }
    let summed = FluxOptions { sha256: Some("0".repeat(64)), ..own };
    let error =
        loaded(None, &summed, vec![get().raw(200, "application/gzip", &bytes)]).await.expect_err("sum");
    assert!(error.message.contains("SHA-256"), "{error}");
}
