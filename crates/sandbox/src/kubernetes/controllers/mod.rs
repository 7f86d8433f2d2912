//! The controllers.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tokio::task::JoinHandle;

use super::cluster::{Cluster, Write};
use super::{Delays, FargateSelector};

/// Which pods Fargate takes.
#[derive(Clone)]
pub struct Fargate(Arc<Mutex<Vec<FargateSelector>>>);

impl Fargate {
    /// With these selectors.
    pub fn new(selectors: Vec<FargateSelector>) -> Self {
        Fargate(Arc::new(Mutex::new(selectors)))
    }

    /// Other selectors.
    pub fn set(&self, selectors: Vec<FargateSelector>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = selectors;
    }
}

/// The objects that every cluster starts with.
pub fn populate(cluster: &Cluster, _ca_pem: &str) {
    let write = Write::by("kube-apiserver");
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        if let Some(resource) = cluster.resource("", "v1", "namespaces") {
            let _ = cluster.create(&resource, "", json!({"metadata": {"name": name}}), &write);
        }
    }
}

/// Starts them all.
pub fn start(_cluster: &Arc<Cluster>, _delays: &Delays, _fargate: &Fargate) -> Vec<JoinHandle<()>> {
    Vec::new()
}
