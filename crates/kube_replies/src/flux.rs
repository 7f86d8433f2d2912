//! A miniature Flux release in the form of the real one.

use std::collections::BTreeMap;

/// The controllers that `flux bootstrap` installs by default, each with one kind of its own.
const CONTROLLERS: [(&str, &str, &str, &str); 4] = [
    ("source-controller", "source", "GitRepository", "gitrepositories"),
    ("kustomize-controller", "kustomize", "Kustomization", "kustomizations"),
    ("helm-controller", "helm", "HelmRelease", "helmreleases"),
    ("notification-controller", "notification", "Alert", "alerts"),
];

/// File name and text of each file of the release.
pub fn release() -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = CONTROLLERS
        .iter()
        .map(|(name, group, kind, plural)| (format!("{name}.yaml"), controller(name, group, kind, plural)))
        .collect();
    files.insert("rbac.yaml".to_owned(), RBAC.to_owned());
    files.insert("policies.yaml".to_owned(), POLICIES.to_owned());
    files
}

fn controller(name: &str, group: &str, kind: &str, plural: &str) -> String {
    let singular = kind.to_lowercase();
    let events = if name == "notification-controller" {
        ""
    } else {
        "        - --events-addr=http://notification-controller.flux-system.svc.cluster.local./\n"
    };
    let storage = if name == "source-controller" {
        "        - --storage-path=/data\n        - --storage-adv-addr=source-controller.$(RUNTIME_NAMESPACE).svc.cluster.local.\n"
    } else {
        ""
    };
    format!(
        "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  labels:
    app.kubernetes.io/component: {name}
    app.kubernetes.io/part-of: flux
  name: {plural}.{group}.toolkit.fluxcd.io
spec:
  group: {group}.toolkit.fluxcd.io
  names:
    kind: {kind}
    listKind: {kind}List
    plural: {plural}
    singular: {singular}
  scope: Namespaced
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-preserve-unknown-fields: true
    served: true
    storage: true
    subresources:
      status: {{}}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  labels:
    app.kubernetes.io/component: {name}
    app.kubernetes.io/part-of: flux
  name: {name}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  labels:
    app.kubernetes.io/component: {name}
    app.kubernetes.io/part-of: flux
    control-plane: controller
  name: {name}
spec:
  replicas: 1
  selector:
    matchLabels:
      app: {name}
  template:
    metadata:
      labels:
        app: {name}
        app.kubernetes.io/component: {name}
        app.kubernetes.io/part-of: flux
    spec:
      containers:
      - args:
{events}        - --watch-all-namespaces
        - --log-level=info
        - --log-encoding=json
        - --enable-leader-election
{storage}        image: fluxcd/{name}:v1.0.0
        name: manager
        resources:
          limits:
            cpu: 1000m
            memory: 1Gi
          requests:
            cpu: 50m
            memory: 64Mi
      serviceAccountName: {name}
"
    )
}

const RBAC: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: crd-controller
rules:
- apiGroups:
  - source.toolkit.fluxcd.io
  resources:
  - '*'
  verbs:
  - '*'
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: crd-controller
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: crd-controller
subjects:
- kind: ServiceAccount
  name: source-controller
  namespace: flux-system
";

const POLICIES: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: allow-egress
spec:
  egress:
  - {}
  ingress:
  - from:
    - podSelector: {}
  podSelector: {}
  policyTypes:
  - Ingress
  - Egress
";
