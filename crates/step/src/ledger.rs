//! What a step has made so far, for the case that it fails half-way.
//!
//! A step that succeeds reports its resources as its output. One that fails has only an error to
//! give, and Lambda's form of it (`errorType`, `errorMessage`) has no place for a list; so the step
//! notes each resource at the moment it made or found it, and the notes end up behind the error's
//! text in a form that the state machine's failure report takes apart again. The notes belong to one
//! invocation and follow the task, not the arguments, since a note is due at the bottom of a call
//! chain, next to the write.

use std::cell::RefCell;
use std::future::Future;

use crate::{Change, Resource};

/// Stands between an error's text and the notes; the failure report splits the text here.
pub const MARK: &str = "\nIn place when it failed: ";
/// Stands between two notes.
const SEPARATOR: &str = "; ";
/// How many notes an error carries: Step Functions cuts a cause at 32,768 characters.
const MOST: usize = 100;

tokio::task_local! {
    static NOTES: RefCell<Vec<Resource>>;
}

/// Notes that a resource is in place. A resource that was noted before keeps its place in the list,
/// and `created` outweighs what is found out about it later. Outside of [`gather`] nothing is kept.
pub fn note(resource: &Resource) {
    let _ = NOTES.try_with(|notes| {
        let mut notes = notes.borrow_mut();
        match notes.iter_mut().find(|known| known.kind == resource.kind && known.id == resource.id) {
            Some(known) if known.change == Change::Created || resource.change == Change::Unchanged => {}
            Some(known) => *known = resource.clone(),
            None => notes.push(resource.clone()),
        }
    });
}

/// Takes back a note, of something that was made and is gone again.
pub fn forget(kind: &str, id: &str) {
    let _ = NOTES.try_with(|notes| notes.borrow_mut().retain(|known| known.kind != kind || known.id != id));
}

/// Runs a step, and answers with its result and its notes.
pub async fn gather<F: Future>(step: F) -> (F::Output, Vec<Resource>) {
    NOTES
        .scope(RefCell::default(), async {
            let output = step.await;
            (output, NOTES.with(RefCell::take))
        })
        .await
}

/// An error's text with the notes behind it.
pub fn append(message: &str, notes: &[Resource]) -> String {
    if notes.is_empty() {
        return message.to_owned();
    }
    let lines: Vec<String> = notes
        .iter()
        .take(MOST)
        .map(|note| format!("{} {} {}", note.change.as_str(), note.kind, note.id))
        .collect();
    format!("{message}{MARK}{}", lines.join(SEPARATOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(change: Change) -> Resource {
        Resource::new("AWS::KMS::Key", "1234", change)
    }

    #[tokio::test]
    async fn notes_are_one_invocations_own() {
        note(&key(Change::Created));
        let (output, notes) = gather(async {
            note(&key(Change::Created));
            note(&key(Change::Unchanged));
            note(&Resource::new("AWS::KMS::Alias", "alias/a", Change::Unchanged));
            note(&Resource::new("AWS::KMS::Alias", "alias/a", Change::Updated));
            note(&Resource::new("AWS::KMS::Key", "5678", Change::Created));
            forget("AWS::KMS::Key", "5678");
            7
        })
        .await;
        assert_eq!(output, 7);
        assert_eq!(
            notes,
            [key(Change::Created), Resource::new("AWS::KMS::Alias", "alias/a", Change::Updated)]
        );
        assert_eq!(gather(async {}).await.1, []);
    }

    #[test]
    fn an_error_names_what_is_in_place() {
        let notes = [key(Change::Created), Resource::new("AWS::KMS::Alias", "alias/a", Change::Unchanged)];
        assert_eq!(
            append("refused", &notes),
            "refused\nIn place when it failed: created AWS::KMS::Key 1234; unchanged AWS::KMS::Alias alias/a"
        );
        assert_eq!(append("refused", &[]), "refused");
    }
}
