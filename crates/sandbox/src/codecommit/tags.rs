//! Tags of repositories.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::refusal::{Answer, refuse};
use super::{CodeCommit, Repository};

/// Tags that a resource may have.
const LIMIT: usize = 50;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TagResource {
    resource_arn: Option<String>,
    tags: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UntagResource {
    resource_arn: Option<String>,
    tag_keys: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListTagsForResource {
    resource_arn: Option<String>,
    next_token: Option<String>,
}

/// Tags that a request brings, when they may be set.
pub(super) fn check(tags: BTreeMap<String, String>) -> Answer<BTreeMap<String, String>> {
    if tags.len() > LIMIT {
        return Err(refuse("TooManyTagsException"));
    }
    for (key, value) in &tags {
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(refuse("InvalidSystemTagUsageException"));
        }
        let fits = (1..=128).contains(&key.chars().count()) && value.chars().count() <= 256;
        if !fits {
            return Err(refuse("InvalidTagsMapException"));
        }
    }
    Ok(tags)
}

impl CodeCommit {
    fn by_arn(&self, arn: Option<&str>) -> Answer<Arc<Repository>> {
        let arn = arn.filter(|arn| !arn.is_empty()).ok_or_else(|| refuse("ResourceArnRequiredException"))?;
        let parts: Vec<&str> = arn.splitn(6, ':').collect();
        match parts[..] {
            ["arn", _, "codecommit", region, account, name]
                if region == self.settings.region && account == self.settings.account =>
            {
                self.named(Some(name))
            }
            _ => Err(refuse("InvalidResourceArnException")),
        }
    }

    pub(super) fn tag_resource(&self, input: TagResource) -> Answer<Value> {
        let repository = self.by_arn(input.resource_arn.as_deref())?;
        let tags =
            input.tags.filter(|tags| !tags.is_empty()).ok_or_else(|| refuse("TagsMapRequiredException"))?;
        let tags = check(tags)?;
        let mut all = repository.metadata().tags;
        all.extend(tags);
        let all = check(all)?;
        repository.change(|metadata| metadata.tags = all)?;
        Ok(Value::Null)
    }

    pub(super) fn untag_resource(&self, input: UntagResource) -> Answer<Value> {
        let repository = self.by_arn(input.resource_arn.as_deref())?;
        let keys = input
            .tag_keys
            .filter(|keys| !keys.is_empty())
            .ok_or_else(|| refuse("TagKeysListRequiredException"))?;
        if keys.iter().any(|key| key.to_ascii_lowercase().starts_with("aws:")) {
            return Err(refuse("InvalidSystemTagUsageException"));
        }
        if keys.iter().any(|key| !(1..=128).contains(&key.chars().count())) {
            return Err(refuse("InvalidTagKeysListException"));
        }
        repository.change(|metadata| metadata.tags.retain(|key, _| !keys.contains(key)))?;
        Ok(Value::Null)
    }

    pub(super) fn list_tags_for_resource(&self, input: ListTagsForResource) -> Answer<Value> {
        let repository = self.by_arn(input.resource_arn.as_deref())?;
        let all: Vec<(String, String)> = repository.metadata().tags.into_iter().collect();
        let (page, next) = self.paginate("tags", all, input.next_token.as_deref(), None)?;
        let mut value = json!({"tags": page.into_iter().collect::<BTreeMap<_, _>>()});
        if let Some(next) = next {
            value["nextToken"] = json!(next);
        }
        Ok(value)
    }
}
