//! The request of a teardown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Result, StepError};
use crate::request::{Mode, Request, parse_json};

/// What a user gives to the teardown state machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TeardownRequest {
    /// Name of the EKS cluster whose target is taken down. The cluster itself is never touched.
    pub cluster: String,
    /// The cluster's name once more; not needed with `mode: plan`.
    #[serde(default)]
    pub confirm: Option<String>,
    /// `apply` takes down, `plan` says what that would do.
    #[serde(default)]
    pub mode: Mode,
    /// What Flux has applied from the repository, beside itself.
    #[serde(default)]
    pub workloads: Keep,
    /// The repository, with everything that was ever committed to it.
    #[serde(default)]
    pub repository: Keep,
    /// The fields of the bootstrap's request that were not left at their defaults: names, namespace,
    /// path, windows. Without `cluster`.
    #[serde(default)]
    pub request: Map<String, Value>,
}

/// Whether something outlives the teardown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// It stays.
    #[default]
    Keep,
    /// It goes.
    Delete,
}

impl TeardownRequest {
    /// Parses and checks a teardown, and answers with the bootstrap's request that it undoes.
    ///
    /// # Errors
    /// `InvalidInput`, whose text begins with the path of the field.
    pub fn parse(value: &Value) -> Result<(TeardownRequest, Request)> {
        let teardown: TeardownRequest = parse_json(value)?;
        if teardown.mode == Mode::Apply {
            match teardown.confirm.as_deref() {
                Some(name) if name == teardown.cluster => {}
                Some(_) => {
                    return Err(StepError::invalid_input(
                        "confirm: it is not the name in `cluster`. A teardown deletes; give the cluster's name twice",
                    ));
                }
                None => {
                    return Err(StepError::invalid_input(
                        "confirm: it is missing. A teardown deletes; give the cluster's name once more, or \"mode\": \"plan\"",
                    ));
                }
            }
        }
        if teardown.request.contains_key("cluster") {
            return Err(StepError::invalid_input(
                "request.cluster: the cluster is named once, outside of `request`",
            ));
        }
        let mut request = teardown.request.clone();
        request.insert("cluster".to_owned(), Value::String(teardown.cluster.clone()));
        let request = Request::parse(&Value::Object(request)).map_err(|error| {
            let is_cluster = error.message.starts_with("cluster:");
            let message = if is_cluster { error.message } else { format!("request.{}", error.message) };
            StepError { message, ..error }
        })?;
        Ok((teardown, request))
    }
}

/// The JSON Schema of the teardown request.
pub fn json_schema() -> Value {
    schemars::schema_for!(TeardownRequest).to_value()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ErrorName;

    #[test]
    fn a_teardown_wants_the_name_twice() {
        let (teardown, request) =
            TeardownRequest::parse(&json!({"cluster": "demo", "confirm": "demo"})).expect("valid");
        assert_eq!((teardown.workloads, teardown.repository), (Keep::Keep, Keep::Keep));
        assert_eq!(request, Request::parse(&json!({"cluster": "demo"})).expect("valid"));
        TeardownRequest::parse(&json!({"cluster": "demo", "mode": "plan"})).expect("a plan deletes nothing");
        for (value, field) in [
            (json!({"cluster": "demo"}), "confirm"),
            (json!({"cluster": "demo", "confirm": "other"}), "confirm"),
            (json!({"cluster": "no spaces", "confirm": "no spaces"}), "cluster"),
            (json!({"confirm": "demo"}), "cluster"),
            (json!({"cluster": "demo", "confirm": "demo", "workloads": "drop"}), "workloads"),
            (json!({"cluster": "demo", "confirm": "demo", "colour": 1}), "colour"),
            (json!({"cluster": "demo", "confirm": "demo", "request": {"cluster": "x"}}), "request.cluster"),
            (
                json!({"cluster": "demo", "confirm": "demo", "request": {"flux": {"namespace": "Flux"}}}),
                "request.flux.namespace",
            ),
        ] {
            let error = TeardownRequest::parse(&value).expect_err("refused");
            assert_eq!(error.name, ErrorName::InvalidInput);
            assert!(
                error.message.starts_with(field) || error.message.contains(&format!("`{field}`")),
                "{value}: {}",
                error.message
            );
        }
    }

    #[test]
    fn names_of_the_bootstrap_are_taken_over() {
        let value = json!({"cluster": "demo", "confirm": "demo", "repository": "delete",
                           "request": {"repository": {"name": "gitops"}, "key": {"deletionWindowDays": 30}}});
        let (teardown, request) = TeardownRequest::parse(&value).expect("valid");
        assert_eq!(teardown.repository, Keep::Delete);
        assert_eq!(request.repository.name.as_deref(), Some("gitops"));
        assert_eq!(request.key.deletion_window_days, 30);
    }
}
