//! The cluster's objects, and what the API does with them: the part without HTTP.
//!
//! One lock guards everything, so each write is atomic and gets the next resource version. A log of
//! the latest writes feeds watches.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::clock;
use super::crd;
use super::defaults;
use super::failure::{Cause, Failure, Result};
use super::kinds::{self, Kind, Version};
use super::managed::{self, Writer};
use super::patch;
use super::selector::Selector;

/// What tells kinds apart in the store: group and plural.
pub type Key = (String, String);

/// A kind in one of its versions.
#[derive(Debug, Clone)]
pub struct Resource {
    /// The kind.
    pub kind: Arc<Kind>,
    /// Which of its versions.
    pub version: String,
}

impl Resource {
    /// The store's key.
    pub fn key(&self) -> Key {
        (self.kind.group.clone(), self.kind.plural.clone())
    }

    /// `apps/v1`
    pub fn api_version(&self) -> String {
        self.kind.api_version(&self.version)
    }

    fn served(&self) -> &Version {
        self.kind.version(&self.version).unwrap_or(&self.kind.versions[0])
    }

    /// Whether this version has the status subresource.
    pub fn has_status(&self) -> bool {
        self.served().status
    }

    fn not_found(&self, name: &str) -> Failure {
        Failure::not_found(&self.kind.group, &self.kind.plural, name)
    }

    /// An object as this version shows it.
    pub fn show(&self, object: &Value) -> Value {
        let mut object = object.clone();
        object["apiVersion"] = json!(self.api_version());
        object
    }
}

/// How a write is made.
#[derive(Debug, Clone, Default)]
pub struct Write {
    /// The field manager.
    pub manager: String,
    /// Whether nothing is kept.
    pub dry_run: bool,
    /// Whether an apply takes over others' fields.
    pub force: bool,
    /// `status`, `scale`, `finalize` or empty.
    pub subresource: String,
}

impl Write {
    /// A write by a controller or test inside this process.
    pub fn by(manager: &str) -> Self {
        Write { manager: manager.to_owned(), ..Write::default() }
    }

    /// The same to the status subresource.
    pub fn status(manager: &str) -> Self {
        Write { subresource: "status".to_owned(), ..Write::by(manager) }
    }
}

/// The forms of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// Server-side apply.
    Apply,
    /// RFC 7386.
    Merge,
    /// RFC 6902.
    Json,
    /// Kubernetes' own, for built-in kinds.
    Strategic,
}

/// How a deletion is made.
#[derive(Debug, Clone, Default)]
pub struct Deletion {
    /// `Background`, `Foreground`, `Orphan`.
    pub propagation: String,
    /// The object must have this uid.
    pub uid: Option<String>,
    /// The object must have this resource version.
    pub resource_version: Option<String>,
    /// Whether nothing is kept.
    pub dry_run: bool,
}

/// What a deletion led to.
#[derive(Debug, Clone)]
pub enum Deleted {
    /// The object is gone; this was its last state.
    Gone(Value),
    /// It waits for its finalizers.
    Pending(Value),
}

/// One write, for watches.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The write's resource version.
    pub revision: u64,
    /// The kind.
    pub key: Key,
    /// Before; nothing for a new object.
    pub old: Option<Arc<Value>>,
    /// After; nothing for a deletion.
    pub new: Option<Arc<Value>>,
}

type Objects = BTreeMap<(String, String), Arc<Value>>;

struct State {
    revision: u64,
    kinds: BTreeMap<Key, Arc<Kind>>,
    objects: BTreeMap<Key, Objects>,
    log: VecDeque<Entry>,
    /// The latest revision that the log no longer has.
    forgotten: u64,
    memory: usize,
}

/// A cluster's state.
pub struct Cluster {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

/// The key of definitions.
const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");
/// What keeps a definition until its objects are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

impl Cluster {
    /// A new cluster that remembers so many writes for watches.
    pub fn new(memory: usize) -> Self {
        let kinds = kinds::builtin()
            .into_iter()
            .map(|kind| ((kind.group.clone(), kind.plural.clone()), Arc::new(kind)))
            .collect();
        let state = State {
            revision: 1,
            kinds,
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            forgotten: 1,
            memory,
        };
        Cluster { state: Mutex::new(state), changed: watch::Sender::new(1) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells when something has been written.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The resource version of the latest write.
    pub fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// All kinds that are served.
    pub fn kinds(&self) -> Vec<Arc<Kind>> {
        let state = self.lock();
        let mut kinds: Vec<Arc<Kind>> = state.kinds.values().cloned().collect();
        kinds.sort_by_key(|kind| (kind.custom, kind.group.clone()));
        kinds
    }

    /// A kind by its plural, as paths name it.
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Resource> {
        let state = self.lock();
        let kind = state.kinds.get(&(group.to_owned(), plural.to_owned()))?.clone();
        kind.version(version)?;
        Some(Resource { kind, version: version.to_owned() })
    }

    /// A kind as objects name it.
    pub fn resource_of(&self, api_version: &str, kind: &str) -> Option<Resource> {
        let (group, version) = split_version(api_version);
        let state = self.lock();
        let found = state.kinds.values().find(|known| known.group == group && known.kind == kind)?.clone();
        found.version(version)?;
        Some(Resource { kind: found, version: version.to_owned() })
    }

    /// One object.
    pub fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Arc<Value>> {
        let state = self.lock();
        state.object(resource, namespace, name).ok_or_else(|| resource.not_found(name))
    }

    /// The objects of a kind, in one namespace or all, and the revision that the answer is of.
    pub fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        selector: &Selector,
    ) -> (Vec<Arc<Value>>, u64) {
        let state = self.lock();
        let objects = state.objects.get(&resource.key());
        let objects = objects
            .into_iter()
            .flatten()
            .filter(|((space, _), object)| {
                namespace.is_none_or(|namespace| namespace == space) && selector.matches(object)
            })
            .map(|(_, object)| object.clone())
            .collect();
        (objects, state.revision)
    }

    /// All objects of all kinds, for controllers.
    pub fn everything(&self) -> Vec<(Key, Arc<Value>)> {
        let state = self.lock();
        let all = state.objects.iter();
        all.flat_map(|(key, objects)| objects.values().map(|object| (key.clone(), object.clone()))).collect()
    }

    /// The writes to a kind after a revision, and the revision up to which they are told.
    pub fn since(&self, key: &Key, after: u64) -> Result<(Vec<Entry>, u64)> {
        let state = self.lock();
        if after < state.forgotten {
            return Err(Failure::expired(after, state.forgotten));
        }
        let start = state.log.partition_point(|entry| entry.revision <= after);
        let entries = state.log.iter().skip(start).filter(|entry| entry.key == *key).cloned().collect();
        Ok((entries, state.revision))
    }

    /// Forgets all writes so far, as etcd's compaction does.
    pub fn compact(&self) {
        let mut state = self.lock();
        state.log.clear();
        state.forgotten = state.revision;
    }

    /// Makes an object.
    pub fn create(&self, resource: &Resource, namespace: &str, body: Value, write: &Write) -> Result<Value> {
        let mut state = self.lock();
        let body = identify(resource, namespace, None, body)?;
        let made = state.create(resource, namespace, body, write)?;
        self.tell(&state);
        Ok(made)
    }

    /// Replaces an object, or its status.
    pub fn update(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        body: Value,
        write: &Write,
    ) -> Result<Value> {
        let mut state = self.lock();
        let body = identify(resource, namespace, Some(name), body)?;
        let old = state.object(resource, namespace, name).ok_or_else(|| resource.not_found(name))?;
        let new = state.update(resource, &old, body, write)?;
        self.tell(&state);
        Ok(new)
    }

    /// Changes an object with a closure, or its status; nothing is written when nothing changes.
    pub fn modify(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        write: &Write,
        change: impl FnOnce(&mut Value),
    ) -> Result<Value> {
        let mut state = self.lock();
        let old = state.object(resource, namespace, name).ok_or_else(|| resource.not_found(name))?;
        let mut body = resource.show(&old);
        change(&mut body);
        let new = state.update(resource, &old, body, write)?;
        self.tell(&state);
        Ok(new)
    }

    /// Patches an object, or its status. The flag tells whether an apply has made it.
    pub fn patch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        kind: PatchKind,
        body: &Value,
        write: &Write,
    ) -> Result<(Value, bool)> {
        let mut state = self.lock();
        let old = state.object(resource, namespace, name);
        let outcome = match (kind, old) {
            (PatchKind::Apply, old) => state.apply(resource, namespace, name, old, body, write)?,
            (_, None) => return Err(resource.not_found(name)),
            (kind, Some(old)) => {
                let shown = resource.show(&old);
                let mut new = match kind {
                    PatchKind::Json => patch::json(&shown, body)?,
                    PatchKind::Strategic if !resource.kind.custom => {
                        patch::strategic(&shown, body, &resource.served().types)?
                    }
                    PatchKind::Strategic => {
                        return Err(Failure::unsupported_media(
                            "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                        ));
                    }
                    _ => patch::merge(&shown, body),
                };
                // A patch need not say what it is about, but may not say something else.
                if new["metadata"]["name"] != name {
                    return Err(Failure::bad_request(format!(
                        "the name of the object ({}) does not match the name on the URL ({name})",
                        new["metadata"]["name"].as_str().unwrap_or_default()
                    )));
                }
                // Without its own resource version a patch applies to what is there.
                if body["metadata"]["resourceVersion"].is_null() && kind != PatchKind::Json {
                    remove_meta(&mut new, "resourceVersion");
                }
                (state.update(resource, &old, new, write)?, false)
            }
        };
        self.tell(&state);
        Ok(outcome)
    }

    /// Deletes an object, or marks it when finalizers hold it.
    pub fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        deletion: &Deletion,
    ) -> Result<Deleted> {
        let mut state = self.lock();
        let old = state.object(resource, namespace, name).ok_or_else(|| resource.not_found(name))?;
        let deleted = state.delete(resource, &old, deletion)?;
        self.tell(&state);
        Ok(deleted)
    }

    /// Records an event about an object; the same again is counted.
    pub fn event(&self, about: &Value, component: &str, kind: &str, reason: &str, message: &str) {
        let meta = &about["metadata"];
        let namespace = meta["namespace"].as_str().unwrap_or("default").to_owned();
        let Some(resource) = self.resource("", "v1", "events") else { return };
        let text: String =
            [component, kind, reason, message, meta["uid"].as_str().unwrap_or_default()].join("\n");
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let name = format!("{}.{hash:016x}", meta["name"].as_str().unwrap_or_default());
        let write = Write::by(component);
        let again = self.modify(&resource, &namespace, &name, &write, |event| {
            event["count"] = json!(event["count"].as_u64().unwrap_or(1) + 1);
            event["lastTimestamp"] = json!(clock::now());
        });
        if again.is_ok() {
            return;
        }
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {"kind": about["kind"], "namespace": meta["namespace"], "name": meta["name"],
                "uid": meta["uid"], "apiVersion": about["apiVersion"], "resourceVersion": meta["resourceVersion"]},
            "reason": reason, "message": message, "type": kind, "count": 1,
            "source": {"component": component}, "reportingComponent": component, "reportingInstance": component,
            "firstTimestamp": clock::now(), "lastTimestamp": clock::now(), "eventTime": null,
        });
        // A namespace that is going away takes no events, and nobody misses them.
        let _ = self.create(&resource, &namespace, event, &write);
    }

    fn tell(&self, state: &State) {
        self.changed.send_if_modified(|known| {
            let news = *known != state.revision;
            *known = state.revision;
            news
        });
    }
}

/// Group and version of `apps/v1` or `v1`.
pub fn split_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

fn remove_meta(object: &mut Value, name: &str) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.shift_remove(name);
    }
}

/// Checks what a body says it is against the path, and completes it.
fn identify(resource: &Resource, namespace: &str, name: Option<&str>, mut body: Value) -> Result<Value> {
    if !body.is_object() {
        return Err(Failure::bad_request("the object provided is unrecognized: it is not an object"));
    }
    let api_version = resource.api_version();
    let said = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    if said("kind").is_empty() && said("apiVersion").is_empty() {
        body["apiVersion"] = json!(api_version);
        body["kind"] = json!(resource.kind.kind);
    } else if said("kind") != resource.kind.kind || said("apiVersion") != api_version {
        return Err(Failure::bad_request(format!(
            "the API version in the data ({}, Kind={}) does not match the expected API version ({api_version}, Kind={})",
            said("apiVersion"),
            said("kind"),
            resource.kind.kind
        )));
    }
    if !body["metadata"].is_object() {
        body["metadata"] = json!({});
    }
    let meta = &mut body["metadata"];
    if resource.kind.namespaced {
        match meta["namespace"].as_str().unwrap_or_default() {
            "" => meta["namespace"] = json!(namespace),
            other if other == namespace => {}
            _ => {
                return Err(Failure::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
        }
    } else if let Some(meta) = meta.as_object_mut() {
        meta.shift_remove("namespace");
    }
    if let Some(name) = name {
        let said = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if said.is_empty() {
            body["metadata"]["name"] = json!(name);
        } else if said != name {
            return Err(Failure::bad_request(format!(
                "the name of the object ({said}) does not match the name on the URL ({name})"
            )));
        }
    }
    Ok(body)
}

/// Whether a name has the form that most kinds want.
fn subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

impl State {
    fn object(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let objects = self.objects.get(&resource.key())?;
        objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Defaults and pruning.
    fn normalise(&self, resource: &Resource, mut object: Value) -> Value {
        if resource.kind.custom {
            let schema = &resource.served().schema;
            crd::prune(&mut object, schema);
            crd::default(&mut object, schema);
            if let Some(meta) = object.get_mut("metadata") {
                defaults::drop_nulls(meta);
            }
        } else {
            defaults::apply(&resource.kind.kind, &mut object);
        }
        object
    }

    fn validate(&self, resource: &Resource, object: &Value, old: Option<&Value>) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let mut causes = Vec::new();
        let loose = matches!(resource.kind.group.as_str(), "rbac.authorization.k8s.io");
        if name.is_empty() {
            causes.push(Cause::required("metadata.name", "name or generateName is required"));
        } else if !loose && !subdomain(name) {
            let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
            causes.push(Cause::invalid("metadata.name", &json!(name), why));
        }
        for part in ["labels", "annotations"] {
            for (key, value) in object["metadata"][part].as_object().into_iter().flatten() {
                if !value.is_string() {
                    return Err(Failure::bad_request(format!(
                        "{} in version \"{}\" cannot be handled as a {}: json: cannot unmarshal into Go struct field ObjectMeta.metadata.{part} of type string: {key}",
                        resource.kind.kind, resource.version, resource.kind.kind
                    )));
                }
            }
        }
        if resource.kind.custom {
            causes.extend(crd::validate(object, &resource.served().schema));
        } else {
            causes.extend(defaults::validate(&resource.kind.kind, object, old));
        }
        if causes.is_empty() {
            return Ok(());
        }
        Err(Failure::invalid(&resource.kind.group, &resource.kind.kind, name, &causes))
    }

    /// Whether a new object may be made there.
    fn admit(&self, resource: &Resource, namespace: &str, name: &str) -> Result<()> {
        let (group, plural) = (&resource.kind.group, &resource.kind.plural);
        if resource.kind.namespaced {
            let spaces = self.objects.get(&(String::new(), "namespaces".to_owned()));
            let space = spaces.and_then(|spaces| spaces.get(&(String::new(), namespace.to_owned())));
            let Some(space) = space else { return Err(Failure::not_found("", "namespaces", namespace)) };
            if !space["metadata"]["deletionTimestamp"].is_null() {
                return Err(Failure::terminating(group, plural, name, namespace));
            }
        }
        if resource.kind.custom {
            let definition = self.objects.get(&(DEFINITIONS.0.to_owned(), DEFINITIONS.1.to_owned()));
            let definition =
                definition.and_then(|all| all.get(&(String::new(), format!("{plural}.{group}"))));
            if definition.is_some_and(|definition| !definition["metadata"]["deletionTimestamp"].is_null()) {
                return Err(Failure {
                    code: 405,
                    reason: "MethodNotAllowed",
                    message: "create not allowed while custom resource definition is terminating".to_owned(),
                    details: json!({"group": group, "kind": plural}),
                });
            }
        }
        Ok(())
    }

    /// What the server itself writes into a new object's metadata.
    fn birth(resource: &Resource, object: &mut Value) {
        let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        for name in ["resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            meta.shift_remove(name);
        }
        meta.insert("uid".to_owned(), json!(uuid::Uuid::new_v4().to_string()));
        meta.insert("creationTimestamp".to_owned(), json!(clock::now()));
        if resource.kind.counted {
            meta.insert("generation".to_owned(), json!(1));
        } else {
            meta.shift_remove("generation");
        }
        if resource.has_status()
            && let Some(object) = object.as_object_mut()
        {
            object.shift_remove("status");
        }
        if resource.kind.kind == "Namespace" {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
        }
    }

    fn create(
        &mut self,
        resource: &Resource,
        namespace: &str,
        mut body: Value,
        write: &Write,
    ) -> Result<Value> {
        let (group, plural) = (&resource.kind.group, &resource.kind.plural);
        let meta = &mut body["metadata"];
        let mut name = meta["name"].as_str().unwrap_or_default().to_owned();
        if let (true, Some(prefix)) = (name.is_empty(), meta["generateName"].as_str()) {
            name = format!("{prefix}{}", suffix());
            meta["name"] = json!(name);
        }
        if meta["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
            return Err(Failure::internal("resourceVersion should not be set on objects to be created"));
        }
        self.admit(resource, namespace, &name)?;
        if self.object(resource, namespace, &name).is_some() {
            return Err(Failure::exists(group, plural, &name));
        }
        remove_meta(&mut body, "managedFields");
        Self::birth(resource, &mut body);
        let object = self.normalise(resource, body);
        self.validate(resource, &object, None)?;
        let now = clock::now();
        let version = resource.api_version();
        let writer = Writer { manager: &write.manager, version: &version, subresource: "", now: &now };
        let object = managed::update(None, &object, &resource.served().types, &writer, resource.has_status());
        Ok(self.keep(resource, None, object, write.dry_run))
    }

    fn check_version(resource: &Resource, old: &Value, body: &Value) -> Result<()> {
        let (group, plural) = (&resource.kind.group, &resource.kind.plural);
        let name = old["metadata"]["name"].as_str().unwrap_or_default();
        let wanted = body["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if !wanted.is_empty() && old["metadata"]["resourceVersion"] != wanted {
            return Err(Failure::outdated(group, plural, name));
        }
        let uid = body["metadata"]["uid"].as_str().unwrap_or_default();
        if !uid.is_empty() && old["metadata"]["uid"] != uid {
            let have = old["metadata"]["uid"].as_str().unwrap_or_default();
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {have}");
            return Err(Failure::conflict(group, plural, name, &why));
        }
        Ok(())
    }

    /// The new state of an object from what a request wants of it, before its ownership is written.
    fn carry(&self, resource: &Resource, old: &Value, body: Value, subresource: &str) -> Value {
        let mut new = match subresource {
            // Through this door only the status changes.
            "status" if resource.has_status() => {
                let mut new = resource.show(old);
                if let Some(object) = new.as_object_mut() {
                    match body.get("status") {
                        Some(status) => object.insert("status".to_owned(), status.clone()),
                        None => object.shift_remove("status"),
                    };
                }
                if !body["metadata"]["managedFields"].is_null() {
                    new["metadata"]["managedFields"] = body["metadata"]["managedFields"].clone();
                }
                new
            }
            "finalize" => {
                let mut new = resource.show(old);
                new["spec"] = body["spec"].clone();
                new
            }
            _ => {
                let mut new = body;
                if resource.has_status()
                    && let Some(object) = new.as_object_mut()
                {
                    object.shift_remove("status");
                    if let Some(status) = old.get("status") {
                        object.insert("status".to_owned(), status.clone());
                    }
                }
                if resource.kind.kind == "Namespace" {
                    new["spec"] = old["spec"].clone();
                }
                new
            }
        };
        new["apiVersion"] = json!(resource.api_version());
        new["kind"] = json!(resource.kind.kind);
        let meta = new["metadata"].as_object_mut();
        let nothing = Map::new();
        let before = old["metadata"].as_object().unwrap_or(&nothing);
        if let Some(meta) = meta {
            for name in [
                "name",
                "namespace",
                "generateName",
                "uid",
                "creationTimestamp",
                "generation",
                "resourceVersion",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
            ] {
                match before.get(name) {
                    Some(value) => meta.insert(name.to_owned(), value.clone()),
                    None => meta.shift_remove(name),
                };
            }
        }
        let mut new = self.normalise(resource, new);
        if resource.kind.counted && specification(resource, &new) != specification(resource, old) {
            let generation = before.get("generation").and_then(Value::as_u64).unwrap_or(0);
            new["metadata"]["generation"] = json!(generation + 1);
        }
        new
    }

    fn update(&mut self, resource: &Resource, old: &Value, body: Value, write: &Write) -> Result<Value> {
        Self::check_version(resource, old, &body)?;
        let body = if write.subresource == "scale" { scaled(resource, old, &body) } else { body };
        let old = &resource.show(old);
        let new = self.carry(resource, old, body, &write.subresource);
        self.validate(resource, &new, Some(old))?;
        self.only_fewer_finalizers(resource, old, &new)?;
        let now = clock::now();
        let version = resource.api_version();
        let writer =
            Writer { manager: &write.manager, version: &version, subresource: &write.subresource, now: &now };
        let new = managed::update(Some(old), &new, &resource.served().types, &writer, resource.has_status());
        Ok(self.keep(resource, Some(old), new, write.dry_run))
    }

    fn apply(
        &mut self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        old: Option<Arc<Value>>,
        body: &Value,
        write: &Write,
    ) -> Result<(Value, bool)> {
        if write.manager.is_empty() {
            return Err(Failure::invalid(
                "meta.k8s.io",
                "PatchOptions",
                "",
                &[Cause::required("fieldManager", "is required for apply patch")],
            ));
        }
        if body["metadata"]["managedFields"].as_array().is_some_and(|list| !list.is_empty()) {
            return Err(Failure::bad_request("metadata.managedFields must be nil"));
        }
        let mut config = identify(resource, namespace, Some(name), body.clone())?;
        // Typed objects know no null, and a plain Secret is stored encoded.
        if !resource.kind.custom {
            defaults::drop_nulls(&mut config);
        }
        let now = clock::now();
        let version = resource.api_version();
        let writer =
            Writer { manager: &write.manager, version: &version, subresource: &write.subresource, now: &now };
        let types = resource.served().types.clone();
        let (group, plural) = (&resource.kind.group, &resource.kind.plural);
        match old {
            None => {
                if !write.subresource.is_empty() {
                    return Err(resource.not_found(name));
                }
                let wanted = config["metadata"]["uid"].as_str().unwrap_or_default();
                if !wanted.is_empty() {
                    let why = format!(
                        "uid mismatch: the provided object specified uid {wanted}, and no existing object was found"
                    );
                    return Err(Failure::conflict(group, plural, name, &why));
                }
                self.admit(resource, namespace, name)?;
                let live = json!({"apiVersion": version, "kind": resource.kind.kind,
                    "metadata": {"name": name}});
                let finish = |mut object: Value| {
                    Self::birth(resource, &mut object);
                    self.normalise(resource, object)
                };
                let object = managed::apply(
                    &live,
                    &config,
                    &types,
                    &writer,
                    resource.has_status(),
                    write.force,
                    finish,
                )?;
                self.validate(resource, &object, None)?;
                Ok((self.keep(resource, None, object, write.dry_run), true))
            }
            Some(old) => {
                Self::check_version(resource, &old, &config)?;
                let old = resource.show(&old);
                let finish = |object: Value| self.carry(resource, &old, object, &write.subresource);
                let new = managed::apply(
                    &old,
                    &config,
                    &types,
                    &writer,
                    resource.has_status(),
                    write.force,
                    finish,
                )?;
                self.validate(resource, &new, Some(&old))?;
                self.only_fewer_finalizers(resource, &old, &new)?;
                Ok((self.keep(resource, Some(&old), new, write.dry_run), false))
            }
        }
    }

    /// An object on its way out takes no new finalizers.
    fn only_fewer_finalizers(&self, resource: &Resource, old: &Value, new: &Value) -> Result<()> {
        if old["metadata"]["deletionTimestamp"].is_null() {
            return Ok(());
        }
        let list = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let before = list(old);
        let added: Vec<Value> = list(new).into_iter().filter(|name| !before.contains(name)).collect();
        if added.is_empty() {
            return Ok(());
        }
        let name = new["metadata"]["name"].as_str().unwrap_or_default();
        let texts: Vec<&str> = added.iter().filter_map(Value::as_str).collect();
        let cause = Cause {
            reason: "FieldValueForbidden",
            field: "metadata.finalizers".to_owned(),
            message: format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{\"{}\"}}",
                texts.join("\", \"")
            ),
        };
        Err(Failure::invalid(&resource.kind.group, &resource.kind.kind, name, &[cause]))
    }

    /// Stores an object unless nothing has changed; one that waits only for finalizers goes when
    /// the last is gone.
    fn keep(&mut self, resource: &Resource, old: Option<&Value>, mut object: Value, dry_run: bool) -> Value {
        let meta = &object["metadata"];
        if let Some(old) = old {
            if *old == object {
                return object;
            }
            if !meta["deletionTimestamp"].is_null() && !held(resource, &object) {
                if !dry_run {
                    object = self.put(resource, object, true);
                }
                return object;
            }
        }
        if dry_run { object } else { self.put(resource, object, false) }
    }

    fn put(&mut self, resource: &Resource, mut object: Value, gone: bool) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let place = (part("namespace"), part("name"));
        let key = resource.key();
        let object = Arc::new(object);
        let objects = self.objects.entry(key.clone()).or_default();
        let old = if gone { objects.remove(&place) } else { objects.insert(place, object.clone()) };
        // A deletion is told with the deletion's own revision.
        let (old, new) = if gone { (Some(object.clone()), None) } else { (old, Some(object.clone())) };
        self.log.push_back(Entry { revision: self.revision, key: key.clone(), old, new });
        while self.log.len() > self.memory {
            if let Some(entry) = self.log.pop_front() {
                self.forgotten = entry.revision;
            }
        }
        if (key.0.as_str(), key.1.as_str()) == DEFINITIONS {
            self.serve(&object, gone);
        }
        (*object).clone()
    }

    /// Serves a definition's kind once it is established.
    fn serve(&mut self, definition: &Value, gone: bool) {
        let established = definition["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|c| c["type"] == "Established" && c["status"] == "True"));
        let kind = kinds::custom(definition);
        let key = (kind.group.clone(), kind.plural.clone());
        if gone {
            self.kinds.remove(&key);
            self.objects.remove(&key);
        } else if established && !kind.versions.is_empty() {
            self.kinds.insert(key, Arc::new(kind));
        }
    }

    fn delete(&mut self, resource: &Resource, old: &Value, deletion: &Deletion) -> Result<Deleted> {
        let (group, plural) = (&resource.kind.group, &resource.kind.plural);
        let name = old["metadata"]["name"].as_str().unwrap_or_default();
        for (wanted, field, label) in [
            (&deletion.uid, "uid", "UID"),
            (&deletion.resource_version, "resourceVersion", "ResourceVersion"),
        ] {
            let have = old["metadata"][field].as_str().unwrap_or_default();
            if let Some(wanted) = wanted.as_ref().filter(|wanted| *wanted != have) {
                let why = format!(
                    "Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {have}"
                );
                return Err(Failure::conflict(group, plural, name, &why));
            }
        }
        if resource.kind.kind == "Namespace" && matches!(name, "default" | "kube-system" | "kube-public") {
            return Err(Failure::forbidden(group, plural, name, "this namespace may not be deleted"));
        }
        let mut object = resource.show(old);
        let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if deletion.propagation == "Foreground" {
            finalizers.push(json!("foregroundDeletion"));
        }
        if resource.kind.kind == "CustomResourceDefinition" {
            finalizers.push(json!(CLEANUP));
        }
        let mut unique: Vec<Value> = Vec::new();
        finalizers.into_iter().for_each(|name| {
            if !unique.contains(&name) {
                unique.push(name);
            }
        });
        if !unique.is_empty() {
            object["metadata"]["finalizers"] = Value::Array(unique);
        }
        if deletion.propagation == "Orphan" && !deletion.dry_run {
            self.orphan(&old["metadata"]["uid"]);
        }
        if !held(resource, &object) {
            if !deletion.dry_run {
                object = self.put(resource, object, true);
            }
            return Ok(Deleted::Gone(object));
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!(clock::now());
            object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
            if let Some(generation) = object["metadata"]["generation"].as_u64() {
                object["metadata"]["generation"] = json!(generation + 1);
            }
            if resource.kind.kind == "Namespace" {
                object["status"]["phase"] = json!("Terminating");
            }
        }
        if object != resource.show(old) && !deletion.dry_run {
            object = self.put(resource, object, false);
        }
        Ok(Deleted::Pending(object))
    }

    /// Takes an owner out of its dependents' metadata.
    fn orphan(&mut self, uid: &Value) {
        let owned: Vec<(Key, Arc<Value>)> = self
            .objects
            .iter()
            .flat_map(|(key, objects)| objects.values().map(|object| (key.clone(), object.clone())))
            .filter(|(_, object)| owners(object).any(|owner| owner["uid"] == *uid))
            .collect();
        for (key, object) in owned {
            let Some(kind) = self.kinds.get(&key).cloned() else { continue };
            let version = kind.versions[0].name.clone();
            let resource = Resource { kind, version };
            let mut object = (*object).clone();
            if let Some(list) = object["metadata"]["ownerReferences"].as_array_mut() {
                list.retain(|owner| owner["uid"] != *uid);
            }
            self.put(&resource, object, false);
        }
    }
}

/// The owner references of an object.
pub fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

/// Whether finalizers keep an object.
fn held(resource: &Resource, object: &Value) -> bool {
    let some = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    some(&object["metadata"]["finalizers"])
        || (resource.kind.kind == "Namespace" && some(&object["spec"]["finalizers"]))
}

/// The part of an object whose changes count as a new generation.
fn specification(resource: &Resource, object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(object) = object.as_object_mut() {
        object.shift_remove("metadata");
        object.shift_remove("apiVersion");
        if resource.has_status() {
            object.shift_remove("status");
        }
    }
    object
}

/// A scale request as a change of its object.
fn scaled(resource: &Resource, old: &Value, body: &Value) -> Value {
    let mut new = resource.show(old);
    remove_meta(&mut new, "resourceVersion");
    new["spec"]["replicas"] = body["spec"]["replicas"].clone();
    new
}

/// Five letters as Kubernetes generates them for names.
pub fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let random = uuid::Uuid::new_v4();
    random
        .as_bytes()
        .iter()
        .take(5)
        .map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]))
        .collect()
}
