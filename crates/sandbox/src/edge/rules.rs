//! Faults and delays, by service and action.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::calls::Name;

/// What happens to calls that it fits. Rules are looked at in order; all that fit count, of their
/// delays the sum and of their answers the first.
///
/// ```json
/// {"service": "kms", "action": "CreateKey", "times": 1,
///  "answer": {"error": {"status": 400, "code": "ThrottlingException", "message": "Rate exceeded"}}}
/// ```
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// The signing name, `git` for the Git endpoint, or `*`.
    #[serde(default = "any")]
    pub service: String,
    /// The action; a star at its end stands for any rest.
    #[serde(default = "any")]
    pub action: String,
    /// Only callers whose ARN contains this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// Lets this many calls pass first.
    #[serde(default)]
    pub skip: u32,
    /// Works this many times; for ever without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// Waits before anything else happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_milliseconds: Option<u64>,
    /// Answers instead of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

fn any() -> String {
    "*".to_owned()
}

/// An answer that a rule gives.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Answer {
    /// An error in the service's own protocol. The call does not act.
    Error {
        /// HTTP status.
        status: u16,
        /// The service's code.
        code: String,
        /// Its text.
        message: String,
    },
    /// Any reply. The call does not act.
    #[serde(rename_all = "camelCase")]
    Raw {
        /// HTTP status.
        status: u16,
        /// Its kind.
        content_type: String,
        /// Its text.
        body: String,
    },
    /// The call acts, but its reply is cut off: what the caller has to read up on.
    Lost,
}

impl Rule {
    /// A rule for a service's action that does nothing yet.
    pub fn on(service: &str, action: &str) -> Rule {
        Rule {
            service: service.to_owned(),
            action: action.to_owned(),
            caller: None,
            skip: 0,
            times: None,
            delay_milliseconds: None,
            answer: None,
        }
    }

    /// The same with an error as answer.
    pub fn error(self, status: u16, code: &str, message: &str) -> Rule {
        let answer = Answer::Error { status, code: code.to_owned(), message: message.to_owned() };
        Rule { answer: Some(answer), ..self }
    }

    /// The same with the reply lost.
    pub fn lost(self) -> Rule {
        Rule { answer: Some(Answer::Lost), ..self }
    }

    /// The same with a delay.
    pub fn delay(self, delay: Duration) -> Rule {
        Rule { delay_milliseconds: u64::try_from(delay.as_millis()).ok(), ..self }
    }

    /// The same for so many calls only.
    pub fn times(self, times: u32) -> Rule {
        Rule { times: Some(times), ..self }
    }

    /// The same after so many calls that pass.
    pub fn skip(self, skip: u32) -> Rule {
        Rule { skip, ..self }
    }

    /// The same for callers whose ARN contains this.
    pub fn caller(self, part: &str) -> Rule {
        Rule { caller: Some(part.to_owned()), ..self }
    }

    fn fits(&self, name: &Name, caller: Option<&str>) -> bool {
        let action = match self.action.strip_suffix('*') {
            Some(start) => name.action.starts_with(start),
            None => name.action == self.action,
        };
        let service = self.service == "*" || self.service == name.service;
        let who =
            self.caller.as_ref().is_none_or(|part| caller.is_some_and(|arn| arn.contains(part.as_str())));
        service && action && who
    }
}

/// What the rules say of one call.
#[derive(Debug, Default)]
pub struct Ruling {
    /// Wait so long.
    pub delay: Option<Duration>,
    /// Answer so.
    pub answer: Option<Answer>,
}

impl Ruling {
    /// Whether any rule applied.
    pub fn any(&self) -> bool {
        self.delay.is_some() || self.answer.is_some()
    }
}

/// The rules in force.
#[derive(Debug, Default)]
pub struct Rules(Mutex<Vec<Rule>>);

impl Rules {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces them.
    pub fn set(&self, rules: Vec<Rule>) {
        *self.lock() = rules;
    }

    /// Adds one.
    pub fn add(&self, rule: Rule) {
        self.lock().push(rule);
    }

    /// All of them, with what is left of their counts.
    pub fn all(&self) -> Vec<Rule> {
        self.lock().clone()
    }

    /// Applies them to a call.
    pub fn rule(&self, name: &Name, caller: Option<&str>) -> Ruling {
        let mut ruling = Ruling::default();
        for rule in self.lock().iter_mut().filter(|rule| rule.fits(name, caller)) {
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            match &mut rule.times {
                Some(0) => continue,
                Some(times) => *times -= 1,
                None => {}
            }
            if let Some(delay) = rule.delay_milliseconds {
                *ruling.delay.get_or_insert_default() += Duration::from_millis(delay);
            }
            if ruling.answer.is_none() {
                ruling.answer.clone_from(&rule.answer);
            }
        }
        ruling
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(service: &str, action: &str) -> Name {
        Name { service: service.to_owned(), action: action.to_owned(), resource: None, write: true }
    }

    #[test]
    fn rules_fit_by_service_action_and_caller() {
        let cases = [
            (Rule::on("kms", "CreateKey"), "kms", "CreateKey", None, true),
            (Rule::on("kms", "CreateKey"), "kms", "CreateKeyX", None, false),
            (Rule::on("kms", "Create*"), "kms", "CreateAlias", None, true),
            (Rule::on("kms", "*"), "iam", "CreateUser", None, false),
            (Rule::on("*", "*"), "iam", "CreateUser", None, true),
            (Rule::on("*", "*").caller("role/key"), "iam", "CreateUser", None, false),
            (
                Rule::on("*", "*").caller("role/key"),
                "iam",
                "CreateUser",
                Some("arn:…assumed-role/key/x"),
                true,
            ),
        ];
        for (rule, service, action, caller, fits) in cases {
            assert_eq!(rule.fits(&name(service, action), caller), fits, "{rule:?} on {service}:{action}");
        }
    }

    #[test]
    fn a_rule_works_after_skip_and_for_times() {
        let rules = Rules::default();
        rules.add(Rule::on("kms", "*").error(400, "ThrottlingException", "Rate exceeded").skip(1).times(2));
        let struck: Vec<bool> =
            (0..5).map(|_| rules.rule(&name("kms", "CreateKey"), None).answer.is_some()).collect();
        assert_eq!(struck, [false, true, true, false, false]);
    }

    #[test]
    fn delays_add_up_and_the_first_answer_counts() {
        let rules = Rules::default();
        rules.set(vec![
            Rule::on("*", "*").delay(Duration::from_millis(20)),
            Rule::on("kms", "*").error(500, "KMSInternalException", "first").delay(Duration::from_millis(30)),
            Rule::on("kms", "*").lost(),
        ]);
        let ruling = rules.rule(&name("kms", "DescribeKey"), None);
        assert_eq!(ruling.delay, Some(Duration::from_millis(50)));
        assert!(matches!(ruling.answer, Some(Answer::Error { message, .. }) if message == "first"));
        let ruling = rules.rule(&name("iam", "GetUser"), None);
        assert_eq!((ruling.delay, ruling.answer), (Some(Duration::from_millis(20)), None));
    }

    #[test]
    fn rules_are_written_as_documented() {
        let text = r#"[{"service": "kms", "action": "CreateKey", "times": 1,
            "answer": {"error": {"status": 400, "code": "ThrottlingException", "message": "Rate exceeded"}}},
            {"service": "iam", "delayMilliseconds": 500}, {"answer": "lost"}]"#;
        let rules: Vec<Rule> = serde_json::from_str(text).unwrap();
        assert_eq!(
            rules[0],
            Rule::on("kms", "CreateKey").error(400, "ThrottlingException", "Rate exceeded").times(1)
        );
        assert_eq!(rules[1], Rule::on("iam", "*").delay(Duration::from_millis(500)));
        assert_eq!(rules[2], Rule::on("*", "*").lost());
        assert!(serde_json::from_str::<Rule>(r#"{"services": "kms"}"#).is_err());
    }
}
