//! The record of calls, and what a call is called.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use http::Uri;
use http::request::Parts;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::form_urlencoded;

use crate::eks;

/// One call. Bodies are not kept: they hold secrets.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Record {
    /// Counts the calls of a world from 1 on, in the order of their arrival.
    pub sequence: u64,
    /// When it came, `2026-01-02T03:04:05.678Z`.
    pub time: String,
    /// How long it took until the reply began.
    pub milliseconds: u64,
    /// The ARN behind its signature, or nothing where there is none or it is wrong.
    pub caller: Option<String>,
    /// The signing name; `git` for the Git endpoint.
    pub service: String,
    /// The action; for services whose actions are methods and paths, except EKS, the method.
    pub action: String,
    /// What it is about, as far as the request says it in an obvious place.
    pub resource: Option<String>,
    /// HTTP status of the reply.
    pub status: u16,
    /// Whether such a call changes anything.
    pub write: bool,
    /// Whether a rule of the edge delayed or answered it.
    pub ruled: bool,
}

impl Record {
    /// Whether it was refused or failed.
    pub fn failed(&self) -> bool {
        self.status >= 400
    }

    /// `kms:CreateKey`
    pub fn name(&self) -> String {
        format!("{}:{}", self.service, self.action)
    }
}

/// Which calls to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only those after this number.
    pub after: u64,
    /// Only those that change something, or only the others.
    pub write: Option<bool>,
    /// Only those of this service.
    pub service: Option<String>,
    /// Only those of callers whose ARN contains this.
    pub caller: Option<String>,
}

impl Filter {
    /// Calls after a mark.
    pub fn after(mark: u64) -> Filter {
        Filter { after: mark, ..Filter::default() }
    }

    /// From `after=5&write=true&service=kms&caller=assumed-role`.
    pub fn of_query(query: &str) -> Filter {
        let mut filter = Filter::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "after" => filter.after = value.parse().unwrap_or(0),
                "write" => filter.write = value.parse().ok(),
                "service" => filter.service = Some(value.into_owned()),
                "caller" => filter.caller = Some(value.into_owned()),
                _ => {}
            }
        }
        filter
    }

    fn passes(&self, record: &Record) -> bool {
        record.sequence > self.after
            && self.write.is_none_or(|write| write == record.write)
            && self.service.as_ref().is_none_or(|service| *service == record.service)
            && self
                .caller
                .as_ref()
                .is_none_or(|part| record.caller.as_ref().is_some_and(|arn| arn.contains(part.as_str())))
    }
}

/// The record.
#[derive(Debug, Default)]
pub struct Calls {
    counter: AtomicU64,
    records: Mutex<Vec<Record>>,
}

impl Calls {
    /// Numbers a call.
    pub fn next(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The latest number.
    pub fn latest(&self) -> u64 {
        self.counter.load(Ordering::SeqCst)
    }

    /// Keeps a call.
    pub fn add(&self, record: Record) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }

    /// The calls that a filter lets through, in the order of their arrival.
    pub fn list(&self, filter: &Filter) -> Vec<Record> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<Record> = records.iter().filter(|record| filter.passes(record)).cloned().collect();
        found.sort_by_key(|record| record.sequence);
        found
    }
}

/// What a call is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The signing name.
    pub service: String,
    /// The action.
    pub action: String,
    /// What it is about.
    pub resource: Option<String>,
    /// Whether such a call changes anything.
    pub write: bool,
}

impl Name {
    /// Of a call of an API.
    pub fn of(service: &str, parts: &Parts, body: &[u8]) -> Name {
        let target = parts.headers.get("x-amz-target").and_then(|target| target.to_str().ok());
        if let Some(action) = target.and_then(|target| target.rsplit('.').next()) {
            let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
            let resource = JSON_RESOURCES.iter().find_map(|name| body[*name].as_str()).map(str::to_owned);
            return Name::new(service, action, resource);
        }
        if service == "eks" {
            let (action, resource) = eks::operation(&parts.method, parts.uri.path());
            return Name::new(service, action, resource);
        }
        let form = parts
            .headers
            .get("content-type")
            .and_then(|kind| kind.to_str().ok())
            .is_some_and(|kind| kind.contains("x-www-form-urlencoded"));
        let query = parts.uri.query().unwrap_or_default().as_bytes();
        let fields: Vec<(String, String)> = form_urlencoded::parse(query)
            .into_owned()
            .chain(form_urlencoded::parse(if form { body } else { &[] }).into_owned())
            .collect();
        let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        match field("Action") {
            Some(action) => {
                let resource = FORM_RESOURCES.iter().find_map(|name| field(name));
                Name::new(service, &action, resource)
            }
            None => Name {
                service: service.to_owned(),
                action: parts.method.to_string(),
                resource: Some(parts.uri.path().to_owned()),
                write: !matches!(parts.method.as_str(), "GET" | "HEAD" | "OPTIONS"),
            },
        }
    }

    /// Of a request to the Git endpoint.
    pub fn of_git(uri: &Uri) -> Name {
        let push = uri.path().ends_with("/git-receive-pack")
            || uri.query().is_some_and(|query| query.contains("git-receive-pack"));
        let repository = uri.path().strip_prefix("/v1/repos/").and_then(|rest| rest.split('/').next());
        Name {
            service: "git".to_owned(),
            action: if push { "GitPush" } else { "GitPull" }.to_owned(),
            resource: repository.map(str::to_owned),
            // The advertisement of references before a push changes nothing yet.
            write: uri.path().ends_with("/git-receive-pack"),
        }
    }

    fn new(service: &str, action: &str, resource: Option<String>) -> Name {
        Name {
            service: service.to_owned(),
            action: action.to_owned(),
            resource,
            write: changes(service, action),
        }
    }
}

/// Where requests name what they are about, the most telling first.
const JSON_RESOURCES: &[&str] = &[
    "repositoryName",
    "SecretId",
    "Name",
    "AliasName",
    "KeyId",
    "TargetKeyId",
    "executionArn",
    "stateMachineArn",
    "name",
    "logGroupName",
    "resourceArn",
    "ResourceArn",
];
const FORM_RESOURCES: &[&str] = &[
    "UserName",
    "RoleName",
    "PolicyArn",
    "RoleArn",
    "StackName",
    "VpcEndpointId.1",
    "VpcEndpointId",
    "ServiceName",
    "GroupId",
    "GroupId.1",
    "GroupName",
    "VpcId",
    "ResourceId.1",
    "QueueUrl",
    "TopicArn",
];

/// Whether an action changes anything. What is not known to read counts as a change.
fn changes(service: &str, action: &str) -> bool {
    const READING: &[&str] = &[
        "Describe",
        "Get",
        "List",
        "Head",
        "BatchGet",
        "BatchDescribe",
        "Lookup",
        "Search",
        "Simulate",
        "Validate",
        "Filter",
        "Query",
        "Scan",
        "Select",
        "Estimate",
        "Check",
        "View",
        "Preview",
        "Detect",
        "Evaluate",
        "Test",
        "Download",
        "Discover",
    ];
    // These compute something and keep nothing.
    const PURE: &[(&str, &str)] = &[
        ("kms", "Encrypt"),
        ("kms", "Decrypt"),
        ("kms", "ReEncrypt"),
        ("kms", "GenerateDataKey"),
        ("kms", "GenerateDataKeyWithoutPlaintext"),
        ("kms", "GenerateDataKeyPair"),
        ("kms", "GenerateDataKeyPairWithoutPlaintext"),
        ("kms", "GenerateMac"),
        ("kms", "GenerateRandom"),
        ("kms", "Sign"),
        ("kms", "Verify"),
        ("kms", "VerifyMac"),
        ("sts", "AssumeRole"),
        ("sts", "AssumeRoleWithWebIdentity"),
        ("sts", "DecodeAuthorizationMessage"),
    ];
    // These read in name only.
    const WRITING: &[(&str, &str)] = &[("iam", "GenerateCredentialReport"), ("sqs", "ReceiveMessage")];
    let is = |list: &[(&str, &str)]| list.contains(&(service, action));
    is(WRITING) || !(is(PURE) || READING.iter().any(|start| action.starts_with(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn check(service: &str, parts: &Parts, body: &str, expected: (&str, Option<&str>, bool)) {
        let name = Name::of(service, parts, body.as_bytes());
        let got = (name.action.as_str(), name.resource.as_deref(), name.write);
        assert_eq!(got, expected, "{service} {} {body}", parts.uri);
    }

    #[test]
    fn calls_get_the_names_of_their_apis() {
        let json = |target: &str| parts("POST", "/", &[("x-amz-target", target)]);
        let form =
            parts("POST", "/", &[("content-type", "application/x-www-form-urlencoded; charset=utf-8")]);
        check(
            "codecommit",
            &json("CodeCommit_20150413.CreateCommit"),
            r#"{"repositoryName": "demo", "branchName": "b"}"#,
            ("CreateCommit", Some("demo"), true),
        );
        check(
            "secretsmanager",
            &json("secretsmanager.GetSecretValue"),
            r#"{"SecretId": "s"}"#,
            ("GetSecretValue", Some("s"), false),
        );
        check("kms", &json("TrentService.Decrypt"), r#"{"KeyId": "k"}"#, ("Decrypt", Some("k"), false));
        check("kms", &json("TrentService.CreateKey"), "{}", ("CreateKey", None, true));
        check("iam", &form, "Action=CreateUser&UserName=u", ("CreateUser", Some("u"), true));
        check("iam", &form, "Action=GetUser&UserName=u", ("GetUser", Some("u"), false));
        check(
            "sts",
            &parts("GET", "/?Action=GetCallerIdentity", &[]),
            "",
            ("GetCallerIdentity", None, false),
        );
        check(
            "ec2",
            &form,
            "Action=CreateVpcEndpoint&VpcId=vpc-1&ServiceName=git",
            ("CreateVpcEndpoint", Some("git"), true),
        );
        check("eks", &parts("GET", "/clusters/demo", &[]), "", ("DescribeCluster", Some("demo"), false));
        check(
            "eks",
            &parts("POST", "/clusters/demo/access-entries", &[]),
            "",
            ("CreateAccessEntry", Some("demo"), true),
        );
        check("s3", &parts("PUT", "/bucket/key", &[]), "", ("PUT", Some("/bucket/key"), true));
        check(
            "lambda",
            &parts("GET", "/2015-03-31/functions", &[]),
            "",
            ("GET", Some("/2015-03-31/functions"), false),
        );
    }

    #[test]
    fn git_requests_are_pulls_or_pushes() {
        let cases = [
            ("/v1/repos/demo/info/refs?service=git-upload-pack", "GitPull", false),
            ("/v1/repos/demo/git-upload-pack", "GitPull", false),
            ("/v1/repos/demo/info/refs?service=git-receive-pack", "GitPush", false),
            ("/v1/repos/demo/git-receive-pack", "GitPush", true),
        ];
        for (uri, action, write) in cases {
            let name = Name::of_git(&uri.parse().unwrap());
            assert_eq!((name.action.as_str(), name.write), (action, write), "{uri}");
            assert_eq!(name.resource.as_deref(), Some("demo"));
        }
    }

    #[test]
    fn calls_are_listed_as_asked() {
        let calls = Calls::default();
        for (service, write, caller) in
            [("kms", true, Some("role/a")), ("iam", false, None), ("kms", false, Some("role/b"))]
        {
            calls.add(Record {
                sequence: calls.next(),
                time: String::new(),
                milliseconds: 0,
                caller: caller.map(str::to_owned),
                service: service.to_owned(),
                action: String::new(),
                resource: None,
                status: 200,
                write,
                ruled: false,
            });
        }
        let cases = [
            ("", 3),
            ("after=1", 2),
            ("write=true", 1),
            ("service=kms", 2),
            ("caller=role", 2),
            ("caller=role/b&write=true", 0),
        ];
        for (query, count) in cases {
            assert_eq!(calls.list(&Filter::of_query(query)).len(), count, "{query}");
        }
        assert_eq!(calls.latest(), 3);
    }
}
