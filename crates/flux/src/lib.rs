//! Flux: from a release to rendered manifests to a cluster that runs them.

pub mod apply;
pub mod detect;
pub mod kustomize;
pub mod readiness;
pub mod release;
pub mod render;
pub mod sync;

#[cfg(test)]
mod fixture;
