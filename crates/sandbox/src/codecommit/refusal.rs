//! The errors of CodeCommit's API, with the texts that its API model gives them.

use super::plumbing::Problem;
use crate::wire::ApiError;

/// What an operation gives.
pub(super) type Answer<T> = Result<T, ApiError>;

/// An error of the API whose text is its documented description.
pub(super) fn refuse(code: &str) -> ApiError {
    ApiError::new(code, text(code))
}

/// An error of the API with a text about the thing at hand.
pub(super) fn refuse_with(code: &str, message: impl Into<String>) -> ApiError {
    ApiError::new(code, message)
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        let source = std::error::Error::source(&problem).map(|source| source.to_string());
        tracing::error!(%problem, ?source, "a Git repository of the sandbox gave no answer");
        ApiError::new("InternalFailure", problem.to_string()).status(500)
    }
}

fn text(code: &str) -> &'static str {
    match code {
        "BlobIdDoesNotExistException" => "The specified blob does not exist.",
        "BlobIdRequiredException" => "A blob ID is required, but was not specified.",
        "BranchNameExistsException" => {
            "Cannot create the branch with the specified name because the commit conflicts with an existing \
             branch with the same name. Branch names must be unique."
        }
        "BranchNameIsTagNameException" => {
            "The specified branch name is not valid because it is a tag name. Enter the name of a branch in \
             the repository. For a list of valid branch names, use ListBranches."
        }
        "BranchNameRequiredException" => "A branch name is required, but was not specified.",
        "CommitDoesNotExistException" => {
            "The specified commit does not exist or no commit was specified, and the specified repository has \
             no default branch."
        }
        "CommitIdDoesNotExistException" => "The specified commit ID does not exist.",
        "CommitIdRequiredException" => "A commit ID was not specified.",
        "CommitIdsLimitExceededException" => {
            "The maximum number of allowed commit IDs in a batch request is 100. Verify that your batch \
             requests contains no more than 100 commit IDs, and then try again."
        }
        "CommitIdsListRequiredException" => {
            "A list of commit IDs is required, but was either not specified or the list was empty."
        }
        "CommitMessageLengthExceededException" => "The commit message is too long. Provide a shorter string.",
        "CommitRequiredException" => "A commit was not specified.",
        "DefaultBranchCannotBeDeletedException" => {
            "The specified branch is the default branch for the repository, and cannot be deleted. To delete \
             this branch, you must first set another branch as the default branch."
        }
        "DirectoryNameConflictsWithFileNameException" => {
            "A file cannot be added to the repository because the specified path name has the same name as a \
             file that already exists in this repository. Either provide a different name for the file, or \
             specify a different path for the file."
        }
        "EncryptionKeyAccessDeniedException" => "An encryption key could not be accessed.",
        "EncryptionKeyDisabledException" => "The encryption key is disabled.",
        "EncryptionKeyInvalidIdException" => "The Key Management Service encryption key is not valid.",
        "EncryptionKeyInvalidUsageException" => {
            "A KMS encryption key was used to try and encrypt or decrypt a repository, but either the \
             repository or the key was not in a valid state to support the operation."
        }
        "EncryptionKeyNotFoundException" => "No encryption key was found.",
        "EncryptionKeyRequiredException" => "A KMS encryption key ID is required but was not specified.",
        "EncryptionKeyUnavailableException" => "The encryption key is not available.",
        "FileContentAndSourceFileSpecifiedException" => {
            "The commit cannot be created because both a source file and file content have been specified for \
             the same file. You cannot provide both. Either specify a source file or provide the file content \
             directly."
        }
        "FileContentRequiredException" => {
            "The file cannot be added because it is empty. Empty files cannot be added to the repository with \
             this API."
        }
        "FileContentSizeLimitExceededException" => {
            "The file cannot be added because it is too large. The maximum file size is 6 MB, and the combined \
             file content change size is 7 MB. Consider making these changes using a Git client."
        }
        "FileEntryRequiredException" => {
            "The commit cannot be created because no files have been specified as added, updated, or changed \
             (PutFile or DeleteFile) for the commit."
        }
        "FileModeRequiredException" => {
            "The commit cannot be created because no file mode has been specified. A file mode is required to \
             update mode permissions for a file."
        }
        "FileNameConflictsWithDirectoryNameException" => {
            "A file cannot be added to the repository because the specified file name has the same name as a \
             directory in this repository. Either provide another name for the file, or add the file in a \
             directory that does not match the file name."
        }
        "FilePathConflictsWithSubmodulePathException" => {
            "The commit cannot be created because a specified file path points to a submodule. Verify that the \
             destination files have valid file paths that do not point to a submodule."
        }
        "FileTooLargeException" => {
            "The specified file exceeds the file size limit for CodeCommit. For more information about limits \
             in CodeCommit, see Quotas in the CodeCommit User Guide."
        }
        "FolderContentSizeLimitExceededException" => {
            "The commit cannot be created because at least one of the overall changes in the commit results in \
             a folder whose contents exceed the limit of 6 MB. Either reduce the number and size of your \
             changes, or split the changes across multiple folders."
        }
        "FolderDoesNotExistException" => {
            "The specified folder does not exist. Either the folder name is not correct, or you did not enter \
             the full path to the folder."
        }
        "InvalidBlobIdException" => "The specified blob is not valid.",
        "InvalidBranchNameException" => "The specified reference name is not valid.",
        "InvalidCommitException" => "The specified commit is not valid.",
        "InvalidCommitIdException" => "The specified commit ID is not valid.",
        "InvalidContinuationTokenException" => "The specified continuation token is not valid.",
        "InvalidEmailException" => {
            "The specified email address either contains one or more characters that are not allowed, or it \
             exceeds the maximum number of characters allowed for an email address."
        }
        "InvalidFileModeException" => {
            "The specified file mode permission is not valid. For a list of valid file mode permissions, see \
             PutFile."
        }
        "InvalidMaxResultsException" => "The specified number of maximum results is not valid.",
        "InvalidOrderException" => "The specified sort order is not valid.",
        "InvalidParentCommitIdException" => {
            "The parent commit ID is not valid. The commit ID cannot be empty, and must match the head commit \
             ID for the branch of the repository where you want to add or update a file."
        }
        "InvalidPathException" => "The specified path is not valid.",
        "InvalidRepositoryDescriptionException" => "The specified repository description is not valid.",
        "InvalidRepositoryNameException" => {
            "The repository name is not valid. Repository names can be any combination of letters, numbers, \
             periods, underscores, and dashes between 1 and 100 characters in length, and cannot end in .git."
        }
        "InvalidResourceArnException" => {
            "The value for the resource ARN is not valid. For more information about resources in CodeCommit, \
             see CodeCommit Resources and Operations in the CodeCommit User Guide."
        }
        "InvalidSortByException" => "The specified sort by value is not valid.",
        "InvalidSystemTagUsageException" => {
            "The specified tag is not valid. Key names cannot be prefixed with aws:."
        }
        "InvalidTagKeysListException" => "The list of tags is not valid.",
        "InvalidTagsMapException" => "The map of tags is not valid.",
        "MaximumFileEntriesExceededException" => {
            "The number of specified files to change as part of this commit exceeds the maximum number of \
             files that can be changed in a single commit. Consider using a Git client for these changes."
        }
        "MaximumRepositoryNamesExceededException" => {
            "The maximum number of allowed repository names was exceeded. Currently, this number is 100."
        }
        "NameLengthExceededException" => {
            "The user name is not valid because it has exceeded the character limit for author names."
        }
        "NoChangeException" => {
            "The commit cannot be created because no changes will be made to the repository as a result of \
             this commit. A commit must contain at least one change."
        }
        "OperationNotAllowedException" => {
            "CreateRepository request is not allowed because there is no existing repository in this AWS \
             account or AWS Organization"
        }
        "ParentCommitDoesNotExistException" => {
            "The parent commit ID is not valid because it does not exist. The specified parent commit ID does \
             not exist in the specified branch of the repository."
        }
        "ParentCommitIdOutdatedException" => {
            "The file could not be added because the provided parent commit ID is not the current tip of the \
             specified branch. To view the full commit ID of the current head of the branch, use GetBranch."
        }
        "ParentCommitIdRequiredException" => {
            "A parent commit ID is required. To view the full commit ID of a branch in a repository, use \
             GetBranch or a Git command (for example, git pull or git log)."
        }
        "PathDoesNotExistException" => "The specified path does not exist.",
        "PathRequiredException" => "The folderPath for a location cannot be null.",
        "PutFileEntryConflictException" => {
            "The commit cannot be created because one or more files specified in the commit reference both a \
             file and a folder."
        }
        "RepositoryLimitExceededException" => "A repository resource limit was exceeded.",
        "RepositoryNameRequiredException" => "A repository name is required, but was not specified.",
        "RepositoryNamesRequiredException" => {
            "At least one repository name object is required, but was not specified."
        }
        "ResourceArnRequiredException" => {
            "A valid Amazon Resource Name (ARN) for an CodeCommit resource is required. For a list of valid \
             resources in CodeCommit, see CodeCommit Resources and Operations in the CodeCommit User Guide."
        }
        "RestrictedSourceFileException" => {
            "The commit cannot be created because one of the changes specifies copying or moving a .gitkeep \
             file."
        }
        "SameFileContentException" => {
            "The file was not added or updated because the content of the file is exactly the same as the \
             content of that file in the repository and branch that you specified."
        }
        "SamePathRequestException" => {
            "The commit cannot be created because one or more changes in this commit duplicate actions in the \
             same file path. For example, you cannot make the same delete request to the same file in the same \
             file path twice, or make a delete request and a move request to the same file as part of the same \
             commit."
        }
        "SourceFileOrContentRequiredException" => {
            "The commit cannot be created because no source files or file content have been specified for the \
             commit."
        }
        "TagKeysListRequiredException" => "A list of tag keys is required. The list cannot be empty or null.",
        "TagsMapRequiredException" => "A map of tags is required.",
        "TooManyTagsException" => "The maximum number of tags for an CodeCommit resource has been exceeded.",
        _ => "The request is not valid.",
    }
}
