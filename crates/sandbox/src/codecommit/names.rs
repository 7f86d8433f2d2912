//! What names, ids and paths may look like.

use super::refusal::{Answer, refuse, refuse_with};

/// Forty hexadecimal digits.
pub(super) fn is_object_id(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A repository's name: 1 to 100 of letters, digits, `_`, `.`, `-`, not ending in `.git`.
pub(super) fn repository(name: Option<&str>) -> Answer<&str> {
    let name =
        name.filter(|name| !name.is_empty()).ok_or_else(|| refuse("RepositoryNameRequiredException"))?;
    let fits = name.len() <= 100
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        && !name.ends_with(".git");
    if fits { Ok(name) } else { Err(refuse("InvalidRepositoryNameException")) }
}

/// A branch's name: 1 to 256 characters that make a reference, and not a commit id.
pub(super) fn branch(name: Option<&str>) -> Answer<&str> {
    let name = name.filter(|name| !name.is_empty()).ok_or_else(|| refuse("BranchNameRequiredException"))?;
    let fits = name.chars().count() <= 256 && !is_object_id(name) && is_reference(name) && name != "HEAD";
    if fits { Ok(name) } else { Err(refuse("InvalidBranchNameException")) }
}

/// The rules of `git check-ref-format`, and no leading dash, which branches may not have.
pub(super) fn is_reference(name: &str) -> bool {
    let parts_fit =
        name.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"));
    parts_fit
        && !name.starts_with('-')
        && !name.ends_with('.')
        && name != "@"
        && !name.contains("..")
        && !name.contains("@{")
        && !name.chars().any(|c| c.is_ascii_control() || " ~^:?*[\\".contains(c))
}

/// A file's or folder's path without its leading slash. At most 4,096 bytes and 20 folders deep.
pub(super) fn path(path: Option<&str>) -> Answer<&str> {
    let path = path
        .filter(|path| !path.is_empty())
        .ok_or_else(|| refuse_with("PathRequiredException", "A path is required, but was not specified."))?;
    let invalid = || refuse("InvalidPathException");
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut depth = 0;
    for part in path.split('/') {
        if matches!(part, "" | "." | "..") || part.eq_ignore_ascii_case(".git") || part.contains('\0') {
            return Err(invalid());
        }
        depth += 1;
    }
    if path.len() > 4096 || depth > 21 { Err(invalid()) } else { Ok(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let code = |answer: Answer<&str>| answer.err().map(|error| error.code).unwrap_or_default();
        let long = "a".repeat(101);
        for (name, expected) in [
            ("demo", ""),
            ("a.b-c_d", ""),
            ("", "RepositoryNameRequiredException"),
            ("x.git", "InvalidRepositoryNameException"),
            ("x/y", "InvalidRepositoryNameException"),
            ("ü", "InvalidRepositoryNameException"),
            (&long, "InvalidRepositoryNameException"),
        ] {
            assert_eq!(code(repository(Some(name))), expected, "repository {name:?}");
        }
        let id = "0123456789abcdef0123456789abcdef01234567";
        let long = "b".repeat(257);
        for (name, expected) in [
            ("main", ""),
            ("feature/one", ""),
            ("", "BranchNameRequiredException"),
            (id, "InvalidBranchNameException"),
            ("a..b", "InvalidBranchNameException"),
            ("a b", "InvalidBranchNameException"),
            ("-a", "InvalidBranchNameException"),
            ("a/", "InvalidBranchNameException"),
            ("a.lock", "InvalidBranchNameException"),
            ("@{-1}", "InvalidBranchNameException"),
            ("main~1", "InvalidBranchNameException"),
            (&long, "InvalidBranchNameException"),
        ] {
            assert_eq!(code(branch(Some(name))), expected, "branch {name:?}");
        }
        let deep = format!("{}f", "d/".repeat(20));
        let deeper = format!("{}f", "d/".repeat(21));
        for (name, expected) in [
            ("a/b.txt", ""),
            ("/a/b.txt", ""),
            (".gitkeep", ""),
            (&deep, ""),
            (&deeper, "InvalidPathException"),
            ("", "PathRequiredException"),
            ("a//b", "InvalidPathException"),
            ("a/", "InvalidPathException"),
            ("../b", "InvalidPathException"),
            ("a/.git/config", "InvalidPathException"),
        ] {
            assert_eq!(code(path(Some(name))), expected, "path {name:?}");
        }
    }
}
