//! The Kubernetes API of the local world, as independent clients see it: the kube crate, kubectl, git.

#[path = "kubernetes/help.rs"]
mod help;

#[path = "kubernetes/api.rs"]
mod api;
#[path = "kubernetes/flux.rs"]
mod flux;
#[path = "kubernetes/kubectl.rs"]
mod kubectl;
#[path = "kubernetes/workloads.rs"]
mod workloads;
