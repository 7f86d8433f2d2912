//! kubectl as an independent client.

use std::io::Write as _;
use std::process::{Output, Stdio};

use sandbox::kubernetes::ApiServer;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::help::{definition, quick, start, until};

/// kubectl with the kubeconfig of a server.
struct Kubectl {
    home: TempDir,
}

impl Kubectl {
    /// Nothing where the machine has no kubectl, which is said aloud.
    async fn new(server: &ApiServer) -> Option<Self> {
        if Command::new("kubectl").arg("version").arg("--client").output().await.is_err() {
            let _ = writeln!(std::io::stderr(), "SKIPPED: kubectl is not on this machine");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config"), server.kubeconfig()).unwrap();
        Some(Kubectl { home })
    }

    async fn run(&self, arguments: &str, input: &str) -> Output {
        let mut child = Command::new("kubectl")
            .args(arguments.split(' '))
            .env("KUBECONFIG", self.home.path().join("config"))
            .env("HOME", self.home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
        child.wait_with_output().await.unwrap()
    }

    async fn ok(&self, arguments: &str, input: &str) -> String {
        let output = self.run(arguments, input).await;
        assert!(output.status.success(), "kubectl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    async fn fails(&self, arguments: &str, input: &str) -> String {
        let output = self.run(arguments, input).await;
        assert!(!output.status.success(), "kubectl {arguments} should have failed");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Words of the lines of a table, without the column of ages.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

const MANIFESTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {a: '1', b: '2'}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: nginx, image: 'nginx:1', ports: [{containerPort: 80}]}
";

#[tokio::test]
async fn kubectl_applies_gets_patches_and_deletes() {
    let server = start(quick()).await;
    let Some(kubectl) = Kubectl::new(&server).await else { return };
    assert_eq!(
        kubectl.ok("apply -f -", MANIFESTS).await,
        "configmap/conf created\ndeployment.apps/web created\n"
    );
    assert_eq!(
        kubectl.ok("apply -f -", MANIFESTS).await,
        "configmap/conf unchanged\ndeployment.apps/web unchanged\n"
    );
    let changed = MANIFESTS.replace("a: '1', ", "").replace("nginx:1", "nginx:2");
    assert_eq!(
        kubectl.ok("apply -f -", &changed).await,
        "configmap/conf configured\ndeployment.apps/web configured\n"
    );
    assert_eq!(kubectl.ok("get configmap conf -o jsonpath={.data}", "").await, "{\"b\":\"2\"}");
    kubectl.ok("rollout status deployment/web --timeout=20s", "").await;
    let table = kubectl.ok("get deployments", "").await;
    assert_eq!(rows(&table)[0], ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]);
    assert_eq!(rows(&table)[1][..4], ["web", "1/1", "1", "1"]);
    let table = kubectl.ok("get pods", "").await;
    assert_eq!(rows(&table)[1][1..4], ["1/1", "Running", "0"]);

    kubectl.ok("label deployment web tier=front", "").await;
    kubectl.ok("scale deployment web --replicas=2", "").await;
    kubectl.ok("patch deployment web -p {\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"nginx\",\"image\":\"nginx:3\"}]}}}}", "").await;
    assert_eq!(
        kubectl.ok("get deployment -l tier=front -o jsonpath={.items[0].spec.replicas}-{.items[0].spec.template.spec.containers[0].image}-{.items[0].spec.template.spec.containers[0].ports[0].containerPort}", "").await,
        "2-nginx:3-80"
    );
    kubectl.ok("rollout status deployment/web --timeout=20s", "").await;
    kubectl.ok("describe deployment web", "").await;
    kubectl.ok("wait deployment/web --for=condition=Available --timeout=20s", "").await;
    kubectl.ok("delete -f - --timeout=20s", MANIFESTS).await;
    assert!(
        kubectl
            .fails("get configmap conf", "")
            .await
            .contains("Error from server (NotFound): configmaps \"conf\" not found")
    );
}

#[tokio::test]
async fn kubectl_applies_server_side() {
    let server = start(quick()).await;
    let Some(kubectl) = Kubectl::new(&server).await else { return };
    let apply = "apply --server-side -f -";
    let done = "configmap/conf serverside-applied\ndeployment.apps/web serverside-applied\n";
    assert_eq!(kubectl.ok(apply, MANIFESTS).await, done);
    let before = kubectl.ok("get configmap conf -o jsonpath={.metadata.resourceVersion}", "").await;
    assert_eq!(kubectl.ok(apply, MANIFESTS).await, done);
    assert_eq!(kubectl.ok("get configmap conf -o jsonpath={.metadata.resourceVersion}", "").await, before);

    let other = MANIFESTS.replace("a: '1'", "a: '9'");
    let refused = kubectl.fails("apply --server-side --field-manager=other -f -", &other).await;
    assert!(
        refused.contains("Apply failed with 1 conflict: conflict with \"kubectl\": .data.a"),
        "{refused}"
    );
    kubectl.ok("apply --server-side --field-manager=other --force-conflicts -f -", &other).await;
    assert_eq!(kubectl.ok("get configmap conf -o jsonpath={.data.a}", "").await, "9");
    assert!(kubectl.run("diff --server-side --field-manager=other -f -", &other).await.status.success());

    // From client-side to server-side apply, kubectl moves the ownership itself.
    let plain = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: moved}\ndata: {x: '1', y: '1'}\n";
    kubectl.ok("apply -f -", plain).await;
    kubectl.ok(apply, &plain.replace(", y: '1'", "")).await;
    assert_eq!(kubectl.ok("get configmap moved -o jsonpath={.data}", "").await, "{\"x\":\"1\"}");
}

#[tokio::test]
async fn kubectl_knows_custom_kinds_and_their_columns() {
    let server = start(quick()).await;
    let Some(kubectl) = Kubectl::new(&server).await else { return };
    let mut thing = definition("example.org", "Thing", "things");
    thing["spec"]["versions"][0]["additionalPrinterColumns"] = serde_json::json!([
        {"name": "Url", "type": "string", "jsonPath": ".spec.url"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
    ]);
    kubectl.ok("apply -f -", &thing.to_string()).await;
    kubectl.ok("wait crd/things.example.org --for=condition=Established --timeout=20s", "").await;
    kubectl
        .ok(
            "apply -f -",
            "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: a}\nspec: {url: 'http://x'}\n",
        )
        .await;
    let table = kubectl.ok("get things", "").await;
    assert_eq!(rows(&table)[0], ["NAME", "URL", "READY"]);
    assert_eq!(rows(&table)[1], ["a", "http://x"]);
    assert!(kubectl.ok("api-resources --api-group=example.org", "").await.contains("things"));
    kubectl.ok("delete crd things.example.org --timeout=20s", "").await;
    kubectl.fails("get things", "").await;
}

#[tokio::test]
async fn kubectl_creates_by_its_own_words() {
    let server = start(quick()).await;
    let Some(kubectl) = Kubectl::new(&server).await else { return };
    kubectl.ok("create namespace a", "").await;
    kubectl.ok("create secret generic s -n a --from-literal=user=me", "").await;
    assert_eq!(server.get("v1", "Secret", "a", "s").unwrap()["data"]["user"], "bWU=");
    kubectl.ok("create configmap c -n a --from-literal=x=1", "").await;
    kubectl.ok("create serviceaccount me -n a", "").await;
    kubectl.ok("create clusterrolebinding b --clusterrole=view --serviceaccount=a:me", "").await;
    kubectl.ok("create deployment web -n a --image=nginx:1 --port=80 --replicas=2", "").await;
    kubectl.ok("expose deployment web -n a --port=80", "").await;
    kubectl.ok("rollout status deployment/web -n a --timeout=20s", "").await;
    kubectl.ok("set image deployment/web -n a nginx=nginx:2", "").await;
    kubectl.ok("rollout restart deployment/web -n a", "").await;
    kubectl.ok("rollout status deployment/web -n a --timeout=20s", "").await;
    assert_eq!(kubectl.ok("auth can-i get pods", "").await.trim(), "yes");
    assert!(kubectl.ok("auth whoami", "").await.contains("kubernetes-admin"));
    assert!(kubectl.fails("--token=nobody auth can-i get pods", "").await.is_empty());
}

#[tokio::test]
async fn kubectl_makes_and_deletes_namespaces() {
    let server = start(quick()).await;
    let Some(kubectl) = Kubectl::new(&server).await else { return };
    kubectl.ok("create -f -", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n").await;
    until(&server, ("v1", "ServiceAccount", "a", "default"), |_| true).await;
    let table = kubectl.ok("get namespace a", "").await;
    assert_eq!(rows(&table)[1][..2], ["a", "Active"]);
    kubectl.ok("delete namespace a --timeout=20s", "").await;
    assert!(server.get("v1", "Namespace", "", "a").is_none());
    let refused = kubectl.fails("--token=nobody get pods", "").await;
    assert!(refused.contains("Error from server (Forbidden): pods is forbidden"), "{refused}");
}
