//! An execution's history as people read it: a line when a state ends, and a timeline of the whole.
//!
//! Input are the events of `states:GetExecutionHistory`. State names are unique in the state machine,
//! also across branches, so an exit belongs to the last entry of the same name.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

/// One stay in one state; times in seconds since the execution's start.
#[derive(Debug, Clone, PartialEq)]
pub struct Stay {
    /// The state's name.
    pub name: String,
    /// `Task`, `Wait`, `Pass` …
    pub kind: String,
    /// When it was entered.
    pub from: f64,
    /// When it was left; `None` while the execution is in it, or when it failed.
    pub to: Option<f64>,
}

/// What has been seen of an execution so far.
#[derive(Debug, Default)]
pub struct Progress {
    seen: usize,
    began: Option<f64>,
    last: f64,
    stays: Vec<Stay>,
}

impl Progress {
    /// Takes the whole history, and gives a line for each state that ended since the last call.
    pub fn feed(&mut self, events: &[Value]) -> Vec<String> {
        let mut lines = Vec::new();
        for event in events.iter().skip(self.seen) {
            let at = seconds(&event["timestamp"]);
            let began = *self.began.get_or_insert(at);
            let at = (at - began).max(0.0);
            self.last = self.last.max(at);
            let kind = event["type"].as_str().unwrap_or_default();
            if let Some(kind) = kind.strip_suffix("StateEntered") {
                let name = text(&event["stateEnteredEventDetails"]["name"]);
                self.stays.push(Stay { name, kind: kind.to_owned(), from: at, to: None });
            } else if kind.ends_with("StateExited") {
                let name = text(&event["stateExitedEventDetails"]["name"]);
                let stay = self.stays.iter_mut().rev().find(|stay| stay.name == name && stay.to.is_none());
                if let Some(stay) = stay {
                    stay.to = Some(at);
                    if stay.kind == "Task" || stay.kind == "Wait" {
                        lines.push(format!("{at:7.1} s  {:<24} {:>6.1} s", stay.name, at - stay.from));
                    }
                }
            } else if kind == "TaskFailed" || kind == "LambdaFunctionFailed" {
                let details = &event["taskFailedEventDetails"];
                lines.push(format!("{at:7.1} s  failed: {}", text(&details["error"])));
            }
        }
        self.seen = events.len();
        lines
    }

    /// Seconds from the first event to the last.
    pub fn seconds(&self) -> f64 {
        self.last
    }

    /// How often each state was entered.
    pub fn entries(&self) -> BTreeMap<&str, usize> {
        let mut entries = BTreeMap::new();
        for stay in &self.stays {
            *entries.entry(stay.name.as_str()).or_insert(0) += 1;
        }
        entries
    }

    /// A bar for each state that takes time (tasks and waits), in the order of their first entry;
    /// `width` is the number of columns of a bar that lasts as long as the execution. `█` is work,
    /// `░` a wait.
    pub fn timeline(&self, width: usize) -> String {
        let total = self.last.max(0.001);
        let column = |at: f64| ((at / total * width as f64) as usize).min(width.saturating_sub(1));
        let mut rows: Vec<(&str, Vec<char>, f64)> = Vec::new();
        for stay in self.stays.iter().filter(|stay| stay.kind == "Task" || stay.kind == "Wait") {
            let to = stay.to.unwrap_or(self.last);
            let row = match rows.iter().position(|(name, _, _)| *name == stay.name) {
                Some(at) => &mut rows[at],
                None => {
                    rows.push((&stay.name, vec![' '; width], 0.0));
                    rows.last_mut().unwrap_or_else(|| unreachable!("a row was just pushed"))
                }
            };
            let mark = if stay.kind == "Task" { '█' } else { '░' };
            for cell in &mut row.1[column(stay.from)..=column(to)] {
                *cell = mark;
            }
            row.2 += to - stay.from;
        }
        let mut out = String::new();
        for (name, cells, seconds) in rows {
            let bar: String = cells.into_iter().collect();
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  {name:<20} │{bar}│ {seconds:6.1} s");
        }
        out
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// AWS's JSON has epoch seconds as a number; the CLI's output has RFC 3339.
fn seconds(value: &Value) -> f64 {
    if let Some(number) = value.as_f64() {
        return number;
    }
    let format = &time::format_description::well_known::Rfc3339;
    value
        .as_str()
        .and_then(|text| time::OffsetDateTime::parse(text, format).ok())
        .map_or(0.0, |at| at.unix_timestamp_nanos() as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entered(at: f64, kind: &str, name: &str) -> Value {
        json!({"timestamp": at, "type": format!("{kind}StateEntered"), "stateEnteredEventDetails": {"name": name}})
    }

    fn exited(at: f64, kind: &str, name: &str) -> Value {
        json!({"timestamp": at, "type": format!("{kind}StateExited"), "stateExitedEventDetails": {"name": name}})
    }

    #[test]
    fn branches_interleave_and_polls_repeat() {
        let history = [
            json!({"timestamp": 100.0, "type": "ExecutionStarted"}),
            entered(100.0, "Task", "Cluster"),
            exited(101.0, "Task", "Cluster"),
            entered(101.0, "Parallel", "Prepare"),
            entered(101.0, "Task", "Endpoint"),
            entered(101.0, "Task", "Key"),
            exited(102.0, "Task", "Key"),
            exited(103.0, "Task", "Endpoint"),
            entered(103.0, "Wait", "EndpointWait"),
            exited(108.0, "Wait", "EndpointWait"),
            entered(108.0, "Task", "Endpoint"),
            exited(110.0, "Task", "Endpoint"),
        ];
        let mut progress = Progress::default();
        assert_eq!(progress.feed(&history[..3]), ["    1.0 s  Cluster                     1.0 s"]);
        assert_eq!(progress.feed(&history).len(), 4);
        assert!(progress.feed(&history).is_empty());
        assert_eq!(progress.entries()["Endpoint"], 2);
        assert_eq!(
            progress.timeline(10),
            "  Cluster              │██        │    1.0 s\n  \
               Endpoint             │ ███    ██│    4.0 s\n  \
               Key                  │ ██       │    1.0 s\n  \
               EndpointWait         │   ░░░░░░ │    5.0 s\n"
        );
    }

    #[test]
    fn times_come_as_numbers_or_as_text() {
        assert_eq!(seconds(&json!(1.5)), 1.5);
        assert_eq!(seconds(&json!("1970-01-01T00:00:02.5Z")), 2.5);
    }
}
