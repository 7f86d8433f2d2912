//! Whose a resource is. Every update and every deletion asks here first.
//!
//! Ownership is written on the resource as the tag [`OWNER_TAG`]: its value is the target
//! (`stack/cluster/namespace`) on what belongs to one target, and the stack on what the clusters of a
//! VPC or the namespaces of a cluster share. What is shared carries one more tag for each cluster that
//! uses it. What carries no tag of ours is somebody else's, and is never changed or deleted; only
//! `adopt` in the request takes it over.

use crate::names::{CLUSTER_TAG_PREFIX, OWNER_TAG, Owner};

/// Whose a resource is, seen from one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// Made by this stack, for this target alone.
    Ours,
    /// Made by this stack, and shared with other clusters.
    Shared {
        /// The other clusters that use it; empty where this cluster is the only one.
        others: Vec<String>,
        /// Whether this cluster is marked as using it.
        used: bool,
    },
    /// Not this stack's, or not this target's.
    Foreign {
        /// The value of the owner tag, where there is one: another stack or target.
        owner: Option<String>,
    },
}

impl Whose {
    /// Of something that belongs to one target, by its tags.
    pub fn of_target<'a>(tags: impl IntoIterator<Item = (&'a str, &'a str)>, owner: &Owner) -> Whose {
        match owner_tag(tags) {
            Some(found) if found == owner.target() => Whose::Ours,
            found => Whose::Foreign { owner: found.map(str::to_owned) },
        }
    }

    /// Of something that is shared within the stack, by its tags.
    pub fn of_stack<'a>(tags: impl IntoIterator<Item = (&'a str, &'a str)>, owner: &Owner) -> Whose {
        let tags: Vec<(&str, &str)> = tags.into_iter().collect();
        match owner_tag(tags.iter().copied()) {
            Some(found) if found == owner.shared() => {
                let clusters: Vec<&str> =
                    tags.iter().filter_map(|(key, _)| key.strip_prefix(CLUSTER_TAG_PREFIX)).collect();
                let used = clusters.contains(&owner.cluster.as_str());
                let mut others: Vec<String> = clusters
                    .into_iter()
                    .filter(|cluster| *cluster != owner.cluster)
                    .map(str::to_owned)
                    .collect();
                others.sort();
                Whose::Shared { others, used }
            }
            found => Whose::Foreign { owner: found.map(str::to_owned) },
        }
    }

    /// Whether this target may change it.
    pub fn may_change(&self) -> bool {
        !matches!(self, Whose::Foreign { .. })
    }

    /// Whether this target may delete it: nobody else uses it.
    pub fn may_delete(&self) -> bool {
        match self {
            Whose::Ours => true,
            Whose::Shared { others, .. } => others.is_empty(),
            Whose::Foreign { .. } => false,
        }
    }

    /// Half a sentence for reports and errors: `it belongs to other/demo/fluxcd`.
    pub fn describe(&self) -> String {
        match self {
            Whose::Ours => "it is this target's own".to_owned(),
            Whose::Shared { others, .. } if others.is_empty() => "it is this stack's own".to_owned(),
            Whose::Shared { others, .. } => format!("it is shared with {}", others.join(", ")),
            Whose::Foreign { owner: Some(owner) } => format!("it belongs to {owner}"),
            Whose::Foreign { owner: None } => {
                format!("it was not made by eks-flux-bootstrap (no tag {OWNER_TAG})")
            }
        }
    }
}

fn owner_tag<'a>(tags: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<&'a str> {
    tags.into_iter().find(|(key, _)| *key == OWNER_TAG).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner { stack: "stack".to_owned(), cluster: "demo".to_owned(), namespace: "fluxcd".to_owned() }
    }

    #[test]
    fn what_belongs_to_one_target() {
        for (tags, ours, text) in [
            (vec![(OWNER_TAG, "stack/demo/fluxcd")], true, "it is this target's own"),
            (vec![(OWNER_TAG, "stack/demo/other")], false, "it belongs to stack/demo/other"),
            (vec![(OWNER_TAG, "stack")], false, "it belongs to stack"),
            (vec![("Name", "stack/demo/fluxcd")], false, "it was not made by eks-flux-bootstrap"),
            (vec![], false, "it was not made by eks-flux-bootstrap"),
        ] {
            let whose = Whose::of_target(tags.clone(), &owner());
            assert_eq!((whose.may_change(), whose.may_delete()), (ours, ours), "{tags:?}");
            assert!(whose.describe().starts_with(text), "{}", whose.describe());
        }
    }

    #[test]
    fn what_clusters_share() {
        let mine = (OWNER_TAG, "stack");
        let (demo, other) =
            (("eks-flux-bootstrap:cluster/demo", "true"), ("eks-flux-bootstrap:cluster/other", "true"));
        for (tags, change, delete, used) in [
            (vec![mine, demo], true, true, true),
            (vec![mine], true, true, false),
            (vec![mine, demo, other], true, false, true),
            (vec![mine, other], true, false, false),
        ] {
            let whose = Whose::of_stack(tags.clone(), &owner());
            assert_eq!((whose.may_change(), whose.may_delete()), (change, delete), "{tags:?}");
            assert!(matches!(whose, Whose::Shared { used: found, .. } if found == used), "{tags:?}");
        }
        for tags in [vec![(OWNER_TAG, "stack2"), demo], vec![demo], vec![(OWNER_TAG, "stack/demo/fluxcd")]] {
            let whose = Whose::of_stack(tags.clone(), &owner());
            assert!(!whose.may_change() && !whose.may_delete(), "{tags:?}");
        }
    }
}
