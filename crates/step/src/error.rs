//! The eight error names that the state machine branches on, and the text for people.
//!
//! AWS's own codes are mapped to a name in one place, [`StepError::from_code`]. The name is for
//! machines; the message says what failed, on which resource, and what to do next.

use std::fmt;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use serde::{Deserialize, Serialize};

/// The result of everything a step does.
pub type Result<T, E = StepError> = std::result::Result<T, E>;

/// Error names as Step Functions sees them in `ErrorEquals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorName {
    /// The request breaks the contract; the text names the field.
    InvalidInput,
    /// Something that the bootstrapper does not make is missing; the text lists all of it.
    PrerequisiteMissing,
    /// A foreign or contradictory resource is in the way.
    Conflict,
    /// AWS or Kubernetes refused the call for want of a permission.
    Denied,
    /// The account, region or cluster cannot do this at all.
    Unsupported,
    /// A wait came to its end before the thing waited for was there.
    NotReady,
    /// Trying again will probably help; the state machine does.
    Transient,
    /// A bug, or a reply that no rule knows.
    Internal,
}

impl ErrorName {
    /// Every name, for the checks that compare the state machine with the code.
    pub const ALL: [ErrorName; 8] = [
        ErrorName::InvalidInput,
        ErrorName::PrerequisiteMissing,
        ErrorName::Conflict,
        ErrorName::Denied,
        ErrorName::Unsupported,
        ErrorName::NotReady,
        ErrorName::Transient,
        ErrorName::Internal,
    ];

    /// The name as the state machine spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorName::InvalidInput => "InvalidInput",
            ErrorName::PrerequisiteMissing => "PrerequisiteMissing",
            ErrorName::Conflict => "Conflict",
            ErrorName::Denied => "Denied",
            ErrorName::Unsupported => "Unsupported",
            ErrorName::NotReady => "NotReady",
            ErrorName::Transient => "Transient",
            ErrorName::Internal => "Internal",
        }
    }
}

impl fmt::Display for ErrorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error name with its text. The text never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StepError {
    /// What the state machine branches on.
    pub name: ErrorName,
    /// What happened, to which resource, what to do next.
    pub message: String,
}

macro_rules! constructors {
    ($($function:ident => $name:ident),* $(,)?) => {
        impl StepError {
            $(
                #[doc = concat!("An error named `", stringify!($name), "`.")]
                pub fn $function(message: impl Into<String>) -> Self {
                    StepError { name: ErrorName::$name, message: message.into() }
                }
            )*
        }
    };
}

constructors! {
    invalid_input => InvalidInput,
    prerequisite_missing => PrerequisiteMissing,
    conflict => Conflict,
    denied => Denied,
    unsupported => Unsupported,
    not_ready => NotReady,
    transient => Transient,
    internal => Internal,
}

impl StepError {
    /// Maps what AWS answered to a name.
    ///
    /// `action` is the IAM action (`kms:CreateKey`), `resource` what it was called on. Codes that
    /// mean something special to one step are handled by that step before it comes here.
    pub fn from_code(action: &str, resource: &str, code: &str, message: &str, status: Option<u16>) -> Self {
        let name = name_of_code(code, status);
        let next = match name {
            ErrorName::Denied => {
                format!(
                    ". Allow {action} on it to the function's role, and look for a deny in its key, resource or organization policies"
                )
            }
            ErrorName::Transient => ". This usually passes; the step is tried again".to_owned(),
            _ => String::new(),
        };
        StepError { name, message: format!("{action} on {resource}: {code}: {message}{next}") }
    }

    /// The same for an error of the AWS SDK. Prints code, message and nothing else of the reply.
    pub fn from_sdk<E>(action: &str, resource: &str, error: &SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata,
    {
        let status = error.raw_response().map(|r| r.status().as_u16());
        match error {
            SdkError::ServiceError(service) => {
                let meta = service.err();
                // A success that could not be parsed is no refusal: what was asked may have been done.
                let unreadable = meta.code().is_none() && status.is_some_and(|s| (200..300).contains(&s));
                let (code, text) = if unreadable {
                    ("UnreadableReply", "the reply could not be read")
                } else {
                    (meta.code().unwrap_or("Unknown"), meta.message().unwrap_or("no message"))
                };
                StepError::from_code(action, resource, code, text, status)
            }
            SdkError::ResponseError(raw) => {
                // CodeCommit throttles with an XML body on its JSON API (hashicorp/terraform#22686),
                // which the SDK reports as a malformed reply without a code.
                let throttled = raw.raw().body().bytes().is_some_and(is_xml_throttling);
                let code = if throttled { "ThrottlingException" } else { "UnreadableReply" };
                let text = if throttled { "Rate exceeded" } else { "the reply could not be read" };
                StepError::from_code(action, resource, code, text, status)
            }
            SdkError::TimeoutError(_) => StepError::transient(format!(
                "{action} on {resource}: no answer in time. The step is tried again"
            )),
            SdkError::DispatchFailure(failure) => {
                let cause = if failure.is_timeout() {
                    "the connection timed out"
                } else if failure.is_io() {
                    "the connection failed"
                } else {
                    "the request could not be sent"
                };
                StepError::transient(format!(
                    "{action} on {resource}: {cause}. If the functions run in a VPC, it needs a route or an endpoint to that service"
                ))
            }
            _ => StepError::internal(format!("{action} on {resource}: the request could not be built")),
        }
    }
}

/// True for `<ThrottlingException>` in a body that should have been JSON.
pub fn is_xml_throttling(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    text.trim_start().starts_with('<')
        && (text.contains("<ThrottlingException>") || text.contains("Rate exceeded"))
}

fn name_of_code(code: &str, status: Option<u16>) -> ErrorName {
    // Query services append ".NotFound" and the like; JSON services append "Exception".
    let bare = code.strip_suffix("Exception").unwrap_or(code);
    match bare {
        "Throttling"
        | "ThrottledException"
        | "Throttled"
        | "RequestThrottled"
        | "TooManyRequests"
        | "RequestLimitExceeded"
        | "SlowDown"
        | "PriorRequestNotComplete"
        | "ServiceUnavailable"
        | "ServiceFailure"
        | "InternalFailure"
        | "InternalError"
        | "InternalServiceError"
        | "InternalService"
        | "KMSInternal"
        | "DependencyTimeout"
        | "RequestTimeout"
        | "RequestExpired"
        | "ConcurrentModification"
        | "Server"
        | "EntityTemporarilyUnmodifiable"
        | "UnreadableReply" => ErrorName::Transient,
        "AccessDenied"
        | "UnauthorizedOperation"
        | "NotAuthorized"
        | "Client.UnauthorizedOperation"
        | "UnrecognizedClient"
        | "InvalidClientTokenId"
        | "AuthFailure"
        | "OptInRequired"
        | "ExpiredToken"
        | "SignatureDoesNotMatch" => ErrorName::Denied,
        "LimitExceeded"
        | "ResourceLimitExceeded"
        | "RepositoryLimitExceeded"
        | "VpcEndpointLimitExceeded"
        | "SecurityGroupLimitExceeded" => ErrorName::Unsupported,
        "Validation" | "ValidationError" | "InvalidParameterValue" => ErrorName::InvalidInput,
        _ => match status {
            Some(429) => ErrorName::Transient,
            Some(s) if s >= 500 => ErrorName::Transient,
            Some(401 | 403) => ErrorName::Denied,
            _ => ErrorName::Internal,
        },
    }
}

impl From<StepError> for lambda_runtime::Diagnostic {
    fn from(error: StepError) -> Self {
        lambda_runtime::Diagnostic {
            error_type: error.name.as_str().to_owned(),
            error_message: error.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_names() {
        for (code, status, expected) in [
            ("ThrottlingException", 400, ErrorName::Transient),
            ("RequestLimitExceeded", 503, ErrorName::Transient),
            ("TooManyRequestsException", 429, ErrorName::Transient),
            ("KMSInternalException", 500, ErrorName::Transient),
            ("SomethingNew", 502, ErrorName::Transient),
            ("AccessDeniedException", 400, ErrorName::Denied),
            ("UnauthorizedOperation", 403, ErrorName::Denied),
            ("LimitExceeded", 409, ErrorName::Unsupported),
            ("ValidationError", 400, ErrorName::InvalidInput),
            ("SomethingNew", 400, ErrorName::Internal),
        ] {
            let error = StepError::from_code("svc:Action", "thing", code, "text", Some(status));
            assert_eq!(error.name, expected, "{code} {status}");
            assert!(error.message.contains("svc:Action on thing"), "{}", error.message);
        }
    }

    #[test]
    fn xml_throttling_is_seen_only_in_xml() {
        assert!(is_xml_throttling(
            b"<ThrottlingException>\n  <Message>Rate exceeded</Message>\n</ThrottlingException>"
        ));
        assert!(!is_xml_throttling(b"{\"message\":\"Rate exceeded\"}"));
        assert!(!is_xml_throttling(b"<html>Bad gateway</html>"));
    }

    #[test]
    fn the_diagnostic_carries_the_name() {
        let diagnostic = lambda_runtime::Diagnostic::from(StepError::conflict("taken"));
        assert_eq!(diagnostic.error_type, "Conflict");
        assert_eq!(diagnostic.error_message, "taken");
    }
}
