//! The bearer tokens of a cluster, checked as EKS checks them.
//!
//! A token is the address of a presigned `sts:GetCallerIdentity`. The rules are those of
//! kubernetes-sigs/aws-iam-authenticator, `pkg/token/token.go`; the signature is checked with the key's
//! own secret, as STS would.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Uri};
use time::Duration;

use super::Eks;
use crate::clock;
use crate::sigv4::{self, Signature};
use crate::wire::{Authenticator, UserInfo};

const PREFIX: &str = "k8s-aws-v1.";
const LONGEST: usize = 4096;
const CLUSTER_HEADER: &str = "x-k8s-aws-id";
const PARAMETERS: &[&str] = &[
    "action",
    "version",
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-security-token",
    "x-amz-signature",
    "x-amz-signedheaders",
];

/// Checks the tokens of one cluster.
pub struct Tokens {
    eks: Arc<Eks>,
    cluster: String,
    /// `127.0.0.1:PORT`: where clients whose `AWS_ENDPOINT_URL` is the edge find STS.
    local_sts: String,
}

impl Tokens {
    /// A check for this cluster; `edge` is the edge's address.
    pub fn new(eks: Arc<Eks>, cluster: &str, edge: &str) -> Tokens {
        let local_sts = edge.trim_start_matches("http://").to_owned();
        Tokens { eks, cluster: cluster.to_owned(), local_sts }
    }

    async fn check(&self, token: &str) -> Result<UserInfo, String> {
        let uri = address(token, &self.local_sts)?;
        let signature = Signature::of(&uri, &HeaderMap::new()).ok_or("it is not signed")?;
        if !signature.covers(CLUSTER_HEADER) || !signature.covers("host") {
            return Err(format!("the signature does not cover {CLUSTER_HEADER}"));
        }
        if !(0..=900).contains(&signature.expires.ok_or("X-Amz-Expires is missing")?) {
            return Err("X-Amz-Expires is not within 0 to 900".to_owned());
        }
        let age = clock::now() - signature.signed_at().ok_or("X-Amz-Date is not a date")?;
        if age > Duration::minutes(15) {
            return Err("it is older than 15 minutes".to_owned());
        }
        let credential =
            self.eks.upstream.credential(&signature.access_key).await.ok_or("STS does not know the key")?;
        if credential.session_token != signature.session_token {
            return Err("the session token is not that of the key".to_owned());
        }
        let host = uri.authority().map(ToString::to_string).unwrap_or_default();
        let mut headers = HeaderMap::new();
        for (name, value) in [("host", host.as_str()), (CLUSTER_HEADER, &self.cluster)] {
            headers.insert(name, HeaderValue::from_str(value).map_err(|error| error.to_string())?);
        }
        let empty = sigv4::sha256_hex(b"");
        signature
            .verify(&credential.secret_access_key, &Method::GET, &uri, &headers, &empty, clock::now())
            .map_err(|refusal| refusal.to_string())?;
        let access = self
            .eks
            .access(&self.cluster, &credential.arn)
            .ok_or_else(|| format!("{} has no access entry", credential.arn))?;
        // A role that was deleted and made anew is not the one that the entry was made for.
        let id = self.eks.principal(&access.principal).await.map_err(|error| error.message)?;
        if id != access.id {
            return Err(format!(
                "{} is not the principal that its access entry was made for",
                access.principal
            ));
        }
        Ok(UserInfo { username: access.username, groups: access.groups })
    }
}

impl Authenticator for Tokens {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Option<UserInfo>> {
        Box::pin(async move {
            match self.check(token).await {
                Ok(user) => Some(user),
                Err(why) => {
                    tracing::info!(cluster = %self.cluster, why, "a token was refused");
                    None
                }
            }
        })
    }
}

/// The address in a token, as far as it can be judged without STS.
fn address(token: &str, local_sts: &str) -> Result<Uri, String> {
    if token.len() > LONGEST {
        return Err("it is longer than 4096 bytes".to_owned());
    }
    let encoded = token.strip_prefix(PREFIX).ok_or("it does not begin with k8s-aws-v1.")?;
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| "it is not base64url without padding")?;
    let text = String::from_utf8(bytes).map_err(|_| "it holds no text")?;
    let uri: Uri = text.parse().map_err(|_| "it holds no address")?;
    let host = uri.authority().map(ToString::to_string).unwrap_or_default();
    let local = host == local_sts;
    if !(uri.scheme_str() == Some("https") || local) {
        return Err("the address is not https".to_owned());
    }
    let sts = host == "sts.amazonaws.com"
        || host.strip_prefix("sts.").is_some_and(|rest| {
            rest.strip_suffix(".amazonaws.com")
                .or_else(|| rest.strip_suffix(".amazonaws.com.cn"))
                .is_some_and(|region| !region.contains('.'))
        });
    if !(sts || local) {
        return Err(format!("{host} is not STS"));
    }
    if uri.path() != "/" {
        return Err("the path is not /".to_owned());
    }
    let mut seen = BTreeSet::new();
    for (name, value) in sigv4::pairs(uri.query().unwrap_or_default()) {
        let name = name.to_ascii_lowercase();
        if !PARAMETERS.contains(&name.as_str()) {
            return Err(format!("the parameter {name} is not allowed"));
        }
        if name == "action" && value != "GetCallerIdentity" {
            return Err("the action is not GetCallerIdentity".to_owned());
        }
        if !seen.insert(name.clone()) {
            return Err(format!("the parameter {name} occurs twice"));
        }
    }
    if !seen.contains("action") {
        return Err("the action is missing".to_owned());
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(url: &str) -> String {
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(url))
    }

    #[test]
    fn addresses_are_judged_as_the_authenticator_judges_them() {
        let good = "https://sts.eu-west-1.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15";
        let cases = [
            (token(good), None),
            (token("https://sts.cn-north-1.amazonaws.com.cn/?Action=GetCallerIdentity"), None),
            (token("http://127.0.0.1:4000/?Action=GetCallerIdentity"), None),
            (good.to_owned(), Some("begin with")),
            (format!("{}=", token(good)), Some("base64url")),
            (token(&good.replace("https", "http")), Some("not https")),
            (token(&good.replace("/?", "/x?")), Some("path")),
            (token(&good.replace("sts.", "evil.")), Some("is not STS")),
            (token(&good.replace("amazonaws.com", "amazonaws.com.evil.org")), Some("is not STS")),
            (token(&format!("{good}&x-id=GetCallerIdentity")), Some("x-id is not allowed")),
            (token(&format!("{good}&version=2")), Some("twice")),
            (token(&good.replace("GetCallerIdentity", "GetSessionToken")), Some("the action is not")),
            (token("https://sts.eu-west-1.amazonaws.com/?Version=2011-06-15"), Some("missing")),
            (token(&format!("{good}&x-amz-security-token={}", "t".repeat(4096))), Some("4096")),
        ];
        for (token, refusal) in cases {
            let judged = address(&token, "127.0.0.1:4000");
            match (&judged, refusal) {
                (Ok(_), None) => {}
                (Err(why), Some(part)) => assert!(why.contains(part), "{why} for {token}"),
                _ => panic!("{judged:?} for {token}"),
            }
        }
    }
}
