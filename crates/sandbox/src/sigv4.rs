//! Signature Version 4, from the side that checks it.
//!
//! The edge routes by what a signature says (service, region) and finds out who calls by checking it
//! against the key's secret. The same check stands behind the bearer token of a cluster, which is a
//! presigned request to STS.

use std::fmt::Write as _;

use hmac::{Hmac, Mac};
use http::{HeaderMap, Method, Uri};
use sha2::{Digest, Sha256};
use time::{Duration, OffsetDateTime, PrimitiveDateTime};

/// What a signed request says of its signature, in its `Authorization` header or in its query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The access key's id.
    pub access_key: String,
    /// The scope's region.
    pub region: String,
    /// The scope's service: the signing name.
    pub service: String,
    /// The session token that came along.
    pub session_token: Option<String>,
    /// Whether it stood in the query.
    pub presigned: bool,
    /// `X-Amz-Expires` of a presigned request, in seconds.
    pub expires: Option<i64>,
    day: String,
    moment: String,
    signed_headers: Vec<String>,
    signature: String,
}

/// Why a signature is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The signature is not that of this request under this secret.
    #[error("the signature does not match")]
    Mismatch,
    /// Signed too long ago or in the future.
    #[error("the signature is not current")]
    NotCurrent,
}

impl Signature {
    /// Reads the signature of a request, if there is one.
    pub fn of(uri: &Uri, headers: &HeaderMap) -> Option<Signature> {
        Self::of_header(headers).or_else(|| Self::of_query(uri.query().unwrap_or_default()))
    }

    fn of_header(headers: &HeaderMap) -> Option<Signature> {
        let authorization = headers.get("authorization")?.to_str().ok()?;
        let fields = authorization.strip_prefix("AWS4-HMAC-SHA256")?.trim();
        let field =
            |name: &str| fields.split(',').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
        let (access_key, day, region, service) = scope(field("Credential")?)?;
        let moment = headers.get("x-amz-date").and_then(|value| value.to_str().ok())?.to_owned();
        Some(Signature {
            access_key,
            region,
            service,
            session_token: headers
                .get("x-amz-security-token")
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned),
            presigned: false,
            expires: None,
            day,
            moment,
            signed_headers: field("SignedHeaders")?.split(';').map(str::to_owned).collect(),
            signature: field("Signature")?.to_owned(),
        })
    }

    fn of_query(query: &str) -> Option<Signature> {
        let pairs = pairs(query);
        let value = |name: &str| {
            pairs.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
        };
        if value("X-Amz-Algorithm")? != "AWS4-HMAC-SHA256" {
            return None;
        }
        let (access_key, day, region, service) = scope(value("X-Amz-Credential")?)?;
        Some(Signature {
            access_key,
            region,
            service,
            session_token: value("X-Amz-Security-Token").map(str::to_owned),
            presigned: true,
            expires: value("X-Amz-Expires").and_then(|seconds| seconds.parse().ok()),
            day,
            moment: value("X-Amz-Date")?.to_owned(),
            signed_headers: value("X-Amz-SignedHeaders")?.split(';').map(str::to_owned).collect(),
            signature: value("X-Amz-Signature")?.to_owned(),
        })
    }

    /// When it was signed.
    pub fn signed_at(&self) -> Option<OffsetDateTime> {
        let format = time::macros::format_description!("[year][month][day]T[hour][minute][second]Z");
        PrimitiveDateTime::parse(&self.moment, &format).ok().map(PrimitiveDateTime::assume_utc)
    }

    /// Whether this header was signed.
    pub fn covers(&self, header: &str) -> bool {
        self.signed_headers.iter().any(|name| name.eq_ignore_ascii_case(header))
    }

    /// Checks the signature against the secret of its key. `body_hash` counts where the request
    /// itself names no hash of its body.
    ///
    /// # Errors
    /// Says whether the signature is wrong or out of time.
    pub fn verify(
        &self,
        secret: &str,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body_hash: &str,
        now: OffsetDateTime,
    ) -> Result<(), Refusal> {
        let age = now - self.signed_at().ok_or(Refusal::NotCurrent)?;
        // AWS allows a quarter of an hour between two clocks; a presigned request lives as long as it says.
        let life = Duration::seconds(self.expires.filter(|_| self.service == "s3").unwrap_or(0));
        if age > life.max(Duration::minutes(15)) || age < -Duration::minutes(15) {
            return Err(Refusal::NotCurrent);
        }
        let declared = headers.get("x-amz-content-sha256").and_then(|value| value.to_str().ok());
        let payload = match declared {
            Some(hash) => hash,
            None if self.presigned && self.service == "s3" => "UNSIGNED-PAYLOAD",
            None => body_hash,
        };
        let canonical = self.canonical(method, uri, headers, payload);
        let scope = [self.day.as_str(), &self.region, &self.service];
        if same(&sign(secret, &self.moment, scope, &canonical), &self.signature) {
            Ok(())
        } else {
            Err(Refusal::Mismatch)
        }
    }

    fn canonical(&self, method: &Method, uri: &Uri, headers: &HeaderMap, payload: &str) -> String {
        // Every service but S3 signs the path encoded once more.
        let path = if self.service == "s3" {
            uri.path().to_owned()
        } else {
            encode(&without_dots(uri.path()), false)
        };
        let mut query: Vec<(String, String)> = pairs(uri.query().unwrap_or_default())
            .iter()
            .filter(|(name, _)| !(self.presigned && name.eq_ignore_ascii_case("X-Amz-Signature")))
            .map(|(name, value)| (encode(name, true), encode(value, true)))
            .collect();
        query.sort();
        let query: Vec<String> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut signed = String::new();
        for name in &self.signed_headers {
            let values: Vec<String> = headers
                .get_all(name.as_str())
                .iter()
                .map(|value| {
                    String::from_utf8_lossy(value.as_bytes()).split_whitespace().collect::<Vec<_>>().join(" ")
                })
                .collect();
            // HTTP/2 requests carry the host in their target only.
            let value = if values.is_empty() && name == "host" {
                uri.authority().map(ToString::to_string).unwrap_or_default()
            } else {
                values.join(",")
            };
            let _ = writeln!(signed, "{}:{value}", name.to_ascii_lowercase());
        }
        format!(
            "{method}\n{path}\n{}\n{signed}\n{}\n{payload}",
            query.join("&"),
            self.signed_headers.join(";")
        )
    }
}

/// The password that `aws codecommit credential-helper` makes for Git: the time and a signature over
/// `GIT` and the repository's path. The host is signed without its port. `moment` is `20260102T030405`.
pub fn git_password(secret: &str, region: &str, host: &str, path: &str, moment: &str) -> String {
    let canonical = format!("GIT\n{path}\n\nhost:{host}\n\nhost\n");
    let day = moment.get(..8).unwrap_or_default();
    format!("{moment}Z{}", sign(secret, moment, [day, region, "codecommit"], &canonical))
}

/// The signature of a canonical request under a secret.
fn sign(secret: &str, moment: &str, scope: [&str; 3], canonical: &str) -> String {
    let [day, region, service] = scope;
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{moment}\n{day}/{region}/{service}/aws4_request\n{}",
        sha256_hex(canonical.as_bytes()),
    );
    let mut key = format!("AWS4{secret}").into_bytes();
    for part in [day, region, service, "aws4_request"] {
        key = hmac(&key, part.as_bytes());
    }
    hex(&hmac(&key, to_sign.as_bytes()))
}

/// `KEY/20260102/eu-west-1/sts/aws4_request`, whose key may not hold a slash.
fn scope(credential: &str) -> Option<(String, String, String, String)> {
    let parts: Vec<&str> = credential.split('/').collect();
    match parts.as_slice() {
        [key, day, region, service, "aws4_request"] => {
            Some(((*key).to_owned(), (*day).to_owned(), (*region).to_owned(), (*service).to_owned()))
        }
        _ => None,
    }
}

/// The pairs of a query, decoded. A plus sign stands for itself, as in SigV4.
pub fn pairs(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
        .collect()
}

/// Undoes percent-encoding.
pub fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let pair = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) if bytes[at] == b'%' => {
                out.push(byte);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Percent-encodes as SigV4 wants it.
pub fn encode(text: &str, slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b'/' if !slash => out.push('/'),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            other => kept.push(other),
        }
    }
    let end = if path.ends_with('/') && !kept.is_empty() { "/" } else { "" };
    format!("/{}{end}", kept.join("/"))
}

/// SHA-256 in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| unreachable!("any key length does"));
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Compares without telling by its time how far two texts agree.
pub fn same(left: &str, right: &str) -> bool {
    left.len() == right.len()
        && left.bytes().zip(right.bytes()).fold(0_u8, |different, (l, r)| different | (l ^ r)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    fn moment(text: &str) -> OffsetDateTime {
        let format = time::macros::format_description!("[year][month][day]T[hour][minute][second]Z");
        PrimitiveDateTime::parse(text, &format).unwrap().assume_utc()
    }

    /// The documented example of AWS' General Reference: `iam:ListUsers` with a signed header.
    #[test]
    fn the_documented_header_example_verifies() {
        let uri: Uri = "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08".parse().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("host", "iam.amazonaws.com".parse().unwrap());
        headers.insert("content-type", "application/x-www-form-urlencoded; charset=utf-8".parse().unwrap());
        headers.insert("x-amz-date", "20150830T123600Z".parse().unwrap());
        headers.insert(
            "authorization",
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date, \
             Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
                .parse()
                .unwrap(),
        );
        let signature = Signature::of(&uri, &headers).unwrap();
        assert_eq!((signature.service.as_str(), signature.region.as_str()), ("iam", "us-east-1"));
        let check = |secret: &str, at: &str| {
            signature.verify(secret, &Method::GET, &uri, &headers, &sha256_hex(b""), moment(at))
        };
        assert_eq!(check(SECRET, "20150830T123700Z"), Ok(()));
        assert_eq!(check("another", "20150830T123700Z"), Err(Refusal::Mismatch));
        assert_eq!(check(SECRET, "20150830T125200Z"), Err(Refusal::NotCurrent));
        assert_eq!(check(SECRET, "20150830T121900Z"), Err(Refusal::NotCurrent));
    }

    #[test]
    fn unsigned_requests_have_no_signature() {
        let cases = ["/", "/?Action=ListUsers", "/?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/b"];
        for case in cases {
            assert_eq!(Signature::of(&case.parse().unwrap(), &HeaderMap::new()), None, "{case}");
        }
    }

    #[test]
    fn texts_survive_encoding() {
        for text in ["plain", "a b+c/d=e&f", "ümläut", "100%", "%zz"] {
            assert_eq!(decode(&encode(text, true)), text);
        }
        assert_eq!(decode("%"), "%");
        assert_eq!(decode("%4"), "%4");
    }
}
