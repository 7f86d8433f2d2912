//! The texts of the first commit.

use step::Request;

/// Git keeps no empty folders, and CodeCommit's API takes no empty files: so one line.
pub const KEEP: &str = "# Keeps this folder in Git until the first manifest is here.\n";

/// The message of the first commit.
pub fn message(request: &Request) -> String {
    format!("Add the folder that Flux applies to cluster {}\n", request.cluster)
}

/// The README: what the repository is, where manifests go, what Flux does with them. It follows from
/// the request alone.
pub fn text(request: &Request) -> String {
    let cluster = &request.cluster;
    let branch = &request.repository.branch;
    let namespace = &request.flux.namespace;
    let path = request.flux.path.trim_start_matches("./").trim_end_matches('/');
    let interval = &request.flux.interval;
    format!(
        "# What runs on the EKS cluster {cluster}

[Flux](https://fluxcd.io) reads the branch `{branch}` of this repository every {interval} and makes the cluster
`{cluster}` look like the folder `{path}`.

## Where to put manifests

Put Kubernetes manifests (`.yaml`), or kustomizations, anywhere below `{path}/`, and push to `{branch}`:

```
{path}/
├── {namespace}/          Flux itself: see below
└── nginx/
    └── deployment.yaml   for example
```

- What you add here is created in the cluster, what you change is changed.
- **What you delete here is deleted in the cluster.**
- What somebody changes in the cluster by hand is set back to what is written here.
- Secrets do not belong here in plain text: see Flux's guide to [SOPS](https://fluxcd.io/flux/guides/mozilla-sops/).

## Flux's own files

`{path}/{namespace}/` is written by the bootstrap, and by `flux bootstrap`:

- `gotk-components.yaml` and `gotk-sync.yaml` are generated; they are overwritten by the next run.
- `kustomization.yaml` is yours: change Flux by patches in it, and they are kept.

## How it is going

```
flux get all --namespace {namespace}
kubectl --namespace {namespace} get gitrepository,kustomization
```

This file was written once, by eks-flux-bootstrap. Edit or delete it as you like.
"
    )
}
