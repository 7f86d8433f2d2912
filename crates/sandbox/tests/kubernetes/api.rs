//! Objects, patches, watches and errors over the wire.

use futures::{AsyncBufReadExt, StreamExt};
use sandbox::kubernetes::{ApiServer, Record};
use serde_json::{Value, json};

use crate::help::{PATIENCE, call, client, definition, deployment, ok, quick, start, until};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const APPS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

#[tokio::test]
async fn errors_are_those_of_kubernetes() {
    let server = start(quick()).await;
    let admin = client(&server, "master").await;
    ok(&admin, &format!("POST {MAPS}"), map("a", json!({"x": "1"}))).await;
    ok(&admin, &format!("POST {APPS}"), deployment("default", "web", "nginx:1")).await;
    let mut moved = deployment("default", "web", "nginx:1");
    moved["spec"]["selector"]["matchLabels"] = json!({"app": "other"});
    moved["spec"]["template"]["metadata"]["labels"] = json!({"app": "other"});
    for (what, body, status, reason, message) in [
        (format!("GET {MAPS}/b"), Value::Null, 404, "NotFound", "configmaps \"b\" not found"),
        (format!("GET {APPS}/b"), Value::Null, 404, "NotFound", "deployments.apps \"b\" not found"),
        (
            "GET /apis/source.toolkit.fluxcd.io/v1/namespaces/a/gitrepositories".to_owned(),
            Value::Null,
            404,
            "NotFound",
            "the server could not find the requested resource",
        ),
        (
            format!("POST {MAPS}"),
            map("a", json!({})),
            409,
            "AlreadyExists",
            "configmaps \"a\" already exists",
        ),
        (
            "POST /api/v1/namespaces/none/configmaps".to_owned(),
            map("a", json!({})),
            404,
            "NotFound",
            "namespaces \"none\" not found",
        ),
        (
            format!("PUT {MAPS}/a"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": "1"}}),
            409,
            "Conflict",
            "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again",
        ),
        (format!("DELETE {MAPS}/a"), json!({"preconditions": {"uid": "x"}}), 409, "Conflict", ""),
        (
            format!("PATCH:apply {MAPS}/a?fieldManager=other"),
            map("a", json!({"x": "2"})),
            409,
            "Conflict",
            "Apply failed with 1 conflict: conflict with \"tests\" using v1: .data.x",
        ),
        (
            format!("PATCH:apply {MAPS}/a"),
            map("a", json!({})),
            422,
            "Invalid",
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (
            format!("PATCH:merge {APPS}/web"),
            moved,
            422,
            "Invalid",
            "Deployment.apps \"web\" is invalid: spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"other\"}}: field is immutable",
        ),
        (format!("POST {MAPS}"), map("Not_a_name", json!({})), 422, "Invalid", ""),
        (
            format!("PATCH:jsonpatch {MAPS}/a"),
            json!([{"op": "test", "path": "/data/x", "value": "9"}]),
            422,
            "Invalid",
            "",
        ),
        (
            format!("POST {MAPS}"),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}),
            400,
            "BadRequest",
            "the API version in the data (v1, Kind=Secret) does not match the expected API version (v1, Kind=ConfigMap)",
        ),
        (
            "DELETE /api/v1/namespaces/default".to_owned(),
            Value::Null,
            403,
            "Forbidden",
            "namespaces \"default\" is forbidden: this namespace may not be deleted",
        ),
        (format!("PATCH {MAPS}/a"), json!({}), 415, "UnsupportedMediaType", ""),
        (format!("PUT {MAPS}"), json!({}), 405, "MethodNotAllowed", ""),
    ] {
        let (got, answer) = call(&admin, &what, body).await;
        assert_eq!((got, &answer["reason"]), (status, &json!(reason)), "{what}: {answer}");
        assert_eq!((&answer["kind"], &answer["status"]), (&json!("Status"), &json!("Failure")), "{what}");
        assert_eq!(answer["code"], status, "{what}");
        if !message.is_empty() {
            assert_eq!(answer["message"], message, "{what}");
        }
    }
}

#[tokio::test]
async fn tokens_decide() {
    let server = start(quick()).await;
    let get = format!("GET {APPS}/web");
    for (token, what, status, message) in [
        ("wrong", get.as_str(), 401, "Unauthorized"),
        ("", get.as_str(), 401, "Unauthorized"),
        (
            "nobody",
            get.as_str(),
            403,
            "deployments.apps \"web\" is forbidden: User \"arn:aws:iam::111122223333:role/other\" cannot get resource \"deployments\" in API group \"apps\" in the namespace \"default\"",
        ),
        (
            "nobody",
            "GET /api/v1/namespaces",
            403,
            "namespaces is forbidden: User \"arn:aws:iam::111122223333:role/other\" cannot list resource \"namespaces\" in API group \"\" at the cluster scope",
        ),
    ] {
        let (got, answer) = call(&client(&server, token).await, what, Value::Null).await;
        assert_eq!((got, &answer["message"]), (status, &json!(message)), "{token} {what}");
    }
    for (token, path) in [("wrong", "/version"), ("nobody", "/apis"), ("master", "/api/v1/namespaces")] {
        ok(&client(&server, token).await, &format!("GET {path}"), Value::Null).await;
    }
}

#[tokio::test]
async fn writes_that_change_nothing_change_nothing() {
    let server = start(quick()).await;
    let admin = client(&server, "master").await;
    let web = deployment("default", "web", "nginx:1");
    let apply = format!("PATCH:apply {APPS}/web?fieldManager=flux&force=true");
    let dry = format!("{apply}&dryRun=All");

    let planned = ok(&admin, &dry, web.clone()).await;
    assert_eq!(planned["spec"]["replicas"], 1);
    assert_eq!(call(&admin, &format!("GET {APPS}/web"), Value::Null).await.0, 404);

    let (status, _) = call(&admin, &apply, web.clone()).await;
    assert_eq!(status, 201);
    // The controller annotates it; after that it is left in peace.
    let live = until(&server, ("apps/v1", "Deployment", "default", "web"), |live| {
        live["status"]["availableReplicas"] == 1 && !live["metadata"]["annotations"].is_null()
    })
    .await;
    for what in [&apply, &dry] {
        let again = ok(&admin, what, web.clone()).await;
        assert_eq!(again, live, "{what}");
    }
    assert_eq!(live["metadata"]["generation"], 1);

    let mut changed = web.clone();
    changed["metadata"]["labels"] = json!({"x": "y"});
    let labelled = ok(&admin, &apply, changed.clone()).await;
    assert_eq!(labelled["metadata"]["generation"], 1);
    changed["spec"]["replicas"] = json!(2);
    let scaled = ok(&admin, &apply, changed.clone()).await;
    assert_eq!(scaled["metadata"]["generation"], 2);
    // A field that its manager leaves out goes; a defaulted one keeps its value.
    let back = ok(&admin, &apply, web).await;
    assert_eq!((&back["metadata"]["labels"], &back["spec"]["replicas"]), (&Value::Null, &json!(1)));

    let writes: Vec<Record> = server.requests().into_iter().filter(Record::is_write).collect();
    assert_eq!(writes.len(), 5, "{writes:?}");
    assert_eq!(writes[0].user, "arn:aws:iam::111122223333:role/flux");
}

#[tokio::test]
async fn every_patch_has_its_own_rules() {
    let server = start(quick()).await;
    let admin = client(&server, "master").await;
    let mut web = deployment("default", "web", "nginx:1");
    web["spec"]["replicas"] = json!(0);
    ok(&admin, &format!("POST {APPS}"), web).await;
    let side = json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "side:1"}]}}}});
    let images = |object: &Value| -> Vec<Value> {
        let list = object["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        list.iter().map(|container| container["image"].clone()).collect()
    };
    let new = ok(&admin, &format!("PATCH:strategic {APPS}/web"), side.clone()).await;
    assert_eq!(images(&new), ["nginx:1", "side:1"]);
    let new = ok(&admin, &format!("PATCH:merge {APPS}/web"), side).await;
    assert_eq!(images(&new), ["side:1"]);
    let replace =
        json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "side:2"}]);
    let new = ok(&admin, &format!("PATCH:jsonpatch {APPS}/web"), replace).await;
    assert_eq!(images(&new), ["side:2"]);

    // The status has a door of its own.
    let both = json!({"spec": {"paused": true}, "status": {"observedGeneration": 77}});
    let new = ok(&admin, &format!("PATCH:merge {APPS}/web"), both.clone()).await;
    assert_eq!((&new["spec"]["paused"], new["status"]["observedGeneration"] == 77), (&json!(true), false));
    let both = json!({"spec": {"paused": false}, "status": {"collisionCount": 7}});
    let new = ok(&admin, &format!("PATCH:merge {APPS}/web/status"), both).await;
    assert_eq!((&new["spec"]["paused"], &new["status"]["collisionCount"]), (&json!(true), &json!(7)));

    let scale = ok(&admin, &format!("PATCH:merge {APPS}/web/scale"), json!({"spec": {"replicas": 3}})).await;
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(3)));
}

#[tokio::test]
async fn lists_select_and_page() {
    let server = start(quick()).await;
    let admin = client(&server, "master").await;
    for (name, tier) in [("a", "web"), ("b", "db"), ("c", "web")] {
        let mut object = map(name, json!({}));
        object["metadata"]["labels"] = json!({"tier": tier});
        ok(&admin, &format!("POST {MAPS}"), object).await;
    }
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    for (query, expected) in [
        ("labelSelector=tier%3Dweb", vec!["a", "c"]),
        ("labelSelector=tier%20notin%20(web),tier", vec!["b"]),
        ("fieldSelector=metadata.name%3Db", vec!["b"]),
        ("labelSelector=tier%3Dweb&fieldSelector=metadata.name!%3Da", vec!["c"]),
    ] {
        let list = ok(&admin, &format!("GET {MAPS}?{query}"), Value::Null).await;
        assert_eq!(names(&list), expected, "{query}");
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
        assert!(list["items"][0]["kind"].is_null(), "items of a typed list don't repeat their kind");
    }
    let first = ok(&admin, &format!("GET {MAPS}?labelSelector=tier&limit=2"), Value::Null).await;
    assert_eq!(
        (names(&first), &first["metadata"]["remainingItemCount"]),
        (vec!["a".into(), "b".into()], &json!(1))
    );
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second =
        ok(&admin, &format!("GET {MAPS}?labelSelector=tier&limit=2&continue={token}"), Value::Null).await;
    assert_eq!((names(&second), &second["metadata"]["continue"]), (vec!["c".to_owned()], &Value::Null));

    ok(&admin, &format!("DELETE {MAPS}?labelSelector=tier%3Dweb"), Value::Null).await;
    let left = ok(&admin, &format!("GET {MAPS}?labelSelector=tier"), Value::Null).await;
    assert_eq!(names(&left), ["b"]);
}

/// Reads events of a watch until as many as wanted have come.
async fn watch(client: &kube::Client, path: &str, wanted: usize) -> Vec<(String, String)> {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let mut lines = Box::pin(client.request_stream(request).await.unwrap().lines());
    let mut out = Vec::new();
    while out.len() < wanted {
        let line = tokio::time::timeout(PATIENCE, lines.next()).await.expect("the watch is silent");
        let Some(line) = line else { break };
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = if event["type"] == "ERROR" {
            text(&event["object"]["reason"])
        } else {
            text(&event["object"]["metadata"]["name"])
        };
        out.push((text(&event["type"]), name));
    }
    out
}

#[tokio::test]
async fn watches_tell_what_happens() {
    let server = start(quick()).await;
    let admin = client(&server, "master").await;
    let labelled = |name: &str, tier: &str| {
        let mut object = map(name, json!({}));
        object["metadata"]["labels"] = json!({"tier": tier});
        object
    };
    ok(&admin, &format!("POST {MAPS}"), labelled("a", "web")).await;
    let list = ok(&admin, &format!("GET {MAPS}"), Value::Null).await;
    let from = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    ok(&admin, &format!("POST {MAPS}"), labelled("b", "web")).await;
    ok(&admin, &format!("PATCH:merge {MAPS}/a"), json!({"data": {"x": "1"}})).await;
    ok(&admin, &format!("PATCH:merge {MAPS}/a"), json!({"metadata": {"labels": {"tier": "db"}}})).await;
    ok(&admin, &format!("DELETE {MAPS}/b"), Value::Null).await;
    let pairs = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect()
    };
    let path = format!("{MAPS}?watch=true&labelSelector=tier%3Dweb");
    assert_eq!(
        watch(&admin, &format!("{path}&resourceVersion={from}"), 4).await,
        pairs(&[("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a"), ("DELETED", "b")])
    );
    // Without a version it starts with what is there, and bookmarks keep it up to date.
    let all = format!("{MAPS}?watch=true&labelSelector=tier&allowWatchBookmarks=true");
    assert_eq!(watch(&admin, &all, 2).await, pairs(&[("ADDED", "a"), ("BOOKMARK", "")]));
    let streamed = format!("{all}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    assert_eq!(watch(&admin, &streamed, 2).await, pairs(&[("ADDED", "a"), ("BOOKMARK", "")]));
    server.compact();
    assert_eq!(
        watch(&admin, &format!("{path}&resourceVersion={from}"), 1).await,
        pairs(&[("ERROR", "Expired")])
    );
}

async fn defined(server: &ApiServer, admin: &kube::Client) {
    let object = definition("example.org", "Thing", "things");
    ok(admin, "PATCH:apply /apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.org?fieldManager=a", object).await;
    let name = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "things.example.org");
    until(server, name, |live| crate::help::condition(live, "Established")["status"] == "True").await;
}

#[tokio::test]
async fn definitions_add_kinds_and_take_them_away() {
    let server = start(quick()).await;
    let admin = client(&server, "master").await;
    let things = "/apis/example.org/v1/namespaces/default/things";
    assert_eq!(call(&admin, &format!("GET {things}"), Value::Null).await.0, 404);
    assert_eq!(call(&admin, "GET /apis/example.org/v1", Value::Null).await.0, 404);
    defined(&server, &admin).await;
    let served = ok(&admin, "GET /apis/example.org/v1", Value::Null).await;
    assert_eq!(served["resources"][0]["name"], "things");

    let thing = json!({"apiVersion": "example.org/v1", "kind": "Thing",
        "metadata": {"name": "a", "finalizers": ["example.org/hold"]}, "spec": {"x": {"y": 1}}, "status": {"z": 1}, "odd": 1});
    let made = ok(&admin, &format!("POST {things}"), thing).await;
    assert_eq!(
        (&made["spec"]["x"]["y"], &made["status"], &made["odd"]),
        (&json!(1), &Value::Null, &Value::Null)
    );
    assert_eq!(made["metadata"]["generation"], 1);
    let with_status =
        ok(&admin, &format!("PATCH:merge {things}/a/status"), json!({"status": {"z": 2}})).await;
    assert_eq!((&with_status["status"]["z"], &with_status["metadata"]["generation"]), (&json!(2), &json!(1)));

    // The definition waits for its objects, and those for their finalizers.
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.org";
    ok(&admin, &format!("DELETE {path}"), Value::Null).await;
    until(&server, ("example.org/v1", "Thing", "default", "a"), |live| {
        !live["metadata"]["deletionTimestamp"].is_null()
    })
    .await;
    let refused = call(&admin, &format!("POST {things}"), json!({"metadata": {"name": "b"}})).await;
    assert_eq!(refused.0, 405);
    ok(&admin, &format!("PATCH:merge {things}/a"), json!({"metadata": {"finalizers": null}})).await;
    let gone = |server: &ApiServer| {
        server.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "things.example.org").is_none()
    };
    assert!(server.wait_until(PATIENCE, gone).await);
    assert_eq!(call(&admin, &format!("GET {things}"), Value::Null).await.0, 404);
}

#[tokio::test]
async fn namespaces_end_with_what_is_in_them() {
    let server = start(quick()).await;
    let admin = client(&server, "master").await;
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}});
    let made = ok(&admin, "POST /api/v1/namespaces", space).await;
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "a");
    until(&server, ("v1", "ServiceAccount", "a", "default"), |_| true).await;
    let mut held = map("held", json!({}));
    held["metadata"]["finalizers"] = json!(["example.org/hold"]);
    ok(&admin, "POST /api/v1/namespaces/a/configmaps", held).await;
    ok(&admin, "POST /api/v1/namespaces/a/configmaps", map("free", json!({}))).await;

    let going = ok(&admin, "DELETE /api/v1/namespaces/a", Value::Null).await;
    assert_eq!(going["status"]["phase"], "Terminating");
    let (status, refused) =
        call(&admin, "POST /api/v1/namespaces/a/configmaps", map("late", json!({}))).await;
    assert_eq!(status, 403);
    assert_eq!(
        refused["message"],
        "configmaps \"late\" is forbidden: unable to create new content in namespace a because it is being terminated"
    );
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let live = until(&server, ("v1", "Namespace", "", "a"), |live| {
        crate::help::condition(live, "NamespaceFinalizersRemaining")["status"] == "True"
    })
    .await;
    assert_eq!(
        crate::help::condition(&live, "NamespaceFinalizersRemaining")["message"],
        "Some content in the namespace has finalizers remaining: example.org/hold in 1 resource instances"
    );
    assert!(server.get("v1", "ConfigMap", "a", "free").is_none());
    ok(&admin, "PATCH:merge /api/v1/namespaces/a/configmaps/held", json!({"metadata": {"finalizers": []}}))
        .await;
    assert!(server.wait_until(PATIENCE, |server| server.get("v1", "Namespace", "", "a").is_none()).await);
}

#[tokio::test]
async fn secrets_take_plain_text_and_give_it_back_encoded() {
    let server = start(quick()).await;
    let admin = client(&server, "master").await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "stringData": {"user": "me"}});
    let path = "/api/v1/namespaces/default/secrets/a?fieldManager=x";
    let made = ok(&admin, &format!("PATCH:apply {path}"), secret.clone()).await;
    assert_eq!(
        (&made["data"], &made["stringData"], &made["type"]),
        (&json!({"user": "bWU="}), &Value::Null, &json!("Opaque"))
    );
    let again = ok(&admin, &format!("PATCH:apply {path}"), secret).await;
    assert_eq!(made, again);
}

#[tokio::test]
async fn a_stopped_server_ends_its_watches() {
    let server = start(quick()).await;
    let admin = client(&server, "master").await;
    let request =
        http::Request::get(format!("{MAPS}?watch=true&resourceVersion=999999")).body(Vec::new()).unwrap();
    let mut lines = Box::pin(admin.request_stream(request).await.unwrap().lines());
    server.stop();
    let end = tokio::time::timeout(PATIENCE, lines.next()).await.expect("the watch goes on");
    assert!(end.is_none_or(|line| line.is_err()));
}
