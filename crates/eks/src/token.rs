//! The bearer token that EKS takes: a presigned `sts:GetCallerIdentity`.
//!
//! EKS hands the address in the token to STS and looks the answering principal up among the
//! cluster's access entries. It refuses an address with any query parameter beside those of the
//! signature, so no SDK client may build it: they add `x-id`. (kubernetes-sigs/aws-iam-authenticator,
//! `pkg/token/token.go`.)

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign};
use aws_sigv4::sign::v4;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::SecretString;
use step::{Result, StepError};
use url::form_urlencoded;

const PREFIX: &str = "k8s-aws-v1.";
/// The header that ties a token to one cluster.
const CLUSTER_HEADER: &str = "x-k8s-aws-id";
/// What the signature says of its own life; EKS accepts the token for 15 minutes all the same.
const EXPIRES: Duration = Duration::from_secs(60);
/// EKS refuses longer tokens.
const LONGEST: usize = 4096;

/// Makes the token for a cluster. One is made for each invocation, since it lives for 15 minutes
/// and is never refreshed.
///
/// # Errors
/// `Internal`, where the request cannot be signed.
pub fn mint(
    cluster: &str,
    region: &str,
    partition: &str,
    credentials: Credentials,
    now: SystemTime,
) -> Result<SecretString> {
    let url = presigned(cluster, region, partition, credentials, now)?;
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(url));
    if token.len() > LONGEST {
        return Err(StepError::internal(format!(
            "the token for the Kubernetes API of cluster {cluster} has {} bytes and EKS takes {LONGEST}; \
             the session of the function's role is too long",
            token.len()
        )));
    }
    Ok(token.into())
}

fn presigned(
    cluster: &str,
    region: &str,
    partition: &str,
    credentials: Credentials,
    now: SystemTime,
) -> Result<String> {
    let failed = || {
        StepError::internal(format!(
            "the token for the Kubernetes API of cluster {cluster} could not be signed"
        ))
    };
    let suffix = if partition == "aws-cn" { "amazonaws.com.cn" } else { "amazonaws.com" };
    let url = format!("https://sts.{region}.{suffix}/?Action=GetCallerIdentity&Version=2011-06-15");

    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(EXPIRES);
    let identity = credentials.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("sts")
        .time(now)
        .settings(settings)
        .build()
        .map_err(|_| failed())?
        .into();
    let headers = [(CLUSTER_HEADER, cluster)];
    let signable = SignableRequest::new("GET", url.as_str(), headers.into_iter(), SignableBody::Bytes(&[]))
        .map_err(|_| failed())?;
    let (instructions, _) = sign(signable, &params).map_err(|_| failed())?.into_parts();
    let (_, query) = instructions.into_parts();
    let mut query_string = form_urlencoded::Serializer::new(String::new());
    for (name, value) in &query {
        query_string.append_pair(name, value);
    }
    Ok(format!("{url}&{}", query_string.finish()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::UNIX_EPOCH;

    use secrecy::ExposeSecret;

    use super::*;

    /// 2026-01-02T03:04:05Z, the moment of both vectors.
    const MOMENT: u64 = 1_767_323_045;
    const KEY: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    /// Made by botocore; other signers order the parameters differently, which changes nothing.
    const VECTOR_A: &str = "k8s-aws-v1.aHR0cHM6Ly9zdHMudXMtZWFzdC0xLmFtYXpvbmF3cy5jb20vP0FjdGlvbj1HZXRDYWxsZXJJZGVudGl0eSZWZXJzaW9uPTIwMTEtMDYtMTUmWC1BbXotQWxnb3JpdGhtPUFXUzQtSE1BQy1TSEEyNTYmWC1BbXotQ3JlZGVudGlhbD1BS0lERVhBTVBMRSUyRjIwMjYwMTAyJTJGdXMtZWFzdC0xJTJGc3RzJTJGYXdzNF9yZXF1ZXN0JlgtQW16LURhdGU9MjAyNjAxMDJUMDMwNDA1WiZYLUFtei1FeHBpcmVzPTYwJlgtQW16LVNpZ25lZEhlYWRlcnM9aG9zdCUzQngtazhzLWF3cy1pZCZYLUFtei1TaWduYXR1cmU9OWQ5Y2JlZTJiNDYxNGIxZTQyZDEwNzljZjcxNDY4ODRkNDNjNmUyMzY2MWNiOGE0ZDVjODBkNDI4MjkyMjdlZA";
    const VECTOR_B: &str = "k8s-aws-v1.aHR0cHM6Ly9zdHMuZXUtd2VzdC0xLmFtYXpvbmF3cy5jb20vP0FjdGlvbj1HZXRDYWxsZXJJZGVudGl0eSZWZXJzaW9uPTIwMTEtMDYtMTUmWC1BbXotQWxnb3JpdGhtPUFXUzQtSE1BQy1TSEEyNTYmWC1BbXotQ3JlZGVudGlhbD1BU0lBRVhBTVBMRSUyRjIwMjYwMTAyJTJGZXUtd2VzdC0xJTJGc3RzJTJGYXdzNF9yZXF1ZXN0JlgtQW16LURhdGU9MjAyNjAxMDJUMDMwNDA1WiZYLUFtei1FeHBpcmVzPTYwJlgtQW16LVNpZ25lZEhlYWRlcnM9aG9zdCUzQngtazhzLWF3cy1pZCZYLUFtei1TZWN1cml0eS1Ub2tlbj1Gd29HWlhJdllYZHpFWEFNUExFJTJCJTJGJTNEdG9rZW4mWC1BbXotU2lnbmF0dXJlPTY2YzkzY2IzMDI0MjU0NGNhYTVjMjkxNDA0ZTgzYTI4MjE5NTRhMDhkZWQ0MTIxMDJjOTE0MmRjMmJlMzAxNWQ";

    fn address(token: &str) -> (String, BTreeMap<String, String>) {
        let encoded = token.strip_prefix(PREFIX).expect("prefix");
        let url = URL_SAFE_NO_PAD.decode(encoded).expect("base64url without padding");
        let url = url::Url::parse(std::str::from_utf8(&url).expect("text")).expect("address");
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let parameters: BTreeMap<String, String> = pairs.iter().cloned().collect();
        assert_eq!(pairs.len(), parameters.len(), "a parameter occurs twice");
        (format!("{}://{}{}", url.scheme(), url.host_str().expect("host"), url.path()), parameters)
    }

    #[test]
    fn tokens_equal_the_vectors() {
        let cases = [
            ("demo", "us-east-1", Credentials::new("AKIDEXAMPLE", KEY, None, None, "test"), VECTOR_A),
            (
                "my-cluster_1",
                "eu-west-1",
                Credentials::new(
                    "ASIAEXAMPLE",
                    KEY,
                    Some("FwoGZXIvYXdzEXAMPLE+/=token".into()),
                    None,
                    "test",
                ),
                VECTOR_B,
            ),
        ];
        for (cluster, region, credentials, vector) in cases {
            let now = UNIX_EPOCH + Duration::from_secs(MOMENT);
            let token = mint(cluster, region, "aws", credentials, now).expect("token");
            assert_eq!(address(token.expose_secret()), address(vector), "{cluster}");
        }
    }

    #[test]
    fn only_whitelisted_parameters_are_sent() {
        let now = UNIX_EPOCH + Duration::from_secs(MOMENT);
        let credentials = Credentials::new("ASIAEXAMPLE", KEY, Some("token".into()), None, "test");
        let token = mint("demo", "cn-north-1", "aws-cn", credentials, now).expect("token");
        let (target, parameters) = address(token.expose_secret());
        assert_eq!(target, "https://sts.cn-north-1.amazonaws.com.cn/");
        let allowed = [
            "Action",
            "Version",
            "X-Amz-Algorithm",
            "X-Amz-Credential",
            "X-Amz-Date",
            "X-Amz-Expires",
            "X-Amz-Security-Token",
            "X-Amz-Signature",
            "X-Amz-SignedHeaders",
        ];
        for name in parameters.keys() {
            assert!(allowed.contains(&name.as_str()), "{name}");
        }
        assert_eq!(parameters["X-Amz-SignedHeaders"], "host;x-k8s-aws-id");
        assert_eq!(parameters["X-Amz-Expires"], "60");
    }

    #[test]
    fn an_overlong_session_is_named() {
        let credentials = Credentials::new("ASIAEXAMPLE", KEY, Some("t".repeat(4000)), None, "test");
        let error = mint("demo", "eu-west-1", "aws", credentials, UNIX_EPOCH).expect_err("too long");
        assert!(error.message.contains("EKS takes 4096"), "{}", error.message);
        assert!(!error.message.contains("tttt"));
    }
}
