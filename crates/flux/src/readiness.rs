//! Whether Flux's controllers run, and why not.
//!
//! A Deployment says that it is not available, but not why; that is in its pods and their events,
//! and on Fargate most often in neither for the first minute.

use eks::Kubernetes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use step::Result;

use crate::apply::condition;
use crate::detect::{PART_OF, PART_OF_FLUX, VERSION};

/// One controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Controller {
    /// Its name, `source-controller`.
    pub name: String,
    /// Whether its Deployment is rolled out and available.
    pub ready: bool,
    /// Why not; empty when ready.
    pub message: String,
}

/// What to do about a pod's reason, in the words of a person who has seen it before. Reasons as the
/// scheduler, the kubelet and the container runtime spell them.
const HINTS: [(&str, &str); 12] = [
    (
        "FailedScheduling",
        "a Fargate profile must select the namespace, and have been ACTIVE before the pod was made; \
         delete the pod if the profile is newer",
    ),
    (
        "Unschedulable",
        "a Fargate profile must select the namespace, and have been ACTIVE before the pod was made; \
         delete the pod if the profile is newer",
    ),
    (
        "ImagePullBackOff",
        "the private subnets need a way to the registry: NAT, or a mirror behind endpoints named in flux.registry",
    ),
    (
        "ErrImagePull",
        "the private subnets need a way to the registry: NAT, or a mirror behind endpoints named in flux.registry",
    ),
    ("InvalidImageName", "flux.registry does not name a registry"),
    ("CrashLoopBackOff", "its log says why; on Fargate its requests must equal its limits"),
    ("RunContainerError", "its log says why; on Fargate its requests must equal its limits"),
    ("CreateContainerConfigError", "a Secret or ConfigMap that it names is missing"),
    ("OOMKilled", "it needs more memory: raise flux.resources.memory"),
    ("FailedCreate", "a quota or a policy of the cluster keeps the pod from being made"),
    ("FailedMount", "a volume's Secret or ConfigMap is missing"),
    (
        "FailedCreatePodSandBox",
        "the pod got no network; look at the profile's subnets and their free addresses",
    ),
];

/// Reasons of warnings that say nothing about a delay: Fargate gives this one to every pod.
const HARMLESS: [&str; 1] = ["LoggingDisabled"];

/// Looks at the controllers named. Reads only; pods and events are asked for only where one is not
/// ready.
///
/// # Errors
/// Those of [`Kubernetes`].
pub async fn controllers(
    kubernetes: &Kubernetes,
    namespace: &str,
    names: &[&str],
) -> Result<Vec<Controller>> {
    let wanted: Vec<(&str, Option<&str>)> = names.iter().map(|name| (*name, None)).collect();
    look(kubernetes, namespace, &wanted).await
}

/// Looks at Flux's controllers among the objects of a build, which must run in the build's version:
/// after a commit Flux brings itself there, and is Ready before its new pods run.
///
/// # Errors
/// Those of [`Kubernetes`].
pub async fn of_build(kubernetes: &Kubernetes, namespace: &str, built: &[Value]) -> Result<Vec<Controller>> {
    let wanted: Vec<(&str, Option<&str>)> = built
        .iter()
        .filter(|object| {
            let metadata = &object["metadata"];
            object["kind"] == "Deployment"
                && metadata["namespace"] == namespace
                && metadata["labels"][PART_OF] == "flux"
        })
        .filter_map(|object| {
            let metadata = &object["metadata"];
            Some((metadata["name"].as_str()?, metadata["labels"][VERSION].as_str()))
        })
        .collect();
    look(kubernetes, namespace, &wanted).await
}

/// Looks at controllers by name and, where given, version.
async fn look(
    kubernetes: &Kubernetes,
    namespace: &str,
    wanted: &[(&str, Option<&str>)],
) -> Result<Vec<Controller>> {
    let query = [("labelSelector", PART_OF_FLUX)];
    let deployments = kubernetes.list("apps/v1", "Deployment", Some(namespace), &query).await?;
    let mut controllers: Vec<Controller> = wanted
        .iter()
        .map(|(name, version)| {
            let deployment = deployments.iter().find(|deployment| deployment["metadata"]["name"] == *name);
            let message = match deployment {
                None => Some("its Deployment does not exist".to_owned()),
                Some(deployment) => behind(deployment, *version).or_else(|| delay(deployment)),
            };
            Controller {
                name: (*name).to_owned(),
                ready: message.is_none(),
                message: message.unwrap_or_default(),
            }
        })
        .collect();
    if controllers.iter().all(|controller| controller.ready) {
        return Ok(controllers);
    }
    let pods = kubernetes.list("v1", "Pod", Some(namespace), &[]).await?;
    let events = kubernetes.list("v1", "Event", Some(namespace), &[]).await?;
    for controller in controllers.iter_mut().filter(|controller| !controller.ready) {
        if let Some(cause) = cause(&controller.name, &pods, &events) {
            controller.message = format!("{}: {cause}", controller.message);
        }
        controller.message = cut(&controller.message, 500);
    }
    Ok(controllers)
}

/// That a Deployment is of another version than the wanted one.
fn behind(deployment: &Value, version: Option<&str>) -> Option<String> {
    let found = deployment["metadata"]["labels"][VERSION].as_str();
    (version.is_some() && found != version).then(|| {
        format!("it is {} and not {} yet", found.unwrap_or("of no version"), version.unwrap_or_default())
    })
}

/// Says in one sentence which controllers are missing; empty when all run.
pub fn because(controllers: &[Controller]) -> String {
    let waiting: Vec<String> = controllers
        .iter()
        .filter(|controller| !controller.ready)
        .map(|controller| format!("{} ({})", controller.name, controller.message))
        .collect();
    if waiting.is_empty() {
        return String::new();
    }
    let up = controllers.len() - waiting.len();
    format!("{up} of {} controllers run; waiting for {}", controllers.len(), waiting.join("; "))
}

/// Why a Deployment is not rolled out; `None` where it is. The rules are those of kstatus
/// (`sigs.k8s.io/cli-utils`), which the flux CLI goes by, but for one: to kstatus a Deployment that is
/// scaled to nothing is as it should be, and a Flux without a controller is not.
pub fn delay(deployment: &Value) -> Option<String> {
    let number = |pointer: &str| deployment.pointer(pointer).and_then(Value::as_i64);
    let generation = number("/metadata/generation").unwrap_or(1);
    if number("/status/observedGeneration").unwrap_or(0) < generation {
        return Some("its rollout has not begun".to_owned());
    }
    let failing = |kind: &str, status: &str| {
        condition(deployment, kind).filter(|condition| condition["status"] == status).map(|condition| {
            format!(
                "{}: {}",
                condition["reason"].as_str().unwrap_or(kind),
                condition["message"].as_str().unwrap_or_default()
            )
        })
    };
    if let Some(failure) = failing("ReplicaFailure", "True") {
        return Some(failure);
    }
    let wanted = number("/spec/replicas").unwrap_or(1);
    if wanted == 0 {
        return Some("it is scaled to 0 pods".to_owned());
    }
    let status = |field: &str| number(&format!("/status/{field}")).unwrap_or(0);
    let stuck = failing("Progressing", "False").map(|text| format!(" ({text})")).unwrap_or_default();
    if status("updatedReplicas") < wanted {
        return Some(format!("{} of {wanted} pods are made{stuck}", status("updatedReplicas")));
    }
    if status("replicas") > status("updatedReplicas") {
        return Some(format!("an older pod is still there{stuck}"));
    }
    if status("availableReplicas") < wanted {
        return Some(format!("{} of {wanted} pods are available{stuck}", status("availableReplicas")));
    }
    failing("Available", "False")
}

/// The most telling reason of a controller's pods: a container that waits, a pod that cannot be
/// placed, or else the newest warning about either.
fn cause(name: &str, pods: &[Value], events: &[Value]) -> Option<String> {
    let mine: Vec<&Value> = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == name).collect();
    for pod in &mine {
        let containers = ["initContainerStatuses", "containerStatuses"]
            .into_iter()
            .filter_map(|field| pod["status"][field].as_array())
            .flatten();
        for container in containers {
            let waiting = &container["state"]["waiting"];
            let last = &container["lastState"]["terminated"];
            // A killed container waits as CrashLoopBackOff; what killed it says more.
            if last["reason"] == "OOMKilled" {
                return Some(explained("OOMKilled", last["message"].as_str().unwrap_or_default()));
            }
            match waiting["reason"].as_str() {
                None | Some("ContainerCreating" | "PodInitializing") => {}
                Some(reason) => {
                    return Some(explained(reason, waiting["message"].as_str().unwrap_or_default()));
                }
            }
        }
        if let Some(placed) = condition(pod, "PodScheduled")
            && placed["status"] == "False"
        {
            let reason = placed["reason"].as_str().unwrap_or("Unschedulable");
            return Some(explained(reason, placed["message"].as_str().unwrap_or_default()));
        }
    }
    let prefix = format!("{name}-");
    let newest = events
        .iter()
        .filter(|event| {
            let about = event["involvedObject"]["name"].as_str().unwrap_or_default();
            let kind = event["involvedObject"]["kind"].as_str().unwrap_or_default();
            event["type"] == "Warning"
                && !HARMLESS.contains(&event["reason"].as_str().unwrap_or_default())
                && (matches!(kind, "Pod" | "ReplicaSet") && about.starts_with(&prefix) || about == name)
        })
        .max_by_key(|event| time_of(event));
    newest.map(|event| {
        explained(
            event["reason"].as_str().unwrap_or("Warning"),
            event["message"].as_str().unwrap_or_default(),
        )
    })
}

/// When an event was last seen. RFC 3339 in UTC sorts as text.
pub(crate) fn time_of(event: &Value) -> String {
    ["/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"]
        .into_iter()
        .find_map(|pointer| event.pointer(pointer)?.as_str())
        .unwrap_or_default()
        .to_owned()
}

fn explained(reason: &str, message: &str) -> String {
    let message = message.trim();
    let text =
        if message.is_empty() { reason.to_owned() } else { format!("{reason}: {}", cut(message, 250)) };
    match HINTS.iter().find(|hint| hint.0 == reason) {
        Some((_, hint)) => format!("{text} [{hint}]"),
        None => text,
    }
}

/// At most so many characters of a text.
pub(crate) fn cut(text: &str, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text.to_owned();
    }
    let short: String = text.chars().take(longest).collect();
    format!("{short} …")
}

#[cfg(test)]
mod tests {
    use kube_replies::Cluster as Api;
    use serde_json::json;

    use super::*;
    use crate::fixture;

    const NAME: &str = "source-controller";
    const PATH: &str = "/apis/apps/v1/namespaces/fluxcd/deployments/source-controller";

    fn deployment(status: &Value) -> Value {
        json!({"kind": "Deployment",
               "metadata": {"namespace": "fluxcd", "name": NAME, "generation": 2,
                            "labels": {"app.kubernetes.io/part-of": "flux"}},
               "spec": {"replicas": 1}, "status": status})
    }

    fn rolled_out() -> Value {
        json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1,
               "conditions": [{"type": "Available", "status": "True"}]})
    }

    #[test]
    fn a_rollout_is_read_as_kstatus_reads_it() {
        let with = |changes: &Value| {
            let mut status = rolled_out();
            for (key, value) in changes.as_object().expect("map") {
                status[key] = value.clone();
            }
            delay(&deployment(&status))
        };
        for (changes, expected) in [
            (json!({}), None),
            (json!({"observedGeneration": 1}), Some("its rollout has not begun")),
            (json!({"updatedReplicas": 0}), Some("0 of 1 pods are made")),
            (json!({"replicas": 2}), Some("an older pod is still there")),
            (json!({"availableReplicas": 0}), Some("0 of 1 pods are available")),
            (
                json!({"availableReplicas": 0, "conditions": [{"type": "Progressing", "status": "False",
                       "reason": "ProgressDeadlineExceeded", "message": "timed out"}]}),
                Some("0 of 1 pods are available (ProgressDeadlineExceeded: timed out)"),
            ),
            (
                json!({"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
                       "message": "exceeded quota"}]}),
                Some("FailedCreate: exceeded quota"),
            ),
            (
                json!({"conditions": [{"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable",
                       "message": "no"}]}),
                Some("MinimumReplicasUnavailable: no"),
            ),
        ] {
            assert_eq!(with(&changes).as_deref(), expected, "{changes}");
        }
        assert_eq!(delay(&deployment(&json!({}))).as_deref(), Some("its rollout has not begun"));
        let mut stopped = deployment(&json!({"observedGeneration": 2}));
        stopped["spec"]["replicas"] = json!(0);
        assert_eq!(delay(&stopped).as_deref(), Some("it is scaled to 0 pods"));
    }

    #[tokio::test]
    async fn ready_controllers_need_one_call() {
        let api = Api::new();
        api.put(PATH, deployment(&rolled_out()));
        let controllers = controllers(&fixture::kubernetes(&api), "fluxcd", &[NAME]).await.expect("looked");
        assert_eq!(controllers, [Controller { name: NAME.to_owned(), ready: true, message: String::new() }]);
        assert_eq!(because(&controllers), "");
        assert_eq!(api.calls().len(), 1);
    }

    #[tokio::test]
    async fn the_pods_reason_reaches_the_user() {
        let waiting = |reason: &str| json!({"status": {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "why"}}}]}});
        let event = |reason: &str, time: &str| {
            json!({"type": "Warning", "reason": reason, "message": "why", "lastTimestamp": time,
                   "involvedObject": {"kind": "Pod", "name": "source-controller-7d4"}})
        };
        let cases = [
            (
                Some(waiting("ImagePullBackOff")),
                vec![],
                "ImagePullBackOff: why [the private subnets need a way",
            ),
            (Some(waiting("CrashLoopBackOff")), vec![], "requests must equal its limits"),
            (
                Some(json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
                     "reason": "Unschedulable", "message": "0/3 nodes are available"}]}})),
                vec![],
                "Unschedulable: 0/3 nodes are available [a Fargate profile must select",
            ),
            (
                Some(
                    json!({"status": {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}},
                     "lastState": {"terminated": {"reason": "OOMKilled"}}}]}}),
                ),
                vec![],
                "raise flux.resources.memory",
            ),
            (
                Some(waiting("ContainerCreating")),
                vec![
                    event("FailedMount", "2026-01-02T03:04:05Z"),
                    event("FailedScheduling", "2026-01-02T03:04:06Z"),
                    event("LoggingDisabled", "2026-01-02T03:04:07Z"),
                ],
                "FailedScheduling: why",
            ),
            (None, vec![], "0 of 1 pods are available"),
        ];
        for (pod, events, expected) in cases {
            let api = Api::new();
            let mut status = rolled_out();
            status["availableReplicas"] = json!(0);
            api.put(PATH, deployment(&status));
            if let Some(mut pod) = pod {
                pod["metadata"] = json!({"name": "source-controller-7d4", "labels": {"app": NAME}});
                api.put("/api/v1/namespaces/fluxcd/pods/source-controller-7d4", pod);
            }
            for (index, mut event) in events.into_iter().enumerate() {
                event["metadata"] = json!({"name": format!("e{index}")});
                api.put(&format!("/api/v1/namespaces/fluxcd/events/e{index}"), event);
            }
            let controllers = controllers(&fixture::kubernetes(&api), "fluxcd", &[NAME, "helm-controller"])
                .await
                .expect("looked");
            assert!(controllers[0].message.contains(expected), "{}", controllers[0].message);
            assert_eq!(controllers[1].message, "its Deployment does not exist");
            let because = because(&controllers);
            assert!(
                because.starts_with("0 of 2 controllers run; waiting for source-controller ("),
                "{because}"
            );
            assert_eq!(api.writes(), []);
        }
    }
}
