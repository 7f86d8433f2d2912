//! Tags: on creation, afterwards, and their own list.

use std::collections::BTreeMap;

use super::form::Form;
use super::xml::Xml;
use super::{Context, Region, filter};
use crate::wire::ApiError;

/// Tags of a resource.
pub(super) type Tags = BTreeMap<String, String>;

const MAX_TAGS: usize = 50;

/// The tags that a creating call brings, from its `TagSpecification`s.
pub(super) fn on_creation(form: &Form, resource_type: &str) -> Result<Tags, ApiError> {
    let mut tags = Tags::new();
    for specification in form.nodes("TagSpecification") {
        let given = specification.required("ResourceType")?;
        if given != resource_type {
            return Err(ApiError::new(
                "InvalidParameterValue",
                format!("'{given}' is not a valid taggable resource type for this operation."),
            ));
        }
        for (key, value) in pairs(&specification)? {
            if tags.insert(key.clone(), value.unwrap_or_default()).is_some() {
                return Err(ApiError::new(
                    "InvalidParameterValue",
                    format!("Duplicate tag key '{key}' specified."),
                ));
            }
        }
    }
    limit(&tags)?;
    Ok(tags)
}

/// Writes `tagSet`.
pub(super) fn write(xml: &mut Xml, tags: &Tags) {
    xml.list("tagSet", tags, |xml, (key, value)| {
        xml.text("key", key).text("value", value);
    });
}

fn pairs(form: &Form) -> Result<Vec<(String, Option<String>)>, ApiError> {
    let mut pairs = Vec::new();
    for tag in form.nodes("Tag") {
        let key = tag.required("Key")?;
        let value = tag.get("Value");
        if key.starts_with("aws:") {
            return Err(ApiError::new(
                "InvalidParameterValue",
                "Tag keys starting with 'aws:' are reserved for internal use",
            ));
        }
        if key.chars().count() > 127 || value.is_some_and(|value| value.chars().count() > 255) {
            return Err(ApiError::new(
                "InvalidParameterValue",
                "Tag key exceeds the maximum length of 127 characters, or its value 255",
            ));
        }
        pairs.push((key.to_owned(), value.map(str::to_owned)));
    }
    Ok(pairs)
}

fn limit(tags: &Tags) -> Result<(), ApiError> {
    if tags.len() > MAX_TAGS {
        return Err(ApiError::new(
            "TagLimitExceeded",
            format!("You have reached the maximum number of {MAX_TAGS} tags per resource."),
        ));
    }
    Ok(())
}

/// `CreateTags`
pub(super) fn create(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let (resources, pairs) = (resources(form)?, pairs(form)?);
    if pairs.is_empty() {
        return Err(super::form::missing("Tag"));
    }
    // All or nothing, so every resource is looked at first.
    for id in &resources {
        let mut tags = region.tags_of(id, context)?.clone();
        tags.extend(pairs.iter().map(|(key, value)| (key.clone(), value.clone().unwrap_or_default())));
        limit(&tags)?;
    }
    for id in &resources {
        let tags = region.tags_of(id, context)?;
        for (key, value) in &pairs {
            tags.insert(key.clone(), value.clone().unwrap_or_default());
        }
    }
    let mut xml = Xml::default();
    xml.text("return", true);
    Ok(xml)
}

/// `DeleteTags`: a tag with a value goes only if it has that value; no tag at all means all.
pub(super) fn delete(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let (resources, pairs) = (resources(form)?, pairs(form)?);
    for id in &resources {
        region.tags_of(id, context)?;
    }
    for id in &resources {
        let tags = region.tags_of(id, context)?;
        if pairs.is_empty() {
            tags.clear();
        }
        for (key, value) in &pairs {
            if value.as_ref().is_none_or(|value| tags.get(key) == Some(value)) {
                tags.remove(key);
            }
        }
    }
    let mut xml = Xml::default();
    xml.text("return", true);
    Ok(xml)
}

fn resources(form: &Form) -> Result<Vec<String>, ApiError> {
    let ids: Vec<String> = form.list("ResourceId").into_iter().map(str::to_owned).collect();
    if ids.is_empty() {
        return Err(super::form::missing("ResourceId"));
    }
    Ok(ids)
}

/// `DescribeTags`
pub(super) fn describe(region: &mut Region, form: &Form, context: &Context<'_>) -> Result<Xml, ApiError> {
    let filters = filter::read(form, &["key", "value", "resource-id", "resource-type"])?;
    let rows: Vec<(&str, &str, &str, &str)> = region
        .tagged(context)
        .into_iter()
        .flat_map(|(kind, id, tags)| {
            tags.iter().map(move |(key, value)| (kind, id, key.as_str(), value.as_str()))
        })
        .filter(|(kind, id, key, value)| {
            let own = Tags::from([((*key).to_owned(), (*value).to_owned())]);
            filter::passes(&filters, &own, |name| {
                vec![
                    match name {
                        "key" => *key,
                        "value" => *value,
                        "resource-id" => *id,
                        _ => *kind,
                    }
                    .to_owned(),
                ]
            })
        })
        .collect();
    let (rows, next) = filter::page(form, context.settings.page_size, false, rows)?;
    let mut xml = Xml::default();
    xml.list("tagSet", rows, |xml, (kind, id, key, value)| {
        xml.text("resourceId", id).text("resourceType", kind).text("key", key).text("value", value);
    });
    xml.optional("nextToken", next);
    Ok(xml)
}
