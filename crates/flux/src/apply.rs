//! Applying manifests as Flux does: server-side apply by the manager `flux`, definitions first, and
//! only where something differs.
//!
//! Each object is read, then applied as a dry run; only where the API says that the outcome would
//! differ is it applied. A second run therefore writes nothing (fluxcd/pkg, `ssa/manager_apply.go`).

use std::collections::BTreeMap;
use std::time::Duration;

use eks::kubernetes::Apply;
use eks::{Kubernetes, ObjectRef};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::{Map, Value};
use step::{Change, Resource, Result};

/// How many objects of one kind are applied at the same time.
const AT_ONCE: usize = 6;
/// How often an object is compared with its dry run before it is written. A controller may write
/// between the two, as Flux does to its own objects right after they are made; then the difference is
/// the controller's, and gone at the next look.
const LOOKS_AT_ONE: usize = 2;
/// How often, and how far apart, definitions are looked at before the state machine is sent round.
const LOOKS: usize = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// The order of kinds, the first of which the others need (fluxcd/pkg, `ssa/sort.go`). Kinds that
/// are not listed come after these, admission webhooks last.
const FIRST: [&str; 19] = [
    "CustomResourceDefinition",
    "Namespace",
    "ResourceQuota",
    "StorageClass",
    "ServiceAccount",
    "PodSecurityPolicy",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "ConfigMap",
    "Secret",
    "Service",
    "LimitRange",
    "PriorityClass",
    "Deployment",
    "StatefulSet",
    "CronJob",
    "PodDisruptionBudget",
];
const LAST: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// What became of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// Which.
    pub object: ObjectRef,
    /// What was done.
    pub change: Change,
    /// How the API has it now.
    pub stored: Value,
}

/// Manifests in the two stages of an install.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stages {
    /// Definitions of kinds, namespaces and cluster roles, on which everything else rests.
    pub definitions: Vec<Value>,
    /// Everything else.
    pub rest: Vec<Value>,
}

/// Parts manifests into the two stages.
pub fn stages(manifests: &[Value]) -> Stages {
    let (definitions, rest) = manifests.iter().cloned().partition(|manifest| {
        matches!(kind(manifest), "CustomResourceDefinition" | "Namespace" | "ClusterRole")
    });
    Stages { definitions, rest }
}

/// Makes sure that an object is as the manifest says.
///
/// # Errors
/// Those of [`Kubernetes`].
pub async fn ensure(kubernetes: &Kubernetes, manifest: &Value) -> Result<Applied> {
    let object = ObjectRef::of(manifest)?;
    for _ in 0..LOOKS_AT_ONE {
        let Some(existing) = kubernetes.get(&object).await? else {
            let stored = kubernetes.apply(manifest, Apply::Real).await?;
            return Ok(Applied { object, change: Change::Created, stored });
        };
        let would_be = kubernetes.apply(manifest, Apply::DryRun).await?;
        if !differs(&existing, &would_be) {
            return Ok(Applied { object, change: Change::Unchanged, stored: existing });
        }
    }
    let stored = kubernetes.apply(manifest, Apply::Real).await?;
    Ok(Applied { object, change: Change::Updated, stored })
}

/// Makes sure of all objects, kind after kind in Flux's order. What was done is added to `applied`,
/// also where a later object fails.
///
/// # Errors
/// Those of [`Kubernetes`].
pub async fn ensure_all(
    kubernetes: &Kubernetes,
    manifests: &[Value],
    applied: &mut Vec<Applied>,
) -> Result<()> {
    let mut ranks: BTreeMap<usize, Vec<&Value>> = BTreeMap::new();
    for manifest in manifests {
        ranks.entry(rank(kind(manifest))).or_default().push(manifest);
    }
    for same_rank in ranks.into_values() {
        let mut outcomes = stream::iter(same_rank.into_iter().map(|manifest| ensure(kubernetes, manifest)))
            .buffered(AT_ONCE);
        while let Some(outcome) = outcomes.next().await {
            applied.push(outcome?);
        }
    }
    Ok(())
}

/// Those of the manifests whose objects do not exist.
///
/// # Errors
/// Those of [`Kubernetes`].
pub async fn missing(kubernetes: &Kubernetes, manifests: &[Value]) -> Result<Vec<Value>> {
    let found: Vec<Option<Value>> = stream::iter(manifests.iter().map(|manifest| async move {
        let object = ObjectRef::of(manifest)?;
        Ok::<_, step::StepError>(kubernetes.get(&object).await?.is_none().then(|| manifest.clone()))
    }))
    .buffered(AT_ONCE)
    .try_collect()
    .await?;
    Ok(found.into_iter().flatten().collect())
}

/// Waits a few seconds for definitions to become Established. Answers with the names of those that
/// are not yet; for longer waits the state machine calls again.
///
/// # Errors
/// Those of [`Kubernetes`].
pub async fn pending_definitions(kubernetes: &Kubernetes, applied: &[Applied]) -> Result<Vec<String>> {
    let mut pending: Vec<ObjectRef> = applied
        .iter()
        .filter(|one| one.object.kind == "CustomResourceDefinition" && !is_established(&one.stored))
        .map(|one| one.object.clone())
        .collect();
    for look in 0..LOOKS {
        if pending.is_empty() {
            break;
        }
        if look > 0 {
            kubernetes.clock().sleep(BETWEEN_LOOKS).await;
        }
        let mut still = Vec::new();
        for definition in pending {
            if !kubernetes.get(&definition).await?.is_some_and(|stored| is_established(&stored)) {
                still.push(definition);
            }
        }
        pending = still;
    }
    Ok(pending.into_iter().map(|definition| definition.name).collect())
}

/// Reports on applied objects in few lines: namespaces and Deployments one by one, other kinds as
/// one line with their number, so that a report stays far below the limit of a state's output.
pub fn summary(applied: &[Applied]) -> Vec<Resource> {
    let mut resources = Vec::new();
    let mut kinds: Vec<(&str, Vec<&Applied>)> = Vec::new();
    for one in applied {
        if matches!(one.object.kind.as_str(), "Namespace" | "Deployment") {
            resources.push(Resource::new(&one.object.kind, one.object.path(), one.change));
            continue;
        }
        match kinds.iter_mut().find(|(kind, _)| *kind == one.object.kind) {
            Some((_, list)) => list.push(one),
            None => kinds.push((&one.object.kind, vec![one])),
        }
    }
    for (kind, list) in kinds {
        let count = |change| list.iter().filter(|one| one.change == change).count();
        let counts = [
            (count(Change::Created), "created", Change::Created),
            (count(Change::Updated), "updated", Change::Updated),
            (count(Change::Unchanged), "unchanged", Change::Unchanged),
        ];
        let texts: Vec<String> =
            counts.iter().filter(|c| c.0 > 0).map(|(number, word, _)| format!("{number} {word}")).collect();
        let change = counts.iter().find(|c| c.0 > 0).map_or(Change::Unchanged, |c| c.2);
        let id = match list.as_slice() {
            [one] => one.object.path(),
            many => format!("{} {}", many.len(), plural(kind)),
        };
        resources.push(Resource::new(kind, id, change).detail(texts.join(", ")));
    }
    resources
}

fn plural(kind: &str) -> String {
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    }
}

fn kind(manifest: &Value) -> &str {
    manifest["kind"].as_str().unwrap_or_default()
}

fn rank(kind: &str) -> usize {
    let position = |list: &[&str]| list.iter().position(|one| *one == kind);
    match (position(&FIRST), position(&LAST)) {
        (Some(at), _) => at,
        (None, Some(at)) => FIRST.len() + 1 + at,
        (None, None) => FIRST.len(),
    }
}

fn is_established(definition: &Value) -> bool {
    condition(definition, "Established").is_some_and(|condition| condition["status"] == "True")
}

/// The condition of a type in an object's status.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Whether two states of an object differ in anything but what the server itself keeps.
fn differs(existing: &Value, would_be: &Value) -> bool {
    essence(existing) != essence(would_be)
}

fn essence(object: &Value) -> Value {
    let mut essence = object.clone();
    if let Some(map) = essence.as_object_mut() {
        map.remove("status");
        let metadata: Map<String, Value> = ["labels", "annotations"]
            .into_iter()
            .filter_map(|key| {
                let value = object["metadata"].get(key)?;
                value.as_object().is_some_and(|map| !map.is_empty()).then(|| (key.to_owned(), value.clone()))
            })
            .collect();
        map.insert("metadata".to_owned(), Value::Object(metadata));
    }
    essence
}

#[cfg(test)]
mod tests {
    use kube_replies::Cluster as Api;
    use serde_json::json;
    use step::clock::Clock;

    use super::*;
    use crate::fixture;

    fn object(api_version: &str, kind: &str, name: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": "fluxcd", "name": name},
               "spec": {"a": 1}})
    }

    async fn all(kubernetes: &Kubernetes, manifests: &[Value]) -> Result<Vec<Applied>> {
        let mut applied = Vec::new();
        ensure_all(kubernetes, manifests, &mut applied).await.map(|()| applied)
    }

    fn manifests() -> Vec<Value> {
        let mut all = vec![
            object("apps/v1", "Deployment", "d"),
            object("v1", "Service", "s"),
            object("rbac.authorization.k8s.io/v1", "ClusterRole", "r"),
            object("v1", "Namespace", "fluxcd"),
            object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "c"),
            object("networking.k8s.io/v1", "NetworkPolicy", "p"),
        ];
        for cluster_wide in &mut all[2..5] {
            cluster_wide["metadata"].as_object_mut().expect("map").remove("namespace");
        }
        all
    }

    fn kinds(manifests: &[Value]) -> Vec<&str> {
        manifests.iter().map(kind).collect()
    }

    #[tokio::test]
    async fn definitions_come_first_and_a_second_run_writes_nothing() {
        let api = Api::new();
        let kubernetes = fixture::kubernetes(&api);
        let stages = stages(&manifests());
        assert_eq!(kinds(&stages.definitions), ["ClusterRole", "Namespace", "CustomResourceDefinition"]);
        assert_eq!(kinds(&stages.rest), ["Deployment", "Service", "NetworkPolicy"]);
        let first = all(&kubernetes, &stages.definitions).await.expect("applied");
        assert_eq!(pending_definitions(&kubernetes, &first).await, Ok(Vec::new()));
        let rest = all(&kubernetes, &stages.rest).await.expect("applied");
        assert!(first.iter().chain(&rest).all(|one| one.change == Change::Created));
        let written: Vec<String> = api.writes().iter().map(kube_replies::Call::line).collect();
        assert_eq!(
            written,
            [
                "PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/c?fieldManager=flux&force=true",
                "PATCH /api/v1/namespaces/fluxcd?fieldManager=flux&force=true",
                "PATCH /apis/rbac.authorization.k8s.io/v1/clusterroles/r?fieldManager=flux&force=true",
                "PATCH /api/v1/namespaces/fluxcd/services/s?fieldManager=flux&force=true",
                "PATCH /apis/apps/v1/namespaces/fluxcd/deployments/d?fieldManager=flux&force=true",
                "PATCH /apis/networking.k8s.io/v1/namespaces/fluxcd/networkpolicies/p?fieldManager=flux&force=true",
            ]
        );
        assert_eq!(api.writes()[0].body, stages.definitions[2]);

        api.forget_calls();
        let again = all(&kubernetes, &manifests()).await.expect("applied");
        assert!(again.iter().all(|one| one.change == Change::Unchanged));
        assert_eq!(api.writes(), []);
    }

    #[tokio::test]
    async fn drift_is_repaired_and_foreign_labels_stay() {
        let api = Api::new();
        let kubernetes = fixture::kubernetes(&api);
        all(&kubernetes, &manifests()).await.expect("applied");
        let path = "/apis/apps/v1/namespaces/fluxcd/deployments/d";
        api.merge(path, &json!({"spec": {"a": 2}, "metadata": {"labels": {"theirs": "yes"}}}));
        api.forget_calls();
        let again = all(&kubernetes, &manifests()).await.expect("applied");
        let changed: Vec<String> = again
            .iter()
            .filter(|one| one.change == Change::Updated)
            .map(|one| one.object.to_string())
            .collect();
        assert_eq!(changed, ["Deployment fluxcd/d"]);
        assert_eq!(api.writes().len(), 1);
        let stored = api.get(path).expect("is there");
        assert_eq!(stored["spec"]["a"], 1);
        assert_eq!(stored["metadata"]["labels"]["theirs"], "yes");
    }

    #[tokio::test]
    async fn definitions_that_are_not_established_are_named() {
        let api = Api::new();
        api.leave_definitions_pending(true);
        let kubernetes = fixture::kubernetes_at(&api, Clock::Fixed(std::time::UNIX_EPOCH));
        let applied = all(&kubernetes, &stages(&manifests()).definitions).await.expect("applied");
        assert_eq!(pending_definitions(&kubernetes, &applied).await, Ok(vec!["c".to_owned()]));
    }

    #[tokio::test]
    async fn what_a_controller_writes_meanwhile_is_no_difference() {
        let api = Api::new();
        let kubernetes = fixture::kubernetes(&api);
        let manifest = object("apps/v1", "Deployment", "d");
        ensure(&kubernetes, &manifest).await.expect("applied");
        let path = "/apis/apps/v1/namespaces/fluxcd/deployments/d";
        let before = api.get(path).expect("is there");
        api.merge(path, &json!({"metadata": {"labels": {"a": "b"}}}));
        api.forget_calls();
        // The first look comes before the controller's write, the dry run after it.
        api.answer(&format!("GET {path}"), 200, &before);
        let applied = ensure(&kubernetes, &manifest).await.expect("looked");
        assert_eq!(applied.change, Change::Unchanged);
        assert_eq!(applied.stored["metadata"]["labels"]["a"], "b");
        assert_eq!(api.writes(), []);
    }

    #[test]
    fn the_summary_is_short() {
        let applied: Vec<Applied> = (0..30)
            .map(|index| Applied {
                object: ObjectRef::cluster("v1", "CustomResourceDefinition", &format!("c{index}")),
                change: if index == 0 { Change::Updated } else { Change::Unchanged },
                stored: Value::Null,
            })
            .chain([Applied {
                object: ObjectRef::namespaced("apps/v1", "Deployment", "fluxcd", "source-controller"),
                change: Change::Created,
                stored: Value::Null,
            }])
            .collect();
        assert_eq!(
            summary(&applied),
            [
                Resource::new("Deployment", "fluxcd/source-controller", Change::Created),
                Resource::new("CustomResourceDefinition", "30 CustomResourceDefinitions", Change::Updated)
                    .detail("1 updated, 29 unchanged"),
            ]
        );
    }
}
