//! The query protocol: a form in, XML out.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::types::Tag;

const VERSION: &str = "2016-11-15";

/// The parameters of a call.
#[derive(Debug, Clone)]
pub(crate) struct Form {
    action: &'static str,
    pairs: Vec<(String, String)>,
}

impl Form {
    pub(crate) fn new(action: &'static str) -> Self {
        Form { action, pairs: Vec::new() }
    }

    pub(crate) fn action(&self) -> &'static str {
        self.action
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.pairs.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn list(mut self, name: &str, values: &[String]) -> Self {
        for (index, value) in values.iter().enumerate() {
            self = self.set(&format!("{name}.{}", index + 1), value);
        }
        self
    }

    pub(crate) fn filter(mut self, number: usize, name: &str, values: &[&str]) -> Self {
        self = self.set(&format!("Filter.{number}.Name"), name);
        for (index, value) in values.iter().enumerate() {
            self = self.set(&format!("Filter.{number}.Value.{}", index + 1), value);
        }
        self
    }

    pub(crate) fn tags(mut self, prefix: &str, tags: &[Tag]) -> Self {
        for (index, tag) in tags.iter().enumerate() {
            let number = index + 1;
            self = self
                .set(&format!("{prefix}Tag.{number}.Key"), &tag.key)
                .set(&format!("{prefix}Tag.{number}.Value"), &tag.value);
        }
        self
    }

    pub(crate) fn tag_specification(self, resource_type: &str, tags: &[Tag]) -> Self {
        self.set("TagSpecification.1.ResourceType", resource_type).tags("TagSpecification.1.", tags)
    }

    pub(crate) fn encoded(&self) -> String {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.append_pair("Action", self.action).append_pair("Version", VERSION);
        for (name, value) in &self.pairs {
            form.append_pair(name, value);
        }
        form.finish()
    }
}

/// A list as EC2 writes one: `<xSet><item>…</item><item>…</item></xSet>`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Items<T> {
    #[serde(default = "Vec::new")]
    pub(crate) item: Vec<T>,
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Items { item: Vec::new() }
    }
}

/// For `#[serde(deserialize_with)]`: the list without its wrapper.
pub(crate) fn items<'de, D, T>(deserializer: D) -> std::result::Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Items::deserialize(deserializer)?.item)
}

/// A reply of which nothing is wanted but that it came.
#[derive(Debug, Deserialize)]
pub(crate) struct Ignored {}

/// EC2's `<Response><Errors><Error>…`; other query services, and with them emulators, answer
/// `<ErrorResponse><Error>…`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    errors: Option<Errors>,
    error: Option<Cause>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Errors {
    error: Vec<Cause>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Cause {
    code: String,
    #[serde(default)]
    message: String,
}

/// Reads a reply.
pub(crate) fn read<T: DeserializeOwned>(action: &'static str, status: u16, body: &[u8]) -> Result<T> {
    let text = String::from_utf8_lossy(body);
    if (200..300).contains(&status) {
        return quick_xml::de::from_str(&text).map_err(|_| unreadable(action, status));
    }
    let failure: Failure = quick_xml::de::from_str(&text).map_err(|_| unreadable(action, status))?;
    let cause = failure
        .errors
        .and_then(|errors| errors.error.into_iter().next())
        .or(failure.error)
        .ok_or_else(|| unreadable(action, status))?;
    // The encoded part is some kilobytes that only `sts:DecodeAuthorizationMessage` can read.
    let message = cause.message.split("Encoded authorization failure message").next().unwrap_or_default();
    let message = message.trim().trim_end_matches('.').to_owned();
    Err(Error::Api { action, code: cause.code, message, status })
}

fn unreadable(action: &'static str, status: u16) -> Error {
    Error::Api {
        action,
        code: "UnreadableReply".to_owned(),
        message: "the reply is not what EC2 answers".to_owned(),
        status,
    }
}
