//! A small kustomize: as much as repositories need that Flux applies.
//!
//! It knows resources (files and folders), components, patches, namespace, names, labels,
//! annotations, images, replicas and generators. What it doesn't know it refuses by name instead of
//! leaving it out. Like kustomize-controller it makes up a kustomization for a folder without one.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::cluster::split_version;
use super::{patch, schema, selector};

type Result<T> = std::result::Result<T, String>;

const FILES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

const KNOWN: [&str; 25] = [
    "apiVersion",
    "kind",
    "metadata",
    "resources",
    "bases",
    "components",
    "patches",
    "patchesStrategicMerge",
    "patchesJson6902",
    "namespace",
    "namePrefix",
    "nameSuffix",
    "labels",
    "commonLabels",
    "commonAnnotations",
    "images",
    "replicas",
    "configMapGenerator",
    "secretGenerator",
    "generatorOptions",
    "sortOptions",
    "buildMetadata",
    "crds",
    "configurations",
    "openapi",
];

/// What a Flux Kustomization adds to the build.
#[derive(Debug, Clone, Default)]
pub struct Additions {
    /// `spec.targetNamespace`
    pub namespace: Option<String>,
    /// `spec.patches`
    pub patches: Vec<Value>,
    /// `spec.images`
    pub images: Vec<Value>,
    /// `spec.components`
    pub components: Vec<Value>,
    /// `spec.namePrefix`
    pub prefix: Option<String>,
    /// `spec.nameSuffix`
    pub suffix: Option<String>,
    /// Kinds that live in no namespace.
    pub cluster_kinds: Vec<String>,
}

/// Builds a folder of an artifact. Errors read as kustomize-controller's do.
pub fn build(root: &Path, folder: &Path, additions: &Additions) -> Result<Vec<Value>> {
    let mut kustomization = match find(folder) {
        Some(file) => {
            read_kustomization(root, &file).map_err(|text| format!("kustomize build failed: {text}"))?
        }
        None => generate(root, folder)?,
    };
    let extend = |kustomization: &mut Value, field: &str, more: &[Value]| {
        if !more.is_empty() {
            let mut list = kustomization[field].as_array().cloned().unwrap_or_default();
            list.extend(more.iter().cloned());
            kustomization[field] = Value::Array(list);
        }
    };
    extend(&mut kustomization, "patches", &additions.patches);
    extend(&mut kustomization, "images", &additions.images);
    extend(&mut kustomization, "components", &additions.components);
    for (field, value) in [
        ("namespace", &additions.namespace),
        ("namePrefix", &additions.prefix),
        ("nameSuffix", &additions.suffix),
    ] {
        if let Some(value) = value {
            kustomization[field] = json!(value);
        }
    }
    let mut builder = Builder { root, cluster_kinds: &additions.cluster_kinds, depth: 0 };
    let objects =
        builder.run(folder, &kustomization).map_err(|text| format!("kustomize build failed: {text}"))?;
    for object in &objects {
        let empty = |value: &Value| value.as_str().is_none_or(str::is_empty);
        if empty(&object["apiVersion"]) || empty(&object["kind"]) || empty(&object["metadata"]["name"]) {
            return Err(format!("failed to decode Kubernetes apiVersion, kind and name from: {object}"));
        }
    }
    Ok(objects)
}

fn find(folder: &Path) -> Option<PathBuf> {
    FILES.iter().map(|name| folder.join(name)).find(|file| file.is_file())
}

/// Where a file lies in the artifact, for messages.
fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

fn read_text(root: &Path, file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("open {}: no such file or directory", shown(root, file)),
        _ => format!("open {}: {error}", shown(root, file)),
    })
}

/// The documents of a YAML file.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    for document in serde_norway::Deserializer::from_str(text) {
        let value =
            Value::deserialize(document).map_err(|error| format!("MalformedYAMLError: yaml: {error}"))?;
        match value {
            Value::Null => {}
            Value::Object(ref object) if object.is_empty() => {}
            value
                if value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"))
                    && value["items"].is_array() =>
            {
                out.extend(value["items"].as_array().cloned().unwrap_or_default());
            }
            value => out.push(value),
        }
    }
    Ok(out)
}

fn read_kustomization(root: &Path, file: &Path) -> Result<Value> {
    let mut all = documents(&read_text(root, file)?)?;
    if all.len() != 1 {
        return Err(format!(
            "{} is empty",
            file.file_name().and_then(|name| name.to_str()).unwrap_or("kustomization.yaml")
        ));
    }
    let kustomization = all.remove(0);
    let Some(object) = kustomization.as_object() else {
        return Err(
            "invalid Kustomization: json: cannot unmarshal into Go value of type types.Kustomization"
                .to_owned(),
        );
    };
    if let Some(name) = object.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(format!(
            "invalid Kustomization: json: unknown field {name:?} (the sandbox's own build knows no {name})"
        ));
    }
    Ok(kustomization)
}

/// A kustomization of every manifest below a folder, as kustomize-controller generates one.
fn generate(root: &Path, folder: &Path) -> Result<Value> {
    let mut resources = Vec::new();
    scan(root, folder, folder, &mut resources)?;
    Ok(
        json!({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources}),
    )
}

fn scan(root: &Path, top: &Path, folder: &Path, resources: &mut Vec<String>) -> Result<()> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", shown(root, folder)))?;
    let mut paths: Vec<PathBuf> =
        entries.filter_map(std::result::Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let relative = shown(top, &path);
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name == ".git") {
                continue;
            }
            // A folder with a kustomization of its own is taken as a whole.
            if find(&path).is_some() {
                resources.push(relative);
            } else {
                scan(root, top, &path, resources)?;
            }
            continue;
        }
        if !matches!(path.extension().and_then(|ext| ext.to_str()), Some("yaml" | "yml")) {
            continue;
        }
        let decode =
            |text: String| format!("failed to decode Kubernetes YAML from {}: {text}", shown(root, &path));
        let all = documents(&read_text(root, &path)?).map_err(decode)?;
        if let Some(bad) = all.iter().find(|value| value["kind"].is_null() || value["apiVersion"].is_null()) {
            let field = if bad["kind"].is_null() { "kind" } else { "apiVersion" };
            return Err(decode(format!("missing Resource metadata: {field}")));
        }
        resources.push(relative);
    }
    Ok(())
}

struct Builder<'a> {
    root: &'a Path,
    cluster_kinds: &'a [String],
    depth: usize,
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// What makes an object unique in a build.
fn id(object: &Value) -> (String, String, String, String) {
    let (group, _) = split_version(text(object, "apiVersion"));
    let meta = &object["metadata"];
    (
        group.to_owned(),
        text(object, "kind").to_owned(),
        text(meta, "namespace").to_owned(),
        text(meta, "name").to_owned(),
    )
}

impl Builder<'_> {
    /// A path in the artifact; never one outside it.
    fn resolve(&self, folder: &Path, relative: &str) -> Result<PathBuf> {
        let mut out = folder.to_path_buf();
        for part in Path::new(relative).components() {
            match part {
                Component::Normal(name) => out.push(name),
                Component::ParentDir => {
                    out.pop();
                }
                Component::CurDir => {}
                Component::RootDir | Component::Prefix(_) => {
                    return Err(format!("'{relative}' must be a relative path"));
                }
            }
        }
        if out.starts_with(self.root) {
            Ok(out)
        } else {
            Err(format!("security; file '{relative}' is not in or below '{}'", shown(self.root, folder)))
        }
    }

    fn run(&mut self, folder: &Path, kustomization: &Value) -> Result<Vec<Value>> {
        self.depth += 1;
        if self.depth > 50 {
            return Err(format!("cycle detected at '{}'", shown(self.root, folder)));
        }
        let mut objects = Vec::new();
        for entry in list(kustomization, "resources").chain(list(kustomization, "bases")) {
            let entry = entry.as_str().unwrap_or_default();
            let more = self.resource(folder, entry)?;
            add(&mut objects, more, entry)?;
        }
        for (field, kind) in [("configMapGenerator", "ConfigMap"), ("secretGenerator", "Secret")] {
            for spec in list(kustomization, field) {
                let made = self.generated(folder, kustomization, spec, kind)?;
                let name = text(&made, "kind").to_owned();
                add(&mut objects, vec![made], &name)?;
            }
        }
        for component in list(kustomization, "components") {
            let path = self.resolve(folder, component.as_str().unwrap_or_default())?;
            let file = find(&path).ok_or_else(|| {
                format!("accumulating components: unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{}'", shown(self.root, &path))
            })?;
            let inner = read_kustomization(self.root, &file)?;
            let more = self.run(&path, &json!({"resources": inner["resources"]}))?;
            add(&mut objects, more, "component")?;
            self.transform(&path, &inner, &mut objects)?;
        }
        self.transform(folder, kustomization, &mut objects)?;
        self.depth -= 1;
        Ok(objects)
    }

    fn resource(&mut self, folder: &Path, entry: &str) -> Result<Vec<Value>> {
        if entry.contains("://") || entry.starts_with("git@") || entry.starts_with("github.com/") {
            return Err(format!(
                "accumulating resources: '{entry}' is remote, and the sandbox's own build fetches nothing"
            ));
        }
        let wrap = |text: String| {
            format!(
                "accumulating resources: accumulation err='accumulating resources from '{entry}': {text}'"
            )
        };
        let path = self.resolve(folder, entry).map_err(wrap)?;
        if path.is_dir() {
            let file = find(&path).ok_or_else(|| {
                format!(
                    "accumulating resources: accumulation err='accumulating resources from '{entry}': read {0}: is a directory': couldn't make target for path '{0}': unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{0}'",
                    shown(self.root, &path)
                )
            })?;
            let inner = read_kustomization(self.root, &file).map_err(wrap)?;
            return self.run(&path, &inner).map_err(wrap);
        }
        let objects = documents(&read_text(self.root, &path).map_err(wrap)?)
            .map_err(|text| wrap(format!("{text} in File: {entry}")))?;
        // The kustomization of a folder is no resource of it.
        Ok(objects
            .into_iter()
            .filter(|object| !text(object, "apiVersion").starts_with("kustomize.config.k8s.io"))
            .collect())
    }

    fn generated(&self, folder: &Path, kustomization: &Value, spec: &Value, kind: &str) -> Result<Value> {
        let mut data: BTreeMap<String, String> = BTreeMap::new();
        let pair = |line: &str| {
            let (name, value) = line.split_once('=')?;
            Some((name.trim().to_owned(), value.trim_matches(['"', '\'']).to_owned()))
        };
        for literal in list(spec, "literals").filter_map(Value::as_str) {
            data.extend(pair(literal));
        }
        for entry in list(spec, "files").filter_map(Value::as_str) {
            let (name, file) =
                entry.split_once('=').unwrap_or_else(|| (entry.rsplit('/').next().unwrap_or(entry), entry));
            let content = read_text(self.root, &self.resolve(folder, file)?)?;
            data.insert(name.to_owned(), content);
        }
        for file in list(spec, "envs").filter_map(Value::as_str) {
            let content = read_text(self.root, &self.resolve(folder, file)?)?;
            data.extend(content.lines().filter(|line| !line.trim_start().starts_with('#')).filter_map(pair));
        }
        let options = &kustomization["generatorOptions"];
        let plain =
            options["disableNameSuffixHash"] == true || spec["options"]["disableNameSuffixHash"] == true;
        let encode = |value: &String| if kind == "Secret" { STANDARD.encode(value) } else { value.clone() };
        let data: Map<String, Value> =
            data.iter().map(|(name, value)| (name.clone(), json!(encode(value)))).collect();
        let mut name = text(spec, "name").to_owned();
        if !plain {
            let content = Value::Object(data.clone()).to_string();
            let sum = content.bytes().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
                (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            name = format!("{name}-{}", letters(sum));
        }
        let mut made = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": data});
        if !text(spec, "namespace").is_empty() {
            made["metadata"]["namespace"] = spec["namespace"].clone();
        }
        if kind == "Secret" {
            made["type"] = json!(spec["type"].as_str().unwrap_or("Opaque"));
        }
        if !plain {
            // References are looked up by this name and get the new one.
            made["metadata"]["annotations"] = json!({GENERATED: spec["name"]});
        }
        Ok(made)
    }

    fn transform(&self, folder: &Path, kustomization: &Value, objects: &mut Vec<Value>) -> Result<()> {
        for spec in list(kustomization, "patches") {
            let content = match spec["patch"].as_str() {
                Some(inline) => inline.to_owned(),
                None => {
                    let file = self.resolve(folder, text(spec, "path"))?;
                    read_text(self.root, &file)?
                }
            };
            apply_patch(objects, &content, &spec["target"], spec["options"]["allowNameChange"] == true)?;
        }
        for entry in list(kustomization, "patchesStrategicMerge").filter_map(Value::as_str) {
            let content = if entry.contains('\n') {
                entry.to_owned()
            } else {
                read_text(self.root, &self.resolve(folder, entry)?)?
            };
            apply_patch(objects, &content, &Value::Null, false)?;
        }
        for spec in list(kustomization, "patchesJson6902") {
            let content = match spec["patch"].as_str() {
                Some(inline) => inline.to_owned(),
                None => read_text(self.root, &self.resolve(folder, text(spec, "path"))?)?,
            };
            apply_patch(objects, &content, &spec["target"], false)?;
        }
        if let Some(namespace) = kustomization["namespace"].as_str().filter(|name| !name.is_empty()) {
            self.set_namespace(objects, namespace);
        }
        rename(objects, text(kustomization, "namePrefix"), text(kustomization, "nameSuffix"));
        references(objects);
        for object in objects.iter_mut() {
            for (field, value) in kustomization["commonAnnotations"].as_object().into_iter().flatten() {
                put(&mut object["metadata"], "annotations", field, value);
                if object["spec"]["template"].is_object() {
                    put(&mut object["spec"]["template"]["metadata"], "annotations", field, value);
                }
            }
            for (field, value) in kustomization["commonLabels"].as_object().into_iter().flatten() {
                label(object, field, value, true, true);
            }
            for labels in list(kustomization, "labels") {
                let selectors = labels["includeSelectors"] == true;
                let templates = selectors || labels["includeTemplates"] == true;
                for (field, value) in labels["pairs"].as_object().into_iter().flatten() {
                    label(object, field, value, selectors, templates);
                }
            }
            for image in list(kustomization, "images") {
                set_image(object, image);
            }
            for replicas in list(kustomization, "replicas") {
                let scaled = matches!(text(object, "kind"), "Deployment" | "StatefulSet" | "ReplicaSet");
                if scaled && object["metadata"]["name"] == replicas["name"] {
                    object["spec"]["replicas"] = replicas["count"].clone();
                }
            }
        }
        Ok(())
    }

    fn set_namespace(&self, objects: &mut [Value], namespace: &str) {
        let accounts: Vec<Value> = objects
            .iter()
            .filter(|object| object["kind"] == "ServiceAccount")
            .map(|object| object["metadata"]["name"].clone())
            .collect();
        for object in objects {
            let kind = text(object, "kind").to_owned();
            if kind == "Namespace" {
                object["metadata"]["name"] = json!(namespace);
            } else if !self.cluster_kinds.contains(&kind) {
                object["metadata"]["namespace"] = json!(namespace);
            }
            if matches!(kind.as_str(), "RoleBinding" | "ClusterRoleBinding") {
                for subject in object["subjects"].as_array_mut().into_iter().flatten() {
                    if subject["kind"] == "ServiceAccount" && accounts.contains(&subject["name"]) {
                        subject["namespace"] = json!(namespace);
                    }
                }
            }
        }
    }
}

/// Marks a generated object until references to it are set; never leaves the build.
const GENERATED: &str = "sandbox.internal/generated-from";

fn letters(sum: u64) -> String {
    const LETTERS: &[u8] = b"bcdfghkmt245678";
    (0..10).map(|at| char::from(LETTERS[(sum >> (at * 6)) as usize % LETTERS.len()])).collect()
}

fn add(objects: &mut Vec<Value>, more: Vec<Value>, source: &str) -> Result<()> {
    for object in more {
        let unique = id(&object);
        if objects.iter().any(|other| id(other) == unique) {
            let (group, version) = split_version(text(&object, "apiVersion"));
            let space = if unique.2.is_empty() { "[noNs]".to_owned() } else { unique.2.clone() };
            return Err(format!(
                "accumulating resources: accumulation err='merging resources from '{source}': may not add resource with an already registered id: {}.{version}.{}/{}.{space}'",
                unique.1,
                if group.is_empty() { "[noGrp]" } else { group },
                unique.3
            ));
        }
        objects.push(object);
    }
    Ok(())
}

fn put(holder: &mut Value, part: &str, field: &str, value: &Value) {
    if !holder.is_object() {
        *holder = json!({});
    }
    if !holder[part].is_object() {
        holder[part] = json!({});
    }
    holder[part][field] = value.clone();
}

fn label(object: &mut Value, field: &str, value: &Value, selectors: bool, templates: bool) {
    put(&mut object["metadata"], "labels", field, value);
    if templates && object["spec"]["template"].is_object() {
        put(&mut object["spec"]["template"]["metadata"], "labels", field, value);
    }
    if selectors {
        match text(object, "kind") {
            "Service" if object["spec"]["selector"].is_object() => {
                object["spec"]["selector"][field] = value.clone()
            }
            "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" => {
                put(&mut object["spec"]["selector"], "matchLabels", field, value);
            }
            _ => {}
        }
    }
}

fn rename(objects: &mut [Value], prefix: &str, suffix: &str) {
    if prefix.is_empty() && suffix.is_empty() {
        return;
    }
    let mut names: BTreeMap<(String, String), String> = BTreeMap::new();
    for object in objects.iter_mut() {
        let kind = text(object, "kind").to_owned();
        if matches!(kind.as_str(), "Namespace" | "CustomResourceDefinition") {
            continue;
        }
        let old = text(&object["metadata"], "name").to_owned();
        let new = format!("{prefix}{old}{suffix}");
        object["metadata"]["name"] = json!(new);
        names.insert((kind, old), new);
    }
    for object in objects {
        refer(object, &|kind, name| names.get(&(kind.to_owned(), name.to_owned())).cloned());
    }
}

/// Gives references to generated objects their new names.
fn references(objects: &mut [Value]) {
    let mut names: BTreeMap<(String, String), String> = BTreeMap::new();
    for object in objects.iter_mut() {
        let Some(annotations) = object["metadata"]["annotations"].as_object_mut() else {
            remove_null(&mut object["metadata"], "annotations");
            continue;
        };
        let from = annotations.shift_remove(GENERATED);
        let empty = annotations.is_empty();
        if let Some(from) = from.as_ref().and_then(Value::as_str) {
            let key = (text(object, "kind").to_owned(), from.to_owned());
            names.insert(key, text(&object["metadata"], "name").to_owned());
        }
        if empty && let Some(meta) = object["metadata"].as_object_mut() {
            meta.shift_remove("annotations");
        }
    }
    if !names.is_empty() {
        for object in objects {
            refer(object, &|kind, name| names.get(&(kind.to_owned(), name.to_owned())).cloned());
        }
    }
}

fn remove_null(holder: &mut Value, field: &str) {
    if let Some(holder) = holder.as_object_mut()
        && holder.get(field).is_some_and(Value::is_null)
    {
        holder.shift_remove(field);
    }
}

/// Walks the places of an object that name ConfigMaps, Secrets, accounts and roles.
fn refer(value: &mut Value, new: &dyn Fn(&str, &str) -> Option<String>) {
    match value {
        Value::Object(object) => {
            for (field, child) in object.iter_mut() {
                let named = match field.as_str() {
                    "configMapRef" | "configMapKeyRef" | "configMap" => Some(("ConfigMap", "name")),
                    "secretRef" | "secretKeyRef" => Some(("Secret", "name")),
                    "secret" => Some(("Secret", "secretName")),
                    _ => None,
                };
                if let Some((kind, at)) = named
                    && let Some(name) = child[at].as_str().and_then(|name| new(kind, name))
                {
                    child[at] = json!(name);
                }
                if field == "serviceAccountName"
                    && let Some(name) = child.as_str().and_then(|name| new("ServiceAccount", name))
                {
                    *child = json!(name);
                }
                if matches!(field.as_str(), "roleRef" | "scaleTargetRef")
                    && let Some(name) = child["kind"]
                        .as_str()
                        .zip(child["name"].as_str())
                        .and_then(|(kind, name)| new(kind, name))
                {
                    child["name"] = json!(name);
                }
                refer(child, new);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| refer(item, new)),
        _ => {}
    }
}

fn set_image(value: &mut Value, image: &Value) {
    match value {
        Value::Object(object) => {
            for (field, child) in object.iter_mut() {
                if matches!(field.as_str(), "containers" | "initContainers") {
                    for container in child.as_array_mut().into_iter().flatten() {
                        if let Some(new) = container["image"].as_str().and_then(|old| new_image(old, image)) {
                            container["image"] = json!(new);
                        }
                    }
                } else {
                    set_image(child, image);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| set_image(item, image)),
        _ => {}
    }
}

fn new_image(old: &str, image: &Value) -> Option<String> {
    let (rest, digest) = old.split_once('@').map_or((old, None), |(rest, digest)| (rest, Some(digest)));
    let split = rest.rfind(':').filter(|at| !rest[*at..].contains('/'));
    let (name, tag) = split.map_or((rest, None), |at| (&rest[..at], Some(&rest[at + 1..])));
    if name != text(image, "name") {
        return None;
    }
    let name = image["newName"].as_str().unwrap_or(name);
    let new_tag = match &image["newTag"] {
        Value::String(tag) => Some(tag.clone()),
        Value::Number(tag) => Some(tag.to_string()),
        _ => None,
    };
    Some(match (image["digest"].as_str(), new_tag) {
        (Some(digest), _) => format!("{name}@{digest}"),
        (None, Some(tag)) => format!("{name}:{tag}"),
        (None, None) => match (digest, tag) {
            (Some(digest), _) => format!("{name}@{digest}"),
            (None, Some(tag)) => format!("{name}:{tag}"),
            (None, None) => name.to_owned(),
        },
    })
}

/// Whether a patch's target fits an object; names and kinds are anchored regular expressions.
fn targets(target: &Value, object: &Value) -> bool {
    let fits = |field: &str, value: &str| {
        let pattern = text(target, field);
        pattern.is_empty()
            || regex_lite::Regex::new(&format!("^(?:{pattern})$"))
                .is_ok_and(|pattern| pattern.is_match(value))
    };
    let (group, version) = split_version(text(object, "apiVersion"));
    let meta = &object["metadata"];
    let chosen = |field: &str, labels: &Value| {
        let selector = text(target, field);
        selector::Selector::parse(selector, "")
            .is_ok_and(|selector| selector.matches(&json!({"metadata": {"labels": labels}})))
    };
    fits("group", group)
        && fits("version", version)
        && fits("kind", text(object, "kind"))
        && fits("name", text(meta, "name"))
        && fits("namespace", text(meta, "namespace"))
        && chosen("labelSelector", &meta["labels"])
        && chosen("annotationSelector", &meta["annotations"])
}

fn apply_patch(objects: &mut Vec<Value>, content: &str, target: &Value, may_rename: bool) -> Result<()> {
    let all = documents(content)?;
    // A list is a JSON patch, anything else a strategic merge patch.
    if let [patch @ Value::Array(_)] = &all[..] {
        for object in objects.iter_mut().filter(|object| targets(target, object)) {
            *object = patch::json(object, patch).map_err(|failure| failure.message)?;
        }
        return Ok(());
    }
    for patch in &all {
        let own = |object: &Value| {
            let (group, kind, space, name) = id(patch);
            let (have_group, have_kind, have_space, have_name) = id(object);
            (group, kind, name) == (have_group, have_kind, have_name)
                && (space.is_empty() || space == have_space)
        };
        let chosen: Vec<bool> = objects
            .iter()
            .map(|object| if target.is_object() { targets(target, object) } else { own(object) })
            .collect();
        if !target.is_object() && !chosen.contains(&true) {
            let (_, kind, _, name) = id(patch);
            let (group, version) = split_version(text(patch, "apiVersion"));
            return Err(format!(
                "no resource matches strategic merge patch \"{kind}.{version}.{}/{name}.[noNs]\": no matches for Id {kind}.{version}.{}/{name}.[noNs]; failed to find unique target for patch",
                if group.is_empty() { "[noGrp]" } else { group },
                if group.is_empty() { "[noGrp]" } else { group },
            ));
        }
        let mut out = Vec::with_capacity(objects.len());
        for (object, chosen) in objects.drain(..).zip(chosen) {
            if !chosen {
                out.push(object);
                continue;
            }
            if patch["$patch"] == "delete" {
                continue;
            }
            let known = schema::builtin(text(&object, "kind"));
            let mut new = patch::strategic(&object, patch, &known).map_err(|failure| failure.message)?;
            // A patch with a target names whatever it likes; what it hits keeps its identity.
            if !may_rename {
                new["metadata"]["name"] = object["metadata"]["name"].clone();
                new["kind"] = object["kind"].clone();
                new["apiVersion"] = object["apiVersion"].clone();
            }
            out.push(new);
        }
        *objects = out;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        folder
    }

    fn run(files: &[(&str, &str)], additions: &Additions) -> Result<Vec<Value>> {
        let folder = folder(files);
        build(folder.path(), &folder.path().join("app"), additions)
    }

    const DEPLOYMENT: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, labels: {part: a}}\nspec:\n  template:\n    spec:\n      containers:\n      - {name: main, image: 'nginx:1'}\n      - {name: side, image: side}\n";

    #[test]
    fn folders_without_a_kustomization_get_one() {
        let built = run(
            &[
                ("app/b.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n---\n---\n"),
                ("app/sub/a.yml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"),
                ("app/own/kustomization.yaml", "resources: [c.yaml]\nnamespace: there\n"),
                ("app/own/c.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n"),
                ("app/own/ignored.yaml", "not: a manifest\n"),
                ("app/.gitkeep", ""),
                ("app/readme.md", "# Hello"),
            ],
            &Additions::default(),
        )
        .unwrap();
        let names: Vec<&str> = built.iter().map(|object| text(&object["metadata"], "name")).collect();
        assert_eq!(names, ["b", "c", "a"]);
        assert_eq!(built[1]["metadata"]["namespace"], "there");
    }

    #[test]
    fn patches_images_labels_and_names() {
        let built = run(
            &[
                (
                    "app/kustomization.yaml",
                    "resources: [d.yaml]\nnamespace: ns\nnamePrefix: my-\nimages: [{name: nginx, newTag: '2'}]\nlabels: [{pairs: {x: y}, includeTemplates: true}]\npatches:\n- target: {kind: Deployment, labelSelector: part=a}\n  patch: |\n    - op: add\n      path: /spec/replicas\n      value: 3\n- patch: |\n    apiVersion: apps/v1\n    kind: Deployment\n    metadata: {name: web}\n    spec: {template: {spec: {containers: [{name: side, image: other}]}}}\n",
                ),
                ("app/d.yaml", DEPLOYMENT),
            ],
            &Additions::default(),
        )
        .unwrap();
        assert_eq!(
            built[0],
            json!({"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "my-web", "labels": {"part": "a", "x": "y"}, "namespace": "ns"},
                "spec": {"replicas": 3, "template": {"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [
                    {"name": "main", "image": "nginx:2"}, {"name": "side", "image": "other"}]}}}})
        );
    }

    #[test]
    fn generated_objects_are_referred_to() {
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, envFrom: [{configMapRef: {name: conf}}]}]}\n";
        let built = run(
            &[
                (
                    "app/kustomization.yaml",
                    "resources: [p.yaml]\nconfigMapGenerator: [{name: conf, literals: [a=b]}]\n",
                ),
                ("app/p.yaml", pod),
            ],
            &Additions::default(),
        )
        .unwrap();
        let name = text(&built[1]["metadata"], "name");
        assert!(name.starts_with("conf-"), "{name}");
        assert_eq!(built[0]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"], name);
        assert_eq!(built[1]["data"], json!({"a": "b"}));
        assert!(built[1]["metadata"].get("annotations").is_none());
    }

    #[test]
    fn errors_name_the_place() {
        let twice = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        for (files, expected) in [
            (
                vec![("app/kustomization.yaml", "resources: [no.yaml]")],
                "kustomize build failed: accumulating resources: accumulation err='accumulating resources from 'no.yaml': open app/no.yaml: no such file or directory'",
            ),
            (
                vec![
                    ("app/kustomization.yaml", "resources: [a.yaml, b.yaml]"),
                    ("app/a.yaml", twice),
                    ("app/b.yaml", twice),
                ],
                "kustomize build failed: accumulating resources: accumulation err='merging resources from 'b.yaml': may not add resource with an already registered id: ConfigMap.v1.[noGrp]/a.[noNs]'",
            ),
            (
                vec![("app/x.yaml", "a: b\n")],
                "failed to decode Kubernetes YAML from app/x.yaml: missing Resource metadata: kind",
            ),
            (
                vec![("app/kustomization.yaml", "resources: [../../etc/passwd]")],
                "kustomize build failed: accumulating resources: accumulation err='accumulating resources from '../../etc/passwd': security; file '../../etc/passwd' is not in or below 'app''",
            ),
            (
                vec![("app/kustomization.yaml", "helmCharts: []")],
                "kustomize build failed: invalid Kustomization: json: unknown field \"helmCharts\" (the sandbox's own build knows no helmCharts)",
            ),
        ] {
            assert_eq!(run(&files, &Additions::default()).unwrap_err(), expected);
        }
        assert!(
            run(&[("app/x.yaml", "a: b: c\n")], &Additions::default())
                .unwrap_err()
                .contains("MalformedYAMLError")
        );
    }
}
