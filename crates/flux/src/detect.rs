//! What Flux there is on a cluster already, and whether it is the one that the request asks for.

use eks::{Kubernetes, ObjectRef};
use serde_json::Value;
use step::request::FluxOptions;
use step::{Result, StepError};

use crate::version;

/// The API version of GitRepository.
pub const SOURCE: &str = "source.toolkit.fluxcd.io/v1";
/// The API version of Kustomization.
pub const KUSTOMIZE: &str = "kustomize.toolkit.fluxcd.io/v1";
/// The key of the label on everything that a Flux release carries; its value is `flux`.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// That label as a selector.
pub const PART_OF_FLUX: &str = "app.kubernetes.io/part-of=flux";
/// The key of the label that names the release.
pub const VERSION: &str = "app.kubernetes.io/version";

const DEFINITION: &str = "gitrepositories.source.toolkit.fluxcd.io";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const OWNER_NAME: &str = "kustomize.toolkit.fluxcd.io/name";
const OWNER_NAMESPACE: &str = "kustomize.toolkit.fluxcd.io/namespace";

/// Flux as it was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// The Kustomization that runs Flux, `<namespace>/<namespace>`.
    pub kustomization: Option<Value>,
    /// Its GitRepository.
    pub git_repository: Option<Value>,
    /// Flux's Deployments in the namespace.
    pub deployments: Vec<Value>,
}

impl Found {
    /// Whether Flux already runs itself from this repository and path. From then on a commit is
    /// enough to change it; `flux bootstrap` decides the same way (`mustInstallManifests`).
    pub fn runs_itself(&self) -> bool {
        self.kustomization
            .as_ref()
            .and_then(|object| object["status"]["lastAppliedRevision"].as_str())
            .is_some_and(|revision| !revision.is_empty())
    }

    /// The Deployment of a controller.
    pub fn deployment(&self, name: &str) -> Option<&Value> {
        self.deployments.iter().find(|deployment| deployment["metadata"]["name"] == name)
    }
}

/// Looks for Flux. Reads only.
///
/// # Errors
/// `Conflict`, where another manager, namespace, repository or path runs Flux on this cluster, or a
/// newer Flux does;
/// `Unsupported`, where the Flux there is too old to be upgraded; else those of [`Kubernetes`].
pub async fn look(kubernetes: &Kubernetes, options: &FluxOptions, url: &str) -> Result<Found> {
    let namespace = options.namespace.as_str();
    let definition_ref =
        ObjectRef::cluster("apiextensions.k8s.io/v1", "CustomResourceDefinition", DEFINITION);
    let kustomization_ref = ObjectRef::namespaced(KUSTOMIZE, "Kustomization", namespace, namespace);
    let git_repository_ref = ObjectRef::namespaced(SOURCE, "GitRepository", namespace, namespace);
    let (definition, deployments, kustomization, git_repository) = futures::try_join!(
        kubernetes.get(&definition_ref),
        kubernetes.list("apps/v1", "Deployment", None, &[("labelSelector", PART_OF_FLUX)]),
        kubernetes.get(&kustomization_ref),
        kubernetes.get(&git_repository_ref),
    )?;
    let wanted = Wanted { cluster: kubernetes.cluster(), options, url };
    if let Some(definition) = &definition {
        check_definition(kubernetes, definition, &wanted).await?;
    }
    check_namespaces(&deployments, &wanted)?;
    check_version(definition.as_ref(), &deployments, &wanted)?;
    check_sync(kustomization.as_ref(), git_repository.as_ref(), &wanted)?;
    let deployments = deployments
        .into_iter()
        .filter(|deployment| deployment["metadata"]["namespace"] == namespace)
        .collect();
    Ok(Found { kustomization, git_repository, deployments })
}

struct Wanted<'a> {
    cluster: &'a str,
    options: &'a FluxOptions,
    url: &'a str,
}

impl Wanted<'_> {
    fn conflict(&self, found: &str, next: &str) -> StepError {
        StepError::conflict(format!(
            "cluster {}: {found}, and this request wants Flux in namespace {} from path {} of {}. {next}",
            self.cluster,
            self.options.namespace,
            relative(&self.options.path),
            self.url
        ))
    }
}

async fn check_definition(kubernetes: &Kubernetes, definition: &Value, wanted: &Wanted<'_>) -> Result<()> {
    let label = |key: &str| definition["metadata"]["labels"][key].as_str();
    if let Some(manager) = label(MANAGED_BY).filter(|manager| *manager != "flux") {
        return Err(wanted.conflict(
            &format!("Flux is managed by {manager} (label {MANAGED_BY} of {DEFINITION})"),
            "Remove that Flux first, or go on with what manages it",
        ));
    }
    let serves_v1 = definition["spec"]["versions"]
        .as_array()
        .is_some_and(|versions| versions.iter().any(|v| v["name"] == "v1" && v["served"] != false));
    if !serves_v1 {
        return Err(StepError::unsupported(format!(
            "cluster {}: the Flux there does not serve {SOURCE} and is too old to be upgraded to {} in one step. \
             Upgrade it to v2.3 or later with its own tools first",
            wanted.cluster, wanted.options.version
        )));
    }
    let owner = (label(OWNER_NAMESPACE), label(OWNER_NAME));
    if let (Some(owner_namespace), Some(owner_name)) = owner {
        let namespace = wanted.options.namespace.as_str();
        if (owner_namespace, owner_name) != (namespace, namespace) {
            // The labels outlive their owner where a namespace was deleted by hand.
            let owner = ObjectRef::namespaced(KUSTOMIZE, "Kustomization", owner_namespace, owner_name);
            if kubernetes.get(&owner).await?.is_some() {
                return Err(wanted.conflict(
                    &format!("Flux is run by {owner}"),
                    "Ask for that namespace, or remove that Flux with `flux uninstall` first",
                ));
            }
        }
    }
    Ok(())
}

/// A cluster runs one Flux: its definitions and cluster roles belong to the whole cluster.
fn check_namespaces(deployments: &[Value], wanted: &Wanted<'_>) -> Result<()> {
    let elsewhere = deployments.iter().find(|deployment| {
        let name = deployment["metadata"]["name"].as_str().unwrap_or_default();
        deployment["metadata"]["namespace"] != wanted.options.namespace.as_str()
            && step::request::REQUIRED_COMPONENTS.contains(&name)
    });
    match elsewhere {
        Some(deployment) => Err(wanted.conflict(
            &format!(
                "Flux runs in namespace {}",
                deployment["metadata"]["namespace"].as_str().unwrap_or_default()
            ),
            "Ask for that namespace, or remove that Flux with `flux uninstall` first",
        )),
        None => Ok(()),
    }
}

/// The definitions say which Flux the stored objects are of; they outlive its Deployments.
fn check_version(definition: Option<&Value>, deployments: &[Value], wanted: &Wanted<'_>) -> Result<()> {
    let place = format!("cluster {}", wanted.cluster);
    for object in definition.into_iter().chain(deployments) {
        if let Some(found) = object["metadata"]["labels"][VERSION].as_str() {
            version::check(found, &place, wanted.options)?;
        }
    }
    Ok(())
}

fn check_sync(
    kustomization: Option<&Value>,
    git_repository: Option<&Value>,
    wanted: &Wanted<'_>,
) -> Result<()> {
    let namespace = wanted.options.namespace.as_str();
    if let Some(kustomization) = kustomization {
        let path = kustomization["spec"]["path"].as_str().unwrap_or_default();
        if relative(path) != relative(&wanted.options.path) {
            return Err(wanted.conflict(
                &format!("Kustomization {namespace}/{namespace} runs Flux from path {}", relative(path)),
                "Ask for that path (flux.path), or remove that Flux with `flux uninstall` first",
            ));
        }
        let source = &kustomization["spec"]["sourceRef"];
        if source["kind"] != "GitRepository" || source["name"] != namespace {
            return Err(wanted.conflict(
                &format!(
                    "Kustomization {namespace}/{namespace} runs Flux from {} {}",
                    source["kind"].as_str().unwrap_or("an unknown source"),
                    source["name"].as_str().unwrap_or_default()
                ),
                "Remove that Flux with `flux uninstall` first",
            ));
        }
    }
    if let Some(found) = git_repository.and_then(|object| object["spec"]["url"].as_str())
        && found.trim_end_matches('/') != wanted.url.trim_end_matches('/')
    {
        return Err(wanted.conflict(
            &format!("GitRepository {namespace}/{namespace} reads {found}"),
            "Name that repository (repository.name), or remove that Flux with `flux uninstall` first",
        ));
    }
    Ok(())
}

/// A path of the repository without `./` and slashes at its ends.
pub fn relative(path: &str) -> &str {
    path.strip_prefix("./").unwrap_or(path).trim_matches('/')
}

#[cfg(test)]
mod tests {
    use kube_replies::Cluster as Api;
    use serde_json::json;
    use step::ErrorName;

    use super::*;
    use crate::fixture;

    const URL: &str = "https://git-codecommit.eu-west-1.amazonaws.com/v1/repos/demo-fluxcd";
    const CRD: &str =
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gitrepositories.source.toolkit.fluxcd.io";

    fn definition(labels: &Value, version: &str) -> Value {
        json!({"kind": "CustomResourceDefinition", "metadata": {"name": DEFINITION, "labels": labels},
               "spec": {"versions": [{"name": version, "served": true}]}})
    }

    fn deployment(namespace: &str, name: &str) -> Value {
        json!({"kind": "Deployment", "metadata": {"namespace": namespace, "name": name,
               "labels": {"app.kubernetes.io/part-of": "flux"}}})
    }

    fn kustomization(path: &str, source: &str) -> Value {
        json!({"kind": "Kustomization", "metadata": {"namespace": "fluxcd", "name": "fluxcd"},
               "spec": {"path": path, "sourceRef": {"kind": source, "name": "fluxcd"}},
               "status": {"lastAppliedRevision": "flux-branch@sha1:1"}})
    }

    fn git_repository(url: &str) -> Value {
        json!({"kind": "GitRepository", "metadata": {"namespace": "fluxcd", "name": "fluxcd"}, "spec": {"url": url}})
    }

    fn ks_path(namespace: &str) -> String {
        format!("/apis/{KUSTOMIZE}/namespaces/{namespace}/kustomizations/{namespace}")
    }

    fn git_path() -> String {
        format!("/apis/{SOURCE}/namespaces/fluxcd/gitrepositories/fluxcd")
    }

    async fn found(api: &Api) -> Result<Found> {
        look(&fixture::kubernetes(api), &FluxOptions::default(), URL).await
    }

    #[tokio::test]
    async fn an_empty_cluster_and_our_own_flux_pass() {
        let api = Api::new();
        assert_eq!(found(&api).await, Ok(Found::default()));

        let owner = json!({OWNER_NAME: "fluxcd", OWNER_NAMESPACE: "fluxcd"});
        api.put(CRD, definition(&owner, "v1"));
        api.put(
            "/apis/apps/v1/namespaces/fluxcd/deployments/source-controller",
            deployment("fluxcd", "source-controller"),
        );
        api.put(&ks_path("fluxcd"), kustomization("./eks-fargate/applications", "GitRepository"));
        api.put(&git_path(), git_repository(URL));
        let found = found(&api).await.expect("ours");
        assert!(found.runs_itself());
        assert!(found.deployment("source-controller").is_some());
        assert_eq!(api.writes(), []);
    }

    #[tokio::test]
    async fn labels_whose_owner_is_gone_are_no_conflict() {
        let api = Api::new();
        api.put(CRD, definition(&json!({OWNER_NAME: "flux-system", OWNER_NAMESPACE: "flux-system"}), "v1"));
        assert_eq!(found(&api).await, Ok(Found::default()));
    }

    #[tokio::test]
    async fn another_flux_is_refused_with_both_sides_named() {
        type Case = (&'static str, Vec<(String, Value)>, ErrorName, &'static str);
        let cases: [Case; 7] = [
            (
                "manager",
                vec![(CRD.to_owned(), definition(&json!({MANAGED_BY: "Helm"}), "v1"))],
                ErrorName::Conflict,
                "managed by Helm",
            ),
            (
                "owner",
                vec![
                    (
                        CRD.to_owned(),
                        definition(&json!({OWNER_NAME: "flux-system", OWNER_NAMESPACE: "flux-system"}), "v1"),
                    ),
                    (ks_path("flux-system"), kustomization("./x", "GitRepository")),
                ],
                ErrorName::Conflict,
                "run by Kustomization flux-system/flux-system",
            ),
            (
                "namespace",
                vec![(
                    "/apis/apps/v1/namespaces/flux-system/deployments/source-controller".to_owned(),
                    deployment("flux-system", "source-controller"),
                )],
                ErrorName::Conflict,
                "runs in namespace flux-system",
            ),
            (
                "path",
                vec![(ks_path("fluxcd"), kustomization("./clusters/demo", "GitRepository"))],
                ErrorName::Conflict,
                "from path clusters/demo",
            ),
            (
                "source",
                vec![(ks_path("fluxcd"), kustomization("./eks-fargate/applications", "OCIRepository"))],
                ErrorName::Conflict,
                "from OCIRepository fluxcd",
            ),
            (
                "url",
                vec![(git_path(), git_repository("https://github.com/a/b"))],
                ErrorName::Conflict,
                "reads https://github.com/a/b",
            ),
            (
                "age",
                vec![(CRD.to_owned(), definition(&json!({}), "v1beta2"))],
                ErrorName::Unsupported,
                "too old to be upgraded to v2.9.4",
            ),
        ];
        for (case, objects, name, text) in cases {
            let api = Api::new();
            for (path, object) in objects {
                api.put(&path, object);
            }
            let error = found(&api).await.expect_err(case);
            assert_eq!(error.name, name, "{case}");
            assert!(error.message.contains(text), "{case}: {}", error.message);
            if name == ErrorName::Conflict {
                assert!(
                    error.message.contains("path eks-fargate/applications of https://git-codecommit"),
                    "{case}"
                );
            }
        }
    }
}
