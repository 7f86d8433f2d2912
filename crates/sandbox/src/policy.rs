//! IAM's decision over identity policies.
//!
//! Explicit deny, then allow, else implicit deny; wildcards as IAM has them. Conditions are judged with the
//! keys that are given; a key that is not given is absent.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// A statement of a policy.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Statement {
    /// Its name, if it has one.
    pub sid: String,
    /// `Allow` or `Deny`.
    pub effect: String,
    /// Actions it is about.
    pub actions: Vec<String>,
    /// Actions it is not about.
    pub not_actions: Vec<String>,
    /// Resources it is about.
    pub resources: Vec<String>,
    /// Resources it is not about.
    pub not_resources: Vec<String>,
    /// Operators, keys, values.
    pub conditions: Map<String, Value>,
}

/// What a request says of itself: condition keys in lower case.
pub type Context = BTreeMap<String, Vec<String>>;

/// Whether statements allow an action on a resource.
pub fn allows(statements: &[Statement], action: &str, resource: &str, context: &Context) -> bool {
    let fits = |effect: &str| {
        statements
            .iter()
            .any(|statement| statement.effect == effect && statement.fits(action, resource, context))
    };
    !fits("Deny") && fits("Allow")
}

impl Statement {
    fn fits(&self, action: &str, resource: &str, context: &Context) -> bool {
        let action = action.to_ascii_lowercase();
        let any_action =
            |patterns: &[String]| patterns.iter().any(|pattern| like(&pattern.to_ascii_lowercase(), &action));
        let any_resource = |patterns: &[String]| patterns.iter().any(|pattern| like(pattern, resource));
        let about_action = if self.actions.is_empty() {
            !self.not_actions.is_empty() && !any_action(&self.not_actions)
        } else {
            any_action(&self.actions)
        };
        let about_resource = if self.resources.is_empty() {
            !self.not_resources.is_empty() && !any_resource(&self.not_resources)
        } else {
            any_resource(&self.resources)
        };
        about_action
            && about_resource
            && self.conditions.iter().all(|(operator, keys)| {
                keys.as_object().is_some_and(|keys| {
                    keys.iter().all(|(key, values)| condition(operator, key, values, context))
                })
            })
    }
}

fn condition(operator: &str, key: &str, values: &Value, context: &Context) -> bool {
    let expected: Vec<String> = match values {
        Value::Array(list) => list.iter().map(text).collect(),
        one => vec![text(one)],
    };
    let actual = context.get(&key.to_ascii_lowercase()).map(Vec::as_slice).unwrap_or_default();
    let operator = operator.to_ascii_lowercase();
    if operator == "null" {
        return expected.first().is_some_and(|wanted| (wanted == "true") == actual.is_empty());
    }
    let (set, operator) = match operator.split_once(':') {
        Some((set, rest)) => (Some(set.to_owned()), rest.to_owned()),
        None => (None, operator),
    };
    let (operator, if_exists) = match operator.strip_suffix("ifexists") {
        Some(rest) => (rest, true),
        None => (operator.as_str(), false),
    };
    let negated = operator.contains("not");
    if actual.is_empty() {
        return if_exists || set.as_deref() == Some("forallvalues") || (negated && set.is_none());
    }
    let one = |actual: &String| {
        let hit = expected.iter().any(|expected| match operator.replace("not", "").as_str() {
            "stringequals" => actual == expected,
            "stringequalsignorecase" | "bool" => actual.eq_ignore_ascii_case(expected),
            "stringlike" | "arnlike" | "arnequals" => like(expected, actual),
            // What is not known here does not fit: an allow is then withheld.
            _ => false,
        });
        hit != negated
    };
    match set.as_deref() {
        Some("foranyvalue") => actual.iter().any(one),
        _ => actual.iter().all(one),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether a text is what a pattern with `*` and `?` says.
pub fn like(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last star stood, and how much of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    t = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patterns_match_as_in_iam() {
        let cases = [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*b*b*", "abab", true),
            ("arn:*:user/x/*", "arn:aws:iam::1:user/x/y", true),
            ("A", "a", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(like(pattern, text), expected, "{pattern} {text}");
        }
    }

    fn statement(value: Value) -> Statement {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn decisions_are_those_of_iam() {
        let git = statement(
            json!({"effect": "Allow", "actions": ["codecommit:Git*"], "resources": ["arn:r:demo"]}),
        );
        let no_push =
            statement(json!({"effect": "Deny", "actions": ["codecommit:gitpush"], "resources": ["*"]}));
        let but_delete = statement(
            json!({"effect": "Allow", "not_actions": ["kms:Delete*"], "not_resources": ["arn:r:x"]}),
        );
        let tagged = statement(json!({"effect": "Allow", "actions": ["kms:*"], "resources": ["*"],
            "conditions": {"StringLike": {"aws:ResourceTag/owner": "stack/*"}}}));
        let none = Context::new();
        let tag = Context::from([("aws:resourcetag/owner".to_owned(), vec!["stack/demo".to_owned()])]);
        let cases = [
            (vec![&git], "codecommit:GitPull", "arn:r:demo", &none, true),
            (vec![&git], "codecommit:GitPull", "arn:r:other", &none, false),
            (vec![&git], "codecommit:GetBranch", "arn:r:demo", &none, false),
            (vec![&git, &no_push], "codecommit:GitPush", "arn:r:demo", &none, false),
            (vec![&no_push, &git], "codecommit:GitPull", "arn:r:demo", &none, true),
            (vec![&but_delete], "kms:Encrypt", "arn:r:y", &none, true),
            (vec![&but_delete], "kms:DeleteAlias", "arn:r:y", &none, false),
            (vec![&but_delete], "kms:Encrypt", "arn:r:x", &none, false),
            (vec![&tagged], "kms:EnableKey", "arn:k", &none, false),
            (vec![&tagged], "kms:EnableKey", "arn:k", &tag, true),
            (vec![], "kms:EnableKey", "arn:k", &tag, false),
        ];
        for (statements, action, resource, context, expected) in cases {
            let statements: Vec<Statement> = statements.into_iter().cloned().collect();
            assert_eq!(allows(&statements, action, resource, context), expected, "{action} {resource}");
        }
    }

    #[test]
    fn conditions_are_judged() {
        let context = Context::from([("aws:tagkeys".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
        let cases = [
            ("ForAllValues:StringEquals", json!(["a", "b", "c"]), true),
            ("ForAllValues:StringEquals", json!(["a"]), false),
            ("ForAnyValue:StringEquals", json!("b"), true),
            ("ForAnyValue:StringNotEquals", json!("b"), true),
            ("Null", json!("false"), true),
            ("Null", json!(true), false),
            ("NumericLessThan", json!("5"), false),
        ];
        for (operator, values, expected) in cases {
            assert_eq!(
                condition(operator, "aws:TagKeys", &values, &context),
                expected,
                "{operator} {values}"
            );
        }
        let absent = [("StringEquals", false), ("StringNotEquals", true), ("StringEqualsIfExists", true)];
        for (operator, expected) in absent {
            assert_eq!(condition(operator, "aws:other", &json!("x"), &context), expected, "{operator}");
        }
    }
}
