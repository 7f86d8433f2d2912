//! What CodeCommit and IAM ask of KMS and of each other.

use std::sync::Weak;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::codecommit::{CodeCommit, KeyCheck, KeyState, managed_key};
use crate::iam::Repositories;
use crate::ministack::Upstream;
use crate::wire::{Call, Caller};

/// Asks MiniStack's KMS for the state of a key.
pub struct Keys {
    upstream: Upstream,
    region: String,
}

impl Keys {
    /// Keys of this region.
    pub fn new(upstream: Upstream, region: &str) -> Keys {
        Keys { upstream, region: region.to_owned() }
    }
}

impl KeyCheck for Keys {
    fn state<'a>(&'a self, key: &'a str) -> BoxFuture<'a, KeyState> {
        Box::pin(async move {
            let body = json!({ "KeyId": key });
            let asked = self.upstream.json("kms", &self.region, "TrentService.DescribeKey", &body).await;
            let Ok(answer) = asked else { return KeyState::Unavailable };
            if answer.status != 200 {
                return KeyState::NotFound;
            }
            let key = &answer.json()["KeyMetadata"];
            let symmetric = key["KeyUsage"] == "ENCRYPT_DECRYPT"
                && key["KeySpec"].as_str().is_none_or(|spec| spec == "SYMMETRIC_DEFAULT");
            match key["KeyState"].as_str() {
                Some("Enabled") if symmetric => {
                    KeyState::Enabled(key["Arn"].as_str().unwrap_or_default().to_owned())
                }
                Some("Enabled") => KeyState::InvalidUsage,
                Some("Disabled") => KeyState::Disabled,
                _ => KeyState::Unavailable,
            }
        })
    }
}

/// Asks the repositories for their keys. The repositories ask IAM for their users, so this end is weak.
pub struct RepositoryKeys {
    codecommit: Weak<CodeCommit>,
    region: String,
    account: String,
}

impl RepositoryKeys {
    /// Keys of these repositories.
    pub fn new(codecommit: Weak<CodeCommit>, region: &str, account: &str) -> RepositoryKeys {
        RepositoryKeys { codecommit, region: region.to_owned(), account: account.to_owned() }
    }
}

impl Repositories for RepositoryKeys {
    fn key<'a>(&'a self, repository: &'a str) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let codecommit = self.codecommit.upgrade()?;
            let body = json!({ "repositoryName": repository }).to_string();
            let call = Call {
                service: "codecommit".to_owned(),
                action: "GetRepository".to_owned(),
                region: self.region.clone(),
                caller: Caller {
                    arn: format!("arn:aws:iam::{}:root", self.account),
                    account: self.account.clone(),
                },
                request: http::Request::new(Bytes::from(body)),
            };
            let reply = codecommit.call(&call).await;
            let bytes = axum::body::to_bytes(reply.into_body(), 1 << 20).await.ok()?;
            let body: Value = serde_json::from_slice(&bytes).ok()?;
            let key = body["repositoryMetadata"]["kmsKeyId"].as_str()?;
            // The key that AWS manages needs no rights of the user.
            (key != managed_key(&self.region, &self.account)).then(|| key.to_owned())
        })
    }
}
