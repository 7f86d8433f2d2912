//! Errors as the Kubernetes API answers them: objects of kind `Status`.

use std::fmt;

use serde_json::{Value, json};

/// A `Status` object with `status: Failure`.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The HTTP status.
    pub code: u16,
    /// The machine's word: `NotFound`, `Conflict` …
    pub reason: &'static str,
    /// The text for people.
    pub message: String,
    /// Name, group, kind and causes.
    pub details: Value,
}

/// What most functions here return.
pub type Result<T> = std::result::Result<T, Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// `deployments.apps`, or `pods` for the core group.
pub fn qualified(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

fn details(name: &str, group: &str, kind: &str) -> Value {
    let mut details = json!({"name": name});
    if !group.is_empty() {
        details["group"] = json!(group);
    }
    details["kind"] = json!(kind);
    details
}

impl Failure {
    fn new(code: u16, reason: &'static str, message: impl Into<String>, details: Value) -> Self {
        Failure { code, reason, message: message.into(), details }
    }

    /// The object as it goes over the wire.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status["code"] = json!(self.code);
        status
    }

    /// A named object isn't there.
    pub fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", qualified(plural, group));
        Failure::new(404, "NotFound", message, details(name, group, plural))
    }

    /// No such kind.
    pub fn no_resource() -> Self {
        Failure::new(404, "NotFound", "the server could not find the requested resource", json!({}))
    }

    /// The name is taken.
    pub fn exists(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", qualified(plural, group));
        Failure::new(409, "AlreadyExists", message, details(name, group, plural))
    }

    /// The object has changed since it was read, or a precondition isn't met.
    pub fn conflict(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", qualified(plural, group));
        Failure::new(409, "Conflict", message, details(name, group, plural))
    }

    /// Optimistic locking failed.
    pub fn outdated(group: &str, plural: &str, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Failure::conflict(group, plural, name, why)
    }

    /// Server-side apply met fields of other managers.
    pub fn apply_conflict(message: String, causes: Vec<Value>) -> Self {
        Failure::new(409, "Conflict", message, json!({"causes": causes}))
    }

    /// The object breaks its schema; each cause is (reason, field, text).
    pub fn invalid(group: &str, kind: &str, name: &str, causes: &[Cause]) -> Self {
        let texts: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        let list = if texts.len() == 1 { texts[0].clone() } else { format!("[{}]", texts.join(", ")) };
        let message = format!("{} \"{name}\" is invalid: {list}", qualified(kind, group));
        let mut about = details(name, group, kind);
        about["causes"] = causes
            .iter()
            .map(|c| json!({"reason": c.reason, "message": c.message, "field": c.field}))
            .collect();
        Failure::new(422, "Invalid", message, about)
    }

    /// The request itself is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Failure::new(400, "BadRequest", message, Value::Null)
    }

    /// No or no valid token.
    pub fn unauthorized() -> Self {
        Failure::new(401, "Unauthorized", "Unauthorized", Value::Null)
    }

    /// The user may not.
    pub fn forbidden(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let subject = match (plural, name) {
            ("", _) => String::new(),
            (plural, "") => format!("{} is ", qualified(plural, group)),
            (plural, name) => format!("{} \"{name}\" is ", qualified(plural, group)),
        };
        let about = if plural.is_empty() { json!({}) } else { details(name, group, plural) };
        Failure::new(403, "Forbidden", format!("{subject}forbidden: {why}"), about)
    }

    /// Nothing may be made in a namespace that is going away.
    pub fn terminating(group: &str, plural: &str, name: &str, namespace: &str) -> Self {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut failure = Failure::forbidden(group, plural, name, &why);
        failure.details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        failure
    }

    /// The method isn't one of this resource.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Failure::new(405, "MethodNotAllowed", message, json!({}))
    }

    /// The body's form isn't understood.
    pub fn unsupported_media(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Failure::new(415, "UnsupportedMediaType", message, json!({}))
    }

    /// The watch starts before what is remembered.
    pub fn expired(asked: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {asked} ({oldest})");
        Failure::new(410, "Expired", message, Value::Null)
    }

    /// What should not happen.
    pub fn internal(message: impl Into<String>) -> Self {
        Failure::new(500, "InternalError", message, Value::Null)
    }
}

/// One thing wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueRequired`, `FieldValueInvalid` …
    pub reason: &'static str,
    /// `spec.url`
    pub field: String,
    /// `Required value`
    pub message: String,
}

impl Cause {
    /// A field is missing.
    pub fn required(field: &str, why: &str) -> Self {
        let message =
            if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        Cause { reason: "FieldValueRequired", field: field.to_owned(), message }
    }

    /// A field's value is wrong.
    pub fn invalid(field: &str, value: &Value, why: &str) -> Self {
        let message = format!("Invalid value: {value}: {why}");
        Cause { reason: "FieldValueInvalid", field: field.to_owned(), message }
    }

    /// A field's value is none of those that it may have.
    pub fn unsupported(field: &str, value: &Value, allowed: &str) -> Self {
        let message = format!("Unsupported value: {value}: supported values: {allowed}");
        Cause { reason: "FieldValueNotSupported", field: field.to_owned(), message }
    }
}
