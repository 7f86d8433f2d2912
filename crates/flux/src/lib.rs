//! Flux: from a release to rendered manifests to a cluster that runs them.

pub mod kustomize;
pub mod release;
pub mod render;
