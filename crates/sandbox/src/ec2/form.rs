//! Reads the parameters of EC2's query protocol: `Name`, `Name.N` and `Name.N.Member`.

use std::collections::{BTreeMap, BTreeSet};

use crate::wire::{ApiError, Call};

/// The parameters of a call, or of one of its structures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Form {
    pairs: BTreeMap<String, String>,
}

impl Form {
    /// Reads query and body.
    pub(super) fn read(call: &Call) -> Form {
        let query = call.request.uri().query().unwrap_or_default();
        let mut pairs: BTreeMap<String, String> =
            url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        pairs.extend(url::form_urlencoded::parse(call.request.body()).into_owned());
        pairs.retain(|name, _| !name.starts_with("X-Amz-"));
        Form { pairs }
    }

    /// A parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.get(name).map(String::as_str)
    }

    /// A parameter that must be there.
    pub(super) fn required(&self, name: &str) -> Result<&str, ApiError> {
        self.get(name).filter(|value| !value.is_empty()).ok_or_else(|| missing(name))
    }

    /// A boolean.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some("true" | "True" | "1") => Ok(Some(true)),
            Some("false" | "False" | "0") => Ok(Some(false)),
            Some(other) => Err(invalid(name, other, "Expecting a boolean")),
        }
    }

    /// A number.
    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        self.get(name)
            .map(|text| text.parse().map_err(|_| invalid(name, text, "Expecting an integer")))
            .transpose()
    }

    /// The texts of a list, in its order.
    pub(super) fn list(&self, name: &str) -> Vec<&str> {
        self.indices(name).into_iter().filter_map(|index| self.get(&format!("{name}.{index}"))).collect()
    }

    /// The structures of a list, in its order.
    pub(super) fn nodes(&self, name: &str) -> Vec<Form> {
        self.indices(name)
            .into_iter()
            .map(|index| {
                let prefix = format!("{name}.{index}.");
                let pairs = self
                    .pairs
                    .iter()
                    .filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?.to_owned(), value.clone())))
                    .collect();
                Form { pairs }
            })
            .collect()
    }

    /// EC2 refuses parameters that an action does not have; a misspelt one would else be lost.
    pub(super) fn check(&self, known: &[&str]) -> Result<(), ApiError> {
        for name in self.pairs.keys() {
            let first = name.split('.').next().unwrap_or_default();
            if !known.contains(&first) && !["Action", "Version", "DryRun"].contains(&first) {
                return Err(ApiError::new(
                    "UnknownParameter",
                    format!("The parameter {first} is not recognized"),
                ));
            }
        }
        Ok(())
    }

    /// All parameters but these, as one text that is the same for the same call.
    pub(super) fn fingerprint(&self, without: &[&str]) -> String {
        let rest: BTreeMap<_, _> =
            self.pairs.iter().filter(|(name, _)| !without.contains(&name.as_str())).collect();
        format!("{rest:?}")
    }

    fn indices(&self, name: &str) -> BTreeSet<u32> {
        let prefix = format!("{name}.");
        self.pairs
            .keys()
            .filter_map(|key| key.strip_prefix(&prefix)?.split('.').next()?.parse().ok())
            .collect()
    }
}

/// EC2's error about a parameter that is not there.
pub(super) fn missing(name: &str) -> ApiError {
    ApiError::new("MissingParameter", format!("The request must contain the parameter {name}"))
}

/// EC2's error about a parameter with a bad value.
pub(super) fn invalid(name: &str, value: &str, expected: &str) -> ApiError {
    let mut start = name.chars();
    let lower: String = start.next().into_iter().flat_map(char::to_lowercase).chain(start).collect();
    ApiError::new(
        "InvalidParameterValue",
        format!("Value ({value}) for parameter {lower} is invalid. {expected}."),
    )
}
