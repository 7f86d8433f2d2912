//! What every step of eks-flux-bootstrap shares.
//!
//! A *step* is one Lambda function of the state machine. It takes JSON, looks, acts, and reports
//! what it found or made. This crate holds the requests ([`request`], [`teardown`]) and what a step is
//! asked to do about them ([`action`]), the rules of ownership ([`ownership`]), the facts that flow between
//! steps ([`facts`]), the report ([`report`]) and what it would have said of a step that failed
//! ([`ledger`]), the eight error names ([`error`]), the names and tags of everything that is created
//! ([`names`]), the clock ([`clock`]) and the glue to AWS ([`aws`]) and to the Lambda runtime
//! ([`runtime`]).

pub mod action;
pub mod aws;
pub mod clock;
pub mod error;
pub mod facts;
pub mod ledger;
pub mod names;
pub mod ownership;
pub mod report;
pub mod request;
pub mod runtime;
pub mod teardown;

pub use action::Action;
pub use error::{ErrorName, Result, StepError};
pub use report::{Change, Resource};
pub use request::Request;
