//! The folder of the repository that Flux's three files lie in, `<path>/<namespace>`: what of it is
//! ours to write, and what is the user's.
//!
//! `gotk-components.yaml` and `gotk-sync.yaml` are Flux's and follow the request. A kustomization file
//! that is there belongs to the user, as `flux bootstrap` has it (`pkg/bootstrap/bootstrap_plain_git.go`):
//! it is kept as it is, and honoured in what is applied to the cluster.

use std::collections::BTreeMap;

use codecommit::{Commit, Committed, File, Head, Overwrite, Repo};
use serde_json::Value;
use step::request::FluxOptions;
use step::{Change, ErrorName, Resource, Result};

use crate::detect::PART_OF;
use crate::kustomize::{self, Built};
use crate::render::{self, Rendered};
use crate::version;

/// The names under which kustomize looks for its file; a folder has at most one of them.
const KUSTOMIZATION_NAMES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
const COMPONENTS: &str = "gotk-components.yaml";
/// How many files that a user's own kustomization.yaml mentions are read.
const MOST_FILES: usize = 30;
/// How the header of `gotk-components.yaml` names its version.
const VERSION_LINE: &str = "# Flux Version: ";

/// The folder as a commit has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Folder {
    path: String,
    /// The kustomization file's name, where there is one.
    kustomization_name: Option<String>,
    /// Its text, where it differs from what would be written.
    kustomization: Option<String>,
    /// The files that it mentions, by their paths from the folder.
    files: BTreeMap<String, String>,
    /// The version of the `gotk-components.yaml` there, where it differs from what would be written.
    version: Option<String>,
}

impl Folder {
    /// Reads the folder at the branch's head; at the default branch's, where the branch is still to
    /// be made from it. A repository that does not exist has an empty one.
    ///
    /// # Errors
    /// As AWS answers.
    pub async fn read(
        repo: &Repo<'_>,
        branch: &str,
        options: &FluxOptions,
        rendered: &Rendered,
    ) -> Result<Folder> {
        let mut folder = Folder { path: render::folder(options), ..Folder::default() };
        let at = match repo.head(branch).await {
            Ok(Head::Commit(commit)) => commit,
            Ok(Head::NoBranch { default_branch }) => default_branch,
            Ok(Head::Empty) => return Ok(folder),
            Err(error) if error.name == ErrorName::PrerequisiteMissing => return Ok(folder),
            Err(error) => return Err(error),
        };
        let Some(listing) = repo.read_folder(&at, &folder.path).await? else { return Ok(folder) };
        let same = |blob_id: &str, text: &str| blob_id == codecommit::blob_id(text.as_bytes());

        if let Some(entry) = listing.files.get(COMPONENTS)
            && !same(&entry.blob_id, &rendered.gotk_components)
        {
            let text = folder.text(repo, &at, COMPONENTS).await?.unwrap_or_default();
            folder.version =
                text.lines().take(10).find_map(|line| line.strip_prefix(VERSION_LINE)).map(str::to_owned);
        }
        let found = KUSTOMIZATION_NAMES.iter().find_map(|name| Some((*name, listing.files.get(*name)?)));
        if let Some((name, entry)) = found {
            folder.kustomization_name = Some(name.to_owned());
            if !same(&entry.blob_id, &rendered.kustomization) {
                let text = folder.text(repo, &at, name).await?.unwrap_or_default();
                for path in mentioned(&text).take(MOST_FILES) {
                    if let Some(file) = folder.text(repo, &at, path).await? {
                        folder.files.insert(path.to_owned(), file);
                    }
                }
                folder.kustomization = Some(text);
            }
        }
        Ok(folder)
    }

    async fn text(&self, repo: &Repo<'_>, at: &str, name: &str) -> Result<Option<String>> {
        let bytes = repo.read_file(at, &format!("{}/{name}", self.path)).await?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Refuses to write an older Flux over a newer one.
    ///
    /// # Errors
    /// `Conflict`, unless the options allow it.
    pub fn check_version(&self, options: &FluxOptions) -> Result<()> {
        match &self.version {
            Some(found) => version::check(found, &format!("{}/{COMPONENTS}", self.path), options),
            None => Ok(()),
        }
    }

    /// The objects as kustomize-controller will build them from the folder, once it holds the
    /// rendered files.
    ///
    /// # Errors
    /// Those of [`kustomize::build`].
    pub fn build(&self, rendered: &Rendered) -> Result<Built> {
        let mut files = self.files.clone();
        for (name, text) in rendered.files() {
            files.insert(name.to_owned(), text.to_owned());
        }
        kustomize::build(self.kustomization.as_deref().unwrap_or(&rendered.kustomization), &files)
    }

    /// What a report says about a kustomization file of the user's own; nothing where it is ours.
    pub fn report(&self, built: &Built) -> Option<Resource> {
        self.kustomization.as_ref()?;
        let name = self.kustomization_name.as_deref()?;
        let mut detail = "the repository's own; kept as it is and honoured".to_owned();
        if !built.left.is_empty() {
            detail.push_str(&format!("; left to kustomize-controller: {}", built.left.join(", ")));
        }
        let uneven: Vec<&str> = built.objects.iter().filter_map(uneven).collect();
        if !uneven.is_empty() {
            detail.push_str(&format!(
                "; it leaves {} with requests that differ from limits, which Fargate does not run well \
                 (fluxcd/flux2#3138)",
                uneven.join(", ")
            ));
        }
        let id = format!("{}/{name}", self.path);
        Some(Resource::new("Kustomization file", id, Change::Adopted).detail(detail))
    }

    /// Writes the three files in one commit, where they differ. `flux bootstrap` makes two commits;
    /// one never shows a kustomization.yaml that lists a file which is not there yet
    /// (terraform-provider-flux#790).
    ///
    /// # Errors
    /// Those of [`Repo::commit_files`].
    pub async fn commit(
        &self,
        repo: &Repo<'_>,
        branch: &str,
        rendered: &Rendered,
        version: &str,
    ) -> Result<Committed> {
        let message = format!("Add Flux {version} component and sync manifests");
        let mut commit = Commit::new(branch, &message).author("Flux", "");
        for (name, text) in rendered.files() {
            let overwrite = match name {
                "kustomization.yaml" if self.kustomization_name.is_some() => continue,
                "kustomization.yaml" => Overwrite::IfAbsent,
                _ => Overwrite::Always,
            };
            commit = commit.file(File::new(&format!("{}/{name}", self.path), text, overwrite));
        }
        repo.commit_files(&commit).await
    }
}

/// The name of a Deployment of Flux's with a container whose requests are not its limits.
fn uneven(object: &Value) -> Option<&str> {
    let is_flux = object["kind"] == "Deployment" && object["metadata"]["labels"][PART_OF] == "flux";
    let containers = object["spec"]["template"]["spec"]["containers"].as_array()?;
    let uneven = containers.iter().any(|container| {
        let resources = &container["resources"];
        ["cpu", "memory"].iter().any(|what| resources["requests"][what] != resources["limits"][what])
    });
    (is_flux && uneven).then(|| object["metadata"]["name"].as_str()).flatten()
}

/// The files of the folder that a kustomization.yaml mentions beside ours. Whatever looks like the
/// path of a file is one; reading a file too many does no harm.
fn mentioned(kustomization: &str) -> impl Iterator<Item = &str> {
    let ours = [COMPONENTS, "gotk-sync.yaml"];
    kustomization
        .split(|c: char| c.is_whitespace() || "\"',[]{}".contains(c))
        .map(|word| word.strip_prefix("./").unwrap_or(word))
        .filter(|word| [".yaml", ".yml", ".json"].iter().any(|end| word.ends_with(end)))
        .filter(move |word| {
            !ours.contains(word) && !word.contains("://") && !word.split('/').any(|part| part == "..")
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_files_of_the_folder_are_taken_for_mentioned() {
        let text = "resources: [gotk-sync.yaml, './a.yaml', ../b.yaml, https://x/c.yaml]\npatches:\n- path: d/e.json\n";
        assert_eq!(mentioned(text).collect::<Vec<_>>(), ["a.yaml", "d/e.json"]);
    }

    #[test]
    fn a_report_says_what_is_left_and_what_fargate_does_not_run() {
        let mine = Folder { path: "apps/fluxcd".to_owned(), ..Folder::default() };
        let deployment = |requests: &str| {
            json!({"kind": "Deployment",
                   "metadata": {"name": "source-controller", "labels": {"app.kubernetes.io/part-of": "flux"}},
                   "spec": {"template": {"spec": {"containers": [
                       {"resources": {"requests": {"cpu": requests}, "limits": {"cpu": "1"}}}]}}}})
        };
        let built = |requests: &str, left: &[&str]| Built {
            objects: vec![deployment(requests)],
            left: left.iter().map(|&field| field.to_owned()).collect(),
        };
        assert_eq!(mine.report(&built("50m", &[])), None);
        let theirs = Folder {
            kustomization_name: Some("kustomization.yml".to_owned()),
            kustomization: Some("resources: []".to_owned()),
            ..mine
        };
        let report = theirs.report(&built("50m", &["replacements"])).expect("theirs");
        assert_eq!((report.id.as_str(), report.change), ("apps/fluxcd/kustomization.yml", Change::Adopted));
        let detail = report.detail.expect("detail");
        assert!(detail.contains("left to kustomize-controller: replacements"), "{detail}");
        assert!(detail.contains("it leaves source-controller with requests"), "{detail}");
        let quiet = theirs.report(&built("1", &[])).expect("theirs").detail.expect("detail");
        assert_eq!(quiet, "the repository's own; kept as it is and honoured");
    }
}
