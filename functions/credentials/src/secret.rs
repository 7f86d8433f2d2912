//! The secret: what it holds, and what its tags say about that.
//!
//! The value is `{"username", "password", "url", "credentialId", "createdAt"}`. Which credential the
//! current version holds, and for which address, is written in two tags as well, so that a run which
//! finds everything right never reads the password. The tag names the version that it speaks of: a
//! value that was written without it (by hand, or by a run that stopped in between) is read once.

use std::collections::BTreeMap;
use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use step::names::OWNER_TAG;

/// Tag key: `<credential id>@<version id>`.
pub const CREDENTIAL_TAG: &str = "eks-flux-bootstrap:credential";
/// Tag key: the address that the value names.
pub const URL_TAG: &str = "eks-flux-bootstrap:url";

/// The secret as DescribeSecret shows it.
#[derive(Debug, Clone, Default)]
pub struct Secret {
    /// Its ARN, with the suffix.
    pub arn: String,
    /// The key's id or ARN; `None` is the AWS managed key.
    pub key: Option<String>,
    /// True in the recovery window.
    pub deleted: bool,
    /// The tags.
    pub tags: BTreeMap<String, String>,
    /// Version ids with their labels.
    pub versions: BTreeMap<String, Vec<String>>,
}

impl Secret {
    /// The value of the owner tag.
    pub fn owner(&self) -> Option<&str> {
        self.tags.get(OWNER_TAG).map(String::as_str)
    }

    /// The version that readers get, where there is one. A secret may be empty.
    pub fn current(&self) -> Option<&str> {
        self.version_with("AWSCURRENT")
    }

    /// True while a rotation holds a credential that is not current yet.
    pub fn rotating(&self) -> bool {
        self.version_with("AWSPENDING").is_some_and(|version| Some(version) != self.current())
    }

    fn version_with(&self, label: &str) -> Option<&str> {
        self.versions
            .iter()
            .find(|(_, labels)| labels.iter().any(|l| l == label))
            .map(|(version, _)| version.as_str())
    }

    /// What the tags say about the current version: credential id and address.
    pub fn tagged(&self) -> Option<(&str, &str)> {
        let (id, version) = self.tags.get(CREDENTIAL_TAG)?.split_once('@')?;
        let url = self.tags.get(URL_TAG)?;
        (Some(version) == self.current()).then_some((id, url))
    }
}

/// The version id of the next write. It follows from the labelled versions alone, not from what is
/// written: of two runs that saw the same state and hold two different passwords, the second gets
/// ResourceExistsException instead of hiding the first one's, while a repeated call of the same run
/// is a no-op. 64 hexadecimal digits, as ClientRequestToken allows.
pub fn next_version(name: &str, versions: &BTreeMap<String, Vec<String>>) -> String {
    let mut hash = Sha256::new();
    hash.update(name);
    for (version, labels) in versions {
        let mut labels = labels.clone();
        labels.sort_unstable();
        hash.update(format!("\n{version} {}", labels.join(" ")));
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the secret holds. Its Debug form hides the password.
#[derive(Clone)]
pub struct Stored {
    /// The Git user name, `<user>-at-<account>`.
    pub username: String,
    /// The Git password.
    pub password: SecretString,
    /// The repository's address.
    pub url: String,
    /// The id of the service-specific credential.
    pub credential_id: String,
    /// When IAM made it.
    pub created_at: String,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("credential_id", &self.credential_id).finish_non_exhaustive()
    }
}

impl Stored {
    /// Reads a value. `None` where user name or password are missing: then it was not written by this
    /// step. The cause is not kept, since a parser's error may quote what it read.
    pub fn parse(text: &str) -> Option<Stored> {
        let value: Value = serde_json::from_str(text).ok()?;
        let field = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Stored {
            username: field("username").filter(|name| !name.is_empty())?,
            password: SecretString::from(field("password").filter(|password| !password.is_empty())?),
            url: field("url").unwrap_or_default(),
            credential_id: field("credentialId").unwrap_or_default(),
            created_at: field("createdAt").unwrap_or_default(),
        })
    }

    /// The value as it is stored.
    pub fn to_json(&self) -> SecretString {
        let value = json!({
            "username": self.username,
            "password": self.password.expose_secret(),
            "url": self.url,
            "credentialId": self.credential_id,
            "createdAt": self.created_at,
        });
        SecretString::from(value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(list: &[(&str, &str)]) -> BTreeMap<String, Vec<String>> {
        list.iter().map(|(id, label)| ((*id).to_owned(), vec![(*label).to_owned()])).collect()
    }

    #[test]
    fn the_next_version_follows_from_the_labels() {
        let empty = next_version("s", &BTreeMap::new());
        assert_eq!(empty.len(), 64);
        assert_eq!(empty, next_version("s", &BTreeMap::new()));
        let one = next_version("s", &versions(&[("a", "AWSCURRENT")]));
        let back = next_version("s", &versions(&[("a", "AWSCURRENT"), ("b", "AWSPREVIOUS")]));
        assert!(empty != one && one != back && empty != next_version("t", &BTreeMap::new()));
    }

    #[test]
    fn the_tag_speaks_of_one_version() {
        let mut secret = Secret { versions: versions(&[("v1", "AWSCURRENT")]), ..Secret::default() };
        assert_eq!(secret.tagged(), None);
        secret.tags.insert(CREDENTIAL_TAG.into(), "ACCA1@v1".into());
        secret.tags.insert(URL_TAG.into(), "https://x".into());
        assert_eq!(secret.tagged(), Some(("ACCA1", "https://x")));
        secret.versions = versions(&[("v1", "AWSPREVIOUS"), ("v2", "AWSCURRENT")]);
        assert_eq!(secret.tagged(), None);
    }

    #[test]
    fn a_value_round_trips_and_shows_no_password() {
        let text = r#"{"username":"u","password":"sentinel","url":"x","credentialId":"A","createdAt":"t"}"#;
        let stored = Stored::parse(text).expect("a value");
        assert_eq!(stored.to_json().expose_secret(), text);
        assert!(!format!("{stored:?}").contains("sentinel"));
        for bad in ["", "sentinel", "[]", r#"{"username":"u"}"#, r#"{"username":"","password":"p"}"#] {
            assert!(Stored::parse(bad).is_none(), "{bad}");
        }
    }
}
