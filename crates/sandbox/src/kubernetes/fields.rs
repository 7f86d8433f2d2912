//! Sets of fields, as `metadata.managedFields[].fieldsV1` writes them.
//!
//! A set is a tree: each node is a path element, which may be a member itself, have members below
//! it, or both. The algebra follows sigs.k8s.io/structured-merge-diff (`fieldpath.Set`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::schema::Type;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// A field of an object: `f:spec`.
    Field(String),
    /// An item of a list with merge keys, named by its keys as sorted JSON: `k:{"name":"a"}`.
    Key(String),
    /// An item of a set, as JSON: `v:"a"`.
    Value(String),
    /// An item by its place: `i:0`.
    Index(u64),
}

impl Element {
    /// The name in `fieldsV1`.
    fn to_text(&self) -> String {
        match self {
            Element::Field(name) => format!("f:{name}"),
            Element::Key(key) => format!("k:{key}"),
            Element::Value(value) => format!("v:{value}"),
            Element::Index(index) => format!("i:{index}"),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Element::Field(rest.to_owned())),
            "k" => {
                let keys: Map<String, Value> = serde_json::from_str(rest).ok()?;
                Some(Element::Key(sorted(&keys)))
            }
            "v" => Some(Element::Value(serde_json::from_str::<Value>(rest).ok()?.to_string())),
            "i" => rest.parse().ok().map(Element::Index),
            _ => None,
        }
    }

    /// As conflicts name it: `.spec`, `[name="a"]`, `[="a"]`, `[0]`.
    fn to_path(&self) -> String {
        match self {
            Element::Field(name) => format!(".{name}"),
            Element::Key(key) => {
                let keys: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
                let parts: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("[{}]", parts.join(","))
            }
            Element::Value(value) => format!("[={value}]"),
            Element::Index(index) => format!("[{index}]"),
        }
    }
}

/// An object as JSON with its names in order.
pub fn sorted(keys: &Map<String, Value>) -> String {
    let ordered: BTreeMap<&String, &Value> = keys.iter().collect();
    let parts: Vec<String> =
        ordered.iter().map(|(name, value)| format!("{}:{value}", Value::from(name.as_str()))).collect();
    format!("{{{}}}", parts.join(","))
}

/// A set of fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    nodes: BTreeMap<Element, Node>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Node {
    member: bool,
    below: Set,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl Set {
    /// Whether it has no member.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a path. The empty path is none.
    pub fn insert(&mut self, path: &[Element]) {
        let Some((first, rest)) = path.split_first() else { return };
        let node = self.nodes.entry(first.clone()).or_default();
        if rest.is_empty() {
            node.member = true;
        } else {
            node.below.insert(rest);
        }
    }

    /// Whether this one step is a member.
    pub fn has(&self, element: &Element) -> bool {
        self.nodes.get(element).is_some_and(|node| node.member)
    }

    /// What lies below a step.
    pub fn below(&self, element: &Element) -> Option<&Set> {
        self.nodes.get(element).map(|node| &node.below).filter(|below| !below.is_empty())
    }

    /// Members of either.
    pub fn union(&self, other: &Set) -> Set {
        let mut out = self.clone();
        for (element, node) in &other.nodes {
            let mine = out.nodes.entry(element.clone()).or_default();
            mine.member |= node.member;
            mine.below = mine.below.union(&node.below);
        }
        out
    }

    /// Members of both.
    pub fn intersection(&self, other: &Set) -> Set {
        self.combine(other, |mine, theirs| mine && theirs, false, Set::intersection)
    }

    /// Members of this one alone. A member of the other takes nothing away from below itself.
    pub fn difference(&self, other: &Set) -> Set {
        self.combine(other, |mine, theirs| mine && !theirs, true, Set::difference)
    }

    fn combine(
        &self,
        other: &Set,
        member: fn(bool, bool) -> bool,
        keep_lonely: bool,
        below: fn(&Set, &Set) -> Set,
    ) -> Set {
        let mut out = Set::default();
        for (element, node) in &self.nodes {
            let combined = match other.nodes.get(element) {
                Some(theirs) => Node {
                    member: member(node.member, theirs.member),
                    below: below(&node.below, &theirs.below),
                },
                None if keep_lonely => node.clone(),
                None => Node::default(),
            };
            if !combined.is_empty() {
                out.nodes.insert(element.clone(), combined);
            }
        }
        out
    }

    /// Takes away members of the other and everything below them.
    pub fn without(&self, other: &Set) -> Set {
        let mut out = Set::default();
        for (element, node) in &self.nodes {
            let kept = match other.nodes.get(element) {
                Some(theirs) if theirs.member => Node::default(),
                Some(theirs) => Node { member: node.member, below: node.below.without(&theirs.below) },
                None => node.clone(),
            };
            if !kept.is_empty() {
                out.nodes.insert(element.clone(), kept);
            }
        }
        out
    }

    /// The same with the named fields on the way to each member, which usually aren't members.
    pub fn with_named(&self, kind: &Type) -> Set {
        let mut out = Set::default();
        for (element, node) in &self.nodes {
            let (child, named) = match element {
                Element::Field(name) => kind.field(name),
                _ => (kind.item(), false),
            };
            let member = node.member || (named && !node.below.is_empty());
            out.nodes.insert(element.clone(), Node { member, below: node.below.with_named(&child) });
        }
        out
    }

    /// Every member as conflicts name it: `.spec.replicas`.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        // Members come before what lies below their neighbours, as in the original.
        for (element, node) in &self.nodes {
            if node.member {
                out.push(format!("{prefix}{}", element.to_path()));
            }
        }
        for (element, node) in &self.nodes {
            node.below.collect(&format!("{prefix}{}", element.to_path()), out);
        }
    }

    /// As `fieldsV1`.
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        for (element, node) in &self.nodes {
            let mut below = match node.below.to_value() {
                Value::Object(below) => below,
                _ => Map::new(),
            };
            if node.member && !below.is_empty() {
                let mut with_self = Map::new();
                with_self.insert(".".to_owned(), Value::Object(Map::new()));
                with_self.extend(below);
                below = with_self;
            }
            out.insert(element.to_text(), Value::Object(below));
        }
        Value::Object(out)
    }

    /// From `fieldsV1`; nothing when it isn't such a value.
    pub fn from_value(value: &Value) -> Option<Set> {
        let mut out = Set::default();
        for (text, below) in value.as_object()? {
            if text == "." {
                continue;
            }
            let element = Element::from_text(text)?;
            let object = below.as_object()?;
            let member = object.is_empty() || object.contains_key(".");
            out.nodes.insert(element, Node { member, below: Set::from_value(below)? });
        }
        Some(out)
    }
}

/// A set from paths of field names: `metadata.name`.
pub fn fields(paths: &[&str]) -> Set {
    let mut out = Set::default();
    for path in paths {
        let path: Vec<Element> = path.split('.').map(|name| Element::Field(name.to_owned())).collect();
        out.insert(&path);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sets_read_and_write_fields_v1() {
        let value = json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {"f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}},
                       "f:finalizers": {"v:\"a\"": {}}}
        });
        let set = Set::from_value(&value).unwrap();
        assert_eq!(set.to_value(), value);
        assert_eq!(
            set.paths(),
            [
                ".metadata.labels",
                ".metadata.labels.app",
                ".spec.finalizers[=\"a\"]",
                ".spec.ports[containerPort=80,protocol=\"TCP\"]",
                ".spec.ports[containerPort=80,protocol=\"TCP\"].name",
            ]
        );
    }

    #[test]
    fn the_algebra_works_on_members_alone() {
        let both = fields(&["a", "a.b", "c.d"]);
        let some = fields(&["a", "c.d"]);
        assert_eq!(both.difference(&some), fields(&["a.b"]));
        assert_eq!(both.without(&some), Set::default());
        assert_eq!(both.intersection(&some), some);
        assert_eq!(some.union(&fields(&["a.b"])), both);
    }
}
