//! Builds a folder with a `kustomization.yaml`, as far as a bootstrap needs.
//!
//! Resources, JSON 6902 and strategic-merge patches with targets, images, labels and annotations are
//! honoured as kustomize honours them, in its order. Whatever else a `kustomization.yaml` asks for
//! is not guessed but named in [`Built::left`]: kustomize-controller does it at its first run, from
//! the same file.

mod fields;
mod image;
mod merge;
mod selector;

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use step::{Result, StepError};

use crate::object;
use crate::yaml;

/// What came out of a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    /// The objects, in kustomize's order.
    pub objects: Vec<Value>,
    /// What else the file asks for, which is left to kustomize-controller.
    pub left: Vec<String>,
}

/// Builds `kustomization` (the text of `kustomization.yaml`) over the files beside it, whose names
/// are relative to its folder.
///
/// # Errors
/// `InvalidInput`, where the file or what it names cannot be read, or a patch does not apply; as
/// kustomize would refuse it, too.
pub fn build(kustomization: &str, files: &BTreeMap<String, String>) -> Result<Built> {
    let mut documents =
        yaml::read(kustomization).map_err(|error| refused(&format!("it is not YAML: {error}")))?;
    let root = match (documents.pop(), documents.is_empty()) {
        (Some(Value::Object(root)), true) => root,
        (None, _) => return Err(refused("it is empty")),
        _ => return Err(refused("it is not one YAML mapping")),
    };
    check_kind(&root)?;
    let mut build = Build { root, files, objects: Vec::new(), left: Vec::new() };
    build.note_unknown_fields();
    build.resources()?;
    build.patches("patchesStrategicMerge")?;
    build.patches("patches")?;
    build.labels()?;
    build.annotations()?;
    build.patches("patchesJson6902")?;
    build.images()?;
    Ok(Built { objects: build.objects, left: build.left })
}

/// Fields that are honoured, or say nothing about the objects.
const KNOWN: [&str; 12] = [
    "apiVersion",
    "kind",
    "metadata",
    "resources",
    "patches",
    "patchesStrategicMerge",
    "patchesJson6902",
    "images",
    "imageTags",
    "labels",
    "commonLabels",
    "commonAnnotations",
];

fn refused(what: &str) -> StepError {
    StepError::invalid_input(format!(
        "kustomization.yaml: {what}. Correct the file in the repository; `kubectl kustomize` shows what it builds"
    ))
}

fn check_kind(root: &Map<String, Value>) -> Result<()> {
    match root.get("kind").map(Value::as_str) {
        None | Some(Some("Kustomization")) => {}
        _ => return Err(refused("its kind is not Kustomization")),
    }
    let group = root.get("apiVersion").map(|version| version.as_str().unwrap_or_default());
    if group.is_some_and(|version| !version.starts_with("kustomize.config.k8s.io/")) {
        return Err(refused("its apiVersion is not kustomize.config.k8s.io's"));
    }
    Ok(())
}

struct Build<'a> {
    root: Map<String, Value>,
    files: &'a BTreeMap<String, String>,
    objects: Vec<Value>,
    left: Vec<String>,
}

/// One patch, read from the file or from beside it.
struct Patch {
    /// How it is named in errors.
    source: String,
    text: String,
    target: Option<Value>,
}

impl Build<'_> {
    fn note_unknown_fields(&mut self) {
        for (field, value) in &self.root {
            if !KNOWN.contains(&field.as_str()) && !is_empty(value) {
                self.left.push(field.clone());
            }
        }
    }

    /// The entries of a list field.
    fn list(&self, field: &str) -> Result<Vec<Value>> {
        match self.root.get(field) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => Ok(items.clone()),
            Some(_) => Err(refused(&format!("{field} is not a list"))),
        }
    }

    fn file(&self, path: &str) -> Option<&str> {
        let path = path.strip_prefix("./").unwrap_or(path);
        self.files.get(path).map(String::as_str)
    }

    fn resources(&mut self) -> Result<()> {
        for entry in self.list("resources")? {
            let path = entry.as_str().ok_or_else(|| refused("resources holds something that is no path"))?;
            let Some(text) = self.file(path) else {
                let last = path.rsplit('/').next().unwrap_or(path);
                let remote = path.contains("://") || path.contains('?') || path.starts_with("..");
                if !remote && [".yaml", ".yml", ".json"].iter().any(|end| last.ends_with(end)) {
                    return Err(refused(&format!("resources names {path}, which is not there")));
                }
                self.left.push(format!("resources: {path}"));
                continue;
            };
            for object in parse(path, text)? {
                self.add(path, object)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &str, object: Value) -> Result<()> {
        // A List stands for its items.
        if object::kind(&object).ends_with("List") && object["items"].is_array() {
            let items = object["items"].as_array().cloned().unwrap_or_default();
            return items.into_iter().try_for_each(|item| self.add(path, item));
        }
        if object::kind(&object).is_empty() || object::name(&object).is_empty() {
            return Err(refused(&format!("{path} holds something that is no Kubernetes object")));
        }
        if self.objects.iter().any(|other| same_id(other, &object)) {
            return Err(refused(&format!(
                "{path} has {} {} a second time",
                object::kind(&object),
                object::name(&object)
            )));
        }
        self.objects.push(object);
        Ok(())
    }

    fn patches(&mut self, field: &str) -> Result<()> {
        for (index, entry) in self.list(field)?.into_iter().enumerate() {
            let name = format!("{field}[{index}]");
            let Some(patch) = self.patch(&name, entry)? else { continue };
            self.apply(&patch)?;
        }
        Ok(())
    }

    /// `None` for a patch that asks for what is not honoured.
    fn patch(&mut self, name: &str, entry: Value) -> Result<Option<Patch>> {
        if let Value::String(text) = &entry {
            // An entry of patchesStrategicMerge is a path or the patch itself.
            let text = self.file(text).unwrap_or(text).to_owned();
            return Ok(Some(Patch { source: name.to_owned(), text, target: None }));
        }
        let options = entry["options"].as_object();
        if options.is_some_and(|options| options.values().any(is_true)) {
            self.left.push(format!("{name}: options"));
            return Ok(None);
        }
        let text = match (entry["patch"].as_str(), entry["path"].as_str()) {
            (Some(text), None) => text.to_owned(),
            (None, Some(path)) => self
                .file(path)
                .ok_or_else(|| refused(&format!("{name} names {path}, which is not there")))?
                .to_owned(),
            _ => return Err(refused(&format!("{name} needs either patch or path"))),
        };
        let target = entry.get("target").filter(|target| !target.is_null()).cloned();
        Ok(Some(Patch { source: name.to_owned(), text, target }))
    }

    fn apply(&mut self, patch: &Patch) -> Result<()> {
        let documents = yaml::read(&patch.text)
            .map_err(|error| refused(&format!("{}: it is not YAML: {error}", patch.source)))?;
        if let Some(Value::Array(operations)) = documents.first() {
            return self.apply_json(patch, operations);
        }
        if documents.is_empty() {
            return Err(refused(&format!("{} is empty", patch.source)));
        }
        if patch.target.is_some() && documents.len() > 1 {
            return Err(refused(&format!("{} has a target and more than one patch", patch.source)));
        }
        for document in &documents {
            if !document.is_object() {
                return Err(refused(&format!("{} is no patch", patch.source)));
            }
            let chosen = match &patch.target {
                Some(target) => self.selected(&patch.source, target)?,
                None => vec![self.named_by(&patch.source, document)?],
            };
            for index in chosen {
                let target = &mut self.objects[index];
                let merged = merge::strategic(target, document)
                    .map_err(|what| refused(&format!("{} on {}: {what}", patch.source, describe(target))))?;
                *target = merged.unwrap_or(Value::Null);
            }
            // A patch may delete what it is for.
            self.objects.retain(|object| !object.is_null());
        }
        Ok(())
    }

    fn apply_json(&mut self, patch: &Patch, operations: &[Value]) -> Result<()> {
        let target =
            patch.target.as_ref().ok_or_else(|| refused(&format!("{} needs a target", patch.source)))?;
        let operations: json_patch::Patch = serde_json::from_value(Value::Array(operations.to_vec()))
            .map_err(|error| refused(&format!("{} is no JSON patch: {error}", patch.source)))?;
        for index in self.selected(&patch.source, target)? {
            let object = &mut self.objects[index];
            json_patch::patch(object, &operations).map_err(|error| {
                refused(&format!("{} does not apply to {}: {error}", patch.source, describe(object)))
            })?;
        }
        Ok(())
    }

    fn selected(&self, source: &str, target: &Value) -> Result<Vec<usize>> {
        let selector =
            selector::Selector::new(target).map_err(|what| refused(&format!("{source}: target: {what}")))?;
        Ok((0..self.objects.len()).filter(|index| selector.matches(&self.objects[*index])).collect())
    }

    /// The one object that a patch without a target names by itself.
    fn named_by(&self, source: &str, patch: &Value) -> Result<usize> {
        self.objects
            .iter()
            .position(|object| same_id(object, patch))
            .ok_or_else(|| refused(&format!("{source}: there is no {} among the resources", describe(patch))))
    }

    fn labels(&mut self) -> Result<()> {
        for (index, entry) in self.list("labels")?.into_iter().enumerate() {
            if !is_empty(&entry["fields"]) {
                self.left.push(format!("labels[{index}]"));
                continue;
            }
            let flag = |name: &str| is_true(&entry[name]);
            let scope = match (flag("includeSelectors"), flag("includeTemplates")) {
                (true, _) => fields::Labels::Selectors,
                (false, true) => fields::Labels::Templates,
                (false, false) => fields::Labels::Metadata,
            };
            let pairs = pairs(&format!("labels[{index}].pairs"), &entry["pairs"])?;
            fields::label(&mut self.objects, &pairs, scope);
        }
        let pairs = pairs("commonLabels", self.root.get("commonLabels").unwrap_or(&Value::Null))?;
        fields::label(&mut self.objects, &pairs, fields::Labels::Selectors);
        Ok(())
    }

    fn annotations(&mut self) -> Result<()> {
        let pairs = pairs("commonAnnotations", self.root.get("commonAnnotations").unwrap_or(&Value::Null))?;
        fields::annotate(&mut self.objects, &pairs);
        Ok(())
    }

    fn images(&mut self) -> Result<()> {
        for field in ["images", "imageTags"] {
            for (index, entry) in self.list(field)?.into_iter().enumerate() {
                let image = image::Image::new(&entry).ok_or_else(|| {
                    refused(&format!("{field}[{index}] is not an image with texts in its fields"))
                })?;
                for object in &mut self.objects {
                    image.apply(object);
                }
            }
        }
        Ok(())
    }
}

fn parse(path: &str, text: &str) -> Result<Vec<Value>> {
    yaml::read(text).map_err(|error| refused(&format!("{path} is not YAML: {error}")))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Kustomize reads its own file as YAML 1.1, where these words are truths, too.
fn is_true(value: &Value) -> bool {
    let word = |text: &str| matches!(text, "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON");
    value == true || value.as_str().is_some_and(word)
}

fn pairs(field: &str, value: &Value) -> Result<Vec<(String, String)>> {
    let bad = || refused(&format!("{field} is not a mapping of texts"));
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| Ok((key.clone(), value.as_str().ok_or_else(bad)?.to_owned())))
            .collect(),
        _ => Err(bad()),
    }
}

/// Kustomize's idea of one and the same object: no namespace means `default`.
fn same_id(a: &Value, b: &Value) -> bool {
    object::group_version(a) == object::group_version(b)
        && object::kind(a) == object::kind(b)
        && object::name(a) == object::name(b)
        && object::effective_namespace(a) == object::effective_namespace(b)
}

fn describe(object: &Value) -> String {
    match object::namespace(object) {
        "" => format!("{} {}", object::kind(object), object::name(object)),
        namespace => format!("{} {namespace}/{}", object::kind(object), object::name(object)),
    }
}
