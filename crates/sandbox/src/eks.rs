//! EKS: clusters, Fargate profiles and access entries, and the check of a cluster's bearer tokens.
//!
//! # What it does not imitate
//! Node groups, add-ons, Pod Identity, updates and tags are unknown operations. A cluster that is created
//! gets the address of the world's one Kubernetes API.

mod tokens;

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::form_urlencoded;

pub use self::tokens::Tokens;

use crate::clock;
use crate::edge::Protocol;
use crate::ministack::Upstream;
use crate::sigv4;
use crate::wire::{ApiError, Call, Reply};

/// The policy that makes a principal the cluster's administrator.
pub const ADMIN_POLICY: &str = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy";
const POLICIES: &[&str] = &[
    "AmazonEKSAdminPolicy",
    "AmazonEKSClusterAdminPolicy",
    "AmazonEKSAdminViewPolicy",
    "AmazonEKSEditPolicy",
    "AmazonEKSViewPolicy",
];

/// A cluster that is there from the start.
#[derive(Debug, Clone)]
pub struct Seed {
    /// Its name.
    pub name: String,
    /// `vpc-…`
    pub vpc: String,
    /// `subnet-…`
    pub subnets: Vec<String>,
    /// Those of them that are private, for its Fargate profiles.
    pub private_subnets: Vec<String>,
    /// `sg-…`: the group of its own interfaces.
    pub group: String,
    /// `API`, `API_AND_CONFIG_MAP` or `CONFIG_MAP`.
    pub mode: String,
    /// The address of its Kubernetes API.
    pub endpoint: String,
    /// That API's certificate authority, as PEM.
    pub authority: String,
    /// Fargate profiles: name and selectors.
    pub profiles: Vec<(String, Vec<Selector>)>,
}

/// Which pods a Fargate profile takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// The profile's name.
    pub profile: String,
    /// A namespace, with `*` and `?`.
    pub namespace: String,
    /// Labels that a pod must have.
    pub labels: Vec<(String, String)>,
}

impl Selector {
    /// All pods of a namespace.
    pub fn namespace(namespace: &str) -> Selector {
        Selector { profile: String::new(), namespace: namespace.to_owned(), labels: Vec::new() }
    }

    fn body(&self) -> Value {
        let labels: serde_json::Map<String, Value> =
            self.labels.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        if labels.is_empty() {
            json!({ "namespace": self.namespace })
        } else {
            json!({ "namespace": self.namespace, "labels": labels })
        }
    }

    fn of(profile: &str, body: &Value) -> Selector {
        let labels = body["labels"].as_object().into_iter().flatten();
        Selector {
            profile: profile.to_owned(),
            namespace: body["namespace"].as_str().unwrap_or_default().to_owned(),
            labels: labels.map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned())).collect(),
        }
    }
}

/// Told of a cluster's name and of what its Fargate profiles select, whenever that changes.
pub type OnProfiles = Box<dyn Fn(&str, Vec<Selector>) + Send + Sync>;

/// The emulator.
pub struct Eks {
    upstream: Upstream,
    region: String,
    account: String,
    state: Mutex<State>,
    on_profiles: OnceLock<OnProfiles>,
}

impl std::fmt::Debug for Eks {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Eks").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    clusters: BTreeMap<String, Cluster>,
    /// How long a new Fargate profile is being created, a deleted one deleted.
    profile_delay: Duration,
    /// How long a new access entry is not yet known to the cluster.
    access_delay: Duration,
}

#[derive(Debug, Clone)]
struct Cluster {
    seed: Seed,
    role: String,
    created: OffsetDateTime,
    status: &'static str,
    tags: Value,
    profiles: BTreeMap<String, Profile>,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone)]
struct Profile {
    body: Value,
    /// `CREATING` until then, or `DELETING`.
    until: Instant,
    deleting: bool,
}

#[derive(Debug, Clone)]
struct Entry {
    body: Value,
    policies: BTreeMap<String, Value>,
    /// The role's id: a role that is made anew under the same name is another principal.
    principal: String,
    works_from: Instant,
}

type Result<T> = std::result::Result<T, ApiError>;

/// The operation behind a method and a path, and what it is about.
pub fn operation(method: &Method, path: &str) -> (&'static str, Option<String>) {
    let segments: Vec<String> = path.trim_matches('/').split('/').map(sigv4::decode).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (name, resource) = match (method.as_str(), segments.as_slice()) {
        ("GET", ["clusters"]) => ("ListClusters", None),
        ("POST", ["clusters"]) => ("CreateCluster", None),
        ("GET", ["clusters", cluster]) => ("DescribeCluster", Some(*cluster)),
        ("DELETE", ["clusters", cluster]) => ("DeleteCluster", Some(*cluster)),
        ("GET", ["clusters", cluster, "fargate-profiles"]) => ("ListFargateProfiles", Some(*cluster)),
        ("POST", ["clusters", cluster, "fargate-profiles"]) => ("CreateFargateProfile", Some(*cluster)),
        ("GET", ["clusters", _, "fargate-profiles", name]) => ("DescribeFargateProfile", Some(*name)),
        ("DELETE", ["clusters", _, "fargate-profiles", name]) => ("DeleteFargateProfile", Some(*name)),
        ("GET", ["clusters", cluster, "access-entries"]) => ("ListAccessEntries", Some(*cluster)),
        ("POST", ["clusters", cluster, "access-entries"]) => ("CreateAccessEntry", Some(*cluster)),
        ("GET", ["clusters", _, "access-entries", arn]) => ("DescribeAccessEntry", Some(*arn)),
        ("POST", ["clusters", _, "access-entries", arn]) => ("UpdateAccessEntry", Some(*arn)),
        ("DELETE", ["clusters", _, "access-entries", arn]) => ("DeleteAccessEntry", Some(*arn)),
        ("GET", ["clusters", _, "access-entries", arn, "access-policies"]) => {
            ("ListAssociatedAccessPolicies", Some(*arn))
        }
        ("POST", ["clusters", _, "access-entries", arn, "access-policies"]) => {
            ("AssociateAccessPolicy", Some(*arn))
        }
        ("DELETE", ["clusters", _, "access-entries", arn, "access-policies", _]) => {
            ("DisassociateAccessPolicy", Some(*arn))
        }
        _ => ("Unknown", None),
    };
    (name, resource.map(str::to_owned))
}

impl Eks {
    /// The emulator, without clusters.
    pub fn new(upstream: Upstream, region: &str, account: &str) -> Eks {
        Eks {
            upstream,
            region: region.to_owned(),
            account: account.to_owned(),
            state: Mutex::new(State { profile_delay: Duration::from_secs(2), ..State::default() }),
            on_profiles: OnceLock::new(),
        }
    }

    /// Whom to tell of changed Fargate profiles.
    pub fn on_profiles(&self, tell: OnProfiles) {
        // Once is enough; the world is built in one place.
        let _ = self.on_profiles.set(tell);
    }

    fn tell_profiles(&self, cluster: &str) {
        let selectors = self.lock().clusters.get(cluster).map(|cluster| {
            let staying = cluster.profiles.iter().filter(|(_, profile)| !profile.deleting);
            let selectors = staying.flat_map(|(name, profile)| {
                let list = profile.body["selectors"].as_array().cloned().unwrap_or_default();
                list.into_iter().map(|body| Selector::of(name, &body)).collect::<Vec<_>>()
            });
            selectors.collect()
        });
        if let (Some(tell), Some(selectors)) = (self.on_profiles.get(), selectors) {
            tell(cluster, selectors);
        }
    }

    /// Adds a cluster, and its creator (the account's root) as its administrator.
    pub fn seed(&self, seed: Seed) {
        let role = format!("arn:aws:iam::{}:role/eks-cluster", self.account);
        let root = format!("arn:aws:iam::{}:root", self.account);
        let mut cluster = Cluster {
            role,
            created: clock::now(),
            status: "ACTIVE",
            tags: json!({}),
            profiles: BTreeMap::new(),
            entries: BTreeMap::new(),
            seed,
        };
        for (name, selectors) in cluster.seed.profiles.clone() {
            let selectors: Vec<Value> = selectors.iter().map(Selector::body).collect();
            let role = format!("arn:aws:iam::{}:role/eks-fargate", self.account);
            let subnets = json!(cluster.seed.private_subnets);
            let body =
                self.profile_body(&cluster.seed.name, &name, &role, &subnets, json!(selectors), json!({}));
            cluster.profiles.insert(name, Profile { body, until: Instant::now(), deleting: false });
        }
        if cluster.seed.mode != "CONFIG_MAP" {
            let body = self.entry_body(&cluster.seed.name, &root, &json!({}));
            let policy =
                policy_body(ADMIN_POLICY, json!({ "type": "cluster", "namespaces": [] }), clock::now());
            cluster.entries.insert(
                root,
                Entry {
                    body,
                    policies: BTreeMap::from([(ADMIN_POLICY.to_owned(), policy)]),
                    principal: String::new(),
                    works_from: Instant::now(),
                },
            );
        }
        self.lock().clusters.insert(cluster.seed.name.clone(), cluster);
    }

    /// How long Fargate profiles take to become ACTIVE, and to go.
    pub fn set_profile_delay(&self, delay: Duration) {
        self.lock().profile_delay = delay;
    }

    /// How long the Kubernetes API refuses the principal of a new access entry.
    pub fn set_access_delay(&self, delay: Duration) {
        self.lock().access_delay = delay;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a call.
    pub async fn call(&self, call: &Call) -> Reply {
        match self.act(call).await {
            Ok(body) => {
                let mut reply = Reply::new(Body::from(body.to_string()));
                *reply.status_mut() = StatusCode::OK;
                reply.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
                reply
            }
            Err(error) => Protocol::RestJson.error(&error),
        }
    }

    async fn act(&self, call: &Call) -> Result<Value> {
        let uri = call.request.uri();
        let (operation, _) = operation(call.request.method(), uri.path());
        let segments: Vec<String> = uri.path().trim_matches('/').split('/').map(sigv4::decode).collect();
        let segment = |index: usize| segments.get(index).map(String::as_str).unwrap_or_default();
        let query: Vec<(String, String)> =
            form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let body: Value = if call.request.body().is_empty() {
            json!({})
        } else {
            serde_json::from_slice(call.request.body())
                .map_err(|error| ApiError::new("SerializationException", error.to_string()))?
        };
        let (cluster, name) = (segment(1), segment(3));
        match operation {
            "ListClusters" => {
                let names: Vec<String> = self.lock().clusters.keys().cloned().collect();
                page("clusters", names, &query)
            }
            "CreateCluster" => self.create_cluster(&body),
            "DescribeCluster" => {
                self.with_cluster(cluster, |c, _| Ok(json!({ "cluster": self.cluster_body(c) })))
            }
            "DeleteCluster" => self.delete_cluster(cluster),
            "ListFargateProfiles" => self.with_cluster(cluster, |c, _| {
                page("fargateProfileNames", c.profiles.keys().cloned().collect(), &query)
            }),
            "CreateFargateProfile" => {
                let created = self.create_profile(cluster, &body)?;
                self.tell_profiles(cluster);
                Ok(created)
            }
            "DescribeFargateProfile" => self.with_cluster(cluster, |c, _| {
                let profile = c.profiles.get(name).ok_or_else(|| no_profile(name))?;
                Ok(json!({ "fargateProfile": profile.described() }))
            }),
            "DeleteFargateProfile" => {
                let deleted = self.delete_profile(cluster, name)?;
                self.tell_profiles(cluster);
                Ok(deleted)
            }
            "ListAccessEntries" => self.with_entries(cluster, |c, _| {
                let policy = query.iter().find(|(name, _)| name == "associatedPolicyArn");
                let arns = c
                    .entries
                    .iter()
                    .filter(|(_, entry)| policy.is_none_or(|(_, arn)| entry.policies.contains_key(arn)));
                page("accessEntries", arns.map(|(arn, _)| arn.clone()).collect(), &query)
            }),
            "CreateAccessEntry" => self.create_entry(cluster, &body).await,
            "DescribeAccessEntry" => {
                self.with_entry(cluster, name, |entry, _| Ok(json!({ "accessEntry": entry.body })))
            }
            "UpdateAccessEntry" => self.with_entry(cluster, name, |entry, _| {
                for field in ["kubernetesGroups", "username"] {
                    if !body[field].is_null() {
                        entry.body[field] = body[field].clone();
                    }
                }
                entry.body["modifiedAt"] = json!(clock::epoch_seconds(clock::now()));
                Ok(json!({ "accessEntry": entry.body }))
            }),
            "DeleteAccessEntry" => self.with_entries(cluster, |c, _| {
                c.entries.remove(name).ok_or_else(no_entry)?;
                Ok(json!({}))
            }),
            "ListAssociatedAccessPolicies" => self.with_entry(cluster, name, |entry, _| {
                let policies: Vec<&Value> = entry.policies.values().collect();
                Ok(json!({
                    "clusterName": cluster, "principalArn": name, "associatedAccessPolicies": policies,
                }))
            }),
            "AssociateAccessPolicy" => self.associate(cluster, name, &body),
            "DisassociateAccessPolicy" => self.with_entry(cluster, name, |entry, _| {
                let policy = segment(5);
                entry.policies.remove(policy).ok_or_else(|| {
                    let text = "The specified association could not be found.";
                    ApiError::new("ResourceNotFoundException", text).status(404)
                })?;
                Ok(json!({}))
            }),
            _ => {
                let text = format!("{} {} is not imitated", call.request.method(), uri.path());
                Err(ApiError::new("UnknownOperationException", text).status(404))
            }
        }
    }

    fn with_cluster<T>(&self, name: &str, act: impl FnOnce(&mut Cluster, &Times) -> Result<T>) -> Result<T> {
        let mut state = self.lock();
        let times = Times { profile: state.profile_delay, access: state.access_delay };
        let cluster = state.clusters.get_mut(name).ok_or_else(|| {
            ApiError::new("ResourceNotFoundException", format!("No cluster found for name: {name}."))
                .status(404)
        })?;
        cluster.profiles.retain(|_, profile| !(profile.deleting && profile.until <= Instant::now()));
        act(cluster, &times)
    }

    /// The same for operations on access entries, which a cluster in the mode of old refuses.
    fn with_entries<T>(&self, name: &str, act: impl FnOnce(&mut Cluster, &Times) -> Result<T>) -> Result<T> {
        self.with_cluster(name, |cluster, times| {
            if cluster.seed.mode == "CONFIG_MAP" {
                let text = "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to \
                            perform this operation.";
                return Err(ApiError::new("InvalidRequestException", text));
            }
            act(cluster, times)
        })
    }

    fn with_entry<T>(
        &self,
        name: &str,
        principal: &str,
        act: impl FnOnce(&mut Entry, &Times) -> Result<T>,
    ) -> Result<T> {
        self.with_entries(name, |cluster, times| {
            act(cluster.entries.get_mut(principal).ok_or_else(no_entry)?, times)
        })
    }

    fn create_cluster(&self, body: &Value) -> Result<Value> {
        let name = text(body, "name")?;
        let valid = name.len() <= 100
            && name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_');
        if !valid {
            let text = "The cluster name must be 1-100 alphanumeric characters, hyphens and underscores, and \
                        begin with an alphanumeric character";
            return Err(ApiError::new("InvalidParameterException", text));
        }
        let role = text(body, "roleArn")?;
        let subnets: Vec<String> = strings(&body["resourcesVpcConfig"]["subnetIds"]);
        if subnets.is_empty() {
            return Err(ApiError::new("InvalidParameterException", "subnetIds is required"));
        }
        let mode = body["accessConfig"]["authenticationMode"].as_str().unwrap_or("CONFIG_MAP");
        {
            let state = self.lock();
            if state.clusters.contains_key(&name) {
                let text = format!("Cluster already exists with name: {name}");
                return Err(ApiError::new("ResourceInUseException", text).status(409));
            }
        }
        let like = self.lock().clusters.values().next().map(|cluster| cluster.seed.clone());
        self.seed(Seed {
            name: name.clone(),
            vpc: like.as_ref().map(|seed| seed.vpc.clone()).unwrap_or_default(),
            private_subnets: subnets.clone(),
            subnets,
            group: like.as_ref().map(|seed| seed.group.clone()).unwrap_or_default(),
            mode: mode.to_owned(),
            endpoint: like.as_ref().map(|seed| seed.endpoint.clone()).unwrap_or_default(),
            authority: like.map(|seed| seed.authority).unwrap_or_default(),
            profiles: Vec::new(),
        });
        self.with_cluster(&name, |cluster, _| {
            cluster.role = role;
            if body["tags"].is_object() {
                cluster.tags = body["tags"].clone();
            }
            let mut shown = self.cluster_body(cluster);
            // The reply is from before the cluster is up; the next look finds it ACTIVE.
            shown["status"] = json!("CREATING");
            if let Some(shown) = shown.as_object_mut() {
                shown.remove("endpoint");
                shown.remove("certificateAuthority");
            }
            Ok(json!({ "cluster": shown }))
        })
    }

    fn delete_cluster(&self, name: &str) -> Result<Value> {
        let body = self.with_cluster(name, |cluster, _| {
            if !cluster.profiles.is_empty() {
                let text = "Cluster has Fargate profiles attached";
                return Err(ApiError::new("ResourceInUseException", text).status(409));
            }
            cluster.status = "DELETING";
            Ok(self.cluster_body(cluster))
        })?;
        self.lock().clusters.remove(name);
        Ok(json!({ "cluster": body }))
    }

    fn cluster_body(&self, cluster: &Cluster) -> Value {
        let seed = &cluster.seed;
        let id = &sigv4::sha256_hex(seed.name.as_bytes())[..32].to_uppercase();
        json!({
            "name": seed.name,
            "arn": format!("arn:aws:eks:{}:{}:cluster/{}", self.region, self.account, seed.name),
            "createdAt": clock::epoch_seconds(cluster.created),
            "version": "1.34",
            "endpoint": seed.endpoint,
            "roleArn": cluster.role,
            "resourcesVpcConfig": {
                "subnetIds": seed.subnets,
                "securityGroupIds": [],
                "clusterSecurityGroupId": seed.group,
                "vpcId": seed.vpc,
                "endpointPublicAccess": true,
                "endpointPrivateAccess": false,
                "publicAccessCidrs": ["0.0.0.0/0"],
            },
            "kubernetesNetworkConfig": {"serviceIpv4Cidr": "172.20.0.0/16", "ipFamily": "ipv4"},
            "logging": {"clusterLogging": []},
            "identity": {"oidc": {"issuer": format!("https://oidc.eks.{}.amazonaws.com/id/{id}", self.region)}},
            "status": cluster.status,
            "certificateAuthority": {"data": STANDARD.encode(&seed.authority)},
            "platformVersion": "eks.1",
            "tags": cluster.tags,
            "health": {"issues": []},
            "accessConfig": {"authenticationMode": seed.mode},
        })
    }

    fn create_profile(&self, cluster: &str, body: &Value) -> Result<Value> {
        let name = text(body, "fargateProfileName")?;
        let role = text(body, "podExecutionRoleArn")?;
        let selectors = body["selectors"].as_array().cloned().unwrap_or_default();
        if selectors.is_empty() || selectors.len() > 5 {
            return Err(ApiError::new(
                "InvalidParameterException",
                "Fargate Profile must have 1 to 5 selectors",
            ));
        }
        self.with_cluster(cluster, |c, times| {
            if c.profiles.contains_key(&name) {
                let text = "A Fargate Profile already exists with this name in this cluster.";
                return Err(ApiError::new("ResourceInUseException", text).status(409));
            }
            one_at_a_time(c, "create", &name)?;
            let subnets = if body["subnets"].is_array() {
                body["subnets"].clone()
            } else {
                json!(c.seed.private_subnets)
            };
            let tags = if body["tags"].is_object() { body["tags"].clone() } else { json!({}) };
            let shown = self.profile_body(cluster, &name, &role, &subnets, json!(selectors), tags);
            let profile = Profile { body: shown, until: Instant::now() + times.profile, deleting: false };
            let described = profile.described();
            c.profiles.insert(name, profile);
            Ok(json!({ "fargateProfile": described }))
        })
    }

    fn delete_profile(&self, cluster: &str, name: &str) -> Result<Value> {
        self.with_cluster(cluster, |c, times| {
            if !c.profiles.contains_key(name) {
                return Err(no_profile(name));
            }
            one_at_a_time(c, "delete", name)?;
            let profile = c.profiles.get_mut(name).ok_or_else(|| no_profile(name))?;
            profile.deleting = true;
            profile.until = Instant::now() + times.profile;
            Ok(json!({ "fargateProfile": profile.described() }))
        })
    }

    fn profile_body(
        &self,
        cluster: &str,
        name: &str,
        role: &str,
        subnets: &Value,
        selectors: Value,
        tags: Value,
    ) -> Value {
        let id = uuid::Uuid::new_v4();
        json!({
            "fargateProfileName": name,
            "fargateProfileArn":
                format!("arn:aws:eks:{}:{}:fargateprofile/{cluster}/{name}/{id}", self.region, self.account),
            "clusterName": cluster,
            "createdAt": clock::epoch_seconds(clock::now()),
            "podExecutionRoleArn": role,
            "subnets": subnets,
            "selectors": selectors,
            "tags": tags,
            "health": {"issues": []},
        })
    }

    async fn create_entry(&self, cluster: &str, body: &Value) -> Result<Value> {
        let arn = text(body, "principalArn")?;
        self.with_entries(cluster, |_, _| Ok(()))?;
        let principal = self.principal(&arn).await?;
        self.with_entries(cluster, |c, times| {
            if c.entries.contains_key(&arn) {
                let text = "The specified access entry resource is already in use on this cluster.";
                return Err(ApiError::new("ResourceInUseException", text).status(409));
            }
            let shown = self.entry_body(cluster, &arn, body);
            let entry = Entry {
                body: shown.clone(),
                policies: BTreeMap::new(),
                principal,
                works_from: Instant::now() + times.access,
            };
            c.entries.insert(arn, entry);
            Ok(json!({ "accessEntry": shown }))
        })
    }

    fn entry_body(&self, cluster: &str, arn: &str, request: &Value) -> Value {
        let (kind, name) = arn.split_once(":role/").map_or_else(
            || ("user", arn.rsplit('/').next().unwrap_or_default()),
            |(_, path)| ("role", path.rsplit('/').next().unwrap_or_default()),
        );
        let username = request["username"].as_str().map(str::to_owned).unwrap_or_else(|| match kind {
            "role" => format!("arn:aws:sts::{}:assumed-role/{name}/{{{{SessionName}}}}", self.account),
            _ => arn.to_owned(),
        });
        let now = clock::epoch_seconds(clock::now());
        let groups = if request["kubernetesGroups"].is_array() {
            request["kubernetesGroups"].clone()
        } else {
            json!([])
        };
        let tags = if request["tags"].is_object() { request["tags"].clone() } else { json!({}) };
        json!({
            "clusterName": cluster,
            "principalArn": arn,
            "kubernetesGroups": groups,
            "accessEntryArn": format!(
                "arn:aws:eks:{}:{}:access-entry/{cluster}/{kind}/{}/{name}/{}",
                self.region, self.account, self.account, uuid::Uuid::new_v4()
            ),
            "createdAt": now,
            "modifiedAt": now,
            "tags": tags,
            "username": username,
            "type": request["type"].as_str().unwrap_or("STANDARD"),
        })
    }

    /// The id of the role or user behind an ARN that may be a principal.
    async fn principal(&self, arn: &str) -> Result<String> {
        let refuse = || {
            let text = "The specified principalArn is invalid: invalid principal";
            ApiError::new("InvalidParameterException", text)
        };
        let prefix = format!("arn:aws:iam::{}:", self.account);
        let rest = arn.strip_prefix(&prefix).ok_or_else(refuse)?;
        let (action, parameter, path, id) = if let Some(path) = rest.strip_prefix("role/") {
            ("GetRole", "RoleName", path, "RoleId")
        } else if let Some(path) = rest.strip_prefix("user/") {
            ("GetUser", "UserName", path, "UserId")
        } else if rest == "root" {
            return Ok(String::new());
        } else {
            return Err(refuse());
        };
        let name = path.rsplit('/').next().unwrap_or_default();
        let parameters = [("Action", action), ("Version", "2010-05-08"), (parameter, name)];
        let answer = self
            .upstream
            .query("iam", "us-east-1", &parameters)
            .await
            .map_err(|error| ApiError::new("ServerException", error.to_string()).status(500))?;
        // A path that is not the role's makes another ARN, which no principal has.
        if answer.status != 200 || answer.element("Arn").as_deref() != Some(arn) {
            return Err(refuse());
        }
        Ok(answer.element(id).unwrap_or_default())
    }

    fn associate(&self, cluster: &str, principal: &str, body: &Value) -> Result<Value> {
        let policy = text(body, "policyArn")?;
        let known = policy
            .strip_prefix("arn:aws:eks::aws:cluster-access-policy/")
            .is_some_and(|name| POLICIES.contains(&name));
        if !known {
            let text = "The specified policyArn is invalid: invalid policy";
            return Err(ApiError::new("InvalidParameterException", text));
        }
        let scope = &body["accessScope"];
        let namespaces = strings(&scope["namespaces"]);
        match (scope["type"].as_str(), namespaces.is_empty()) {
            (Some("cluster"), true) | (Some("namespace"), false) => {}
            _ => {
                let text = "The specified accessScope is invalid";
                return Err(ApiError::new("InvalidParameterException", text));
            }
        }
        self.with_entry(cluster, principal, |entry, _| {
            let scope = json!({ "type": scope["type"], "namespaces": namespaces });
            let shown = policy_body(&policy, scope, clock::now());
            entry.policies.insert(policy, shown.clone());
            Ok(json!({
                "clusterName": cluster, "principalArn": principal, "associatedAccessPolicy": shown,
            }))
        })
    }

    /// The access entry behind an STS ARN: its principal's id, user name and groups.
    fn access(&self, cluster: &str, arn: &str) -> Option<Access> {
        let state = self.lock();
        let entries = &state.clusters.get(cluster)?.entries;
        let session = arn.split_once(":assumed-role/").and_then(|(_, rest)| rest.split_once('/'));
        let (principal, entry) = match session {
            // The role's path is lost in the session's ARN, so the name alone decides.
            Some((role, _)) => entries.iter().find(|(principal, _)| {
                principal.split_once(":role/").and_then(|(_, path)| path.rsplit('/').next()) == Some(role)
            })?,
            None => entries.get_key_value(arn)?,
        };
        if entry.works_from > Instant::now() {
            return None;
        }
        let username = entry.body["username"].as_str().unwrap_or_default();
        let mut groups = vec!["system:authenticated".to_owned()];
        groups.extend(strings(&entry.body["kubernetesGroups"]));
        if entry.policies.get(ADMIN_POLICY).is_some_and(|policy| policy["accessScope"]["type"] == "cluster") {
            groups.push("system:masters".to_owned());
        }
        Some(Access {
            principal: principal.clone(),
            id: entry.principal.clone(),
            username: username.replace("{{SessionName}}", session.map_or("", |(_, session)| session)),
            groups,
        })
    }
}

/// Delays as they stand.
struct Times {
    profile: Duration,
    access: Duration,
}

/// What an access entry gives.
struct Access {
    principal: String,
    id: String,
    username: String,
    groups: Vec<String>,
}

impl Profile {
    fn status(&self) -> &'static str {
        match (self.deleting, self.until > Instant::now()) {
            (true, _) => "DELETING",
            (false, true) => "CREATING",
            (false, false) => "ACTIVE",
        }
    }

    fn described(&self) -> Value {
        let mut body = self.body.clone();
        body["status"] = json!(self.status());
        body
    }
}

/// EKS changes one Fargate profile of a cluster at a time.
fn one_at_a_time(cluster: &Cluster, verb: &str, name: &str) -> Result<()> {
    let busy = cluster.profiles.iter().find(|(_, profile)| profile.status() != "ACTIVE");
    match busy {
        Some((other, profile)) => {
            let text = format!(
                "Cannot {verb} Fargate Profile {name} because cluster {} currently has Fargate profile {other} in \
                 status {}",
                cluster.seed.name,
                profile.status()
            );
            Err(ApiError::new("ResourceInUseException", text).status(409))
        }
        None => Ok(()),
    }
}

fn no_profile(name: &str) -> ApiError {
    ApiError::new("ResourceNotFoundException", format!("No Fargate Profile found with name: {name}."))
        .status(404)
}

fn no_entry() -> ApiError {
    let text = "The specified principalArn could not be found. You can view your available access entries with \
                'list-access-entries'.";
    ApiError::new("ResourceNotFoundException", text).status(404)
}

fn policy_body(arn: &str, scope: Value, now: OffsetDateTime) -> Value {
    let now = clock::epoch_seconds(now);
    json!({ "policyArn": arn, "accessScope": scope, "associatedAt": now, "modifiedAt": now })
}

fn text(body: &Value, field: &str) -> Result<String> {
    match body[field].as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(ApiError::new("InvalidParameterException", format!("{field} is required"))),
    }
}

fn strings(value: &Value) -> Vec<String> {
    value
        .as_array()
        .map_or_else(Vec::new, |list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// One page of a list of names.
fn page(field: &str, names: Vec<String>, query: &[(String, String)]) -> Result<Value> {
    let value = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let count = match value("maxResults").map(str::parse::<usize>) {
        None => 100,
        Some(Ok(count)) if (1..=100).contains(&count) => count,
        Some(_) => {
            return Err(ApiError::new("InvalidParameterException", "maxResults must be between 1 and 100"));
        }
    };
    let start = match value("nextToken").filter(|token| !token.is_empty()) {
        None => 0,
        Some(token) => token
            .parse::<usize>()
            .ok()
            .filter(|start| *start <= names.len())
            .ok_or_else(|| ApiError::new("InvalidParameterException", "nextToken is invalid"))?,
    };
    let end = (start + count).min(names.len());
    let mut body = json!({});
    body[field] = json!(names[start..end]);
    body["nextToken"] = if end < names.len() { json!(end.to_string()) } else { Value::Null };
    Ok(body)
}
