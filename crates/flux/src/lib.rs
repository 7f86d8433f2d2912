//! Flux: from a release to rendered manifests to a cluster that runs them.

pub mod apply;
pub mod detect;
pub mod folder;
pub mod kustomize;
mod object;
pub mod readiness;
pub mod release;
pub mod render;
pub mod sync;
pub mod version;
mod yaml;

#[cfg(test)]
mod fixture;
