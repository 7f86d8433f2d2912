//! What is applied equals what kustomize builds from the committed folder, object by object.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use flux::kustomize::{Built, build};
use flux::release::Release;
use flux::render::render;
use serde::Deserialize;
use serde_json::{Value, json};
use step::ErrorName;
use step::request::FluxOptions;

/// A release folder and the options to render it with.
fn release() -> Release {
    let dir = std::env::var("FLUX_RELEASE_DIR")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/miniature/v2.9.4").to_owned());
    Release::from_dir("v2.9.4", Path::new(&dir)).expect("a Flux release")
}

fn folder(options: &FluxOptions) -> (String, BTreeMap<String, String>) {
    let rendered =
        render(&release(), options, "https://git.example/v1/repos/demo", "flux-branch").expect("renders");
    let files = rendered.files().map(|(name, text)| (name.to_owned(), text.to_owned()));
    (rendered.kustomization.clone(), files.into())
}

/// What `kubectl kustomize` makes of it; `None`, with a word about it, where there is no kubectl.
fn kubectl(files: &BTreeMap<String, String>) -> Option<Result<Vec<Value>, String>> {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        // Flux builds in the order of the files; kubectl has to be told.
        let order = if name == "kustomization.yaml" && text.contains(':') {
            "\nsortOptions: {order: fifo}\n"
        } else {
            ""
        };
        std::fs::write(path, format!("{text}{order}")).expect("written");
    }
    let output = match Command::new("kubectl").arg("kustomize").arg(dir.path()).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("SKIPPED: the comparison with `kubectl kustomize` needs kubectl ({error})");
            return None;
        }
    };
    if !output.status.success() {
        return Some(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let text = String::from_utf8(output.stdout).expect("text");
    let documents = serde_norway::Deserializer::from_str(&text);
    Some(Ok(documents.map(|document| Value::deserialize(document).expect("YAML")).collect()))
}

fn compare(name: &str, ours: &[Value], files: &BTreeMap<String, String>) {
    let Some(theirs) = kubectl(files) else { return };
    let theirs = theirs.unwrap_or_else(|error| panic!("{name}: kubectl refuses: {error}"));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "{name}");
    }
    assert_eq!(ours.len(), theirs.len(), "{name}");
}

#[test]
fn the_generated_folder_is_applied_as_kustomize_builds_it() {
    for options in [
        json!({}),
        json!({"namespace": "gitops", "componentsExtra": ["source-watcher", "image-reflector-controller"]}),
        json!({"resources": {"cpu": "1", "memory": "2Gi"}, "networkPolicy": false}),
    ] {
        let options: FluxOptions = serde_json::from_value(options).expect("options");
        let (kustomization, files) = folder(&options);
        let built = build(&kustomization, &files).expect("builds");
        assert_eq!(built.left, Vec::<String>::new());
        let size = json!({"cpu": options.resources.cpu, "memory": options.resources.memory});
        let mut deployments = 0;
        for object in built.objects.iter().filter(|object| object["kind"] == "Deployment") {
            let containers = object["spec"]["template"]["spec"]["containers"].as_array().expect("containers");
            for container in containers {
                assert_eq!(container["resources"], json!({"limits": size, "requests": size}));
            }
            deployments += 1;
        }
        assert_eq!(deployments, options.all_components().len());
        compare("the generated folder", &built.objects, &files);
    }
}

/// Nothing but the resources differs from what Flux itself would apply.
#[test]
fn the_patch_for_fargate_changes_resources_alone() {
    let (kustomization, files) = folder(&FluxOptions::default());
    let plain = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n- gotk-components.yaml\n- gotk-sync.yaml\n";
    assert!(kustomization.starts_with(plain), "Flux's own text comes first");
    let patched = build(&kustomization, &files).expect("builds").objects;
    let mut without = build(plain, &files).expect("builds").objects;
    for (object, patched) in without.iter_mut().zip(&patched) {
        for container in object
            .pointer_mut("/spec/template/spec/containers")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            container["resources"] = json!({"limits": {"cpu": "250m", "memory": "768Mi"}, "requests": {"cpu": "250m", "memory": "768Mi"}});
        }
        assert_eq!(object, patched);
    }
    assert_eq!(without.len(), patched.len());
}

/// Files of a user's folder beside the generated two.
const EXTRA: [(&str, &str); 4] = [
    (
        "web.yaml",
        "apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {tier: front}}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      volumes:
      - {name: a, emptyDir: {}}
      - {name: c, configMap: {name: c, defaultMode: 0644}}
      containers:
      - name: web
        image: nginx:1.27
        args: [one, two]
        ports: [{containerPort: 79, protocol: TCP}, {containerPort: 80, protocol: TCP}, {containerPort: 90, protocol: UDP, hostPort: 1}]
        env: [{name: A, value: '1'}, {name: B, value: '2'}]
      - {name: side, image: 'registry.example.com:5000/side@sha256:ab'}
      initContainers:
      - {name: init, image: nginx}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 80, name: http}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: web, finalizers: [a.example/x]}
data: {k: v, yes: on, day: 2020-01-01, time: 1:30, hash: 0x1f, big: 1_000, float: 1e3, part: 1.50, zero: 089}
",
    ),
    (
        "batch.yaml",
        "apiVersion: batch/v1
kind: CronJob
metadata: {name: tidy, namespace: shop}
spec:
  schedule: '* * * * *'
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: tidy, image: busybox}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: postgres:16}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}, {namespaceSelector: {}}]}]
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: w}
spec: {parts: [{name: a}], containers: [{image: nginx:1.0}]}
",
    ),
    (
        "sm.yaml",
        "apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  template:
    spec:
      containers:
      - {name: web, resources: {limits: {cpu: 1}}}
",
    ),
    ("ops.yaml", "- {op: add, path: /metadata/annotations, value: {patched: 'yes'}}\n- {op: remove, path: /spec/selector}\n"),
];

fn user(kustomization: &str) -> (Result<Built, step::StepError>, BTreeMap<String, String>) {
    let (_, mut files) = folder(&FluxOptions::default());
    for (name, text) in EXTRA {
        files.insert(name.to_owned(), text.to_owned());
    }
    let text =
        format!("resources: [gotk-components.yaml, gotk-sync.yaml, ./web.yaml, batch.yaml]\n{kustomization}");
    files.insert("kustomization.yaml".to_owned(), text.clone());
    (build(&text, &files), files)
}

#[test]
fn a_users_folder_is_applied_as_kustomize_builds_it() {
    for kustomization in [
        "",
        // Strategic merges
        "patches: [{path: sm.yaml}]",
        "patchesStrategicMerge: [sm.yaml]",
        "patches: [{path: sm.yaml, target: {kind: Deployment}}]",
        "patches: [{path: sm.yaml, target: {kind: Deployment, name: 'web|side', namespace: shop}}]",
        "patches: [{path: sm.yaml, target: {kind: Deployment, labelSelector: 'tier in (front,back)'}}]",
        "patches: [{path: sm.yaml, target: {kind: Nothing}}]",
        "patches:
- target: {kind: Deployment, name: web}
  patch: |
    kind: Deployment
    metadata: {name: any, labels: {added: 'true'}, annotations: {a: b}}
    spec:
      template:
        spec:
          volumes: [{name: b, emptyDir: {}}]
          tolerations: [{key: x, operator: Exists}]
          nodeSelector: {pool: a}
          imagePullSecrets: [{name: reg}]
          hostAliases: [{ip: 10.0.0.1, hostnames: [x]}]
          containers:
          - name: side
            env: [{name: C, value: '3'}]
          - name: new
            image: new:1
          - name: web
            args: [three]
            env: [{name: B, $patch: delete}, {name: A, value: '9'}, {name: D, value: null}]
            ports: [{containerPort: 80, name: web}, {containerPort: 81}, {containerPort: 90, protocol: UDP}]
            volumeMounts: [{mountPath: /b, name: b}]
            securityContext: {runAsNonRoot: true}
",
        "patches:
- target: {kind: ConfigMap, name: web}
  patch: |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: web, finalizers: [b.example/y, a.example/x]}
    data: {k: null, l: w}
- target: {kind: Widget}
  patch: |
    apiVersion: example.com/v1
    kind: Widget
    metadata: {name: w}
    spec: {parts: [{name: b}]}
- target: {kind: Service, name: web}
  patch: |
    apiVersion: v1
    kind: Service
    metadata: {name: web}
    spec: {ports: [{port: 80, targetPort: 8080}, {port: 443, name: https}]}
",
        "patches:
- patch: |
    $patch: delete
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: web, namespace: shop}
- patch: |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: web}
    data: {$patch: replace, n: m}
- target: {kind: StatefulSet}
  patch: |
    apiVersion: apps/v1
    kind: StatefulSet
    metadata: {name: db}
    spec: {template: {spec: {containers: [{$patch: replace}, {name: x, image: y}]}}}
",
        // JSON 6902
        "patches: [{path: ops.yaml, target: {kind: Service, namespace: shop}}]",
        "patchesJson6902: [{path: ops.yaml, target: {version: v1, kind: Service, name: web}}]",
        "patches:
- target: {kind: Deployment, labelSelector: app.kubernetes.io/part-of=flux}
  patch: |
    - op: add
      path: /spec/template/spec/containers/0/args/-
      value: --concurrent=10
    - op: replace
      path: /spec/template/spec/containers/0/resources
      value: {limits: {cpu: 500m, memory: 1Gi}}
    - op: test
      path: /spec/replicas
      value: 1
- target: {group: apps, version: v1, kind: Deployment, name: source-controller}
  patch: '[{\"op\": \"copy\", \"from\": \"/metadata/name\", \"path\": \"/metadata/annotations\"}, {\"op\": \"replace\", \"path\": \"/metadata/annotations\", \"value\": {\"a~1\": \"b\"}}]'
",
        // Images
        "images:
- {name: nginx, newTag: '1.28'}
- {name: 'registry.example.com:5000/side', newName: mirror/side, digest: 'sha256:cd'}
- {name: busybox, newName: mirror/busybox}
- {name: ghcr.io/fluxcd/source-controller, newName: mirror/source-controller}
- {name: 'ghcr.io/fluxcd/.*-controller', tagSuffix: -fips}
",
        // Labels and annotations
        "commonLabels: {team: a}",
        "labels: [{pairs: {team: a}}, {pairs: {team: b, cost: '1'}, includeTemplates: true}]",
        "labels: [{pairs: {team: a}, includeSelectors: yes}]",
        "commonAnnotations: {note: text, other: '2'}",
        "metadata: {name: mine}\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nlabels: [{pairs: {a: b}}]\ncommonLabels: {c: d}\npatches: [{path: sm.yaml}]\nimages: [{name: nginx, newName: other}]",
    ] {
        let (built, files) = user(kustomization);
        let built = built.unwrap_or_else(|error| panic!("{kustomization}\n{error}"));
        assert_eq!(built.left, Vec::<String>::new(), "{kustomization}");
        compare(kustomization, &built.objects, &files);
    }
}

#[test]
fn what_kustomize_refuses_is_refused() {
    for (kustomization, text) in [
        ("patches: [{path: missing.yaml}]", "patches[0] names missing.yaml"),
        ("patches: [{patch: '- {op: add, path: /x, value: 1}'}]", "patches[0] needs a target"),
        (
            "patches: [{path: ops.yaml, target: {kind: ConfigMap, name: web}}]",
            "does not apply to ConfigMap web",
        ),
        (
            "patchesStrategicMerge: ['{apiVersion: v1, kind: Secret, metadata: {name: x}}']",
            "there is no Secret x",
        ),
        ("patches: [{path: sm.yaml, target: {kind: '('}}]", "target: kind is no regular expression"),
        ("patches: [{path: sm.yaml, patch: x}]", "needs either patch or path"),
        ("patches: [{patch: '{a: ['}]", "it is not YAML"),
        ("kind: Component", "its kind is not Kustomization"),
    ] {
        let (built, files) = user(kustomization);
        let error = built.expect_err(kustomization);
        assert_eq!(error.name, ErrorName::InvalidInput);
        assert!(error.message.contains(text), "{kustomization}: {error}");
        // A Component is a thing of its own; kubectl builds it, but never as what Flux applies.
        if kustomization != "kind: Component" {
            assert!(kubectl(&files).is_none_or(|built| built.is_err()), "kubectl takes {kustomization}");
        }
    }
    for (text, files) in [
        ("resources: [gone.yaml]", vec![]),
        ("resources: [a.yaml]", vec![("a.yaml", "a: [")]),
        ("resources: [a.yaml]", vec![("a.yaml", "just: a mapping")]),
        (
            "resources: [a.yaml, b.yaml]",
            vec![
                ("a.yaml", "{apiVersion: v1, kind: Secret, metadata: {name: x}}"),
                ("b.yaml", "{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: default}}"),
            ],
        ),
        ("[]", vec![]),
        ("", vec![]),
    ] {
        let mut files: BTreeMap<String, String> =
            files.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let error = build(text, &files).expect_err(text);
        assert_eq!(error.name, ErrorName::InvalidInput, "{text}");
        files.insert("kustomization.yaml".to_owned(), text.to_owned());
        assert!(kubectl(&files).is_none_or(|built| built.is_err()), "kubectl takes {text}");
    }
}

#[test]
fn what_is_not_honoured_is_named() {
    let (built, _) = user(
        "namespace: other
namePrefix: x-
replicas: [{name: web, count: 2}]
configMapGenerator: [{name: c, literals: [a=b]}]
generatorOptions: {}
components: []
patches:
- {path: sm.yaml, options: {allowNameChange: true}}
- {path: sm.yaml, options: {allowNameChange: false}}
labels: [{pairs: {a: b}, fields: [{path: spec/x}]}]
",
    );
    let left = built.expect("builds").left;
    assert_eq!(
        left,
        ["namespace", "namePrefix", "replicas", "configMapGenerator", "patches[0]: options", "labels[0]"]
    );
    let built =
        build("resources: [../base, https://example.com/x.yaml, infra]", &BTreeMap::new()).expect("builds");
    assert_eq!(
        built.left,
        ["resources: ../base", "resources: https://example.com/x.yaml", "resources: infra"]
    );
    assert!(built.objects.is_empty());
}
