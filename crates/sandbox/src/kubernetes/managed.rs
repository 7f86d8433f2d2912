//! Field ownership: server-side apply and the book-keeping of every other write.
//!
//! The algorithm is that of sigs.k8s.io/structured-merge-diff (`merge.Updater`): an applier owns
//! what its last configuration set, loses what it leaves out, and meets a conflict where another
//! manager owns a field that it would change.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::failure::Failure;
use super::fields::{Set, fields};
use super::schema::{self, Type};

/// Who owns fields, and how they came by them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Manager {
    name: String,
    applies: bool,
    /// Empty for appliers: an applier stays the same over versions.
    version: String,
    subresource: String,
}

#[derive(Debug, Clone)]
struct Owned {
    version: String,
    time: String,
    set: Set,
}

/// The entries of `metadata.managedFields`.
#[derive(Debug, Clone, Default)]
struct Managers(BTreeMap<Manager, Owned>);

impl Managers {
    /// Reads them; nothing when they aren't in the form that the API writes.
    fn read(value: &Value) -> Option<Managers> {
        let mut out = BTreeMap::new();
        for entry in value.as_array().map(Vec::as_slice).unwrap_or_default() {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            let applies = match entry["operation"].as_str()? {
                "Apply" => true,
                "Update" => false,
                _ => return None,
            };
            let manager = Manager {
                name: text("manager"),
                applies,
                version: if applies { String::new() } else { text("apiVersion") },
                subresource: text("subresource"),
            };
            let set = Set::from_value(&entry["fieldsV1"])?;
            out.insert(manager, Owned { version: text("apiVersion"), time: text("time"), set });
        }
        Some(Managers(out))
    }

    /// Writes them as the API does: appliers first, then by time.
    fn write(&self) -> Value {
        let mut entries: Vec<(&Manager, &Owned)> = self.0.iter().collect();
        entries.sort_by_key(|(manager, owned)| (!manager.applies, owned.time.clone(), manager.name.clone()));
        let entry = |(manager, owned): (&Manager, &Owned)| {
            let mut entry = json!({
                "manager": manager.name,
                "operation": if manager.applies { "Apply" } else { "Update" },
                "apiVersion": owned.version,
                "time": owned.time,
                "fieldsType": "FieldsV1",
                "fieldsV1": owned.set.to_value(),
            });
            if !manager.subresource.is_empty() {
                entry["subresource"] = json!(manager.subresource);
            }
            entry
        };
        entries.into_iter().map(entry).collect()
    }

    fn same_sets(&self, other: &Managers) -> bool {
        let sets = |all: &Managers| -> Vec<(Manager, Set)> {
            all.0.iter().map(|(manager, owned)| (manager.clone(), owned.set.clone())).collect()
        };
        sets(self) == sets(other)
    }
}

/// Who writes, through what.
#[derive(Debug, Clone)]
pub struct Writer<'a> {
    /// The field manager's name.
    pub manager: &'a str,
    /// Of the request: `apps/v1`.
    pub version: &'a str,
    /// `status` or empty.
    pub subresource: &'a str,
    /// The time to write into entries that change.
    pub now: &'a str,
}

/// Fields that nobody owns.
fn unowned(writer: &Writer<'_>, has_status: bool) -> Set {
    let meta = fields(&[
        "apiVersion",
        "kind",
        "metadata.name",
        "metadata.namespace",
        "metadata.creationTimestamp",
        "metadata.selfLink",
        "metadata.uid",
        "metadata.generation",
        "metadata.managedFields",
        "metadata.resourceVersion",
        "metadata.deletionTimestamp",
        "metadata.deletionGracePeriodSeconds",
    ]);
    // What a request can't change through this door isn't its own either.
    match writer.subresource {
        "" if has_status => meta.union(&fields(&["status"])),
        "status" => meta.union(&fields(&["spec"])),
        _ => meta,
    }
}

/// `metadata` itself is no field, though its parts are.
fn strip(set: &Set, ignored: &Set) -> Set {
    set.without(ignored).difference(&fields(&["metadata"]))
}

fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.shift_remove("managedFields");
    }
    object
}

fn set_managers(object: &mut Value, managers: &Managers) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        if managers.0.is_empty() {
            meta.shift_remove("managedFields");
        } else {
            meta.insert("managedFields".to_owned(), managers.write());
        }
    }
}

/// Takes over what a change does from the other managers; an error when they mind.
fn settle(
    live: &Value,
    new: &Value,
    kind: &Type,
    managers: &mut Managers,
    me: &Manager,
    ignored: &Set,
    force: bool,
) -> Result<schema::Comparison, Failure> {
    let mut change = schema::compare(live, new, kind);
    change.added = strip(&change.added, ignored);
    change.modified = strip(&change.modified, ignored);
    change.removed = strip(&change.removed, ignored);
    let touched = change.modified.union(&change.added);
    let mut conflicts = Vec::new();
    for (manager, owned) in &managers.0 {
        let conflict = owned.set.intersection(&touched);
        if manager != me && !conflict.is_empty() {
            conflicts.push((manager.clone(), conflict));
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(conflict_failure(&conflicts));
    }
    for (manager, conflict) in &conflicts {
        if let Some(owned) = managers.0.get_mut(manager) {
            owned.set = owned.set.difference(conflict);
        }
    }
    for (manager, owned) in &mut managers.0 {
        if manager != me {
            owned.set = owned.set.difference(&change.removed);
        }
    }
    managers.0.retain(|manager, owned| manager == me || !owned.set.is_empty());
    Ok(change)
}

fn conflict_failure(conflicts: &[(Manager, Set)]) -> Failure {
    let name = |manager: &Manager| {
        let mut name = format!("{:?}", manager.name);
        if !manager.subresource.is_empty() {
            name.push_str(&format!(" with subresource {:?}", manager.subresource));
        }
        if !manager.applies {
            name.push_str(&format!(" using {}", manager.version));
        }
        name
    };
    let mut causes = Vec::new();
    let mut texts = Vec::new();
    for (manager, set) in conflicts {
        texts.push(format!("conflicts with {}:", name(manager)));
        for path in set.paths() {
            texts.push(format!("- {path}"));
            causes.push(json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {}", name(manager)),
                "field": path,
            }));
        }
    }
    let message = match &causes[..] {
        [one] => format!(
            "Apply failed with 1 conflict: {}: {}",
            one["message"].as_str().unwrap_or_default(),
            one["field"].as_str().unwrap_or_default()
        ),
        many => format!("Apply failed with {} conflicts: {}", many.len(), texts.join("\n")),
    };
    Failure::apply_conflict(message, causes)
}

/// Server-side apply of a configuration to a live object (for a new one: just its identity).
///
/// The result has its managed fields; where nothing changes they are the live ones.
pub fn apply(
    live: &Value,
    config: &Value,
    kind: &Type,
    writer: &Writer<'_>,
    has_status: bool,
    force: bool,
    finish: impl FnOnce(Value) -> Value,
) -> Result<Value, Failure> {
    let before = Managers::read(&live["metadata"]["managedFields"]).unwrap_or_default();
    let live = bare(live);
    let config = bare(config);
    let ignored = unowned(writer, has_status);
    if let Some(text) = schema::duplicate(&config, kind, "") {
        let meta = &config["metadata"];
        let text = format!(
            "failed to create typed patch object ({}/{}; {}, Kind={}): {text}",
            meta["namespace"].as_str().unwrap_or_default(),
            meta["name"].as_str().unwrap_or_default(),
            config["apiVersion"].as_str().unwrap_or_default(),
            config["kind"].as_str().unwrap_or_default()
        );
        return Err(Failure::internal(text));
    }
    let me = Manager {
        name: writer.manager.to_owned(),
        applies: true,
        version: String::new(),
        subresource: writer.subresource.to_owned(),
    };
    let mut managers = before.clone();
    let last = managers.0.get(&me).map(|owned| owned.set.clone());
    let set = strip(&schema::set_of(&config, kind), &ignored);
    let merged = schema::merge(&live, &config, kind);
    managers
        .0
        .insert(me.clone(), Owned { version: writer.version.to_owned(), time: writer.now.to_owned(), set });
    let pruned = match last.filter(|last| !last.is_empty()) {
        Some(last) => prune(&merged, &last, &managers, kind),
        None => merged,
    };
    let new = finish(pruned);
    settle(&live, &new, kind, &mut managers, &me, &ignored, force)?;
    if managers.0.get(&me).is_some_and(|owned| owned.set.is_empty()) {
        managers.0.remove(&me);
    }
    let mut new = bare(&new);
    let managers = if new == live && managers.same_sets(&before) { before } else { managers };
    set_managers(&mut new, &managers);
    Ok(new)
}

/// Removes what the applier set last time and no longer sets, unless somebody else owns it.
fn prune(merged: &Value, last: &Set, managers: &Managers, kind: &Type) -> Value {
    let named = |set: &Set| set.with_named(kind);
    let take = |from: &Value, gone: &Set| schema::remove(from, gone, kind).unwrap_or_else(|| json!({}));
    let everything = named(&schema::set_of(merged, kind));
    let last = named(last);
    let pruned = take(merged, &last);
    // Items that any applier or updater owns come back.
    let owned = managers.0.values().fold(Set::default(), |all, owned| all.union(&owned.set));
    let kept = named(&schema::set_of(&pruned, kind)).union(&named(&owned));
    let pruned = take(merged, &everything.difference(&kept));
    // So do fields that nobody owns and that weren't in the last configuration, like defaults.
    let kept = named(&schema::set_of(&pruned, kind));
    take(merged, &everything.difference(&kept).intersection(&last))
}

/// Book-keeping of a create, an update or a patch: the writer owns what it changed.
pub fn update(
    live: Option<&Value>,
    new: &Value,
    kind: &Type,
    writer: &Writer<'_>,
    has_status: bool,
) -> Value {
    let asked = &new["metadata"]["managedFields"];
    let read = |object: &Value| Managers::read(&object["metadata"]["managedFields"]).unwrap_or_default();
    let before = live.map(read).unwrap_or_default();
    // One empty entry clears the book; entries in the right form replace it; anything else is ignored.
    let cleared = asked.as_array().is_some_and(|list| list.len() == 1 && list[0] == json!({}));
    let mut managers = match (live, Managers::read(asked)) {
        (Some(_), _) if cleared => Managers::default(),
        (Some(_), Some(asked)) if !asked.0.is_empty() => asked,
        _ => before.clone(),
    };
    let me = Manager {
        name: writer.manager.to_owned(),
        applies: false,
        version: writer.version.to_owned(),
        subresource: writer.subresource.to_owned(),
    };
    let ignored = unowned(writer, has_status);
    let mut new = bare(new);
    let old = live.map(bare).unwrap_or_else(|| json!({"metadata": {}}));
    let Ok(change) = settle(&old, &new, kind, &mut managers, &me, &ignored, true) else {
        return new;
    };
    let owned = managers.0.get(&me).cloned();
    let set = owned.as_ref().map(|owned| owned.set.clone()).unwrap_or_default();
    let set = set.difference(&change.removed).union(&change.modified).union(&change.added);
    let time = match &owned {
        Some(owned) if owned.set == set => owned.time.clone(),
        _ => writer.now.to_owned(),
    };
    managers.0.remove(&me);
    if !set.is_empty() && !cleared {
        managers.0.insert(me, Owned { version: writer.version.to_owned(), time, set });
    }
    set_managers(&mut new, &managers);
    new
}

/// Hands what some managers own over to an applier, as Flux does with what kubectl has changed: the
/// applier's next configuration then takes back what it doesn't have. Nothing when none is there.
pub fn hand_over(object: &Value, from: impl Fn(&str) -> bool, to: &str) -> Option<Value> {
    let mut managers = Managers::read(&object["metadata"]["managedFields"])?;
    let (foreign, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut managers.0)
        .into_iter()
        .partition(|(manager, _)| manager.subresource.is_empty() && from(&manager.name));
    if foreign.is_empty() {
        return None;
    }
    managers.0 = rest.into_iter().collect();
    let me =
        Manager { name: to.to_owned(), applies: true, version: String::new(), subresource: String::new() };
    for (_, owned) in foreign {
        match managers.0.get_mut(&me) {
            Some(mine) => mine.set = mine.set.union(&owned.set),
            None => {
                managers.0.insert(me.clone(), owned);
            }
        }
    }
    Some(managers.write())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(manager: &str) -> Writer<'_> {
        Writer { manager, version: "apps/v1", subresource: "", now: "2026-01-01T00:00:00Z" }
    }

    fn deployment(spec: Value) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "namespace": "b"}, "spec": spec})
    }

    fn containers(list: Value) -> Value {
        deployment(json!({"template": {"spec": {"containers": list}}}))
    }

    fn empty() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "namespace": "b"}})
    }

    fn run(live: &Value, config: &Value, manager: &str, force: bool) -> Result<Value, Failure> {
        let kind = schema::builtin(config["kind"].as_str().unwrap());
        apply(live, config, &kind, &writer(manager), true, force, |object| object)
    }

    fn owner(object: &Value, manager: &str) -> Vec<String> {
        let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let entry = entries.iter().find(|entry| entry["manager"] == manager);
        entry.map(|entry| Set::from_value(&entry["fieldsV1"]).unwrap().paths()).unwrap_or_default()
    }

    /// One row: what managers apply one after the other, and what comes of it.
    struct Row {
        name: &'static str,
        steps: Vec<(&'static str, bool, Value)>,
        outcome: Result<Value, &'static str>,
    }

    #[test]
    fn applying_owns_conflicts_and_prunes() {
        let two = json!([{"name": "x", "image": "1"}, {"name": "y", "image": "1"}]);
        let rows = vec![
            Row {
                name: "a field left out goes",
                steps: vec![
                    ("a", false, deployment(json!({"replicas": 1, "paused": true}))),
                    ("a", false, deployment(json!({"replicas": 1}))),
                ],
                outcome: Ok(json!({"replicas": 1})),
            },
            Row {
                name: "a field left out stays when another manager applies it too",
                steps: vec![
                    ("a", false, deployment(json!({"replicas": 1, "paused": true}))),
                    ("b", false, deployment(json!({"paused": true}))),
                    ("a", false, deployment(json!({"replicas": 1}))),
                ],
                outcome: Ok(json!({"replicas": 1, "paused": true})),
            },
            Row {
                name: "another value conflicts",
                steps: vec![
                    ("a", false, deployment(json!({"replicas": 1}))),
                    ("b", false, deployment(json!({"replicas": 2}))),
                ],
                outcome: Err("Apply failed with 1 conflict: conflict with \"a\": .spec.replicas"),
            },
            Row {
                name: "the same value is shared",
                steps: vec![
                    ("a", false, deployment(json!({"replicas": 1}))),
                    ("b", false, deployment(json!({"replicas": 1}))),
                ],
                outcome: Ok(json!({"replicas": 1})),
            },
            Row {
                name: "force takes over",
                steps: vec![
                    ("a", false, deployment(json!({"replicas": 1}))),
                    ("b", true, deployment(json!({"replicas": 2}))),
                ],
                outcome: Ok(json!({"replicas": 2})),
            },
            Row {
                name: "list items have names",
                steps: vec![
                    ("a", false, containers(json!([{"name": "x", "image": "1"}]))),
                    ("b", false, containers(json!([{"name": "y", "image": "1"}]))),
                ],
                outcome: Ok(containers(two.clone())["spec"].clone()),
            },
            Row {
                name: "an item's field conflicts by the item's name",
                steps: vec![
                    ("a", false, containers(json!([{"name": "x", "image": "1"}]))),
                    ("b", false, containers(json!([{"name": "x", "image": "2"}]))),
                ],
                outcome: Err(
                    "Apply failed with 1 conflict: conflict with \"a\": .spec.template.spec.containers[name=\"x\"].image",
                ),
            },
            Row {
                name: "an item left out goes, its neighbour stays",
                steps: vec![
                    ("a", false, containers(two.clone())),
                    ("a", false, containers(json!([{"name": "y", "image": "1"}]))),
                ],
                outcome: Ok(containers(json!([{"name": "y", "image": "1"}]))["spec"].clone()),
            },
            Row {
                name: "ports are told apart by number and protocol, TCP by default",
                steps: vec![
                    ("a", false, containers(json!([{"name": "x", "ports": [{"containerPort": 80}]}]))),
                    (
                        "b",
                        false,
                        containers(
                            json!([{"name": "x", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}]}]),
                        ),
                    ),
                ],
                outcome: Ok(containers(
                    json!([{"name": "x", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}]}]),
                )["spec"]
                    .clone()),
            },
            Row {
                name: "a selector is one value",
                steps: vec![
                    ("a", false, deployment(json!({"selector": {"matchLabels": {"app": "x"}}}))),
                    ("b", false, deployment(json!({"selector": {"matchLabels": {"tier": "x"}}}))),
                ],
                outcome: Err("Apply failed with 1 conflict: conflict with \"a\": .spec.selector"),
            },
            Row {
                name: "several conflicts are listed by manager",
                steps: vec![
                    ("a", false, deployment(json!({"replicas": 1, "paused": true}))),
                    ("b", false, deployment(json!({"replicas": 2, "paused": false}))),
                ],
                outcome: Err(
                    "Apply failed with 2 conflicts: conflicts with \"a\":\n- .spec.paused\n- .spec.replicas",
                ),
            },
            Row {
                name: "a doubled item is refused",
                steps: vec![("a", false, containers(json!([{"name": "x"}, {"name": "x"}])))],
                outcome: Err(
                    "failed to create typed patch object (b/a; apps/v1, Kind=Deployment): .spec.template.spec.containers: duplicate entries for key [name=\"x\"]",
                ),
            },
        ];
        for row in rows {
            let mut live = Ok(empty());
            for (manager, force, config) in &row.steps {
                live = live.and_then(|live| run(&live, config, manager, *force));
            }
            match row.outcome {
                Ok(spec) => assert_eq!(live.unwrap()["spec"], spec, "{}", row.name),
                Err(message) => assert_eq!(live.unwrap_err().message, message, "{}", row.name),
            }
        }
    }

    #[test]
    fn labels_are_owned_one_by_one_and_pruned_alone() {
        let with = |labels: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": labels}});
        let bare = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        let live = run(&bare, &with(json!({"x": "1", "y": "1"})), "a", false).unwrap();
        let live = run(&live, &with(json!({"z": "1"})), "b", false).unwrap();
        assert_eq!(owner(&live, "b"), [".metadata.labels.z"]);
        let live = run(&live, &with(json!({"x": "1"})), "a", false).unwrap();
        assert_eq!(live["metadata"]["labels"], json!({"x": "1", "z": "1"}));
        let live = run(&live, &bare, "a", false).unwrap();
        assert_eq!(live["metadata"]["labels"], json!({"z": "1"}));
        assert_eq!(owner(&live, "a"), Vec::<String>::new());
    }

    #[test]
    fn defaults_belong_to_nobody_and_survive() {
        let kind = schema::builtin("Deployment");
        let default = |mut object: Value| {
            if object["spec"]["replicas"].is_null() {
                object["spec"]["replicas"] = json!(1);
            }
            object
        };
        let go = |live: &Value, spec: Value| {
            apply(live, &deployment(spec), &kind, &writer("a"), true, false, default).unwrap()
        };
        let live = go(&empty(), json!({"paused": true, "minReadySeconds": 3}));
        assert_eq!(live["spec"]["replicas"], 1);
        let live = go(&live, json!({"paused": true}));
        assert_eq!(live["spec"], json!({"paused": true, "replicas": 1}));
        assert_eq!(owner(&live, "a"), [".spec.paused"]);
    }

    #[test]
    fn updates_take_what_they_change() {
        let kind = schema::builtin("Deployment");
        let live = run(&empty(), &deployment(json!({"replicas": 1, "paused": true})), "a", false).unwrap();
        let mut changed = live.clone();
        changed["spec"]["replicas"] = json!(5);
        let live = update(Some(&live), &changed, &kind, &writer("kubectl"), true);
        assert_eq!(owner(&live, "a"), [".spec.paused"]);
        assert_eq!(owner(&live, "kubectl"), [".spec.replicas"]);
        let refused =
            run(&live, &deployment(json!({"replicas": 1, "paused": true})), "a", false).unwrap_err();
        assert_eq!(
            refused.message,
            "Apply failed with 1 conflict: conflict with \"kubectl\" using apps/v1: .spec.replicas"
        );
        assert_eq!(refused.details["causes"][0]["field"], ".spec.replicas");
    }

    #[test]
    fn applying_the_same_again_changes_nothing() {
        let first = run(&empty(), &deployment(json!({"replicas": 1})), "a", false).unwrap();
        let kind = schema::builtin("Deployment");
        let later = Writer { now: "2030-01-01T00:00:00Z", ..writer("a") };
        let again =
            apply(&first, &deployment(json!({"replicas": 1})), &kind, &later, true, false, |o| o).unwrap();
        assert_eq!(first, again);
    }
}
