//! Keys of ours by their tag, with one call to the Resource Groups Tagging API.

use std::time::Duration;

use http::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use step::facts::Cluster;
use step::names::OWNER_TAG;
use step::{Result, StepError};
use transport::Transport;

use crate::UNFINISHED_TAG;

const ACTION: &str = "tag:GetResources";
const TIMEOUT: Duration = Duration::from_secs(10);
const LIMIT: usize = 1024 * 1024;

/// A key that the index lists for this target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// The key's ARN.
    pub arn: String,
    /// Whether the index says that it never got its alias. The index may lag behind.
    pub unfinished: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Page {
    pagination_token: Option<String>,
    resource_tag_mapping_list: Vec<Mapping>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Mapping {
    #[serde(rename = "ResourceARN")]
    resource_arn: String,
    tags: Vec<Tag>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Tag {
    key: String,
}

/// All keys that carry this target's owner tag, deleted ones that the index still lists included.
///
/// # Errors
/// `Denied` without `tag:GetResources`, `Transient`.
pub async fn find(transport: &Transport, cluster: &Cluster, target: &str) -> Result<Vec<Leftover>> {
    let suffix = if cluster.partition() == "aws-cn" { "amazonaws.com.cn" } else { "amazonaws.com" };
    let endpoint = transport
        .endpoint("RESOURCE_GROUPS_TAGGING_API", &format!("https://tagging.{}.{suffix}", cluster.region()));
    let mut found = Vec::new();
    let mut token = String::new();
    loop {
        let page = page(transport, &endpoint, target, &token).await?;
        found.extend(page.resource_tag_mapping_list.into_iter().map(|mapping| Leftover {
            unfinished: mapping.tags.iter().any(|tag| tag.key == UNFINISHED_TAG),
            arn: mapping.resource_arn,
        }));
        match page.pagination_token {
            Some(next) if !next.is_empty() => token = next,
            _ => return Ok(found),
        }
    }
}

async fn page(transport: &Transport, endpoint: &str, target: &str, token: &str) -> Result<Page> {
    let body = json!({
        "PaginationToken": token,
        "ResourceTypeFilters": ["kms:key"],
        "TagFilters": [{"Key": OWNER_TAG, "Values": [target]}],
    });
    let request = Request::post(format!("{endpoint}/"))
        .header("content-type", "application/x-amz-json-1.1")
        .header("x-amz-target", "ResourceGroupsTaggingAPI_20170126.GetResources")
        .body(body.to_string().into_bytes())
        .map_err(|_| StepError::internal(format!("{ACTION}: the request could not be built")))?;
    let reply = transport.send_signed("tagging", request, TIMEOUT, LIMIT).await?;
    let what = format!("the KMS keys of {target}");
    let status = reply.status().as_u16();
    let value: Value = serde_json::from_slice(reply.body()).unwrap_or_default();
    if !reply.status().is_success() {
        let code = value["__type"].as_str().unwrap_or("Unknown");
        let code = code.rsplit('#').next().unwrap_or(code);
        let text = value["message"].as_str().or(value["Message"].as_str()).unwrap_or("no message");
        return Err(StepError::from_code(ACTION, &what, code, text, Some(status)));
    }
    serde_json::from_value(value).map_err(|_| {
        StepError::from_code(ACTION, &what, "UnreadableReply", "the reply could not be read", Some(status))
    })
}
