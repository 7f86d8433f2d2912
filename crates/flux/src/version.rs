//! Which of two Flux versions is the newer.

use semver::Version;
use step::request::FluxOptions;
use step::{Result, StepError};

/// Refuses a step back: a newer Flux may have stored objects in a version of its definitions that the
/// older does not serve. What is no version is not compared.
///
/// `place` says where `found` was found, as in `cluster demo, namespace fluxcd`.
///
/// # Errors
/// `Conflict` with both versions, unless the options allow a downgrade.
pub fn check(found: &str, place: &str, options: &FluxOptions) -> Result<()> {
    let wanted = &options.version;
    if !is_older(wanted, found) || options.allow_downgrade {
        return Ok(());
    }
    Err(StepError::conflict(format!(
        "{place} has Flux {found}, and this request wants {wanted}, which is older. Ask for {found} or later \
         (flux.version), or for the step back with flux.allowDowngrade"
    )))
}

/// Whether `one` is an earlier version than `other`, both as in `v2.9.4`.
pub fn is_older(one: &str, other: &str) -> bool {
    let version = |text: &str| Version::parse(text.strip_prefix('v').unwrap_or(text)).ok();
    matches!((version(one), version(other)), (Some(one), Some(other)) if one < other)
}

#[cfg(test)]
mod tests {
    use step::ErrorName;

    use super::*;

    #[test]
    fn versions_are_compared_as_semver() {
        for (one, other, older) in [
            ("v2.9.4", "v2.10.0", true),
            ("v2.10.0", "v2.9.4", false),
            ("v2.9.4", "v2.9.4", false),
            ("v2.9.4-rc.1", "v2.9.4", true),
            ("main", "v2.9.4", false),
            ("v2.9.4", "main", false),
        ] {
            assert_eq!(is_older(one, other), older, "{one} {other}");
        }
    }

    #[test]
    fn a_step_back_is_refused_unless_asked_for() {
        let mut options = FluxOptions::default();
        check("v2.9.3", "here", &options).expect("an upgrade");
        check("v2.9.4", "here", &options).expect("the same");
        let error = check("v2.10.1", "cluster demo", &options).expect_err("a downgrade");
        assert_eq!(error.name, ErrorName::Conflict);
        assert!(error.message.contains("v2.10.1") && error.message.contains("v2.9.4"), "{}", error.message);
        options.allow_downgrade = true;
        check("v2.10.1", "cluster demo", &options).expect("asked for");
    }
}
