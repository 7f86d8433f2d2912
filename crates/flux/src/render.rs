//! Renders a release as `flux bootstrap git` does: a function of release and options, without I/O.

use step::request::FluxOptions;
use step::{Result, StepError};

use crate::release::Release;

/// The three files of `<path>/<namespace>/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// `gotk-components.yaml`
    pub gotk_components: String,
    /// `gotk-sync.yaml`
    pub gotk_sync: String,
    /// `kustomization.yaml`
    pub kustomization: String,
}

impl Rendered {
    /// File name and text of each.
    pub fn files(&self) -> [(&'static str, &str); 3] {
        [
            ("gotk-components.yaml", &self.gotk_components),
            ("gotk-sync.yaml", &self.gotk_sync),
            ("kustomization.yaml", &self.kustomization),
        ]
    }
}

/// The folder of the three files in the repository, `<path>/<namespace>` without `./`.
pub fn folder(options: &FluxOptions) -> String {
    let path = options.path.strip_prefix("./").unwrap_or(&options.path);
    format!("{path}/{}", options.namespace)
}

/// Renders the three files.
///
/// # Errors
/// `InvalidInput`, where the release lacks a controller or is not in Flux's form.
pub fn render(release: &Release, options: &FluxOptions, url: &str, branch: &str) -> Result<Rendered> {
    let _ = (release, options, url, branch);
    Err(StepError::internal("not yet"))
}
