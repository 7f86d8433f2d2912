//! The glue between a step and the Lambda runtime.

use std::env;
use std::future::Future;

use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::error::{Result, StepError};
use crate::ledger;
use crate::request::parse_json;

/// What CloudFormation told the function about itself, from its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// `STACK_NAME`
    pub name: String,
}

impl Stack {
    /// Reads the environment.
    ///
    /// # Errors
    /// `Internal`, where the template did not set the variable.
    pub fn from_env() -> Result<Stack> {
        Ok(Stack { name: env_var("STACK_NAME")? })
    }
}

/// A variable that the template sets.
///
/// # Errors
/// `Internal`, where it is not set or empty.
pub fn env_var(name: &str) -> Result<String> {
    env::var(name).ok().filter(|value| !value.is_empty()).ok_or_else(|| {
        StepError::internal(format!(
            "the environment variable {name} is not set; deploy the stack again from its template"
        ))
    })
}

/// Sets up logging and the crypto provider; the first line of every `main`.
pub fn init() {
    // A second call finds one installed, which is what is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let lines = tracing_subscriber::fmt::layer()
        .json()
        .with_current_span(false)
        .with_span_list(false)
        // CloudWatch adds the time.
        .without_time();
    let level = EnvFilter::try_from_env("LOG_LEVEL").unwrap_or_else(|_| EnvFilter::new("info"));
    let quiet = filter_fn(may_be_logged);
    tracing_subscriber::registry().with(lines).with(level).with(quiet).init();
}

/// False for what the SDK and the HTTP stack below it say in detail: at TRACE the SDK prints whole
/// requests and replies, passwords among them, so no LOG_LEVEL lets that through.
pub fn may_be_logged(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::INFO
        || !["aws_", "hyper", "h2", "rustls"].iter().any(|part| metadata.target().starts_with(part))
}

/// Runs a step as a Lambda function: JSON in, parsed here so that bad input gets our error name
/// and the path of the bad field; the report out, or a `Diagnostic` with what is in place.
///
/// # Errors
/// Where the Runtime API is lost.
pub async fn run<I, O, F, Fut>(step: F) -> std::result::Result<(), lambda_runtime::Error>
where
    I: DeserializeOwned,
    O: Serialize,
    F: Fn(I) -> Fut,
    Fut: Future<Output = Result<O>>,
{
    let step = &step;
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
        let (result, made) = match parse_json(&event.payload) {
            // Boxed, since the layout of a step's calls within calls is too deep for the compiler.
            Ok(input) => ledger::gather(Box::pin(step(input))).await,
            Err(error) => (Err(error), Vec::new()),
        };
        result.map_err(|error| {
            let error = StepError { message: ledger::append(&error.message, &made), ..error };
            tracing::error!(error_name = %error.name, error_message = %error.message, "step failed");
            Diagnostic::from(error)
        })
    }))
    .await
}
