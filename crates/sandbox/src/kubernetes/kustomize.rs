//! Builds manifests.
