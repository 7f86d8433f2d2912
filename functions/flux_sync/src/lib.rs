//! Makes sure that the cluster follows the repository: Flux's three files in one commit, the Git
//! credentials in the cluster, GitRepository and Kustomization; and reports whether both are Ready
//! at the branch's head. The step is polled by calling it again.

use aws_config::SdkConfig;
use aws_sdk_secretsmanager::error::{ProvideErrorMetadata, SdkError};
use codecommit::Committed;
use eks::Kubernetes;
use flux::folder::Folder;
use flux::release::{Release, Releases};
use flux::sync::{self, GitCredentials, SyncState, Synced};
use flux::{apply, detect, readiness, render};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use step::clock::Clock;
use step::facts::{Cluster, Credentials, Git, Repository};
use step::{Change, Request, Resource, Result, StepError, ledger};
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
    /// From `repo_seed`.
    pub repository: Repository,
    /// From `credentials`.
    pub credentials: Credentials,
}

/// What it gets back.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Whether both objects are Ready at the branch's head, and the controllers run in its version.
    pub ready: bool,
    /// Why not; empty when they are and do.
    pub because: String,
    /// The branch's head as Flux writes it, `<branch>@sha1:<commit>`.
    pub revision: String,
    /// The version of Flux that is committed, and runs when ready.
    pub version: String,
    /// GitRepository and Kustomization.
    pub objects: Vec<SyncState>,
    /// What was found or made.
    pub resources: Vec<Resource>,
}

/// The step, with what it needs.
#[derive(Debug)]
pub struct Step {
    config: SdkConfig,
    releases: Releases,
    codecommit: codecommit::Client,
    secrets: aws_sdk_secretsmanager::Client,
}

impl Step {
    /// Made once, in `main`.
    pub fn new(config: &SdkConfig) -> Self {
        Step {
            config: config.clone(),
            releases: Releases::new(Transport::new(config)),
            codecommit: codecommit::Client::new(config),
            secrets: aws_sdk_secretsmanager::Client::new(config),
        }
    }

    /// Looks, acts where needed, reports.
    ///
    /// # Errors
    /// `Conflict`, where another Flux runs on the cluster or the repository's own kustomization.yaml
    /// leaves the sync objects out; `NotReady`, where Flux fails for a reason that time does not
    /// heal; otherwise as AWS and Kubernetes answer.
    pub async fn apply(&self, input: Input) -> Result<Output> {
        input.request.check()?;
        let kubernetes = eks::connect(&self.config, &input.cluster, Clock::System).await?;
        let release = self.releases.get(&input.request.flux).await?;
        self.synchronise(&kubernetes, &release, &input).await
    }

    /// The step over a Kubernetes client and a release of the caller's.
    ///
    /// # Errors
    /// As [`Step::apply`].
    pub async fn synchronise(
        &self,
        kubernetes: &Kubernetes,
        release: &Release,
        input: &Input,
    ) -> Result<Output> {
        let options = &input.request.flux;
        let namespace = options.namespace.as_str();

        // Everything that may refuse comes before the first write.
        detect::look(kubernetes, options, &input.git.url).await?;
        let credentials = self.credentials(&input.credentials).await?;
        let branch = input.repository.branch.as_str();
        let rendered = render::render(release, options, &input.git.url, branch)?;
        let repo = self.codecommit.repo(&input.repository.name);
        let folder = Folder::read(&repo, branch, options, &rendered).await?;
        folder.check_version(options)?;
        let built = folder.build(&rendered)?;
        let objects = sync::objects(&built.objects, namespace)?;

        let committed = folder.commit(&repo, branch, &rendered, release.version()).await?;
        let mut resources = Vec::new();
        let mut done = |resource: Resource| {
            ledger::note(&resource);
            resources.push(resource);
        };
        done(commit_resource(&committed));
        folder.report(&built).into_iter().for_each(&mut done);
        let secret = sync::ensure_secret(kubernetes, namespace, &options.secret_name, &credentials).await?;
        done(Resource::new("Secret", format!("{namespace}/{}", options.secret_name), secret.change));
        for object in [&objects.git_repository, &objects.kustomization] {
            let applied = apply::ensure(kubernetes, object).await?;
            done(Resource::new(&applied.object.kind, applied.object.path(), applied.change));
        }

        let revision = sync::revision(branch, &committed.commit_id);
        // One request for each commit and each version of the credentials: a poll repeats none, and
        // a new password is not left to wait out the controller's pause after the old one's failure.
        let token = format!("{}.{}", committed.commit_id, secret.resource_version);
        let Synced { objects, mut because } = sync::follow(kubernetes, namespace, &revision, &token).await?;
        // Flux is Ready when it has applied itself; an upgrade is done when its new pods run.
        if because.is_empty() {
            let controllers = readiness::of_build(kubernetes, namespace, &built.objects).await?;
            because = readiness::because(&controllers);
        }
        let version = release.version().to_owned();
        Ok(Output { ready: because.is_empty(), because, revision, version, objects, resources })
    }

    /// Reads the stored Git credentials. The password leaves this function in a `SecretString` only,
    /// and no error text carries any part of the reply.
    async fn credentials(&self, facts: &Credentials) -> Result<GitCredentials> {
        let arn = facts.secret_arn.as_str();
        let reply = self.secrets.get_secret_value().secret_id(arn).send().await.map_err(|error| {
            let code = match &error {
                SdkError::ServiceError(service) => service.err().code().unwrap_or_default(),
                _ => "",
            };
            match code {
                "ResourceNotFoundException" | "InvalidRequestException" => StepError::conflict(format!(
                    "secretsmanager:GetSecretValue on {arn}: {code}: the secret was deleted after the step \
                     `credentials` had made sure of it; start a new execution, which restores it"
                )),
                "DecryptionFailure" => StepError::denied(format!(
                    "secretsmanager:GetSecretValue on {arn}: {code}: allow kms:Decrypt on the secret's key to \
                     the function's role, and see that the key is enabled"
                )),
                _ => StepError::from_sdk("secretsmanager:GetSecretValue", arn, &error),
            }
        })?;
        let text = SecretString::from(reply.secret_string.unwrap_or_default());
        stored(&text).ok_or_else(|| {
            StepError::conflict(format!(
                "the secret {arn} holds no username and password; a new execution fills it when it is ours, \
                 otherwise name another (credentials.secretName)"
            ))
        })
    }
}

fn stored(text: &SecretString) -> Option<GitCredentials> {
    #[derive(Deserialize)]
    struct Stored {
        username: String,
        password: String,
    }
    let stored: Stored = serde_json::from_str(text.expose_secret()).ok()?;
    let complete = !stored.username.is_empty() && !stored.password.is_empty();
    let password = SecretString::from(stored.password);
    complete.then_some(GitCredentials { username: stored.username, password })
}

fn commit_resource(committed: &Committed) -> Resource {
    if committed.written.is_empty() {
        return Resource::new("Commit", &committed.commit_id, Change::Unchanged);
    }
    Resource::new("Commit", &committed.commit_id, Change::Created).detail(committed.written.join(", "))
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use flux::render::Rendered;
    use kube_replies::Cluster as Api;
    use replies::{Exchange, Replies, on};
    use serde_json::{Value, json};
    use step::ErrorName;

    use super::*;

    const URL: &str = "https://git-codecommit.eu-west-1.amazonaws.com/v1/repos/demo-fluxcd";
    const ARN: &str =
        "arn:aws:secretsmanager:eu-west-1:123456789012:secret:eks-flux-bootstrap/demo/fluxcd/git-AbCdEf";
    const SENTINEL: &str = "s3ntinel-passw0rd";
    const SEED: &str = "1111111111111111111111111111111111111111";
    const HEAD: &str = "2222222222222222222222222222222222222222";
    const GIT: &str = "/apis/source.toolkit.fluxcd.io/v1/namespaces/fluxcd/gitrepositories/fluxcd";
    const KS: &str = "/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/fluxcd/kustomizations/fluxcd";
    const SECRET: &str = "/api/v1/namespaces/fluxcd/secrets/flux-system";
    const FOLDER: &str = "eks-fargate/applications/fluxcd";

    fn input() -> Input {
        let input = json!({
            "request": {"cluster": "demo"},
            "cluster": {"name": "demo", "arn": "arn:aws:eks:eu-west-1:123456789012:cluster/demo",
                        "endpoint": "https://demo.example", "certificateAuthority": "",
                        "accessEntryCreatedAt": "2020-01-02T03:00:00Z"},
            "git": {"url": URL},
            "repository": {"name": "demo-fluxcd", "arn": "arn:aws:codecommit:eu-west-1:123456789012:demo-fluxcd",
                           "id": "i", "branch": "flux-branch", "commitId": SEED},
            "credentials": {"secretArn": ARN, "userName": "demo-fluxcd-git", "credentialId": "ACCA1"},
        });
        step::request::parse_json(&input).expect("valid")
    }

    fn release() -> &'static Release {
        static RELEASE: OnceLock<Release> = OnceLock::new();
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/flux/miniature/v2.9.4");
        RELEASE.get_or_init(|| Release::from_dir("v2.9.4", dir.as_ref()).expect("a release"))
    }

    fn rendered() -> Rendered {
        render::render(release(), &input().request.flux, URL, "flux-branch").expect("rendered")
    }

    async fn run(api: &Api, exchanges: Vec<Exchange>) -> Result<Output> {
        let replies = Replies::new(exchanges);
        let step = Step::new(&replies.config());
        let input = input();
        let kubernetes = Kubernetes::new(api.client(), &input.cluster, Clock::Fixed(std::time::UNIX_EPOCH));
        let output = step.synchronise(&kubernetes, release(), &input).await;
        replies.finish();
        output
    }

    fn secret() -> Exchange {
        let value = json!({"username": "demo-at-1", "password": SENTINEL, "url": URL}).to_string();
        on("GetSecretValue").with(ARN).json(json!({"ARN": ARN, "SecretString": value}))
    }

    fn branch(commit: &str) -> Exchange {
        on("GetBranch").json(json!({"branch": {"branchName": "flux-branch", "commitId": commit}}))
    }

    fn no_folder() -> Exchange {
        on("GetFolder").error(400, "FolderDoesNotExistException", "no such folder")
    }

    fn folder(commit: &str, files: &[(&str, &str)]) -> Exchange {
        let files: Vec<Value> = files
            .iter()
            .map(|(name, text)| {
                json!({"absolutePath": format!("{FOLDER}/{name}"), "relativePath": name, "fileMode": "NORMAL",
                       "blobId": codecommit::blob_id(text.as_bytes())})
            })
            .collect();
        on("GetFolder").json(json!({"commitId": commit, "folderPath": FOLDER, "files": files}))
    }

    /// Flux reports both objects Ready at a commit.
    fn reconcile(api: &Api, commit: &str) {
        let revision = format!("flux-branch@sha1:{commit}");
        for path in [GIT, KS] {
            let generation = api.get(path).expect("applied")["metadata"]["generation"].clone();
            let ready = json!({"type": "Ready", "status": "True", "reason": "Succeeded", "message": "ok",
                               "observedGeneration": generation});
            api.merge(
                path,
                &json!({"status": {"observedGeneration": generation, "artifact": {"revision": revision},
                                   "lastAppliedRevision": revision, "lastAttemptedRevision": revision,
                                   "conditions": [ready]}}),
            );
        }
        run_controllers(api, "v2.9.4");
    }

    /// The controllers of a version are rolled out.
    fn run_controllers(api: &Api, version: &str) {
        for name in input().request.flux.all_components() {
            api.put(
                &format!("/apis/apps/v1/namespaces/fluxcd/deployments/{name}"),
                json!({"kind": "Deployment",
                       "metadata": {"namespace": "fluxcd", "name": name, "generation": 1,
                                    "labels": {"app.kubernetes.io/part-of": "flux",
                                               "app.kubernetes.io/version": version}},
                       "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1,
                                  "availableReplicas": 1}}),
            );
        }
    }

    #[tokio::test]
    async fn the_first_run_commits_once_and_ties_the_cluster_to_the_repository() {
        let api = Api::new();
        let rendered = rendered();
        let exchanges = vec![
            secret(),
            branch(SEED),
            no_folder(),
            branch(SEED),
            no_folder(),
            on("CreateCommit")
                .with("\"authorName\":\"Flux\"")
                .with("Add Flux v2.9.4 component and sync manifests")
                .with(&format!("\"parentCommitId\":\"{SEED}\""))
                .with(&format!("{FOLDER}/gotk-components.yaml"))
                .with(&format!("{FOLDER}/gotk-sync.yaml"))
                .with(&format!("{FOLDER}/kustomization.yaml"))
                .json(json!({"commitId": HEAD, "treeId": SEED})),
        ];
        let output = run(&api, exchanges).await.expect("synchronised");
        assert!(!output.ready);
        assert_eq!(output.revision, format!("flux-branch@sha1:{HEAD}"));
        assert!(output.because.contains("its controller has not looked at it yet"), "{}", output.because);
        let kinds: Vec<(&str, Change)> =
            output.resources.iter().map(|resource| (resource.kind.as_str(), resource.change)).collect();
        assert_eq!(
            kinds,
            [
                ("Commit", Change::Created),
                ("Secret", Change::Created),
                ("GitRepository", Change::Created),
                ("Kustomization", Change::Created),
            ]
        );
        let written: Vec<String> = api.writes().iter().map(kube_replies::Call::line).collect();
        assert_eq!(
            written,
            [
                "POST /api/v1/namespaces/fluxcd/secrets?fieldManager=flux".to_owned(),
                format!("PATCH {GIT}?fieldManager=flux&force=true"),
                format!("PATCH {KS}?fieldManager=flux&force=true"),
            ]
        );
        assert_eq!(
            api.get(GIT).expect("applied")["spec"],
            json!({"interval": "30s", "ref": {"branch": "flux-branch"}, "secretRef": {"name": "flux-system"}, "url": URL})
        );
        assert_eq!(
            api.get(KS).expect("applied")["spec"],
            json!({"interval": "10m0s", "path": "./eks-fargate/applications", "prune": true,
                   "sourceRef": {"kind": "GitRepository", "name": "fluxcd"}})
        );
        assert!(rendered.gotk_sync.contains("kind: GitRepository"));
        let shown = format!("{output:?} {}", serde_json::to_string(&output).expect("text"));
        assert!(!shown.contains(SENTINEL) && shown.len() < 10_000);

        // The state machine calls again when Flux has caught up: no write anywhere.
        reconcile(&api, HEAD);
        api.forget_calls();
        let output = run(&api, settled()).await.expect("synchronised");
        assert!(output.ready, "{}", output.because);
        assert!(output.resources.iter().all(|resource| resource.change == Change::Unchanged));
        assert_eq!(api.writes(), []);
    }

    /// What a run asks AWS for when the branch holds the three files.
    fn settled() -> Vec<Exchange> {
        let rendered = rendered();
        let files = rendered.files();
        vec![secret(), branch(HEAD), folder(HEAD, &files), branch(HEAD), folder(HEAD, &files)]
    }

    #[tokio::test]
    async fn a_kustomization_of_the_users_own_is_kept_and_honoured() {
        let api = Api::new();
        let rendered = rendered();
        let own = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n\
                   - gotk-components.yaml\n- ./gotk-sync.yaml\npatches:\n- target:\n    kind: GitRepository\n  \
                   path: patches/interval.yaml\n";
        let patch = "- op: replace\n  path: /spec/interval\n  value: 5m0s\n";
        let files = [
            ("gotk-components.yaml", rendered.gotk_components.as_str()),
            ("gotk-sync.yaml", rendered.gotk_sync.as_str()),
            ("kustomization.yaml", own),
        ];
        let file = |name: &str, text: &str| {
            on("GetFile").with(&format!("{FOLDER}/{name}\"")).json(json!({
                "commitId": HEAD, "blobId": SEED, "filePath": name, "fileMode": "NORMAL", "fileSize": 1,
                "fileContent": base64(text),
            }))
        };
        let exchanges = vec![
            secret(),
            branch(HEAD),
            folder(HEAD, &files),
            file("kustomization.yaml", own),
            file("patches/interval.yaml", patch),
            branch(HEAD),
            folder(HEAD, &files),
        ];
        let output = run(&api, exchanges).await.expect("synchronised");
        assert_eq!(output.resources[0], Resource::new("Commit", HEAD, Change::Unchanged));
        let theirs = &output.resources[1];
        assert_eq!((theirs.kind.as_str(), theirs.change), ("Kustomization file", Change::Adopted));
        assert_eq!(api.get(GIT).expect("applied")["spec"]["interval"], "5m0s");
    }

    #[tokio::test]
    async fn an_upgrade_is_done_when_its_controllers_run() {
        let api = Api::new();
        run(&api, settled()).await.expect("synchronised");
        reconcile(&api, HEAD);
        run_controllers(&api, "v2.9.3");
        let output = run(&api, settled()).await.expect("synchronised");
        assert!(!output.ready);
        let expected = "source-controller (it is v2.9.3 and not v2.9.4 yet)";
        assert!(output.because.contains(expected), "{}", output.because);
        run_controllers(&api, "v2.9.4");
        assert!(run(&api, settled()).await.expect("synchronised").ready);
    }

    #[tokio::test]
    async fn a_newer_flux_in_the_repository_is_not_overwritten() {
        let rendered = rendered();
        let newer = rendered.gotk_components.replace("v2.9.4", "v2.10.0");
        let files = [
            ("gotk-components.yaml", newer.as_str()),
            ("gotk-sync.yaml", rendered.gotk_sync.as_str()),
            ("kustomization.yaml", rendered.kustomization.as_str()),
        ];
        let file = on("GetFile").json(json!({
            "commitId": HEAD, "blobId": SEED, "filePath": "f", "fileMode": "NORMAL", "fileSize": 1,
            "fileContent": base64(&newer),
        }));
        let api = Api::new();
        let exchanges = vec![secret(), branch(HEAD), folder(HEAD, &files), file];
        let error = run(&api, exchanges).await.expect_err("refused");
        assert_eq!(error.name, ErrorName::Conflict);
        let text = format!("{FOLDER}/gotk-components.yaml has Flux v2.10.0, and this request wants v2.9.4");
        assert!(error.message.contains(&text), "{}", error.message);
        assert_eq!(api.writes(), []);
    }

    #[tokio::test]
    async fn a_lagging_artifact_is_asked_for_once() {
        let api = Api::new();
        run(&api, settled()).await.expect("synchronised");
        reconcile(&api, SEED);
        api.forget_calls();
        let output = run(&api, settled()).await.expect("synchronised");
        assert!(!output.ready);
        assert!(
            output.because.contains(&format!("not at flux-branch@sha1:{HEAD} yet")),
            "{}",
            output.because
        );
        let writes = api.writes();
        assert_eq!(writes.len(), 1);
        let token = writes[0].body["metadata"]["annotations"]["reconcile.fluxcd.io/requestedAt"].as_str();
        assert!(token.is_some_and(|token| token.starts_with(HEAD)), "{token:?}");
        api.forget_calls();
        run(&api, settled()).await.expect("synchronised");
        assert_eq!(api.writes(), []);
    }

    #[tokio::test]
    async fn a_run_that_is_refused_half_way_says_what_is_there() {
        let api = Api::new();
        api.refuse(&format!("PATCH {KS}"), 422, "Invalid", "spec.interval: Required value");
        let (outcome, made) = ledger::gather(run(&api, settled())).await;
        assert!(outcome.expect_err("refused").message.contains("spec.interval"));
        let kinds: Vec<&str> = made.iter().map(|resource| resource.kind.as_str()).collect();
        assert_eq!(kinds, ["Commit", "Secret", "GitRepository"]);
    }

    #[tokio::test]
    async fn a_changed_password_reaches_the_cluster() {
        let api = Api::new();
        run(&api, settled()).await.expect("synchronised");
        reconcile(&api, HEAD);
        api.merge(SECRET, &json!({"data": {"password": "b2xk", "bearerToken": "eA=="}}));
        let output = run(&api, settled()).await.expect("synchronised");
        assert_eq!(output.resources[1], Resource::new("Secret", "fluxcd/flux-system", Change::Updated));
        let stored = api.get(SECRET).expect("is there");
        assert_eq!(stored["data"], json!({"username": base64("demo-at-1"), "password": base64(SENTINEL)}));
    }

    #[tokio::test]
    async fn the_stored_secret_has_its_own_errors() {
        let wrong = |text: &str| on("GetSecretValue").json(json!({"ARN": ARN, "SecretString": text}));
        let cases = [
            (
                on("GetSecretValue").error(
                    400,
                    "ResourceNotFoundException",
                    "Secrets Manager can't find the specified secret.",
                ),
                ErrorName::Conflict,
                "start a new execution",
            ),
            (
                on("GetSecretValue").error(
                    400,
                    "InvalidRequestException",
                    "You can't perform this operation on the secret because it was marked for deletion.",
                ),
                ErrorName::Conflict,
                "was deleted",
            ),
            (
                on("GetSecretValue").error(400, "DecryptionFailure", "no"),
                ErrorName::Denied,
                "allow kms:Decrypt",
            ),
            (
                on("GetSecretValue").error(400, "AccessDeniedException", "not authorized"),
                ErrorName::Denied,
                "secretsmanager:GetSecretValue",
            ),
            (wrong("{}"), ErrorName::Conflict, "holds no username and password"),
            (
                wrong("{\"username\":\"\",\"password\":\"s3ntinel-passw0rd\"}"),
                ErrorName::Conflict,
                "holds no",
            ),
            (wrong("s3ntinel-passw0rd"), ErrorName::Conflict, "holds no"),
        ];
        for (reply, name, text) in cases {
            let api = Api::new();
            let error = run(&api, vec![reply]).await.expect_err("refused");
            assert_eq!(error.name, name, "{}", error.message);
            assert!(error.message.contains(text), "{}", error.message);
            assert!(!format!("{error:?}").contains(SENTINEL));
            assert_eq!(api.writes(), []);
        }
    }

    #[tokio::test]
    async fn another_path_is_refused_before_anything_is_read_or_written() {
        let api = Api::new();
        api.put(
            KS,
            json!({"kind": "Kustomization", "metadata": {"namespace": "fluxcd", "name": "fluxcd"},
                   "spec": {"path": "./other", "sourceRef": {"kind": "GitRepository", "name": "fluxcd"}}}),
        );
        let error = run(&api, vec![]).await.expect_err("refused");
        assert_eq!(error.name, ErrorName::Conflict);
        assert!(error.message.contains("from path other"), "{}", error.message);
        assert_eq!(api.writes(), []);
    }

    #[tokio::test]
    async fn a_broken_manifest_ends_with_fluxs_message() {
        let api = Api::new();
        run(&api, settled()).await.expect("synchronised");
        reconcile(&api, HEAD);
        let broken = json!({"type": "Ready", "status": "False", "reason": "BuildFailed", "observedGeneration": 1,
                            "message": "kustomize build failed: nginx.yaml"});
        api.merge(KS, &json!({"status": {"conditions": [broken]}}));
        let error = run(&api, settled()).await.expect_err("fails");
        assert_eq!(error.name, ErrorName::NotReady);
        assert!(
            error.message.contains("BuildFailed: kustomize build failed: nginx.yaml"),
            "{}",
            error.message
        );
    }

    fn base64(text: &str) -> String {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(text)
    }
}
