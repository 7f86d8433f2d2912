//! Executions of the state machine, as the console and an event start them.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::clock;
use crate::ministack::Upstream;

/// Step Functions and EventBridge, as the demo and the tests use them.
#[derive(Debug, Clone)]
pub struct Executions {
    upstream: Upstream,
    region: String,
    state_machine: String,
}

/// An execution that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// Its ARN.
    pub arn: String,
    /// `SUCCEEDED`, `FAILED`, `TIMED_OUT` or `ABORTED`.
    pub status: String,
    /// Its output where it succeeded.
    pub output: Value,
    /// Error name and cause where it failed.
    pub failure: Option<(String, String)>,
}

impl Executions {
    pub(super) fn new(upstream: Upstream, region: &str, state_machine: &str) -> Executions {
        Executions { upstream, region: region.to_owned(), state_machine: state_machine.to_owned() }
    }

    async fn states(&self, action: &str, body: &Value) -> anyhow::Result<Value> {
        let target = format!("AWSStepFunctions.{action}");
        let answer = self.upstream.json("states", &self.region, &target, body).await?;
        if answer.status != 200 {
            bail!("{action} answers {}: {}", answer.status, answer.body);
        }
        Ok(answer.json())
    }

    /// Starts one with this input; its ARN.
    ///
    /// # Errors
    /// Where Step Functions refuses it.
    pub async fn start(&self, input: &Value) -> anyhow::Result<String> {
        let body = json!({ "stateMachineArn": self.state_machine, "input": input.to_string() });
        let started = self.states("StartExecution", &body).await?;
        started["executionArn"].as_str().map(str::to_owned).context("StartExecution gives no ARN")
    }

    /// Asks for one by the event that the template's rule listens to; the ARN of the execution that
    /// follows.
    ///
    /// # Errors
    /// Where the event is refused, or no execution follows within ten seconds.
    pub async fn request(&self, detail: &Value) -> anyhow::Result<String> {
        let before = self.list().await?;
        let entry = json!({
            "Source": "eks-flux-bootstrap", "DetailType": "Bootstrap Requested", "Detail": detail.to_string(),
        });
        let body = json!({ "Entries": [entry] });
        let answer = self.upstream.json("events", &self.region, "AWSEvents.PutEvents", &body).await?;
        if answer.status != 200 || answer.json()["FailedEntryCount"] != 0 {
            bail!("PutEvents answers {}: {}", answer.status, answer.body);
        }
        for _ in 0..100 {
            if let Some(new) = self.list().await?.into_iter().find(|arn| !before.contains(arn)) {
                return Ok(new);
            }
            clock::sleep(Duration::from_millis(100)).await;
        }
        bail!("no execution followed the event")
    }

    /// The ARNs of all executions, the latest first.
    ///
    /// # Errors
    /// Where Step Functions does not answer.
    pub async fn list(&self) -> anyhow::Result<Vec<String>> {
        let body = json!({ "stateMachineArn": self.state_machine });
        let listed = self.states("ListExecutions", &body).await?;
        let executions = listed["executions"].as_array().cloned().unwrap_or_default();
        Ok(executions.iter().filter_map(|one| one["executionArn"].as_str().map(str::to_owned)).collect())
    }

    /// The history so far, from the beginning.
    ///
    /// # Errors
    /// Where Step Functions does not know the execution.
    pub async fn history(&self, arn: &str) -> anyhow::Result<Vec<Value>> {
        let mut events = Vec::new();
        let mut token = Value::Null;
        loop {
            let mut body = json!({ "executionArn": arn, "maxResults": 1000 });
            if !token.is_null() {
                body["nextToken"] = token;
            }
            let mut page = self.states("GetExecutionHistory", &body).await?;
            if let Some(list) = page["events"].as_array_mut() {
                events.append(list);
            }
            token = page["nextToken"].take();
            if token.is_null() {
                return Ok(events);
            }
        }
    }

    /// Whether it has ended, and how.
    ///
    /// # Errors
    /// Where Step Functions does not know the execution.
    pub async fn ended(&self, arn: &str) -> anyhow::Result<Option<Ended>> {
        let described = self.states("DescribeExecution", &json!({ "executionArn": arn })).await?;
        let text = |field: &str| described[field].as_str().unwrap_or_default().to_owned();
        let status = text("status");
        if status == "RUNNING" {
            return Ok(None);
        }
        let failed = status != "SUCCEEDED";
        Ok(Some(Ended {
            arn: arn.to_owned(),
            output: serde_json::from_str(&text("output")).unwrap_or(Value::Null),
            failure: failed.then(|| (text("error"), text("cause"))),
            status,
        }))
    }

    /// Follows it to its end. `tell` gets the history whenever it has grown.
    ///
    /// # Errors
    /// Where Step Functions does not answer, or the limit has passed.
    pub async fn follow(
        &self,
        arn: &str,
        limit: Duration,
        mut tell: impl FnMut(&[Value]),
    ) -> anyhow::Result<Ended> {
        let began = std::time::Instant::now();
        let mut seen = 0;
        loop {
            // Asked in this order, the last history holds the end.
            let ended = self.ended(arn).await?;
            let history = self.history(arn).await?;
            if history.len() > seen {
                seen = history.len();
                tell(&history);
            }
            if let Some(ended) = ended {
                return Ok(ended);
            }
            if began.elapsed() > limit {
                bail!("{arn} still runs after {} s", limit.as_secs());
            }
            clock::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Starts one and waits for its end.
    ///
    /// # Errors
    /// As for [`Executions::start`] and [`Executions::follow`].
    pub async fn run(&self, input: &Value, limit: Duration) -> anyhow::Result<Ended> {
        let arn = self.start(input).await?;
        self.follow(&arn, limit, |_| {}).await
    }
}
