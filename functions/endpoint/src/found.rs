//! What the endpoints that a VPC has mean for the one that is wanted. Pure, so that every state can
//! be tested without a call.

use ec2::{Endpoint, state_is};
use step::names::OWNER_TAG;

/// The states in which an endpoint holds its private DNS name and is or will be usable.
/// `partial` is an endpoint some of whose interfaces are there.
const LIVE: [&str; 4] = ["available", "pending", "pendingAcceptance", "partial"];
/// The states that end by themselves, with the endpoint gone.
const LEAVING: [&str; 1] = ["deleting"];
/// The states that stay until somebody deletes the endpoint.
const DEAD: [&str; 3] = ["failed", "rejected", "expired"];

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// One with private DNS that works, or will.
    Live(Endpoint),
    /// One that is being deleted and keeps its private DNS name until it is gone.
    Leaving(Endpoint),
    /// One of ours that will never work.
    Dead(Endpoint),
    /// One of ours that works, whose private DNS somebody turned off.
    WithoutPrivateDns(Endpoint),
    /// None of these. Endpoints of others without private DNS, or dead ones, are in nobody's way.
    Nothing,
}

/// Whether this stack made it.
pub(crate) fn is_ours(endpoint: &Endpoint, stack: &str) -> bool {
    endpoint.tag(OWNER_TAG) == Some(stack)
}

/// Whether it can be used now.
pub(crate) fn is_available(state: &str) -> bool {
    state_is(state, &["available"])
}

/// Judges the endpoints of one service in one VPC.
pub(crate) fn judge(mut endpoints: Vec<Endpoint>, stack: &str) -> Found {
    endpoints.retain(|endpoint| !state_is(&endpoint.state, &["deleted"]));
    // EC2 promises no order; ours first, the usable ones first, then by id.
    endpoints.sort_by_key(|endpoint| {
        (!is_ours(endpoint, stack), !is_available(&endpoint.state), endpoint.vpc_endpoint_id.clone())
    });
    let ours = |endpoint: &Endpoint| is_ours(endpoint, stack);
    // A state that this program does not know is waited for as well, and shown.
    let live = |endpoint: &Endpoint| {
        state_is(&endpoint.state, &LIVE)
            || !(state_is(&endpoint.state, &LEAVING) || state_is(&endpoint.state, &DEAD))
    };
    let first = |test: &dyn Fn(&Endpoint) -> bool| endpoints.iter().find(|e| test(e)).cloned();

    if let Some(endpoint) = first(&|e| e.private_dns_enabled && live(e)) {
        return Found::Live(endpoint);
    }
    if let Some(endpoint) = first(&|e| state_is(&e.state, &LEAVING) && (ours(e) || e.private_dns_enabled)) {
        return Found::Leaving(endpoint);
    }
    if let Some(endpoint) = first(&|e| state_is(&e.state, &DEAD) && ours(e)) {
        return Found::Dead(endpoint);
    }
    if let Some(endpoint) = first(&ours) {
        return Found::WithoutPrivateDns(endpoint);
    }
    Found::Nothing
}
