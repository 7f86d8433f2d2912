//! What IAM's and Secrets Manager's error codes mean to this step. Where only the text tells two
//! causes apart, it is quoted here.

use aws_sdk_iam::error::ProvideErrorMetadata;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use secrecy::{ExposeSecret, SecretString};
use step::StepError;

/// IAM answers NoSuchEntity for a service without such credentials, too: "No such service X is
/// supported for Service Specific Credentials".
const NO_SUCH_SERVICE: &str = "No such service";
/// From CreateSecret: "You can't create this secret because a secret with this name is already
/// scheduled for deletion."
pub const NAME_IN_RECOVERY: &str = "already scheduled for deletion";
/// From every other call: "You can't perform this operation on the secret because it was marked for
/// deletion."
pub const MARKED_FOR_DELETION: &str = "marked for deletion";
/// In MalformedPolicyDocument: a principal that was just made is not known everywhere yet. Every
/// other text of that code means that the document itself is wrong.
const PRINCIPAL: &str = "principal";

/// The service's own code.
pub fn code<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Option<&str> {
    error.as_service_error().and_then(ProvideErrorMetadata::code)
}

/// The service's own text.
pub fn said<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> &str {
    error.as_service_error().and_then(ProvideErrorMetadata::message).unwrap_or("no message")
}

/// True for what IAM says in the first seconds after a user was made.
pub fn is_user_settling<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> bool {
    match code(error) {
        Some("NoSuchEntity") => !said(error).starts_with(NO_SUCH_SERVICE),
        Some("EntityTemporarilyUnmodifiable" | "ConcurrentModification") => true,
        Some("MalformedPolicyDocument") => said(error).contains(PRINCIPAL),
        _ => false,
    }
}

/// The same, and while the user is new a refusal too: the role may act on users under one path only,
/// and IAM does not know a new user's path everywhere at once.
pub fn is_settling_on<E: ProvideErrorMetadata>(new: bool, error: &SdkError<E, HttpResponse>) -> bool {
    is_user_settling(error) || new && code(error) == Some("AccessDenied")
}

/// True for what Secrets Manager says about a key in the first seconds after it was made.
pub fn is_key_settling<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> bool {
    match code(error) {
        Some("EncryptionFailure" | "DecryptionFailure") => true,
        Some("AccessDeniedException") => said(error).contains("KMS"),
        _ => false,
    }
}

/// Maps an error of IAM.
pub fn iam<E: ProvideErrorMetadata>(
    action: &str,
    resource: &str,
    error: &SdkError<E, HttpResponse>,
) -> StepError {
    let what = format!("{action} on {resource}: {}: {}", code(error).unwrap_or_default(), said(error));
    match code(error) {
        Some("NoSuchEntity" | "NotSupportedService") if said(error).starts_with(NO_SUCH_SERVICE) => {
            StepError::unsupported(format!(
                "{what}. IAM in this partition has no Git credentials for CodeCommit; choose a region that has CodeCommit"
            ))
        }
        Some("NoSuchEntity") => StepError::transient(format!(
            "{what}. IAM does not show a new user everywhere at once, or somebody deleted it meanwhile. The step is \
             tried again"
        )),
        Some("MalformedPolicyDocument") if said(error).contains(PRINCIPAL) => StepError::transient(format!(
            "{what}. IAM does not know a new principal everywhere at once. The step is tried again"
        )),
        _ => StepError::from_sdk(action, resource, error),
    }
}

/// The same for a call on a user that may be new.
pub fn iam_on<E: ProvideErrorMetadata>(
    new: bool,
    action: &str,
    resource: &str,
    error: &SdkError<E, HttpResponse>,
) -> StepError {
    if new && code(error) == Some("AccessDenied") {
        return StepError::transient(format!(
            "{action} on {resource}: AccessDenied: {}. The user is new, and IAM does not know everywhere yet that \
             it is under this stack's path; the step is tried again. If it stays so, allow {action} to the \
             function's role",
            said(error)
        ));
    }
    iam(action, resource, error)
}

/// Maps an error of Secrets Manager.
pub fn secrets<E: ProvideErrorMetadata>(
    action: &str,
    resource: &str,
    error: &SdkError<E, HttpResponse>,
) -> StepError {
    let what = format!("{action} on {resource}: {}: {}", code(error).unwrap_or_default(), said(error));
    match code(error) {
        Some("InvalidRequestException") if said(error).contains(NAME_IN_RECOVERY) => {
            StepError::transient(format!(
                "{what}. A secret of that name is still being deleted; the name is free again in a while. The step is tried again"
            ))
        }
        Some("InvalidRequestException") if said(error).contains(MARKED_FOR_DELETION) => StepError::transient(
            format!("{what}. Somebody deletes it at this moment. The step is tried again and restores it"),
        ),
        Some("InvalidRequestException") => StepError::conflict(format!(
            "{what}. The secret is in a state that does not allow this: look at it (aws secretsmanager \
             describe-secret), or name another in credentials.secretName"
        )),
        Some("EncryptionFailure" | "DecryptionFailure") => StepError::conflict(format!(
            "{what}. Secrets Manager cannot use the secret's key: see that it is enabled and not scheduled for \
             deletion (aws kms describe-key)"
        )),
        Some("AccessDeniedException") if said(error).contains("KMS") => StepError::denied(format!(
            "{what}. Secrets Manager uses the key with the caller's rights: allow kms:GenerateDataKey, kms:Encrypt and \
             kms:Decrypt on it to the function's role, and look for a deny in the key's policy"
        )),
        Some("MalformedPolicyDocumentException") if said(error).contains(PRINCIPAL) => {
            StepError::transient(format!("{what}. The step is tried again"))
        }
        Some("ResourceNotFoundException" | "ResourceExistsException") => StepError::transient(format!(
            "{what}. Somebody else works on the secret at the same time. The step is tried again"
        )),
        _ => StepError::from_sdk(action, resource, error),
    }
}

/// Takes a password out of an error's text, should a service repeat what it was sent.
pub fn scrubbed(error: StepError, password: &SecretString) -> StepError {
    let password = password.expose_secret();
    if password.is_empty() {
        return error;
    }
    let escaped = serde_json::Value::from(password).to_string();
    let message = error.message.replace(password, "[hidden]").replace(escaped.trim_matches('"'), "[hidden]");
    StepError { name: error.name, message }
}
