//! A Flux release: the files of `manifests.tar.gz`, one per controller beside `rbac.yaml` and
//! `policies.yaml`.

use std::collections::BTreeMap;

use step::request::FluxOptions;
use step::{Result, StepError};
use transport::Transport;

/// The manifests of one Flux release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    version: String,
    files: BTreeMap<String, String>,
}

impl Release {
    /// `v2.9.4`
    pub fn version(&self) -> &str {
        &self.version
    }

    /// File name → text.
    pub fn files(&self) -> &BTreeMap<String, String> {
        &self.files
    }
}

/// Loads the release that the options ask for.
///
/// # Errors
/// `InvalidInput`, where the release is not Flux's or lacks a controller.
pub async fn load(transport: &Transport, options: &FluxOptions) -> Result<Release> {
    let _ = (transport, options);
    Err(StepError::internal("not yet"))
}
