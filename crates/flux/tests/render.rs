//! The rendered files, byte for byte.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flux::release::Release;
use flux::render::{Rendered, folder, render};
use serde_json::{Value, json};
use step::ErrorName;
use step::request::FluxOptions;

const URL: &str = "https://git-codecommit.us-east-1.amazonaws.com/v1/repos/REPO";

fn options(value: Value) -> FluxOptions {
    serde_json::from_value(value).expect("options")
}

fn miniature() -> Release {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("miniature/v2.9.4");
    Release::from_dir("v2.9.4", &dir).expect("the miniature release")
}

fn rendered(value: Value) -> Rendered {
    render(&miniature(), &options(value), URL, "flux-branch").expect("renders")
}

fn texts(release: &Release) -> BTreeMap<String, String> {
    release.names().map(|name| (name.to_owned(), release.text(name).expect("there").to_owned())).collect()
}

#[test]
fn the_real_release_renders_as_flux_renders_it() {
    let Some(dir) = std::env::var_os("FLUX_RELEASE_DIR").map(PathBuf::from) else {
        eprintln!("SKIPPED: the comparison with Flux's own output needs FLUX_RELEASE_DIR");
        return;
    };
    let release = Release::from_dir("v2.9.4", &dir).expect("a Flux release");
    let expected = dir.join("../expected");
    let mut compared = 0;
    for namespace in ["flux-system", "fluxcd"] {
        let options = options(json!({ "namespace": namespace }));
        let rendered = render(&release, &options, URL, "flux-branch").expect("renders");
        for (name, text) in rendered.files() {
            let Ok(expected) = std::fs::read_to_string(expected.join(format!("{namespace}.{name}"))) else {
                continue;
            };
            compared += 1;
            if name == "kustomization.yaml" {
                // Ours goes on with the patch for Fargate.
                assert!(text.starts_with(&expected), "{namespace} {name}");
            } else if let Some((line, (ours, theirs))) =
                text.lines().zip(expected.lines()).enumerate().find(|(_, (ours, theirs))| ours != theirs)
            {
                panic!("{namespace} {name}, line {}: {ours:?} instead of {theirs:?}", line + 1);
            } else {
                assert_eq!(text.len(), expected.len(), "{namespace} {name}");
            }
        }
    }
    assert!(compared > 0, "there is nothing to compare with beside {}", dir.display());
}

#[test]
fn the_defaults() {
    let rendered = rendered(json!({}));
    insta::assert_snapshot!("defaults_sync", rendered.gotk_sync);
    insta::assert_snapshot!("defaults_kustomization", rendered.kustomization);
    insta::assert_snapshot!("defaults_components", rendered.gotk_components);
}

#[test]
fn every_option() {
    let rendered = rendered(json!({
        "version": "v2.9.4",
        "namespace": "gitops",
        "path": "./clusters/demo",
        "interval": "90s",
        "watchAllNamespaces": false,
        "components": ["source-controller", "kustomize-controller"],
        "componentsExtra": ["source-watcher"],
        "registry": "registry.example.com:5000/flux",
        "imagePullSecret": "regcred",
        "networkPolicy": false,
        "logLevel": "debug",
        "clusterDomain": "k8s.example.internal",
        "tolerationKeys": ["dedicated", "true"],
        "secretName": "git-auth",
        "recurseSubmodules": true,
        "resources": {"cpu": "1", "memory": "2Gi"},
    }));
    insta::assert_snapshot!("every_option_sync", rendered.gotk_sync);
    insta::assert_snapshot!("every_option_kustomization", rendered.kustomization);
    insta::assert_snapshot!("every_option_components", rendered.gotk_components);
}

/// Each option changes the lines that it should, and no other.
#[test]
fn options_change_their_own_lines() {
    let plain = rendered(json!({})).gotk_components;
    let lines = |text: &str| text.lines().map(str::trim_start).map(str::to_owned).collect::<Vec<_>>();
    for (option, gone, come) in [
        (json!({"logLevel": "error"}), "- --log-level=info", "- --log-level=error"),
        (
            json!({"watchAllNamespaces": false}),
            "- --watch-all-namespaces=true",
            "- --watch-all-namespaces=false",
        ),
        (
            json!({"clusterDomain": "x.y"}),
            "- --storage-adv-addr=source-controller.$(RUNTIME_NAMESPACE).svc.cluster.local.",
            "- --storage-adv-addr=source-controller.$(RUNTIME_NAMESPACE).svc.x.y.",
        ),
        (
            json!({"registry": "r.example:5000/a/b"}),
            "image: ghcr.io/fluxcd/helm-controller:v1.6.3",
            "image: r.example:5000/a/b/helm-controller:v1.6.3",
        ),
        (
            json!({"components": ["source-controller", "kustomize-controller", "helm-controller"]}),
            "- --events-addr=http://notification-controller.$(RUNTIME_NAMESPACE).svc.cluster.local./",
            "- --events-addr=",
        ),
        (json!({"networkPolicy": false}), "kind: NetworkPolicy", ""),
        (json!({"componentsExtra": ["source-watcher"]}), "", "- --feature-gates=ExternalArtifact=true"),
        (json!({"imagePullSecret": "r"}), "", "- name: r"),
        (json!({"tolerationKeys": ["on"]}), "", "- key: \"on\""),
        (json!({"namespace": "x"}), "namespace: fluxcd", "namespace: x"),
        (json!({"namespace": "x"}), "name: crd-controller-fluxcd", "name: crd-controller-x"),
    ] {
        let changed = lines(&rendered(option.clone()).gotk_components);
        let plain = lines(&plain);
        if !gone.is_empty() {
            assert!(plain.iter().any(|line| line == gone), "{option}: {gone}");
            assert!(!changed.iter().any(|line| line == gone), "{option}: {gone} is still there");
        }
        if !come.is_empty() {
            assert!(changed.iter().any(|line| line == come), "{option}: {come} is not there");
        }
    }
}

#[test]
fn the_version_is_the_releases() {
    let release = Release::new("v2.8.0", texts(&miniature())).expect("a release");
    let text = render(&release, &options(json!({"version": "v2.8.0"})), URL, "main")
        .expect("renders")
        .gotk_components;
    assert!(
        text.starts_with(
            "---\n# This manifest was generated by flux. DO NOT EDIT.\n# Flux Version: v2.8.0\n"
        )
    );
    assert!(text.contains("app.kubernetes.io/version: v2.8.0"));
    assert!(!text.contains("v2.9.4"));
}

#[test]
fn the_folder_follows_from_path_and_namespace() {
    for (path, expected) in [("a/b", "a/b/fluxcd"), ("./a", "a/fluxcd")] {
        assert_eq!(folder(&options(json!({ "path": path }))), expected);
    }
}

#[test]
fn a_release_without_its_form_is_refused_by_the_files_name() {
    let good = texts(&miniature());
    for (file, old, new, text) in [
        ("helm-controller.yaml", "        - --log-level=info\n", "", ""),
        ("helm-controller.yaml", "      - args:\n", "      - command:\n", "has no arguments"),
        ("kustomize-controller.yaml", "  template:\n", "  other:\n", "has no pod template"),
    ] {
        let mut files = good.clone();
        let changed = files[file].replace(old, new);
        assert_ne!(changed, files[file], "{old}");
        files.insert(file.to_owned(), changed);
        let release = Release::new("v2.9.4", files).expect("still Flux's");
        let result = render(&release, &FluxOptions::default(), URL, "main");
        if text.is_empty() {
            // An argument fewer is not seen as long as the places in use are there.
            assert!(result.is_ok());
            continue;
        }
        let error = result.expect_err(file);
        assert_eq!(error.name, ErrorName::InvalidInput);
        assert!(error.message.contains(file) && error.message.contains(text), "{error}");
    }
    let mut files = good.clone();
    files.remove("source-watcher.yaml");
    let release = Release::new("v2.9.4", files).expect("a release");
    let extra = options(json!({"componentsExtra": ["source-watcher"]}));
    let error = render(&release, &extra, URL, "main").expect_err("missing");
    assert!(error.message.contains("source-watcher.yaml"), "{error}");
    render(&release, &FluxOptions::default(), URL, "main").expect("does not need it");
}
