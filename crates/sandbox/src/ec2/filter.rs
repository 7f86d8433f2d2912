//! Filters and pages of EC2's describe calls.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::form::{Form, invalid};
use super::tags::Tags;
use crate::wire::ApiError;

/// EC2 takes at most this many values in one call.
const MAX_VALUES: usize = 200;

/// One filter: any of its values must match. Several filters must match all.
#[derive(Debug)]
pub(super) struct Filter {
    name: String,
    values: Vec<String>,
}

/// Reads the filters of a call. `known` are the action's own; those about tags go with all.
pub(super) fn read(form: &Form, known: &[&str]) -> Result<Vec<Filter>, ApiError> {
    let mut filters = Vec::new();
    for node in form.nodes("Filter") {
        let name = node.required("Name")?.to_owned();
        if !known.contains(&name.as_str()) && name != "tag-key" && !name.starts_with("tag:") {
            return Err(ApiError::new("InvalidParameterValue", format!("The filter '{name}' is invalid")));
        }
        let values: Vec<String> = node.list("Value").into_iter().map(str::to_owned).collect();
        if values.is_empty() {
            return Err(ApiError::new("InvalidParameterValue", format!("The filter '{name}' has no values")));
        }
        if values.len() > MAX_VALUES {
            return Err(ApiError::new(
                "FilterLimitExceeded",
                format!("The maximum number of filter values specified on a single call is {MAX_VALUES}"),
            ));
        }
        filters.push(Filter { name, values });
    }
    Ok(filters)
}

/// Whether a resource passes: `values` gives what it has for a filter's name.
pub(super) fn passes(filters: &[Filter], tags: &Tags, values: impl Fn(&str) -> Vec<String>) -> bool {
    filters.iter().all(|filter| {
        let has: Vec<String> = match filter.name.strip_prefix("tag:") {
            Some(key) => tags.get(key).cloned().into_iter().collect(),
            None if filter.name == "tag-key" => tags.keys().cloned().collect(),
            None => values(&filter.name),
        };
        has.iter().any(|text| filter.values.iter().any(|pattern| glob(pattern, text)))
    })
}

/// Cuts a page. EC2 refuses `MaxResults` beside explicit ids, and below five.
pub(super) fn page<T>(
    form: &Form,
    default_size: usize,
    by_id: bool,
    items: Vec<T>,
) -> Result<(Vec<T>, Option<String>), ApiError> {
    let size = match form.number("MaxResults")? {
        None => default_size,
        Some(_) if by_id => {
            return Err(ApiError::new(
                "InvalidParameterCombination",
                "The parameter MaxResults cannot be used with ids in the same request",
            ));
        }
        Some(size @ 5..=1000) => size as usize,
        Some(size) => {
            return Err(ApiError::new(
                "InvalidParameterValue",
                format!(
                    "Value ( {size} ) for parameter maxResults is invalid. Expecting a value from 5 to 1000."
                ),
            ));
        }
    };
    let start = match form.get("NextToken").filter(|token| !token.is_empty()) {
        None => 0,
        Some(token) => {
            decode(token).ok_or_else(|| invalid("NextToken", token, "It is not from this service"))?
        }
    };
    let more = start + size < items.len();
    let page = items.into_iter().skip(start).take(size).collect();
    Ok((page, more.then(|| URL_SAFE_NO_PAD.encode(format!("page {}", start + size)))))
}

fn decode(token: &str) -> Option<usize> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
    std::str::from_utf8(&bytes).ok()?.strip_prefix("page ")?.parse().ok()
}

/// `*` is any text and `?` any character; a backslash takes their meaning away.
fn glob(pattern: &str, text: &str) -> bool {
    fn go(pattern: &[char], text: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*', rest @ ..] => (0..=text.len()).any(|at| go(rest, &text[at..])),
            ['?', rest @ ..] => !text.is_empty() && go(rest, &text[1..]),
            ['\\', c, rest @ ..] | [c, rest @ ..] => text.first() == Some(c) && go(rest, &text[1..]),
        }
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    go(&pattern, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_ec2s() {
        for (pattern, text, expected) in [
            ("a*c", "abbc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a\\*c", "a*c", true),
            ("a\\*c", "abc", false),
            ("*", "", true),
            ("abc", "ABC", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }
}
