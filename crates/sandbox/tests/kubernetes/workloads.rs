//! Deployments on Fargate.

use std::time::Duration;

use sandbox::kubernetes::{FargateSelector, Settings};
use serde_json::{Value, json};

use crate::help::{PATIENCE, client, condition, deployment, ok, quick, start, until};

fn pod(server: &sandbox::kubernetes::ApiServer, app: &str) -> Option<Value> {
    let pods = server.list("v1", "Pod", Some("default"));
    pods.into_iter().find(|pod| pod["metadata"]["labels"]["app"] == app)
}

#[tokio::test]
async fn a_deployment_rolls_out_after_its_delay() {
    let mut settings = quick();
    settings.delays.pod_start = Duration::from_millis(200);
    let server = start(settings).await;
    let name = ("apps/v1", "Deployment", "default", "web");
    server.apply("a", &deployment("default", "web", "nginx:1")).unwrap();
    let live = until(&server, name, |live| live["status"]["observedGeneration"] == 1).await;
    assert_eq!(condition(&live, "Available")["reason"], "MinimumReplicasUnavailable");
    let live = until(&server, name, |live| live["status"]["readyReplicas"] == 1).await;
    assert_eq!(condition(&live, "Available")["status"], "True");
    assert_eq!(condition(&live, "Progressing")["reason"], "NewReplicaSetAvailable");
    assert_eq!(pod(&server, "web").unwrap()["status"]["phase"], "Running");

    // A new template brings a new replica set; the old pods go when the new ones are ready.
    server.apply("a", &deployment("default", "web", "nginx:2")).unwrap();
    let live = until(&server, name, |live| {
        live["status"]["observedGeneration"] == 2
            && condition(live, "Progressing")["reason"] == "NewReplicaSetAvailable"
    })
    .await;
    assert_eq!(live["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    assert_eq!(pod(&server, "web").unwrap()["spec"]["containers"][0]["image"], "nginx:2");
    let sets = server.list("apps/v1", "ReplicaSet", Some("default"));
    assert_eq!(sets.len(), 2);

    // What a Deployment owns goes with it.
    server.delete("apps/v1", "Deployment", "default", "web").unwrap();
    let gone = |server: &sandbox::kubernetes::ApiServer| {
        pod(server, "web").is_none() && server.list("apps/v1", "ReplicaSet", Some("default")).is_empty()
    };
    assert!(server.wait_until(PATIENCE, gone).await);
}

#[tokio::test]
async fn pods_that_no_profile_selects_stay_pending() {
    let server = start(Settings { fargate: vec![FargateSelector::namespace("flux*")], ..quick() }).await;
    server.apply("a", &deployment("default", "web", "nginx:1")).unwrap();
    let unscheduled = |server: &sandbox::kubernetes::ApiServer| {
        pod(server, "web").is_some_and(|pod| condition(&pod, "PodScheduled")["reason"] == "Unschedulable")
    };
    assert!(server.wait_until(PATIENCE, unscheduled).await);
    // As on EKS, a profile that comes later is for new pods only.
    server.set_fargate(vec![FargateSelector::namespace("*")]);
    server.apply("a", &deployment("default", "late", "nginx:1")).unwrap();
    until(&server, ("apps/v1", "Deployment", "default", "late"), |live| live["status"]["readyReplicas"] == 1)
        .await;
    assert_eq!(pod(&server, "web").unwrap()["status"]["phase"], "Pending");
}

#[tokio::test]
async fn flux_crashes_on_fargate_unless_requests_are_limits() {
    let server = start(quick()).await;
    let mut flux = deployment("default", "source-controller", "source:1");
    flux["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/part-of"] = json!("flux");
    flux["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"limits": {"cpu": "1000m"}, "requests": {"cpu": "50m"}});
    server.apply("a", &flux).unwrap();
    let crashing = |server: &sandbox::kubernetes::ApiServer| {
        pod(server, "source-controller").is_some_and(|pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
    };
    assert!(server.wait_until(PATIENCE, crashing).await);
    let told = |server: &sandbox::kubernetes::ApiServer| {
        let events = server.list("v1", "Event", Some("default"));
        events.iter().any(|event| event["message"].as_str().unwrap_or_default().contains("cpu.cfs_quota_us"))
    };
    assert!(server.wait_until(PATIENCE, told).await);
    // The same amount in another notation is the same.
    flux["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1");
    server.apply("a", &flux).unwrap();
    until(&server, ("apps/v1", "Deployment", "default", "source-controller"), |live| {
        live["status"]["readyReplicas"] == 1
    })
    .await;
}

#[tokio::test]
async fn images_that_cannot_be_pulled_keep_a_rollout_back() {
    let server = start(Settings { broken_images: vec!["registry.invalid/".to_owned()], ..quick() }).await;
    let admin = client(&server, "master").await;
    let mut web = deployment("default", "web", "registry.invalid/nginx:1");
    web["spec"]["progressDeadlineSeconds"] = json!(1);
    ok(&admin, "POST /apis/apps/v1/namespaces/default/deployments", web).await;
    let live = until(&server, ("apps/v1", "Deployment", "default", "web"), |live| {
        condition(live, "Progressing")["status"] == "False"
    })
    .await;
    assert_eq!(condition(&live, "Progressing")["reason"], "ProgressDeadlineExceeded");
    let pod = pod(&server, "web").unwrap();
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"], "ImagePullBackOff");
}
