//! What CodeCommit's error codes mean to a step.

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use step::StepError;

/// The KMS actions that a caller of CodeCommit needs on a customer-managed key, from CodeCommit's
/// page on encryption.
const KMS_ACTIONS: &str = "kms:Encrypt, kms:Decrypt, kms:ReEncrypt*, kms:GenerateDataKey, \
                           kms:GenerateDataKeyWithoutPlaintext, kms:DescribeKey";

/// The service's own code of an error reply, such as `BranchDoesNotExistException`.
pub fn code<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Option<&str> {
    error.as_service_error().and_then(ProvideErrorMetadata::code)
}

/// True for what CodeCommit says about a key in the first seconds after it was made or enabled.
/// KMS is eventually consistent, so these pass by themselves then, and stay when they are real.
pub fn is_key_settling<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> bool {
    matches!(
        code(error),
        Some(
            "EncryptionKeyNotFoundException"
                | "EncryptionKeyAccessDeniedException"
                | "EncryptionKeyDisabledException"
                | "EncryptionKeyUnavailableException"
        )
    )
}

/// Maps an error of CodeCommit to a name and a text with a way out.
pub fn error<E: ProvideErrorMetadata>(
    action: &str,
    resource: &str,
    error: &SdkError<E, HttpResponse>,
) -> StepError {
    let said = error.as_service_error().and_then(ProvideErrorMetadata::message).unwrap_or("no message");
    let Some(code) = code(error) else {
        return StepError::from_sdk(action, resource, error);
    };
    let what = format!("{action} on {resource}: {code}: {said}");
    match code {
        "OperationNotAllowedException" => StepError::unsupported(format!(
            "{what}. CodeCommit was closed to new customers for a while: this account or its organization has to be \
             let in. Create a first repository in the CodeCommit console, or in another account of the organization, \
             or ask AWS Support for access; then start again"
        )),
        "RepositoryDoesNotExistException" => StepError::prerequisite_missing(format!(
            "{what}. Start the execution again: its step repo_seed makes the repository"
        )),
        "RepositoryLimitExceededException" => StepError::unsupported(format!(
            "{what}. Ask for a higher quota of repositories in Service Quotas, or name an existing repository in \
             repository.name"
        )),
        "EncryptionKeyAccessDeniedException" => StepError::denied(format!(
            "{what}. CodeCommit uses the key with the caller's rights: allow {KMS_ACTIONS} on the repository's key to \
             the function's role, and look for a deny in the key's policy"
        )),
        "EncryptionKeyNotFoundException" => StepError::conflict(format!(
            "{what}. The repository's key does not exist in this region. If it is scheduled for deletion, cancel that \
             (aws kms cancel-key-deletion, then enable-key); without its key the repository cannot be read again"
        )),
        "EncryptionKeyDisabledException" => StepError::conflict(format!(
            "{what}. Enable the repository's key again (aws kms enable-key), then start the execution again"
        )),
        "EncryptionKeyInvalidIdException" | "EncryptionKeyInvalidUsageException" => {
            StepError::conflict(format!(
                "{what}. The key has to be a symmetric one for encryption and decryption, in the repository's region"
            ))
        }
        "EncryptionKeyUnavailableException" => {
            StepError::transient(format!("{what}. This usually passes; the step is tried again"))
        }
        "EncryptionIntegrityChecksFailedException" => StepError::internal(format!(
            "{what}. CodeCommit could not verify what it stored; if it stays, open a case with AWS Support"
        )),
        "FileTooLargeException"
        | "FileContentSizeLimitExceededException"
        | "FolderContentSizeLimitExceededException"
        | "CommitMessageLengthExceededException" => StepError::unsupported(format!(
            "{what}. CodeCommit's API takes 6 MB a file and 6 MB in one folder; commit it with git instead"
        )),
        "FileNameConflictsWithDirectoryNameException" | "DirectoryNameConflictsWithFileNameException" => {
            StepError::conflict(format!(
                "{what}. Move what stands in the way in the repository, or choose another flux.path"
            ))
        }
        "FilePathConflictsWithSubmodulePathException" => StepError::conflict(format!(
            "{what}. A Git submodule stands in the way: choose another flux.path"
        )),
        "BranchNameIsTagNameException" => StepError::conflict(format!(
            "{what}. The repository has a tag of that name: choose another repository.branch"
        )),
        "InvalidBranchNameException" | "InvalidRepositoryNameException" | "InvalidPathException" => {
            StepError::invalid_input(what)
        }
        "BranchDoesNotExistException" => {
            StepError::conflict(format!("{what}. Somebody deleted the branch meanwhile; start again"))
        }
        _ => StepError::from_sdk(action, resource, error),
    }
}
