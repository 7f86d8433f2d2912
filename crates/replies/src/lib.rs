//! A scripted AWS for unit tests: it asserts each request and answers with bytes as the wire has them.
//!
//! A test lists the exchanges that it expects, in order. Each names the call (`kms:CreateKey` by its
//! `X-Amz-Target`, `iam:CreateUser` by its `Action=` parameter, `eks:GET /clusters/demo` by method
//! and path), optionally parts of the request that must be there, and the reply. A call that is not
//! the next in the list fails the test by its name, and [`Replies::finish`] fails when calls are missing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use serde_json::Value;

/// One expected request with its reply.
#[derive(Debug, Clone)]
pub struct Exchange {
    call: String,
    contains: Vec<String>,
    lacks: Vec<String>,
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    lost: bool,
}

/// Expects a call: `CreateKey` for a target or action, or `GET /path` for a method and path.
pub fn on(call: &str) -> Exchange {
    Exchange {
        call: call.to_owned(),
        contains: Vec::new(),
        lacks: Vec::new(),
        status: 200,
        headers: Vec::new(),
        body: Vec::new(),
        lost: false,
    }
}

impl Exchange {
    /// The request's body (or, for a GET, its path and query) must contain this text; in bodies of
    /// forms, after decoding.
    pub fn with(mut self, text: &str) -> Self {
        self.contains.push(text.to_owned());
        self
    }

    /// The request's body must not contain this text.
    pub fn without(mut self, text: &str) -> Self {
        self.lacks.push(text.to_owned());
        self
    }

    /// Answers with JSON and status 200.
    pub fn json(self, body: Value) -> Self {
        self.raw(200, "application/x-amz-json-1.1", body.to_string().as_bytes())
    }

    /// Answers with an error of a JSON service.
    pub fn error(self, status: u16, code: &str, message: &str) -> Self {
        let body = serde_json::json!({ "__type": code, "message": message });
        self.raw(status, "application/x-amz-json-1.1", body.to_string().as_bytes())
            .header("x-amzn-errortype", code)
    }

    /// Answers with XML and status 200.
    pub fn xml(self, body: &str) -> Self {
        self.raw(200, "text/xml", body.as_bytes())
    }

    /// Answers with an error of a query service (IAM, STS).
    pub fn xml_error(self, status: u16, code: &str, message: &str) -> Self {
        let body = format!(
            "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error><RequestId>r</RequestId></ErrorResponse>"
        );
        self.raw(status, "text/xml", body.as_bytes())
    }

    /// Answers with these bytes.
    pub fn raw(mut self, status: u16, content_type: &str, body: &[u8]) -> Self {
        self.status = status;
        self.body = body.to_vec();
        self.header("content-type", content_type)
    }

    /// Adds a header to the reply.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes the request and gives no reply: the connection breaks.
    pub fn lost(mut self) -> Self {
        self.lost = true;
        self
    }
}

#[derive(Debug, Default)]
struct Script {
    expected: VecDeque<Exchange>,
    seen: Vec<String>,
    problems: Vec<String>,
}

/// The script, as a connector.
#[derive(Debug, Clone, Default)]
pub struct Replies(Arc<Mutex<Script>>);

impl Replies {
    /// Expects these calls in this order.
    pub fn new(exchanges: impl IntoIterator<Item = Exchange>) -> Self {
        let script = Script { expected: exchanges.into_iter().collect(), ..Script::default() };
        Replies(Arc::new(Mutex::new(script)))
    }

    /// An AWS configuration for `eu-west-1` that talks to the script, without retries.
    pub fn config(&self) -> SdkConfig {
        let connector = self.connector();
        SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("eu-west-1"))
            .credentials_provider(SharedCredentialsProvider::new(Credentials::new(
                "AKIDEXAMPLE",
                "secret",
                None,
                None,
                "replies",
            )))
            .retry_config(aws_config::retry::RetryConfig::disabled())
            .http_client(http_client_fn(move |_, _| connector.clone()))
            .build()
    }

    /// The connector alone, for what is not an SDK client.
    pub fn connector(&self) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }

    /// The calls so far.
    pub fn seen(&self) -> Vec<String> {
        self.lock().seen.clone()
    }

    /// Ends the test: every expected call was made, and no other.
    ///
    /// # Panics
    /// Where that is not so; the text lists the calls.
    pub fn finish(self) {
        let script = self.lock();
        assert!(script.problems.is_empty(), "{}\ncalls: {:#?}", script.problems.join("\n"), script.seen);
        let missing: Vec<&str> = script.expected.iter().map(|e| e.call.as_str()).collect();
        assert!(missing.is_empty(), "calls that were not made: {missing:?}\ncalls: {:#?}", script.seen);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl HttpConnector for Replies {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::ready(self.answer(&request))
    }
}

impl Replies {
    fn answer(&self, request: &HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let uri = request.uri().to_owned();
        let path_and_query = uri
            .split_once("://")
            .and_then(|(_, rest)| rest.find('/').map(|at| rest[at..].to_owned()))
            .unwrap_or_else(|| "/".to_owned());
        let body = String::from_utf8_lossy(request.body().bytes().unwrap_or_default()).into_owned();
        let form = decoded(&body);
        let call = match request.headers().get("x-amz-target") {
            Some(target) => target.rsplit('.').next().unwrap_or(target).to_owned(),
            None => match form.split('&').find_map(|pair| pair.strip_prefix("Action=")) {
                Some(action) => action.to_owned(),
                None => {
                    let path = path_and_query.split('?').next().unwrap_or("/");
                    format!("{} {path}", request.method())
                }
            },
        };
        let mut script = self.lock();
        script.seen.push(call.clone());
        let problem = |script: &mut Script, text: String| {
            script.problems.push(text.clone());
            Err(ConnectorError::other(text.into(), None))
        };
        let Some(exchange) = script.expected.pop_front() else {
            return problem(&mut script, format!("unexpected call {call}"));
        };
        if exchange.call != call {
            return problem(&mut script, format!("expected {}, got {call}", exchange.call));
        }
        for text in &exchange.contains {
            if !body.contains(text) && !form.contains(text) && !decoded(&path_and_query).contains(text) {
                return problem(
                    &mut script,
                    format!("{call}: the request has no {text:?}: {path_and_query} {form}"),
                );
            }
        }
        if let Some(text) = exchange.lacks.iter().find(|text| body.contains(*text)) {
            return problem(&mut script, format!("{call}: the request has {text:?}"));
        }
        if exchange.lost {
            return Err(ConnectorError::io("connection reset".into()));
        }
        let status =
            exchange.status.try_into().map_err(|_| ConnectorError::other("bad status".into(), None))?;
        let mut reply = HttpResponse::new(status, SdkBody::from(exchange.body));
        for (name, value) in exchange.headers {
            reply.headers_mut().insert(name, value);
        }
        Ok(reply)
    }
}

/// Percent-decodes a form, leaving everything else as it is.
fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}
