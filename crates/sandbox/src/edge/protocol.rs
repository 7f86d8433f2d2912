//! How each service writes an error.

use axum::body::Body;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::json;

use super::Unidentified;
use crate::wire::{ApiError, Reply};

/// A wire protocol, as far as errors go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// JSON with `X-Amz-Target`: CodeCommit, KMS, Step Functions …
    Json,
    /// JSON with methods and paths: EKS, Lambda …
    RestJson,
    /// XML for forms: IAM, STS, CloudFormation …
    Query,
    /// EC2's own XML.
    Ec2,
    /// S3's own XML.
    S3,
    /// No API at all: the Git endpoint.
    Plain,
}

impl Protocol {
    /// The protocol of a request.
    pub fn of(service: &str, headers: &HeaderMap) -> Protocol {
        if headers.contains_key("x-amz-target") {
            return Protocol::Json;
        }
        match service {
            "ec2" => Protocol::Ec2,
            "s3" => Protocol::S3,
            "eks" | "lambda" | "xray" | "scheduler" | "apigateway" => Protocol::RestJson,
            _ => Protocol::Query,
        }
    }

    /// An error in this protocol.
    pub fn error(self, error: &ApiError) -> Reply {
        let id = uuid::Uuid::new_v4();
        let (code, message) = (xml(&error.code), xml(&error.message));
        let side = if error.status < 500 { "Sender" } else { "Receiver" };
        let (content_type, body) = match self {
            Protocol::Json => (
                "application/x-amz-json-1.1",
                json!({ "__type": error.code, "message": error.message }).to_string(),
            ),
            Protocol::RestJson => ("application/json", json!({ "message": error.message }).to_string()),
            Protocol::Query => (
                "text/xml",
                format!(
                    "<ErrorResponse><Error><Type>{side}</Type><Code>{code}</Code><Message>{message}</Message>\
                     </Error><RequestId>{id}</RequestId></ErrorResponse>"
                ),
            ),
            Protocol::Ec2 => (
                "text/xml;charset=UTF-8",
                format!(
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code>\
                     <Message>{message}</Message></Error></Errors><RequestID>{id}</RequestID></Response>"
                ),
            ),
            Protocol::S3 => (
                "application/xml",
                format!(
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
                     <Message>{message}</Message><RequestId>{id}</RequestId></Error>"
                ),
            ),
            Protocol::Plain => ("text/plain", error.message.clone()),
        };
        let mut reply = Reply::new(Body::from(body));
        *reply.status_mut() = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        reply.headers_mut().insert("content-type", HeaderValue::from_static(content_type));
        if matches!(self, Protocol::Json | Protocol::RestJson)
            && let Ok(code) = HeaderValue::from_str(&error.code)
        {
            reply.headers_mut().insert("x-amzn-errortype", code);
        }
        reply
    }

    /// What AWS says to a call without a signature.
    pub(super) fn unsigned(self) -> ApiError {
        let message = "Request is missing Authentication Token";
        let code = match self {
            Protocol::Json | Protocol::RestJson => "MissingAuthenticationTokenException",
            _ => "MissingAuthenticationToken",
        };
        ApiError::new(code, message).status(403)
    }

    /// What AWS says to a signature that it does not accept.
    pub(super) fn refusal(self, why: &Unidentified) -> ApiError {
        let unknown = "The security token included in the request is invalid.";
        let wrong = "The request signature we calculated does not match the signature you provided. Check \
                     your AWS Secret Access Key and signing method. Consult the service documentation for \
                     details.";
        let old = "Signature expired";
        match (self, why) {
            (Protocol::Ec2, _) => {
                let message = "AWS was not able to validate the provided access credentials";
                ApiError::new("AuthFailure", message).status(401)
            }
            (Protocol::Json | Protocol::RestJson, Unidentified::Key) => {
                ApiError::new("UnrecognizedClientException", unknown).status(if self == Protocol::Json {
                    400
                } else {
                    403
                })
            }
            (Protocol::Json | Protocol::RestJson, _) => {
                let message = if *why == Unidentified::Signature { wrong } else { old };
                ApiError::new("InvalidSignatureException", message).status(if self == Protocol::Json {
                    400
                } else {
                    403
                })
            }
            (_, Unidentified::Key) => ApiError::new("InvalidClientTokenId", unknown).status(403),
            (_, Unidentified::Signature) => ApiError::new("SignatureDoesNotMatch", wrong).status(403),
            (_, Unidentified::Time) => ApiError::new("SignatureDoesNotMatch", old).status(403),
        }
    }
}

/// Text for XML.
pub fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
