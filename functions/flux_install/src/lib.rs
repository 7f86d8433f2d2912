//! Makes sure that Flux's controllers run on the cluster.
//!
//! Flux that already runs itself from this repository and path is left alone: from then on a commit
//! is enough to change it, and two who apply would fight. Only what is missing or broken is repaired,
//! since a Flux without its controllers cannot repair itself. Everything else is applied as
//! `flux bootstrap` does, in two stages. The step is polled by calling it again.

use std::sync::Arc;

use aws_config::SdkConfig;
use codecommit::Repo;
use eks::Kubernetes;
use flux::apply::{self, Applied};
use flux::detect::{self, Found};
use flux::folder::Folder;
use flux::readiness::{self, Controller};
use flux::release::{Release, Releases};
use flux::{render, sync, version};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use step::clock::Clock;
use step::facts::{Cluster, Git};
use step::{Change, Request, Resource, Result, ledger, names};
use transport::Transport;

/// What the state machine hands over.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// The user's request.
    pub request: Request,
    /// From `cluster`.
    pub cluster: Cluster,
    /// From `cluster`.
    pub git: Git,
    /// Only looks whether Flux may be installed at all and its release can be had, and writes nothing.
    #[serde(default)]
    pub look_only: bool,
}

/// What it gets back.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Whether all controllers run.
    pub ready: bool,
    /// Why not; empty when they do.
    pub because: String,
    /// The controllers.
    pub flux: FluxReport,
    /// What was found or made, by kind.
    pub resources: Vec<Resource>,
}

/// Flux on the cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FluxReport {
    /// The version that runs, or will.
    pub version: String,
    /// Its controllers.
    pub controllers: Vec<Controller>,
}

/// The step, with what it needs.
#[derive(Debug)]
pub struct Step {
    config: SdkConfig,
    releases: Releases,
    codecommit: codecommit::Client,
}

impl Step {
    /// Made once, in `main`.
    pub fn new(config: &SdkConfig) -> Self {
        Step {
            config: config.clone(),
            releases: Releases::new(Transport::new(config)),
            codecommit: codecommit::Client::new(config),
        }
    }

    /// Looks, acts where needed, reports.
    ///
    /// # Errors
    /// `Conflict`, where another Flux runs on the cluster; `InvalidInput`, where the release is not
    /// Flux's; `Denied` and `Transient` as Kubernetes answers.
    pub async fn apply(&self, input: Input) -> Result<Output> {
        input.request.check()?;
        let kubernetes = eks::connect(&self.config, &input.cluster, Clock::System).await?;
        let name = names::repository(&input.request);
        let repo = self.codecommit.repo(&name);
        install(&kubernetes, || self.releases.get(&input.request.flux), &repo, &input).await
    }
}

/// The step over clients of the caller's. The release is loaded, and the repository read, only where
/// that is needed.
///
/// # Errors
/// As [`Step::apply`].
pub async fn install<F, Fut>(
    kubernetes: &Kubernetes,
    load: F,
    repo: &Repo<'_>,
    input: &Input,
) -> Result<Output>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<Arc<Release>>>,
{
    let options = &input.request.flux;
    let names = options.all_components();
    let found = detect::look(kubernetes, options, &input.git.url).await?;
    if input.look_only {
        // A release that cannot be had would otherwise stop the run after the first writes.
        load().await?;
        let flux = FluxReport { version: options.version.clone(), controllers: Vec::new() };
        return Ok(Output { ready: true, because: String::new(), flux, resources: Vec::new() });
    }
    let runs_itself = found.runs_itself();
    if runs_itself && names.iter().all(|name| is_rolled_out(&found, name)) {
        let controllers = names
            .iter()
            .map(|name| Controller { name: (*name).to_owned(), ready: true, message: String::new() })
            .collect();
        let resources = names
            .iter()
            .map(|name| {
                let id = format!("{}/{name}", options.namespace);
                Resource::new("Deployment", id, Change::Unchanged).detail("run by Flux itself")
            })
            .collect();
        let version = running(&found).unwrap_or(&options.version).to_owned();
        let flux = FluxReport { version, controllers };
        return Ok(Output { ready: true, because: String::new(), flux, resources });
    }

    let release = load().await?;
    let wanted = manifests(&release, repo, input).await?;
    let wanted =
        if runs_itself { repairs(kubernetes, &found, &wanted, &options.version).await? } else { wanted };
    let mut applied = Vec::new();
    let outcome = roll_out(kubernetes, &names, options, &wanted, &mut applied).await;
    let resources = apply::summary(&applied);
    match outcome {
        Ok((because, controllers)) => {
            let flux = FluxReport { version: options.version.clone(), controllers };
            Ok(Output { ready: because.is_empty(), because, flux, resources })
        }
        Err(error) => {
            resources.iter().for_each(ledger::note);
            Err(error)
        }
    }
}

/// Applies in the two stages, and answers with what is still waited for. `applied` holds what was
/// done, also after an error.
async fn roll_out(
    kubernetes: &Kubernetes,
    names: &[&str],
    options: &step::request::FluxOptions,
    wanted: &[Value],
    applied: &mut Vec<Applied>,
) -> Result<(String, Vec<Controller>)> {
    let stages = apply::stages(wanted);
    apply::ensure_all(kubernetes, &stages.definitions, applied).await?;
    let pending = apply::pending_definitions(kubernetes, applied).await?;
    if !pending.is_empty() {
        let because = format!("Kubernetes has not established {} yet", pending.join(", "));
        return Ok((because, waiting(names, "its definitions come first")));
    }
    apply::ensure_all(kubernetes, &stages.rest, applied).await?;
    let controllers = readiness::controllers(kubernetes, &options.namespace, names).await?;
    Ok((readiness::because(&controllers), controllers))
}

fn waiting(names: &[&str], message: &str) -> Vec<Controller> {
    names
        .iter()
        .map(|name| Controller { name: (*name).to_owned(), ready: false, message: message.to_owned() })
        .collect()
}

/// What `kustomize build` of the folder gives, with the repository's own kustomization.yaml where it
/// has one, and without the two sync objects, whose Secret is made later.
async fn manifests(release: &Release, repo: &Repo<'_>, input: &Input) -> Result<Vec<Value>> {
    let (options, branch) = (&input.request.flux, &input.request.repository.branch);
    let rendered = render::render(release, options, &input.git.url, branch)?;
    let folder = Folder::read(repo, branch, options, &rendered).await?;
    folder.check_version(options)?;
    let built = folder.build(&rendered)?;
    if !built.left.is_empty() {
        tracing::info!(left = ?built.left, "left to kustomize-controller");
    }
    Ok(built.objects.into_iter().filter(|object| !sync::is_sync(object, &options.namespace)).collect())
}

/// What a Flux that runs itself needs from outside: objects that do not exist, and Deployments of
/// this very version that are not available. Where a controller of an older version is not available,
/// Flux may be unable to upgrade itself, so all of it is applied.
async fn repairs(
    kubernetes: &Kubernetes,
    found: &Found,
    wanted: &[Value],
    version: &str,
) -> Result<Vec<Value>> {
    let is_stuck = |deployment: &Value| {
        let running = deployment["metadata"]["labels"][detect::VERSION].as_str();
        readiness::delay(deployment).is_some() && running.is_some_and(|v| version::is_older(v, version))
    };
    if found.deployments.iter().any(is_stuck) {
        return Ok(wanted.to_vec());
    }
    let mut repairs = apply::missing(kubernetes, wanted).await?;
    repairs.extend(
        wanted
            .iter()
            .filter(|object| {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                object["kind"] == "Deployment"
                    && found.deployment(name).is_some_and(|deployment| {
                        readiness::delay(deployment).is_some()
                            && deployment["metadata"]["labels"][detect::VERSION] == version
                    })
            })
            .cloned(),
    );
    Ok(repairs)
}

fn is_rolled_out(found: &Found, name: &str) -> bool {
    found.deployment(name).is_some_and(|deployment| readiness::delay(deployment).is_none())
}

fn running(found: &Found) -> Option<&str> {
    found.deployment("source-controller")?["metadata"]["labels"][detect::VERSION].as_str()
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use kube_replies::Cluster as Api;
    use replies::{Exchange, Replies, on};
    use serde_json::json;
    use step::ErrorName;

    use super::*;

    const URL: &str = "https://git-codecommit.eu-west-1.amazonaws.com/v1/repos/demo-fluxcd";
    /// A release of the real one's form, with fewer kinds.
    const MINIATURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/flux/miniature/v2.9.4");
    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/fluxcd/deployments";
    const KUSTOMIZATION: &str =
        "/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/fluxcd/kustomizations/fluxcd";

    fn input() -> Input {
        let input = json!({
            "request": {"cluster": "demo"},
            "cluster": {"name": "demo", "arn": "arn:aws:eks:eu-west-1:123456789012:cluster/demo",
                        "endpoint": "https://demo.example", "certificateAuthority": "",
                        "accessEntryCreatedAt": "2020-01-02T03:00:00Z"},
            "git": {"url": URL},
        });
        step::request::parse_json(&input).expect("valid")
    }

    /// A run that finds no repository yet.
    async fn run_at(api: &Api, version: &str) -> Result<Output> {
        let mut input = input();
        input.request.flux.version = version.to_owned();
        run_as(api, &input, vec![no_repository()]).await
    }

    fn no_repository() -> Exchange {
        on("GetBranch").error(400, "RepositoryDoesNotExistException", "no such repository")
    }

    /// A run of this input; `exchanges` is what CodeCommit is asked where something is to be applied.
    async fn run_as(api: &Api, input: &Input, exchanges: Vec<Exchange>) -> Result<Output> {
        let version = &input.request.flux.version;
        let dir = std::env::var("FLUX_RELEASE_DIR").unwrap_or_else(|_| MINIATURE.to_owned());
        let load = || async { Release::from_dir(version, dir.as_ref()).map(Arc::new) };
        let kubernetes = Kubernetes::new(api.client(), &input.cluster, Clock::Fixed(std::time::UNIX_EPOCH));
        let codecommit = codecommit::Client::new(&Replies::new(exchanges).config());
        install(&kubernetes, load, &codecommit.repo("demo-fluxcd"), input).await
    }

    async fn run(api: &Api) -> Result<Output> {
        run_at(api, "v2.9.4").await
    }

    fn names() -> Vec<String> {
        input().request.flux.all_components().into_iter().map(str::to_owned).collect()
    }

    fn roll_out(api: &Api) {
        for name in names() {
            set_available(api, &name, 1);
        }
    }

    fn set_available(api: &Api, name: &str, available: i64) {
        let path = format!("{DEPLOYMENTS}/{name}");
        let generation = api.get(&path).expect("deployed")["metadata"]["generation"].clone();
        api.merge(
            &path,
            &json!({"status": {"observedGeneration": generation, "replicas": 1, "updatedReplicas": 1,
                               "availableReplicas": available}}),
        );
    }

    fn runs_itself(api: &Api) {
        api.put(
            KUSTOMIZATION,
            json!({"kind": "Kustomization", "metadata": {"namespace": "fluxcd", "name": "fluxcd"},
                   "spec": {"path": "./eks-fargate/applications",
                            "sourceRef": {"kind": "GitRepository", "name": "fluxcd"}},
                   "status": {"lastAppliedRevision": "flux-branch@sha1:1"}}),
        );
    }

    #[tokio::test]
    async fn a_fresh_cluster_gets_flux_and_a_second_call_writes_nothing() {
        let api = Api::new();
        let first = run(&api).await.expect("installed");
        assert!(!first.ready);
        assert!(
            first.because.starts_with("0 of 4 controllers run; waiting for source-controller"),
            "{}",
            first.because
        );
        assert!(first.resources.iter().all(|resource| resource.change == Change::Created));
        assert!(first.resources.contains(&Resource::new("Namespace", "fluxcd", Change::Created)));

        // Definitions, then the rest, the Deployments last but for what has no place in Flux's order.
        let written: Vec<String> = api.writes().iter().map(|call| call.path.clone()).collect();
        let at = |part: &str| written.iter().position(|path| path.contains(part)).expect(part);
        assert!(at("customresourcedefinitions") < at("/namespaces/fluxcd"));
        assert!(at("/clusterroles/") < at("/clusterrolebindings/"));
        assert!(at("/clusterrolebindings/") < at("/deployments/"));
        assert!(api.writes().iter().all(|call| call.query == "fieldManager=flux&force=true"));
        // The sync objects and their Secret are another step's.
        assert!(!written.iter().any(|path| path.contains("toolkit.fluxcd.io/v1/")), "{written:?}");

        // Fargate runs what has requests = limits.
        let stored = api.get(&format!("{DEPLOYMENTS}/source-controller")).expect("deployed");
        let size = json!({"cpu": "250m", "memory": "768Mi"});
        let resources = &stored["spec"]["template"]["spec"]["containers"][0]["resources"];
        assert_eq!(resources, &json!({"limits": size, "requests": size}));

        api.forget_calls();
        roll_out(&api);
        let second = run(&api).await.expect("looked");
        assert!(second.ready, "{}", second.because);
        assert!(second.resources.iter().all(|resource| resource.change == Change::Unchanged));
        assert_eq!(api.writes(), []);
        assert_eq!(second.flux.version, "v2.9.4");
        assert_eq!(second.flux.controllers.len(), 4);
        assert!(serde_json::to_string(&second).expect("text").len() < 10_000);
    }

    #[tokio::test]
    async fn an_install_that_is_refused_half_way_says_what_is_there() {
        let api = Api::new();
        let role = "PATCH /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cluster-reconciler-fluxcd";
        api.refuse(role, 422, "Invalid", "no such role");
        let (outcome, made) = ledger::gather(run(&api)).await;
        assert!(outcome.expect_err("refused").message.contains("no such role"));
        assert!(made.contains(&Resource::new("Namespace", "fluxcd", Change::Created)), "{made:?}");
        let kinds: Vec<&str> = made.iter().map(|resource| resource.kind.as_str()).collect();
        assert!(
            kinds.contains(&"CustomResourceDefinition") && kinds.contains(&"ServiceAccount"),
            "{kinds:?}"
        );
        assert!(!kinds.contains(&"Deployment"), "{kinds:?}");
    }

    #[tokio::test]
    async fn definitions_are_waited_for_before_anything_else() {
        let api = Api::new();
        api.leave_definitions_pending(true);
        let output = run(&api).await.expect("looked");
        assert!(!output.ready);
        assert!(output.because.contains("has not established"), "{}", output.because);
        assert!(!api.paths().iter().any(|path| path.contains("/deployments/")));
        assert_eq!(output.flux.controllers.len(), 4);
    }

    #[tokio::test]
    async fn flux_that_runs_itself_is_left_alone() {
        let api = Api::new();
        run(&api).await.expect("installed");
        roll_out(&api);
        runs_itself(&api);
        // Drift is Flux's own to repair, and would be its own to fight over.
        api.merge(&format!("{DEPLOYMENTS}/helm-controller"), &json!({"spec": {"paused": true}}));
        api.forget_calls();
        let output = run(&api).await.expect("looked");
        assert!(output.ready);
        assert_eq!(api.calls().len(), 4, "{:?}", api.calls());
        assert_eq!(api.writes(), []);
        assert_eq!(output.resources[0].detail.as_deref(), Some("run by Flux itself"));
    }

    #[tokio::test]
    async fn what_is_missing_or_broken_is_repaired() {
        let api = Api::new();
        run(&api).await.expect("installed");
        roll_out(&api);
        runs_itself(&api);
        api.remove(&format!("{DEPLOYMENTS}/kustomize-controller"));
        api.remove("/api/v1/namespaces/fluxcd/serviceaccounts/kustomize-controller");
        api.merge(
            &format!("{DEPLOYMENTS}/source-controller"),
            &json!({"spec": {"template": {"spec": {"serviceAccountName": "nobody"}}}}),
        );
        set_available(&api, "source-controller", 0);
        api.merge(&format!("{DEPLOYMENTS}/helm-controller"), &json!({"spec": {"paused": true}}));
        api.forget_calls();
        let output = run(&api).await.expect("repaired");
        let mut written: Vec<String> = api.writes().iter().map(|call| call.path.clone()).collect();
        written.sort();
        assert_eq!(
            written,
            [
                "/api/v1/namespaces/fluxcd/serviceaccounts/kustomize-controller".to_owned(),
                format!("{DEPLOYMENTS}/kustomize-controller"),
                format!("{DEPLOYMENTS}/source-controller"),
            ]
        );
        assert!(!output.ready);
        assert!(output.because.starts_with("2 of 4 controllers run"), "{}", output.because);
    }

    #[tokio::test]
    async fn a_controller_that_was_scaled_to_nothing_runs_again() {
        let api = Api::new();
        run(&api).await.expect("installed");
        roll_out(&api);
        runs_itself(&api);
        let path = format!("{DEPLOYMENTS}/source-controller");
        api.merge(
            &path,
            &json!({"spec": {"replicas": 0},
                                 "status": {"replicas": 0, "updatedReplicas": 0, "availableReplicas": 0}}),
        );
        api.forget_calls();
        run(&api).await.expect("repaired");
        assert_eq!(api.writes().iter().map(|call| call.path.as_str()).collect::<Vec<_>>(), [path.as_str()]);
        assert_eq!(api.get(&path).expect("is there")["spec"]["replicas"], 1);
    }

    #[tokio::test]
    async fn a_version_that_flux_is_rolling_out_is_not_fought() {
        let api = Api::new();
        run_at(&api, "v2.9.5").await.expect("installed");
        roll_out(&api);
        runs_itself(&api);
        set_available(&api, "source-controller", 0);
        api.forget_calls();
        let error = run_at(&api, "v2.9.4").await.expect_err("a step back");
        assert_eq!(error.name, ErrorName::Conflict);
        assert!(error.message.contains("v2.9.5") && error.message.contains("v2.9.4"), "{}", error.message);
        let mut input = input();
        input.request.flux.allow_downgrade = true;
        let output = run_as(&api, &input, vec![no_repository()]).await.expect("looked");
        assert_eq!(api.writes(), []);
        assert!(!output.ready);
    }

    #[tokio::test]
    async fn a_flux_that_cannot_upgrade_itself_is_upgraded() {
        let api = Api::new();
        run_at(&api, "v2.9.3").await.expect("installed");
        roll_out(&api);
        runs_itself(&api);
        // While it runs, the commit is enough.
        api.forget_calls();
        let output = run(&api).await.expect("looked");
        assert_eq!((output.ready, output.flux.version.as_str()), (true, "v2.9.3"));
        assert_eq!(api.writes(), []);
        // Without its source-controller it would never see the commit.
        set_available(&api, "source-controller", 0);
        let output = run(&api).await.expect("upgraded");
        assert!(!output.ready);
        for name in names() {
            let stored = api.get(&format!("{DEPLOYMENTS}/{name}")).expect("deployed");
            assert_eq!(stored["metadata"]["labels"][detect::VERSION], "v2.9.4", "{name}");
        }
    }

    #[tokio::test]
    async fn a_kustomization_of_the_repositorys_own_is_honoured_at_the_first_install() {
        let own = "resources:\n- gotk-components.yaml\n- gotk-sync.yaml\n- source.yaml\ncommonAnnotations:\n  team: platform\n";
        let source = "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata:\n  name: shared\n  \
                      namespace: fluxcd\nspec:\n  url: https://git.example\n";
        let commit = "1111111111111111111111111111111111111111";
        let folder = "eks-fargate/applications/fluxcd";
        let file = |name: &str, text: &str| {
            on("GetFile").with(&format!("{folder}/{name}\"")).json(json!({
                "commitId": commit, "blobId": commit, "filePath": name, "fileMode": "NORMAL", "fileSize": 1,
                "fileContent": base64::engine::general_purpose::STANDARD.encode(text),
            }))
        };
        let exchanges = vec![
            // The branch is still to be made from the default branch.
            on("GetBranch").error(400, "BranchDoesNotExistException", "no such branch"),
            on("GetRepository").json(json!({"repositoryMetadata": {"defaultBranch": "main"}})),
            on("GetFolder").with("\"commitSpecifier\":\"main\"").json(json!({
                "commitId": commit, "folderPath": folder,
                "files": [{"absolutePath": format!("{folder}/kustomization.yaml"), "relativePath": "kustomization.yaml",
                           "fileMode": "NORMAL", "blobId": commit}],
            })),
            file("kustomization.yaml", own),
            file("source.yaml", source),
        ];
        let api = Api::new();
        run_as(&api, &input(), exchanges).await.expect("installed");
        let stored = api.get(&format!("{DEPLOYMENTS}/source-controller")).expect("deployed");
        assert_eq!(stored["metadata"]["annotations"]["team"], "platform");
        // The user's file says nothing of Fargate, and nothing is added to it.
        let resources = &stored["spec"]["template"]["spec"]["containers"][0]["resources"];
        assert_ne!(resources["requests"], resources["limits"]);
        // What else the folder holds is applied too; the sync objects are another step's.
        let path = |name: &str| {
            format!("/apis/source.toolkit.fluxcd.io/v1/namespaces/fluxcd/gitrepositories/{name}")
        };
        assert!(api.get(&path("shared")).is_some());
        assert!(api.get(&path("fluxcd")).is_none());
    }

    #[tokio::test]
    async fn another_flux_is_refused_before_any_write() {
        let api = Api::new();
        api.put(
            "/apis/apps/v1/namespaces/flux-system/deployments/source-controller",
            json!({"kind": "Deployment", "metadata": {"namespace": "flux-system", "name": "source-controller",
                   "labels": {"app.kubernetes.io/part-of": "flux"}}}),
        );
        let error = run(&api).await.expect_err("refused");
        assert_eq!(error.name, ErrorName::Conflict);
        assert_eq!(api.writes(), []);
    }

    #[tokio::test]
    async fn a_refusal_in_the_middle_is_gone_on_from() {
        let api = Api::new();
        api.refuse(&format!("PATCH {DEPLOYMENTS}/source-controller"), 503, "ServiceUnavailable", "later");
        let error = run(&api).await.expect_err("refused");
        assert_eq!(error.name, ErrorName::Transient);
        assert!(error.message.contains("apply Deployment fluxcd/source-controller"), "{}", error.message);
        run(&api).await.expect("goes on");
        assert!(api.get(&format!("{DEPLOYMENTS}/source-controller")).is_some());
    }

    #[test]
    fn bad_input_names_its_field() {
        let error = step::request::parse_json::<Input>(&json!({"request": {"cluster": "demo"}, "color": 1}))
            .expect_err("refused");
        assert_eq!(error.name, ErrorName::InvalidInput);
        assert!(error.message.contains("color"), "{}", error.message);
    }
}
