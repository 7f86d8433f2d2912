//! What the unit tests of this crate share.

use eks::Kubernetes;
use kube_replies::Cluster as Api;
use step::clock::Clock;
use step::facts::Cluster;

/// A client of the played API, long after the access entry was made.
pub fn kubernetes(api: &Api) -> Kubernetes {
    kubernetes_at(api, Clock::System)
}

/// The same with a clock.
pub fn kubernetes_at(api: &Api, clock: Clock) -> Kubernetes {
    let cluster = Cluster {
        name: "demo".to_owned(),
        arn: "arn:aws:eks:eu-west-1:123456789012:cluster/demo".to_owned(),
        endpoint: "https://demo.example".to_owned(),
        certificate_authority: String::new(),
        access_entry_created_at: "2020-01-02T03:00:00Z".to_owned(),
    };
    Kubernetes::new(api.client(), &cluster, clock)
}
