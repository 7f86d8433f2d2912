//! What the API server adds to built-in kinds, and what it refuses: the part that clients notice.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::failure::Cause;
use super::quantity::canonical;

/// Fills a field that is missing or null.
fn fill(object: &mut Value, name: &str, value: Value) {
    if let Some(object) = object.as_object_mut()
        && object.get(name).is_none_or(Value::is_null)
    {
        object.insert(name.to_owned(), value);
    }
}

fn each(list: &mut Value, act: impl FnMut(&mut Value)) {
    list.as_array_mut().into_iter().flatten().for_each(act);
}

/// Takes out nulls, which typed objects don't have.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, child| !child.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn quantities(resources: &mut Value) {
    for part in ["limits", "requests", "hard", "used"] {
        for value in resources.get_mut(part).and_then(Value::as_object_mut).into_iter().flatten() {
            let text = match &value.1 {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            *value.1 = Value::String(canonical(&text));
        }
    }
}

fn probe(probe: &mut Value) {
    if probe.is_object() {
        fill(probe, "timeoutSeconds", json!(1));
        fill(probe, "periodSeconds", json!(10));
        fill(probe, "successThreshold", json!(1));
        fill(probe, "failureThreshold", json!(3));
        if let Some(get) = probe.get_mut("httpGet") {
            fill(get, "path", json!("/"));
            fill(get, "scheme", json!("HTTP"));
        }
    }
}

fn container(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    let tag = image.rsplit('/').next().unwrap_or_default();
    let latest = !image.contains('@') && (!tag.contains(':') || tag.ends_with(":latest"));
    let pull = if latest { "Always" } else { "IfNotPresent" };
    fill(container, "imagePullPolicy", json!(pull));
    fill(container, "resources", json!({}));
    fill(container, "terminationMessagePath", json!("/dev/termination-log"));
    fill(container, "terminationMessagePolicy", json!("File"));
    if let Some(resources) = container.get_mut("resources") {
        quantities(resources);
        // What is limited and not requested is requested at its limit.
        let limits = resources["limits"].as_object().cloned().unwrap_or_default();
        if !limits.is_empty() {
            fill(resources, "requests", json!({}));
            limits.into_iter().for_each(|(name, value)| fill(&mut resources["requests"], &name, value));
        }
    }
    each(&mut container["ports"], |port| fill(port, "protocol", json!("TCP")));
    each(&mut container["env"], |env| {
        if let Some(field) = env.get_mut("valueFrom").and_then(|from| from.get_mut("fieldRef")) {
            fill(field, "apiVersion", json!("v1"));
        }
        if let Some(field) = env.get_mut("valueFrom").and_then(|from| from.get_mut("resourceFieldRef")) {
            fill(field, "divisor", json!("0"));
        }
    });
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(value) = container.get_mut(name) {
            probe(value);
        }
    }
    remove_null(container, &["ports", "env"]);
}

/// Indexing for writing leaves nulls where nothing was.
fn remove_null(object: &mut Value, names: &[&str]) {
    if let Some(object) = object.as_object_mut() {
        for name in names {
            if object.get(*name).is_some_and(Value::is_null) {
                object.shift_remove(*name);
            }
        }
    }
}

/// Defaults of a pod's specification.
pub fn pod_spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    for list in ["containers", "initContainers"] {
        if let Some(list) = spec.get_mut(list) {
            each(list, container);
        }
    }
    if let Some(volumes) = spec.get_mut("volumes") {
        each(volumes, |volume| {
            for (source, field, mode) in [
                ("secret", "defaultMode", 420),
                ("configMap", "defaultMode", 420),
                ("projected", "defaultMode", 420),
                ("downwardAPI", "defaultMode", 420),
            ] {
                if let Some(source) = volume.get_mut(source) {
                    fill(source, field, json!(mode));
                }
            }
        });
    }
    if let Some(account) = spec.get("serviceAccountName").cloned() {
        fill(spec, "serviceAccount", account);
    }
    fill(spec, "restartPolicy", json!("Always"));
    fill(spec, "terminationGracePeriodSeconds", json!(30));
    fill(spec, "dnsPolicy", json!("ClusterFirst"));
    fill(spec, "securityContext", json!({}));
    fill(spec, "schedulerName", json!("default-scheduler"));
}

/// Defaults of an object of a built-in kind, before it is stored.
pub fn apply(kind: &str, object: &mut Value) {
    drop_nulls(object);
    match kind {
        "Namespace" => {
            let name = object["metadata"]["name"].clone();
            fill(&mut object["metadata"], "labels", json!({}));
            fill(&mut object["metadata"]["labels"], "kubernetes.io/metadata.name", name);
            fill(object, "spec", json!({}));
            fill(object, "status", json!({"phase": "Active"}));
        }
        "Secret" => {
            fill(object, "type", json!("Opaque"));
            let plain = object.as_object_mut().and_then(|object| object.shift_remove("stringData"));
            if let Some(Value::Object(plain)) = plain {
                fill(object, "data", json!({}));
                for (name, value) in plain {
                    object["data"][name] = json!(STANDARD.encode(value.as_str().unwrap_or_default()));
                }
            }
        }
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" => {
            workload(kind, object);
        }
        "Job" => {
            if let Some(spec) = object.get_mut("spec") {
                fill(spec, "completions", json!(1));
                fill(spec, "parallelism", json!(1));
                fill(spec, "backoffLimit", json!(6));
                fill(spec, "completionMode", json!("NonIndexed"));
                fill(spec, "suspend", json!(false));
                template(spec);
            }
        }
        "CronJob" => {
            if let Some(spec) = object.get_mut("spec") {
                fill(spec, "concurrencyPolicy", json!("Allow"));
                fill(spec, "suspend", json!(false));
                fill(spec, "successfulJobsHistoryLimit", json!(3));
                fill(spec, "failedJobsHistoryLimit", json!(1));
                if let Some(job) = spec.get_mut("jobTemplate").and_then(|job| job.get_mut("spec")) {
                    template(job);
                }
            }
        }
        "Pod" => {
            if let Some(spec) = object.get_mut("spec") {
                fill(spec, "serviceAccountName", json!("default"));
                pod_spec(spec);
                fill(spec, "enableServiceLinks", json!(true));
            }
            fill(object, "status", json!({"phase": "Pending"}));
        }
        "Service" => service(object),
        "NetworkPolicy" => {
            if let Some(spec) = object.get_mut("spec") {
                let egress = !spec["egress"].is_null();
                let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
                fill(spec, "policyTypes", types);
            }
        }
        "ResourceQuota" => {
            if let Some(spec) = object.get_mut("spec") {
                quantities(spec);
            }
        }
        "ClusterRoleBinding" | "RoleBinding" => {
            if let Some(role) = object.get_mut("roleRef") {
                fill(role, "apiGroup", json!("rbac.authorization.k8s.io"));
            }
            if let Some(subjects) = object.get_mut("subjects") {
                each(subjects, |subject| {
                    if subject["kind"] == "User" || subject["kind"] == "Group" {
                        fill(subject, "apiGroup", json!("rbac.authorization.k8s.io"));
                    }
                });
            }
        }
        "CustomResourceDefinition" => {
            if let Some(spec) = object.get_mut("spec") {
                fill(spec, "conversion", json!({"strategy": "None"}));
                if let Some(names) = spec.get_mut("names") {
                    let kind = names["kind"].as_str().unwrap_or_default().to_owned();
                    fill(names, "listKind", json!(format!("{kind}List")));
                    fill(names, "singular", json!(kind.to_lowercase()));
                }
            }
        }
        "PersistentVolumeClaim" => {
            if let Some(spec) = object.get_mut("spec") {
                fill(spec, "volumeMode", json!("Filesystem"));
                if let Some(resources) = spec.get_mut("resources") {
                    quantities(resources);
                }
            }
        }
        "PriorityClass" => fill(object, "preemptionPolicy", json!("PreemptLowerPriority")),
        _ => {}
    }
}

fn template(spec: &mut Value) {
    if let Some(template) = spec.get_mut("template").and_then(|template| template.get_mut("spec")) {
        pod_spec(template);
    }
}

fn workload(kind: &str, object: &mut Value) {
    let Some(spec) = object.get_mut("spec") else { return };
    if kind != "DaemonSet" {
        fill(spec, "replicas", json!(1));
    }
    if kind != "ReplicaSet" {
        fill(spec, "revisionHistoryLimit", json!(10));
    }
    match kind {
        "Deployment" => {
            fill(spec, "progressDeadlineSeconds", json!(600));
            fill(spec, "strategy", json!({}));
            fill(&mut spec["strategy"], "type", json!("RollingUpdate"));
            if spec["strategy"]["type"] == "RollingUpdate" {
                fill(&mut spec["strategy"], "rollingUpdate", json!({}));
                fill(&mut spec["strategy"]["rollingUpdate"], "maxUnavailable", json!("25%"));
                fill(&mut spec["strategy"]["rollingUpdate"], "maxSurge", json!("25%"));
            }
        }
        "StatefulSet" => {
            fill(spec, "podManagementPolicy", json!("OrderedReady"));
            fill(spec, "serviceName", json!(""));
            fill(spec, "updateStrategy", json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
        }
        "DaemonSet" => {
            let strategy =
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}});
            fill(spec, "updateStrategy", strategy);
        }
        _ => {}
    }
    template(spec);
}

fn service(object: &mut Value) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    let Some(spec) = object.get_mut("spec") else { return };
    fill(spec, "type", json!("ClusterIP"));
    fill(spec, "sessionAffinity", json!("None"));
    fill(spec, "internalTrafficPolicy", json!("Cluster"));
    if spec["type"] != "ExternalName" {
        // A stable address out of the service range, so that a dry run and the real call agree.
        let sum = name
            .bytes()
            .chain(namespace.bytes())
            .fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let address = format!("172.20.{}.{}", sum / 254 % 254 + 1, sum % 254 + 1);
        fill(spec, "clusterIP", json!(address));
        let address = spec["clusterIP"].clone();
        fill(spec, "clusterIPs", json!([address]));
        fill(spec, "ipFamilies", json!(["IPv4"]));
        fill(spec, "ipFamilyPolicy", json!("SingleStack"));
    }
    if let Some(ports) = spec.get_mut("ports") {
        each(ports, |port| {
            fill(port, "protocol", json!("TCP"));
            let number = port["port"].clone();
            fill(port, "targetPort", number);
        });
    }
    fill(object, "status", json!({"loadBalancer": {}}));
}

/// What is wrong with an object of a built-in kind.
pub fn validate(kind: &str, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut out = Vec::new();
    let spec = &object["spec"];
    let immutable = |path: &str, out: &mut Vec<Cause>| {
        let at = |object: &Value| path.split('.').fold(object.clone(), |value, name| value[name].clone());
        if let Some(old) = old
            && at(old) != at(object)
        {
            out.push(Cause::invalid(path, &at(object), "field is immutable"));
        }
    };
    match kind {
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
            if spec["selector"].as_object().is_none_or(Map::is_empty) {
                out.push(Cause::required("spec.selector", ""));
            } else if !super::selector::fits(&spec["selector"], &spec["template"]["metadata"]["labels"]) {
                let labels = &spec["template"]["metadata"]["labels"];
                let why = "`selector` does not match template `labels`";
                out.push(Cause::invalid("spec.template.metadata.labels", labels, why));
            }
            containers(&spec["template"]["spec"], "spec.template.spec", &mut out);
            immutable("spec.selector", &mut out);
        }
        "Pod" => containers(spec, "spec", &mut out),
        "ClusterRoleBinding" | "RoleBinding" => {
            if object["roleRef"]["name"].as_str().is_none_or(str::is_empty) {
                out.push(Cause::required("roleRef.name", ""));
            }
            if let Some(old) = old
                && old["roleRef"] != object["roleRef"]
            {
                out.push(Cause::invalid("roleRef", &object["roleRef"], "cannot change roleRef"));
            }
        }
        "Secret" => {
            immutable("type", &mut out);
            for (name, value) in object["data"].as_object().into_iter().flatten() {
                if value.as_str().is_none_or(|text| STANDARD.decode(text).is_err()) {
                    let field = format!("data[{name}]");
                    out.push(Cause::invalid(&field, &json!("…"), "must be base64"));
                }
            }
        }
        "Service"
            if spec["ports"].as_array().is_none_or(Vec::is_empty)
                && spec["type"] != "ExternalName"
                && spec["clusterIP"] != "None" =>
        {
            out.push(Cause::required("spec.ports", ""));
        }
        "CustomResourceDefinition" => {
            let part = |path: &Value| path.as_str().unwrap_or_default().to_owned();
            let wanted = format!("{}.{}", part(&spec["names"]["plural"]), part(&spec["group"]));
            let name = &object["metadata"]["name"];
            if *name != wanted.as_str() {
                let why = "must be spec.names.plural+\".\"+spec.group";
                out.push(Cause::invalid("metadata.name", name, why));
            }
            if spec["versions"].as_array().is_none_or(Vec::is_empty) {
                out.push(Cause::required("spec.versions", ""));
            }
            immutable("spec.scope", &mut out);
        }
        _ => {}
    }
    out
}

fn containers(spec: &Value, path: &str, out: &mut Vec<Cause>) {
    let list = spec["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    if list.is_empty() {
        out.push(Cause::required(&format!("{path}.containers"), ""));
    }
    for (index, container) in list.iter().enumerate() {
        for field in ["name", "image"] {
            if container[field].as_str().is_none_or(str::is_empty) {
                out.push(Cause::required(&format!("{path}.containers[{index}].{field}"), ""));
            }
        }
        for (name, limit) in container["resources"]["limits"].as_object().into_iter().flatten() {
            let request = &container["resources"]["requests"][name];
            let number =
                |value: &Value| value.as_str().and_then(super::quantity::parse).map(|(nano, _)| nano);
            if let (Some(request_nano), Some(limit_nano)) = (number(request), number(limit))
                && request_nano > limit_nano
            {
                let field = format!("{path}.containers[{index}].resources.requests");
                let why = format!(
                    "must be less than or equal to {name} limit of {}",
                    limit.as_str().unwrap_or_default()
                );
                out.push(Cause::invalid(&field, request, &why));
            }
        }
    }
}
