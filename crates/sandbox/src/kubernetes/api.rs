//! The HTTP side of the API: who asks, for what, in which form.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::clock;
use super::cluster::{Cluster, Deleted, Deletion, Entry, PatchKind, Resource, Write};
use super::failure::{Failure, Result};
use super::kinds;
use super::protobuf;
use super::selector::Selector;
use super::table::{self, Form};
use super::{Record, Settings};
use crate::wire::{Authenticator, Reply, UserInfo};

/// What every request needs.
pub struct Api {
    /// The objects.
    pub cluster: Arc<Cluster>,
    /// The server's settings.
    pub settings: Settings,
    /// Checks tokens other than the admin's.
    pub authenticator: Arc<dyn Authenticator>,
    /// The admin's token.
    pub admin_token: String,
    /// Calls so far.
    pub records: Mutex<Vec<Record>>,
}

/// Paths that need no token.
const PUBLIC: [&str; 4] = ["/version", "/healthz", "/livez", "/readyz"];

/// A request, read as far as routing needs it.
struct Asked {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
}

impl Asked {
    fn param(&self, name: &str) -> &str {
        let found = self.query.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    fn flag(&self, name: &str) -> bool {
        matches!(self.param(name), "true" | "1")
    }

    fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body as JSON, or as YAML where that is the form.
    fn read(&self) -> Result<Value> {
        let wrong =
            |text: String| Failure::bad_request(format!("the object provided is unrecognized: {text}"));
        let form = self.header(header::CONTENT_TYPE);
        if form.contains("protobuf") {
            return protobuf::read(&self.body)
                .ok_or_else(|| Failure::unsupported_media("application/json, application/yaml"));
        }
        if form.contains("cbor") {
            return Err(Failure::unsupported_media("application/json, application/yaml"));
        }
        let first = self.body.iter().find(|byte| !byte.is_ascii_whitespace());
        if matches!(first, Some(b'{' | b'[')) {
            return serde_json::from_slice(&self.body).map_err(|error| wrong(error.to_string()));
        }
        serde_norway::from_slice(&self.body).map_err(|error| wrong(error.to_string()))
    }

    fn dry_run(&self) -> Result<bool> {
        match self.param("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(Failure::invalid(
                "meta.k8s.io",
                "PatchOptions",
                "",
                &[super::failure::Cause::unsupported("dryRun", &json!(other), "\"All\"")],
            )),
        }
    }

    /// The field manager; when none is named, the start of the client's name.
    fn write(&self, subresource: &str, applies: bool) -> Result<Write> {
        let agent = self.header(header::USER_AGENT);
        let manager = match self.param("fieldManager") {
            "" if applies => "",
            "" => agent.split(['/', ' ']).next().filter(|name| !name.is_empty()).unwrap_or("unknown"),
            name => name,
        };
        Ok(Write {
            manager: manager.to_owned(),
            dry_run: self.dry_run()?,
            force: self.flag("force"),
            subresource: subresource.to_owned(),
        })
    }
}

/// A path of a kind, an object or a subresource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Target {
    group: String,
    version: String,
    namespace: Option<String>,
    plural: String,
    name: String,
    subresource: String,
}

impl Target {
    fn parse(path: &str) -> Option<Target> {
        let decode = |part: &str| percent(part);
        let parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match &parts[..] {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let mut target = Target { group: group.to_owned(), version: version.to_owned(), ..Target::default() };
        let rest = match rest {
            // A namespace itself, unless a kind in it follows.
            ["namespaces", name, sub @ ("status" | "finalize")] => {
                target.plural = "namespaces".to_owned();
                target.name = (*name).to_owned();
                target.subresource = (*sub).to_owned();
                return Some(target);
            }
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => {
                target.namespace = Some((*namespace).to_owned());
                rest
            }
            rest => rest,
        };
        match rest {
            [plural] => target.plural = (*plural).to_owned(),
            [plural, name] => (target.plural, target.name) = ((*plural).to_owned(), (*name).to_owned()),
            [plural, name, sub] => {
                (target.plural, target.name) = ((*plural).to_owned(), (*name).to_owned());
                target.subresource = (*sub).to_owned();
            }
            _ => return None,
        }
        Some(target)
    }
}

/// Undoes percent-encoding.
fn percent(text: &str) -> String {
    let pairs = format!("x={}", text.replace('+', "%2B"));
    url::form_urlencoded::parse(pairs.as_bytes())
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

fn respond(status: StatusCode, content_type: &str, body: impl Into<Body>) -> Reply {
    let mut reply = http::Response::new(body.into());
    *reply.status_mut() = status;
    if let Ok(value) = content_type.parse() {
        reply.headers_mut().insert(header::CONTENT_TYPE, value);
    }
    reply
}

fn json_reply(status: StatusCode, body: &Value) -> Reply {
    respond(status, "application/json", body.to_string())
}

fn failure_reply(failure: &Failure) -> Reply {
    let status = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_reply(status, &failure.to_value())
}

impl Api {
    /// Answers one request.
    pub async fn handle(self: Arc<Self>, request: http::Request<Bytes>) -> Reply {
        let (head, body) = request.into_parts();
        let query = head.uri.query().unwrap_or_default();
        let query = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let asked = Asked {
            method: head.method,
            path: head.uri.path().to_owned(),
            query,
            headers: head.headers,
            body,
        };
        let user = self.user(&asked).await;
        let target = Target::parse(&asked.path);
        let verb = verb(&asked, target.as_ref());
        let reply = match &user {
            None if !PUBLIC.contains(&asked.path.as_str()) => Err(Failure::unauthorized()),
            user => self.answer(&asked, user.as_ref(), target.as_ref(), verb),
        };
        let reply = reply.unwrap_or_else(|failure| failure_reply(&failure));
        let record = Record {
            user: user.map(|user| user.username).unwrap_or_else(|| "system:anonymous".to_owned()),
            verb: verb.to_owned(),
            path: asked.path.clone(),
            dry_run: !asked.param("dryRun").is_empty(),
            status: reply.status().as_u16(),
        };
        tracing::debug!(
            user = record.user,
            verb,
            path = record.path,
            status = record.status,
            "kubernetes call"
        );
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        reply
    }

    async fn user(&self, asked: &Asked) -> Option<UserInfo> {
        let token = asked.header(header::AUTHORIZATION).strip_prefix("Bearer ")?.trim();
        if token == self.admin_token {
            return Some(UserInfo {
                username: "kubernetes-admin".to_owned(),
                groups: vec!["system:masters".to_owned(), "system:authenticated".to_owned()],
            });
        }
        self.authenticator.authenticate(token).await
    }

    fn answer(
        &self,
        asked: &Asked,
        user: Option<&UserInfo>,
        target: Option<&Target>,
        verb: &str,
    ) -> Result<Reply> {
        match target {
            Some(target) => {
                let user = user.ok_or_else(Failure::unauthorized)?;
                self.on_resource(asked, user, target, verb)
            }
            None => self.on_path(asked),
        }
    }

    /// Discovery and the rest that isn't about objects; open to every known user.
    fn on_path(&self, asked: &Asked) -> Result<Reply> {
        if asked.method != Method::GET && asked.method != Method::HEAD {
            return Err(Failure::method_not_allowed());
        }
        let kinds = self.cluster.kinds();
        let groups = kinds::groups(&kinds);
        let parts: Vec<&str> = asked.path.trim_matches('/').split('/').collect();
        let aggregated = asked.header(header::ACCEPT).contains("as=APIGroupDiscoveryList");
        let discovery = |core: bool| {
            let form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            respond(StatusCode::OK, form, kinds::aggregated(&kinds, core).to_string())
        };
        let value = match &parts[..] {
            ["version"] => self.version(),
            ["healthz" | "livez" | "readyz"] => return Ok(respond(StatusCode::OK, "text/plain", "ok")),
            ["api"] if aggregated => return Ok(discovery(true)),
            ["apis"] if aggregated => return Ok(discovery(false)),
            ["api"] => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [
                {"clientCIDR": "0.0.0.0/0", "serverAddress": asked.header(header::HOST)}]}),
            ["apis"] => {
                let named = groups.iter().filter(|(name, _)| !name.is_empty());
                let list: Vec<Value> = named.map(|(name, versions)| kinds::group(name, versions)).collect();
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list})
            }
            ["api", version] => kinds::resource_list(&kinds, "", version).ok_or_else(Failure::no_resource)?,
            ["apis", name] => {
                let found = groups.iter().find(|(group, _)| group == name);
                let Some((name, versions)) = found else { return Ok(nothing_there()) };
                kinds::group(name, versions)
            }
            ["apis", group, version] => match kinds::resource_list(&kinds, group, version) {
                Some(list) => list,
                None => return Ok(nothing_there()),
            },
            ["openapi", "v3"] => {
                let mut paths = json!({});
                for (group, versions) in &groups {
                    for version in versions {
                        let path = if group.is_empty() {
                            format!("api/{version}")
                        } else {
                            format!("apis/{group}/{version}")
                        };
                        let url = format!("/openapi/v3/{path}?hash={}", self.cluster.revision());
                        paths[path] = json!({"serverRelativeURL": url});
                    }
                }
                json!({"paths": paths})
            }
            ["openapi", "v3", "api", version] => self.openapi("", version),
            ["openapi", "v3", "apis", group, version] => self.openapi(group, version),
            [""] => {
                let paths: Vec<String> =
                    ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]
                        .iter()
                        .map(|path| (*path).to_owned())
                        .collect();
                json!({"paths": paths})
            }
            _ => return Ok(nothing_there()),
        };
        Ok(json_reply(StatusCode::OK, &value))
    }

    fn version(&self) -> Value {
        let (major, minor) = self.settings.version.split_once('.').unwrap_or(("1", "34"));
        json!({"major": major, "minor": minor, "gitVersion": format!("v{major}.{minor}.1-eks-sandbox"),
               "gitCommit": "", "gitTreeState": "clean", "buildDate": "2026-01-01T00:00:00Z",
               "goVersion": "", "compiler": "", "platform": "linux/amd64"})
    }

    /// As much OpenAPI as kubectl needs to leave the checking of fields to the server.
    fn openapi(&self, group: &str, version: &str) -> Value {
        let mut paths = json!({});
        for kind in self.cluster.kinds() {
            if kind.group != group || kind.version(version).is_none() {
                continue;
            }
            let base =
                if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
            let space = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
            let param = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
            paths[format!("{base}{space}/{}/{{name}}", kind.plural)] = json!({"patch": {
                "parameters": [param("dryRun"), param("fieldManager"), param("fieldValidation"), param("force")],
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-action": "patch",
                "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind.kind},
            }});
        }
        json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": self.settings.version},
               "paths": paths, "components": {"schemas": {}}})
    }

    fn on_resource(&self, asked: &Asked, user: &UserInfo, target: &Target, verb: &str) -> Result<Reply> {
        let masters = user.groups.iter().any(|group| group == "system:masters");
        if let Some((_, kind, _)) = kinds::REVIEWS
            .iter()
            .find(|(plural, _, group)| *plural == target.plural && *group == target.group)
        {
            return review(asked, user, masters, kind);
        }
        if !masters {
            return Err(forbidden(user, target, verb));
        }
        let resource = self
            .cluster
            .resource(&target.group, &target.version, &target.plural)
            .ok_or_else(Failure::no_resource)?;
        if !target.subresource.is_empty() {
            let version = resource.kind.version(&resource.version);
            let known = match target.subresource.as_str() {
                "status" => resource.has_status(),
                "scale" => version.is_some_and(|version| version.scale),
                "finalize" => resource.kind.kind == "Namespace" && asked.method == Method::PUT,
                _ => false,
            };
            if !known {
                return Err(Failure::no_resource());
            }
        }
        if resource.kind.namespaced != target.namespace.is_some()
            && !(resource.kind.namespaced && target.name.is_empty() && matches!(verb, "list" | "watch"))
        {
            return Err(Failure::no_resource());
        }
        let namespace = target.namespace.as_deref().unwrap_or_default();
        let sub = target.subresource.as_str();
        match (asked.method.as_str(), target.name.is_empty()) {
            ("GET" | "HEAD", true) => self.list(asked, &resource, target.namespace.as_deref()),
            ("GET" | "HEAD", false) if verb == "watch" => {
                self.watch(asked, &resource, target.namespace.as_deref(), Some(&target.name))
            }
            ("GET" | "HEAD", false) => {
                let object = self.cluster.get(&resource, namespace, &target.name)?;
                Ok(self.show(asked, &resource, StatusCode::OK, &resource.show(&object), sub))
            }
            ("POST", true) => {
                let write = asked.write("", false)?;
                let made = self.cluster.create(&resource, namespace, asked.read()?, &write)?;
                Ok(self.show(asked, &resource, StatusCode::CREATED, &made, ""))
            }
            ("PUT", false) => {
                let write = asked.write(sub, false)?;
                let mut body = asked.read()?;
                if sub == "scale" {
                    body["apiVersion"] = json!(resource.api_version());
                    body["kind"] = json!(resource.kind.kind);
                }
                let new = self.cluster.update(&resource, namespace, &target.name, body, &write)?;
                Ok(self.show(asked, &resource, StatusCode::OK, &new, sub))
            }
            ("PATCH", false) => {
                let content = asked.header(header::CONTENT_TYPE);
                let kind = match content.split(';').next().unwrap_or_default().trim() {
                    "application/apply-patch+yaml" => PatchKind::Apply,
                    "application/merge-patch+json" => PatchKind::Merge,
                    "application/json-patch+json" => PatchKind::Json,
                    "application/strategic-merge-patch+json" => PatchKind::Strategic,
                    _ => {
                        return Err(Failure::unsupported_media(
                            "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml",
                        ));
                    }
                };
                let write = asked.write(sub, kind == PatchKind::Apply)?;
                let body = asked.read()?;
                let (new, made) =
                    self.cluster.patch(&resource, namespace, &target.name, kind, &body, &write)?;
                let status = if made { StatusCode::CREATED } else { StatusCode::OK };
                Ok(self.show(asked, &resource, status, &new, sub))
            }
            ("DELETE", false) => {
                let deletion = deletion(asked)?;
                match self.cluster.delete(&resource, namespace, &target.name, &deletion)? {
                    Deleted::Pending(object) => {
                        Ok(self.show(asked, &resource, StatusCode::OK, &resource.show(&object), ""))
                    }
                    Deleted::Gone(object) => {
                        let mut details = json!({"name": target.name});
                        if !target.group.is_empty() {
                            details["group"] = json!(target.group);
                        }
                        details["kind"] = json!(target.plural);
                        details["uid"] = object["metadata"]["uid"].clone();
                        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                                            "status": "Success", "details": details});
                        Ok(json_reply(StatusCode::OK, &status))
                    }
                }
            }
            ("DELETE", true) => {
                let deletion = deletion(asked)?;
                let selector = Selector::parse(asked.param("labelSelector"), asked.param("fieldSelector"))?;
                let (objects, revision) =
                    self.cluster.list(&resource, target.namespace.as_deref(), &selector);
                for object in &objects {
                    let meta = &object["metadata"];
                    let text = |name: &str| meta[name].as_str().unwrap_or_default();
                    match self.cluster.delete(&resource, text("namespace"), text("name"), &deletion) {
                        Err(failure) if failure.code != 404 => return Err(failure),
                        _ => {}
                    }
                }
                Ok(json_reply(
                    StatusCode::OK,
                    &list_of(&resource, &objects, json!({"resourceVersion": revision.to_string()})),
                ))
            }
            _ => Err(Failure::method_not_allowed()),
        }
    }

    fn show(
        &self,
        asked: &Asked,
        resource: &Resource,
        status: StatusCode,
        object: &Value,
        sub: &str,
    ) -> Reply {
        if sub == "scale" {
            return json_reply(status, &scale(object));
        }
        let value = match Form::of(asked.header(header::ACCEPT)) {
            Form::Object => object.clone(),
            Form::Metadata => table::metadata(object),
            Form::Table => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                table::table(resource, std::slice::from_ref(object), asked.param("includeObject"), meta)
            }
        };
        json_reply(status, &value)
    }

    fn list(&self, asked: &Asked, resource: &Resource, namespace: Option<&str>) -> Result<Reply> {
        if asked.flag("watch") {
            return self.watch(asked, resource, namespace, None);
        }
        let selector = Selector::parse(asked.param("labelSelector"), asked.param("fieldSelector"))?;
        let (mut objects, revision) = self.cluster.list(resource, namespace, &selector);
        let place = |object: &Value| {
            let meta = &object["metadata"];
            format!(
                "{}/{}",
                meta["namespace"].as_str().unwrap_or_default(),
                meta["name"].as_str().unwrap_or_default()
            )
        };
        let mut meta = json!({"resourceVersion": revision.to_string()});
        if !asked.param("continue").is_empty() {
            let start = URL_SAFE_NO_PAD
                .decode(asked.param("continue"))
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .ok_or_else(|| Failure::bad_request("continue key is not valid"))?;
            let at = objects.iter().position(|object| place(object) > start).unwrap_or(objects.len());
            objects.drain(..at);
        }
        if let Ok(limit) = asked.param("limit").parse::<usize>()
            && limit > 0
            && objects.len() > limit
        {
            meta["continue"] = json!(URL_SAFE_NO_PAD.encode(place(&objects[limit - 1])));
            meta["remainingItemCount"] = json!(objects.len() - limit);
            objects.truncate(limit);
        }
        let value = match Form::of(asked.header(header::ACCEPT)) {
            Form::Object => list_of(resource, &objects, meta),
            Form::Metadata => {
                let items: Vec<Value> = objects.iter().map(|object| table::metadata(object)).collect();
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items})
            }
            Form::Table => {
                let shown: Vec<Value> = objects.iter().map(|object| resource.show(object)).collect();
                table::table(resource, &shown, asked.param("includeObject"), meta)
            }
        };
        Ok(json_reply(StatusCode::OK, &value))
    }

    fn watch(
        &self,
        asked: &Asked,
        resource: &Resource,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Result<Reply> {
        let mut fields = asked.param("fieldSelector").to_owned();
        if let Some(name) = name {
            fields = format!("metadata.name={name}");
        }
        let selector = Selector::parse(asked.param("labelSelector"), &fields)?;
        let changes = self.cluster.changes();
        let mut follow = Follow {
            cluster: self.cluster.clone(),
            resource: resource.clone(),
            namespace: namespace.map(str::to_owned),
            selector,
            form: Form::of(asked.header(header::ACCEPT)),
            include: asked.param("includeObject").to_owned(),
            after: 0,
            pending: VecDeque::new(),
            changes,
            bookmarks: asked.flag("allowWatchBookmarks"),
            pause: self.settings.bookmarks,
            until: Duration::from_secs(asked.param("timeoutSeconds").parse().unwrap_or(1800)),
            started: tokio::time::Instant::now(),
            ended: false,
        };
        let asked_version = asked.param("resourceVersion");
        let initial = asked.flag("sendInitialEvents");
        match asked_version {
            "" | "0" => follow.replay(initial),
            _ if initial => follow.replay(true),
            version => {
                follow.after = version.parse().map_err(|_| {
                    Failure::bad_request(format!("Invalid value: \"{version}\": strconv.ParseUint: parsing"))
                })?;
            }
        }
        let body = Body::from_stream(stream::unfold(follow, Follow::next));
        Ok(respond(StatusCode::OK, "application/json", body))
    }
}

/// A watch under way.
struct Follow {
    cluster: Arc<Cluster>,
    resource: Resource,
    namespace: Option<String>,
    selector: Selector,
    form: Form,
    include: String,
    after: u64,
    pending: VecDeque<Bytes>,
    changes: watch::Receiver<u64>,
    bookmarks: bool,
    pause: Duration,
    until: Duration,
    started: tokio::time::Instant,
    ended: bool,
}

impl Follow {
    /// Starts with the objects as they are.
    fn replay(&mut self, mark: bool) {
        let (objects, revision) =
            self.cluster.list(&self.resource, self.namespace.as_deref(), &self.selector);
        self.after = revision;
        for object in objects {
            self.push("ADDED", &object);
        }
        if mark {
            self.bookmark(true);
        }
    }

    fn push(&mut self, kind: &str, object: &Value) {
        let object = self.resource.show(object);
        let object = match self.form {
            Form::Object => object,
            Form::Metadata => table::metadata(&object),
            Form::Table => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                table::table(&self.resource, &[object], &self.include, meta)
            }
        };
        self.line(kind, &object);
    }

    fn line(&mut self, kind: &str, object: &Value) {
        let mut text = json!({"type": kind, "object": object}).to_string();
        text.push('\n');
        self.pending.push_back(Bytes::from(text));
    }

    fn bookmark(&mut self, initial_end: bool) {
        let mut meta = json!({"resourceVersion": self.after.to_string(), "creationTimestamp": null});
        if initial_end {
            meta["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = json!({"kind": self.resource.kind.kind, "apiVersion": self.resource.api_version(), "metadata": meta});
        if self.form == Form::Table {
            object = table::table(&self.resource, &[], &self.include, meta);
        }
        self.line("BOOKMARK", &object);
    }

    fn tell(&mut self, entry: &Entry) {
        let selected = |object: Option<Arc<Value>>| {
            object.filter(|object| {
                let space = object["metadata"]["namespace"].as_str().unwrap_or_default();
                self.namespace.as_deref().is_none_or(|namespace| namespace == space)
                    && self.selector.matches(object)
            })
        };
        match (selected(entry.old.clone()), selected(entry.new.clone())) {
            (None, Some(new)) => self.push("ADDED", &new),
            (Some(_), Some(new)) => self.push("MODIFIED", &new),
            (Some(old), None) => {
                let mut last = (*old).clone();
                last["metadata"]["resourceVersion"] = json!(entry.revision.to_string());
                self.push("DELETED", &last);
            }
            (None, None) => {}
        }
    }

    async fn next(mut self) -> Option<(std::io::Result<Bytes>, Self)> {
        loop {
            if let Some(line) = self.pending.pop_front() {
                return Some((Ok(line), self));
            }
            if self.ended {
                return None;
            }
            self.changes.mark_unchanged();
            match self.cluster.since(&self.resource.key(), self.after) {
                Ok((entries, latest)) => {
                    for entry in &entries {
                        self.tell(entry);
                    }
                    self.after = latest.max(self.after);
                }
                Err(failure) => {
                    self.line("ERROR", &failure.to_value());
                    self.ended = true;
                }
            }
            if !self.pending.is_empty() {
                continue;
            }
            // The kind itself may have gone, and the watch with it.
            let kind = &self.resource.kind;
            self.cluster.resource(&kind.group, &self.resource.version, &kind.plural)?;
            let left = self.until.saturating_sub(self.started.elapsed());
            tokio::select! {
                changed = self.changes.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                }
                () = clock::sleep(left) => return None,
                () = clock::sleep(self.pause), if self.bookmarks => self.bookmark(false),
            }
        }
    }
}

fn nothing_there() -> Reply {
    respond(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n")
}

fn verb(asked: &Asked, target: Option<&Target>) -> &'static str {
    let one = target.is_some_and(|target| !target.name.is_empty());
    match asked.method.as_str() {
        "GET" | "HEAD" if target.is_some() && asked.flag("watch") => "watch",
        "GET" | "HEAD" if target.is_some() && !one => "list",
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if one => "delete",
        "DELETE" => "deletecollection",
        _ => "unknown",
    }
}

fn forbidden(user: &UserInfo, target: &Target, verb: &str) -> Failure {
    let mut plural = target.plural.clone();
    if !target.subresource.is_empty() {
        plural = format!("{plural}/{}", target.subresource);
    }
    let place = match &target.namespace {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None if target.plural == "namespaces" && !target.name.is_empty() => {
            format!("in the namespace \"{}\"", target.name)
        }
        None => "at the cluster scope".to_owned(),
    };
    let why = format!(
        "User \"{}\" cannot {verb} resource \"{plural}\" in API group \"{}\" {place}",
        user.username, target.group
    );
    Failure::forbidden(&target.group, &target.plural, &target.name, &why)
}

fn review(asked: &Asked, user: &UserInfo, masters: bool, kind: &str) -> Result<Reply> {
    if asked.method != Method::POST {
        return Err(Failure::method_not_allowed());
    }
    let mut body = asked.read()?;
    body["status"] = match kind {
        "SelfSubjectReview" => json!({"userInfo": {"username": user.username, "groups": user.groups}}),
        _ => json!({"allowed": masters, "reason": ""}),
    };
    Ok(json_reply(StatusCode::CREATED, &body))
}

fn deletion(asked: &Asked) -> Result<Deletion> {
    let body = if asked.body.is_empty() { json!({}) } else { asked.read()? };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let propagation = match asked.param("propagationPolicy") {
        "" => text(&body["propagationPolicy"]).unwrap_or_default(),
        policy => policy.to_owned(),
    };
    let dry_body = body["dryRun"].as_array().is_some_and(|list| !list.is_empty());
    Ok(Deletion {
        propagation,
        uid: text(&body["preconditions"]["uid"]),
        resource_version: text(&body["preconditions"]["resourceVersion"]),
        dry_run: asked.dry_run()? || dry_body,
    })
}

/// A list; items of built-in kinds don't repeat their kind, as in Kubernetes.
fn list_of(resource: &Resource, objects: &[Arc<Value>], meta: Value) -> Value {
    let items: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut item = resource.show(object);
            if !resource.kind.custom
                && let Some(item) = item.as_object_mut()
            {
                item.shift_remove("apiVersion");
                item.shift_remove("kind");
            }
            item
        })
        .collect();
    json!({"kind": resource.kind.list_kind, "apiVersion": resource.api_version(), "metadata": meta, "items": items})
}

fn scale(object: &Value) -> Value {
    let meta = &object["metadata"];
    let labels = object["spec"]["selector"]["matchLabels"].as_object();
    let selector: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"],
                     "resourceVersion": meta["resourceVersion"], "creationTimestamp": meta["creationTimestamp"]},
        "spec": {"replicas": object["spec"]["replicas"]},
        "status": {"replicas": object["status"]["replicas"].as_u64().unwrap_or(0), "selector": selector.join(",")}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_kinds_objects_and_subresources() {
        let target = |group: &str, namespace: Option<&str>, plural: &str, name: &str, sub: &str| Target {
            group: group.to_owned(),
            version: "v1".to_owned(),
            namespace: namespace.map(str::to_owned),
            plural: plural.to_owned(),
            name: name.to_owned(),
            subresource: sub.to_owned(),
        };
        for (path, expected) in [
            ("/api/v1/pods", Some(target("", None, "pods", "", ""))),
            ("/api/v1/namespaces", Some(target("", None, "namespaces", "", ""))),
            ("/api/v1/namespaces/a", Some(target("", None, "namespaces", "a", ""))),
            ("/api/v1/namespaces/a/finalize", Some(target("", None, "namespaces", "a", "finalize"))),
            ("/api/v1/namespaces/a/pods", Some(target("", Some("a"), "pods", "", ""))),
            (
                "/apis/apps/v1/namespaces/a/deployments/b",
                Some(target("apps", Some("a"), "deployments", "b", "")),
            ),
            (
                "/apis/apps/v1/namespaces/a/deployments/b/status",
                Some(target("apps", Some("a"), "deployments", "b", "status")),
            ),
            (
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
                Some(target("rbac.authorization.k8s.io", None, "clusterroles", "system:node", "")),
            ),
            ("/apis/apps/v1", None),
            ("/api/v1", None),
            ("/version", None),
        ] {
            assert_eq!(Target::parse(path), expected, "{path}");
        }
    }
}
