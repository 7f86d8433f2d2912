//! What a step is asked to do.

use serde::{Deserialize, Serialize};

/// The verb of an invocation; the state machines put it beside the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// Makes sure that the step's resources are there.
    #[default]
    Apply,
    /// Says what [`Action::Apply`] would do. Reads only.
    Plan,
    /// Takes away what the step made.
    Destroy,
    /// Says what [`Action::Destroy`] would do. Reads only.
    PlanDestroy,
}

impl Action {
    /// Whether nothing may be written.
    pub fn is_plan(self) -> bool {
        matches!(self, Action::Plan | Action::PlanDestroy)
    }

    /// Whether it is about taking away.
    pub fn is_destroy(self) -> bool {
        matches!(self, Action::Destroy | Action::PlanDestroy)
    }
}

/// Stands for an ARN or id that a plan cannot know, since the resource is still to be made.
pub const AFTER_APPLY: &str = "(known after apply)";
