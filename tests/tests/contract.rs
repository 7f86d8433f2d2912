//! What is committed beside the code and read by people and tools: sample events and the schema.

use serde_json::Value;
use step::Request;
use step::request::{json_schema, parse_json};

fn event(name: &str) -> Value {
    let path = format!("{}/../events/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn console_inputs_and_the_event_are_requests() {
    let smallest = Request::parse(&event("smallest")).expect("smallest");
    let requested = Request::parse(&event("bootstrap-requested")["detail"]).expect("event");
    assert_eq!(smallest, requested);
    assert_eq!(smallest.flux.version, sandbox::demo::DEFAULT_VERSION);
    let mut full = Request::parse(&event("full")).expect("full");
    assert_eq!(full.network.subnet_ids.len(), 2);
    // The full one spells the defaults out, so that a reader sees them.
    full.network = smallest.network.clone();
    full.key.alias = None;
    full.repository.name = None;
    full.repository.description = None;
    full.credentials.user_name = None;
    full.credentials.secret_name = None;
    assert_eq!(full, smallest);
}

#[test]
fn function_inputs_parse() {
    fn check<T: serde::de::DeserializeOwned>(name: &str) {
        if let Err(error) = parse_json::<T>(&event(&format!("function-{name}"))) {
            panic!("{name}: {error}");
        }
    }
    check::<Request>("cluster");
    check::<endpoint::Input>("endpoint");
    check::<key::Input>("key");
    check::<repo_seed::Input>("repo_seed");
    check::<credentials::Input>("credentials");
    check::<wait::Input>("wait");
    check::<flux_install::Input>("flux_install");
    check::<flux_sync::Input>("flux_sync");
}

#[test]
fn no_sample_event_is_unused() {
    let folder = format!("{}/../events", env!("CARGO_MANIFEST_DIR"));
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("events")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "bootstrap-requested.json",
            "full.json",
            "function-cluster.json",
            "function-credentials.json",
            "function-endpoint.json",
            "function-flux_install.json",
            "function-flux_sync.json",
            "function-key.json",
            "function-repo_seed.json",
            "function-wait.json",
            "smallest.json",
        ]
    );
}

#[test]
fn the_committed_schema_is_the_generated_one() {
    let path = format!("{}/../statemachine/request.schema.json", env!("CARGO_MANIFEST_DIR"));
    let committed: Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("schema")).expect("JSON");
    assert_eq!(committed, json_schema(), "run `make schema` and commit the result");
}
