//! What EC2 answers instead of a result.

use step::StepError;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A call that failed. Callers branch on [`Error::code`] and, where one code has several causes,
/// on [`Error::message`]; the rest becomes a [`StepError`] by [`Error::on`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// EC2's own error.
    Api {
        /// `CreateVpcEndpoint` and the like.
        action: &'static str,
        /// EC2's code.
        code: String,
        /// EC2's text, without the encoded authorization message that it appends to refusals.
        message: String,
        /// HTTP status.
        status: u16,
    },
    /// There was no answer of EC2's.
    Step(StepError),
}

impl Error {
    /// EC2's code; empty where EC2 gave no answer.
    pub fn code(&self) -> &str {
        match self {
            Error::Api { code, .. } => code,
            Error::Step(_) => "",
        }
    }

    /// EC2's text; empty where EC2 gave no answer.
    pub fn message(&self) -> &str {
        match self {
            Error::Api { message, .. } => message,
            Error::Step(_) => "",
        }
    }

    /// The error of a step that could do nothing else about it; `resource` is what the call was about.
    pub fn on(self, resource: &str) -> StepError {
        match self {
            Error::Api { action, code, message, .. } if is_not_found_yet(&code) => {
                StepError::transient(format!(
                    "ec2:{action} on {resource}: {code}: {message}. EC2 does not know it yet, or it was deleted meanwhile; the step looks again"
                ))
            }
            Error::Api { action, code, message, status } => {
                StepError::from_code(&format!("ec2:{action}"), resource, &code, &message, Some(status))
            }
            Error::Step(error) => {
                StepError { name: error.name, message: format!("{resource}: {}", error.message) }
            }
        }
    }

    /// Whether the same call will probably succeed in a moment.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Error::Api { code, status, .. } if *status >= 500 || *status == 429 || THROTTLING.contains(&code.as_str()))
    }

    /// Whether it is about a group or an endpoint that EC2 does not find, perhaps not yet.
    pub(crate) fn is_not_found_yet(&self) -> bool {
        is_not_found_yet(self.code())
    }
}

/// EC2 throttles as `RequestLimitExceeded` with status 503; the others are the spellings that the
/// SDKs treat alike.
const THROTTLING: [&str; 7] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "EC2ThrottledException",
];

/// `InvalidGroup.NotFound`, `InvalidSecurityGroupID.NotFound`, `InvalidVpcEndpointId.NotFound`
/// (ansible-collections/amazon.aws#700). A VPC or subnet that is not found was never there.
fn is_not_found_yet(code: &str) -> bool {
    let code = code.to_ascii_lowercase();
    code.ends_with(".notfound") && (code.contains("group") || code.contains("vpcendpoint"))
}

impl From<StepError> for Error {
    fn from(error: StepError) -> Self {
        Error::Step(error)
    }
}
