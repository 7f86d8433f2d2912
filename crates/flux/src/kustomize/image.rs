//! Images: new names, tags and digests.

use regex_lite::Regex;
use serde_json::Value;

use crate::object;

/// An entry of `images`.
pub(super) struct Image {
    matches: Regex,
    new_name: String,
    new_tag: String,
    digest: String,
    tag_suffix: String,
}

impl Image {
    /// `None`, where a field is no text or the name is no pattern.
    pub(super) fn new(entry: &Value) -> Option<Image> {
        let map = entry.as_object()?;
        let text = |field: &str| match map.get(field) {
            None | Some(Value::Null) => Some(String::new()),
            Some(value) => value.as_str().map(str::to_owned),
        };
        let name = text("name")?;
        // Kustomize takes the name for a pattern, too.
        let pattern = format!("^{name}(:[a-zA-Z0-9_.{{}}-]*)?(@sha256:[a-zA-Z0-9_.{{}}-]*)?$");
        Some(Image {
            matches: Regex::new(&pattern).ok()?,
            new_name: text("newName")?,
            new_tag: text("newTag")?,
            digest: text("digest")?,
            tag_suffix: text("tagSuffix")?,
        })
    }

    /// Changes the images of every container in the object, wherever it stands.
    pub(super) fn apply(&self, object: &mut Value) {
        if object::kind(object) == "CustomResourceDefinition" {
            return;
        }
        self.walk(object);
        // Kustomize goes over the pods of its own kinds once more, which a tag's suffix shows.
        for pod in ["/spec", "/spec/template/spec"] {
            for (list, field) in
                [("containers", "/image"), ("initContainers", "/image"), ("volumes", "/image/reference")]
            {
                let path = format!("{pod}/{list}");
                for item in object.pointer_mut(&path).and_then(Value::as_array_mut).into_iter().flatten() {
                    if let Some(image) = item.pointer_mut(field) {
                        self.change(image);
                    }
                }
            }
        }
    }

    fn walk(&self, value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.walk(item)),
            Value::Object(map) => {
                for (key, inner) in map.iter_mut() {
                    self.walk(inner);
                    if key == "containers" || key == "initContainers" {
                        for container in inner.as_array_mut().into_iter().flatten() {
                            if let Some(image) = container.get_mut("image") {
                                self.change(image);
                            }
                        }
                    }
                }
            }
            _ => {}
        }
    }

    fn change(&self, image: &mut Value) {
        let Some(text) = image.as_str().filter(|text| self.matches.is_match(text)) else { return };
        let (mut name, mut tag, mut digest) = split(text);
        let suffixed = format!("{tag}{}", self.tag_suffix);
        if !self.new_name.is_empty() {
            name = &self.new_name;
        }
        match (self.new_tag.is_empty(), self.digest.is_empty()) {
            (false, _) => (tag, digest) = (&self.new_tag, &self.digest),
            (true, false) => (tag, digest) = ("", &self.digest),
            (true, true) if !self.tag_suffix.is_empty() => (tag, digest) = (&suffixed, ""),
            (true, true) => {}
        }
        let mut changed = name.to_owned();
        if !tag.is_empty() {
            changed = format!("{changed}:{tag}");
        }
        if !digest.is_empty() {
            changed = format!("{changed}@{digest}");
        }
        *image = Value::String(changed);
    }
}

/// Name, tag and digest. A colon before the first slash belongs to a host's port.
fn split(image: &str) -> (&str, &str, &str) {
    let (rest, digest) = image.split_once('@').unwrap_or((image, ""));
    let from = rest.find('/').unwrap_or(0);
    match rest[from..].find(':') {
        Some(at) => (&rest[..from + at], &rest[from + at + 1..], digest),
        None => (rest, "", digest),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn images_change_as_kustomize_changes_them() {
        for (entry, image, expected) in [
            (json!({"name": "nginx", "newTag": "2"}), "nginx:1", "nginx:2"),
            (json!({"name": "nginx", "newTag": "2"}), "my/nginx:1", "my/nginx:1"),
            (json!({"name": "nginx", "newName": "r:5000/n"}), "nginx:1@sha256:ab", "r:5000/n:1@sha256:ab"),
            (json!({"name": "r:5000/n", "newTag": "2"}), "r:5000/n", "r:5000/n:2"),
            (json!({"name": "nginx", "digest": "sha256:cd"}), "nginx:1", "nginx@sha256:cd"),
            (json!({"name": "nginx", "newTag": "2", "digest": "sha256:cd"}), "nginx:1", "nginx:2@sha256:cd"),
            (json!({"name": "nginx", "newTag": "2"}), "nginx:1@sha256:ab", "nginx:2"),
            (json!({"name": "nginx", "tagSuffix": "-x"}), "nginx:1", "nginx:1-x-x"),
        ] {
            let mut object = json!({"kind": "Pod", "spec": {"containers": [{"image": image}]}});
            Image::new(&entry).expect("valid").apply(&mut object);
            assert_eq!(object["spec"]["containers"][0]["image"], expected, "{entry} on {image}");
        }
    }
}
