//! The state machine's definition, checked as AWS would check it, and against the code.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use step::ErrorName;

const DEFINITION: &str = include_str!("../../statemachine/bootstrap.asl.json");
const TEMPLATE: &str = include_str!("../../template.yaml");

fn definition() -> Value {
    serde_json::from_str(DEFINITION).expect("the definition is JSON")
}

/// Gets a scope's path, the name of its first state, and its states.
type Visit<'a> = dyn FnMut(&str, &str, &Map<String, Value>) + 'a;

/// Calls `visit` with every scope.
fn scopes(machine: &Value, path: &str, visit: &mut Visit) {
    let states = machine["States"].as_object().expect("States");
    visit(path, machine["StartAt"].as_str().expect("StartAt"), states);
    for (name, state) in states {
        for branch in state["Branches"].as_array().into_iter().flatten() {
            scopes(branch, &format!("{path}/{name}"), visit);
        }
    }
}

fn tasks() -> BTreeMap<String, Value> {
    let mut tasks = BTreeMap::new();
    scopes(&definition(), "", &mut |_, _, states| {
        for (name, state) in states {
            if state["Type"] == "Task" {
                tasks.insert(name.clone(), state.clone());
            }
        }
    });
    tasks
}

fn nexts(state: &Value) -> Vec<String> {
    let mut next: Vec<&Value> = vec![&state["Next"], &state["Default"]];
    for list in ["Catch", "Choices"] {
        next.extend(state[list].as_array().into_iter().flatten().map(|entry| &entry["Next"]));
    }
    next.into_iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[test]
fn every_state_is_reachable_and_leads_on() {
    let mut names = BTreeSet::new();
    scopes(&definition(), "", &mut |path, start, states| {
        let mut reached = BTreeSet::new();
        let mut open = vec![start.to_owned()];
        while let Some(name) = open.pop() {
            let state = states.get(&name).unwrap_or_else(|| panic!("{path}: no state {name}"));
            if reached.insert(name) {
                open.extend(nexts(state));
            }
        }
        for (name, state) in states {
            assert!(reached.contains(name), "{path}/{name} is unreachable");
            assert!(names.insert(name.clone()), "{name} is the name of two states");
            let ends = state["End"] == true || state["Type"] == "Fail" || state["Type"] == "Succeed";
            assert_ne!(ends, !nexts(state).is_empty(), "{path}/{name} must either end or lead on");
        }
    });
    assert!(names.len() > 30);
}

#[test]
fn tasks_have_limits_retries_and_a_catch_for_everything() {
    let tasks = tasks();
    assert_eq!(tasks.len(), 11);
    for (name, task) in &tasks {
        assert!(task["TimeoutSeconds"].is_u64(), "{name} has no TimeoutSeconds");
        let catch: Vec<&str> = task["Catch"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|c| c["ErrorEquals"].as_array().into_iter().flatten())
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(catch, ["States.ALL"], "{name}");
        let retries = task["Retry"].as_array().expect("Retry");
        for retry in retries {
            assert_eq!(retry["JitterStrategy"], "FULL", "{name}");
            assert!(retry["MaxAttempts"].as_u64().is_some_and(|n| n <= 8), "{name}");
            assert!(retry["MaxDelaySeconds"].is_u64(), "{name}");
        }
        if task["Resource"].as_str().is_some_and(|r| r.ends_with("lambda:invoke")) {
            let text = task["Retry"].to_string();
            for error in [
                "Lambda.ClientExecutionTimeoutException",
                "Lambda.ServiceException",
                "Lambda.AWSLambdaException",
                "Lambda.SdkClientException",
                "Lambda.TooManyRequestsException",
                "Transient",
            ] {
                assert!(text.contains(&format!("{error:?}")), "{name} does not retry {error}");
            }
        }
    }
}

#[test]
fn error_names_are_those_of_the_code_or_of_aws() {
    let ours: BTreeSet<&str> = ErrorName::ALL.iter().map(|name| name.as_str()).collect();
    let mut used = BTreeSet::new();
    for (name, task) in tasks() {
        for list in ["Retry", "Catch"] {
            for entry in task[list].as_array().into_iter().flatten() {
                for error in entry["ErrorEquals"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    let aws =
                        ["Lambda.", "States.", "Sandbox.", "Runtime."].iter().any(|p| error.starts_with(p));
                    assert!(aws || ours.contains(error), "{name} names {error}, which nothing raises");
                    used.insert(error.to_owned());
                }
            }
        }
    }
    // Of our own names only Transient is retried; all of them are caught by States.ALL.
    let retried: Vec<&str> = ours.iter().copied().filter(|name| used.contains(*name)).collect();
    assert_eq!(retried, ["Transient"]);
    // The names that the definition itself gives to a wait's end are ours too.
    for piece in DEFINITION.split("\"error\": \"").skip(1) {
        let name = piece.split('"').next().unwrap_or_default();
        assert!(name.starts_with("{%") || ours.contains(name), "{name}");
    }
}

#[test]
fn inner_variables_have_names_of_their_own() {
    // Step Functions refuses an inner scope that assigns a name of an outer one.
    let mut assigned: Vec<(String, BTreeSet<String>)> = Vec::new();
    scopes(&definition(), "", &mut |path, _, states| {
        let mut names = BTreeSet::new();
        for state in states.values() {
            let catches = state["Catch"].as_array().into_iter().flatten();
            for source in std::iter::once(state).chain(catches) {
                names.extend(source["Assign"].as_object().into_iter().flat_map(|a| a.keys().cloned()));
            }
        }
        assigned.push((path.to_owned(), names));
    });
    assert!(assigned.len() >= 4);
    for (outer, outer_names) in &assigned {
        for (inner, inner_names) in &assigned {
            if inner != outer && inner.starts_with(outer.as_str()) {
                let both: Vec<_> = outer_names.intersection(inner_names).collect();
                assert!(both.is_empty(), "{inner} assigns {both:?} of {outer:?}");
            }
        }
    }
}

#[test]
fn every_poll_waits_and_ends() {
    for (task, wait) in [
        ("Endpoint", "EndpointWait"),
        ("Probe", "ProbeWait"),
        ("FluxInstall", "FluxWait"),
        ("FluxSync", "SyncWait"),
    ] {
        let mut seen = false;
        scopes(&definition(), "", &mut |_, _, states| {
            let Some(state) = states.get(task) else { return };
            seen = true;
            assert_eq!(states[wait]["Type"], "Wait");
            assert_eq!(states[wait]["Next"], task);
            let choice = &states[state["Next"].as_str().expect("Next")];
            assert_eq!(choice["Default"], wait, "{task}");
            let ways: Vec<&str> = choice["Choices"]
                .as_array()
                .expect("Choices")
                .iter()
                .filter_map(|c| c["Next"].as_str())
                .collect();
            assert_eq!(ways.len(), 2, "{task}: ready, or given up");
            assert!(ways[1].ends_with("TimedOut"), "{task}: {ways:?}");
            let until = choice["Choices"][1]["Condition"].as_str().expect("Condition");
            let pause = states[wait]["Seconds"].as_str().expect("Seconds");
            if task == "Endpoint" {
                // Its limit is the template's: so many looks with so long a pause.
                let most = |name: &str, key: &str| {
                    number_after(TEMPLATE.split(&format!("\n  {name}:\n")).nth(1).expect(name), key)
                        .expect(key)
                };
                let looks = most("EndpointPollTries", "\n    MaxValue: ");
                assert!(looks * most("EndpointPollSeconds", "\n    MaxValue: ") <= 3600 && looks <= 500);
            } else {
                // Looks that take long count too, and a short pause does not fill the history's
                // 25,000 events, of which a round takes nine.
                assert!(until.contains(" or $millis() >= $"), "{task}: {until}");
                assert!(
                    pause.starts_with("{% $max([") && pause.contains("imeoutSeconds / 500)])"),
                    "{pause}"
                );
            }
        });
        assert!(seen, "no task {task}");
    }
}

#[test]
fn a_failure_without_a_cause_is_reported_too() {
    // States.Timeout comes without one, and AWS ends a run at an expression that gives nothing.
    scopes(&definition(), "", &mut |_, _, states| {
        for (name, state) in states {
            for assign in state["Catch"].as_array().into_iter().flatten().map(|catch| &catch["Assign"]) {
                for cause in assign.as_object().into_iter().flat_map(|a| a.values()).map(|f| &f["cause"]) {
                    let cause = cause.as_str().unwrap_or_default();
                    assert!(cause.contains("$exists($states.errorOutput.Cause)"), "{name}: {cause}");
                }
            }
        }
    });
    let failures = &definition()["States"]["ReadFailures"]["Assign"]["failures"];
    let text = failures.as_str().unwrap_or_default();
    assert!(text.contains("gives no cause"), "{text}");
    // The mark by which the functions part text and resources.
    assert!(text.contains(&format!("'{}'", step::ledger::MARK.replace('\n', "\\n"))), "{text}");
}

#[test]
fn the_template_fits_what_the_emulator_does_not_check() {
    // EventBridge's publishing meets no condition in a topic's policy.
    let policy =
        TEMPLATE.split("\n  NoticesPolicy:").nth(1).and_then(|rest| rest.split("\n  EndedRule:").next());
    let events = policy.and_then(|text| text.split("Sid: EndsOfRuns").nth(1)).expect("EndsOfRuns");
    assert!(events.contains("events.amazonaws.com") && !events.contains("Condition"), "{events}");
    // One kind of end that never happened must not hide the others.
    assert!(TEMPLATE.contains("Expression: SUM([FILL(failed, 0), FILL(timedOut, 0), FILL(aborted, 0)])"));
    // Whoever may use a key may do so with a key of this stack's, or through a service only.
    let uses = ["kms:Decrypt", "kms:GenerateDataKey", "kms:PutKeyPolicy", "kms:ScheduleKeyDeletion"];
    for statement in TEMPLATE.split("- Sid: ").skip(1) {
        if uses.iter().any(|action| statement.contains(action)) {
            let bounded = ["aws:ResourceTag/", "kms:ViaService"].iter().any(|key| statement.contains(key));
            assert!(bounded, "{statement}");
        }
    }
}

#[test]
fn the_whole_has_the_time_that_its_comment_adds_up() {
    let definition = definition();
    let seconds = definition["TimeoutSeconds"].as_u64().expect("TimeoutSeconds");
    let comment = definition["Comment"].as_str().expect("Comment");
    assert!(comment.contains(&format!("{seconds} s")), "{comment}");
    // Preflight, the longest branch with its retries, the sync with its retries, the events.
    assert!(seconds >= (10 + 70 + 70 + 2) * 60);
}

#[test]
fn substitutions_and_template_agree() {
    let used: BTreeSet<&str> =
        DEFINITION.split("${").skip(1).filter_map(|piece| piece.split('}').next()).collect();
    let block = TEMPLATE
        .split("DefinitionSubstitutions:")
        .nth(1)
        .and_then(|rest| rest.split("\n      Tracing:").next())
        .expect("DefinitionSubstitutions");
    let given: BTreeSet<&str> =
        block.lines().filter_map(|line| line.trim().split_once(": ")).map(|(name, _)| name).collect();
    assert_eq!(used, given);
}

#[test]
fn a_task_outlasts_its_function() {
    let global: u64 = number_after(TEMPLATE, "\n    Timeout: ").expect("Globals");
    for (name, task) in tasks() {
        let Some(function) = task["Arguments"]["FunctionName"].as_str() else { continue };
        let logical = function.trim_start_matches("${").trim_end_matches("Arn}");
        let block = TEMPLATE
            .split(&format!("\n  {logical}:\n"))
            .nth(1)
            .and_then(|rest| rest.split("\n  \n").next())
            .and_then(|rest| rest.split("\n  FluxRole:").next())
            .unwrap_or_else(|| panic!("the template has no {logical}"));
        let block =
            block.split(&format!("{}Logs:", logical.trim_end_matches("Function"))).next().expect("block");
        let timeout = number_after(block, "\n      Timeout: ").unwrap_or(global);
        let limit = task["TimeoutSeconds"].as_u64().expect("TimeoutSeconds");
        assert!(limit > timeout, "{name}: {limit} s for a function of {timeout} s");
        assert!(limit <= timeout + 15, "{name}: {limit} s for a function of {timeout} s");
    }
}

fn number_after(text: &str, marker: &str) -> Option<u64> {
    let rest = text.split(marker).nth(1)?;
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

#[test]
fn no_state_touches_a_secret() {
    let lower = DEFINITION.to_lowercase();
    for word in ["password", "secretstring", "getsecretvalue", "servicepassword"] {
        assert!(!lower.contains(word), "{word}");
    }
    assert!(TEMPLATE.contains("IncludeExecutionData: false"));
}
