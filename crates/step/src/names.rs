//! Names and tags of everything that is created.
//!
//! Names follow from the request alone, so that a second run, a duplicate event or a redrive finds
//! what the first one made. Ownership is written on the resource as tags.

use sha2::{Digest, Sha256};

use crate::request::Request;

/// Tag key: which stack made a resource, and for which target.
pub const OWNER_TAG: &str = "eks-flux-bootstrap:owner";
/// Tag key: which execution made a resource. A rollback removes what carries its own execution's name,
/// and needs no memory for that.
pub const RUN_TAG: &str = "eks-flux-bootstrap:run";
/// Tag key prefix on what several clusters of a VPC share: one tag a cluster.
pub const CLUSTER_TAG_PREFIX: &str = "eks-flux-bootstrap:cluster/";
/// The IAM path of every user that is made.
pub const IAM_PATH: &str = "/eks-flux-bootstrap/";
/// The name of the inline policy of the IAM user.
pub const USER_POLICY: &str = "git-and-key";

/// Who owns what this execution makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The CloudFormation stack (`STACK_NAME` in the function's environment).
    pub stack: String,
    /// The EKS cluster.
    pub cluster: String,
    /// The Flux namespace.
    pub namespace: String,
}

impl Owner {
    /// The owner of what a request makes.
    pub fn new(stack: &str, request: &Request) -> Self {
        Owner {
            stack: stack.to_owned(),
            cluster: request.cluster.clone(),
            namespace: request.flux.namespace.clone(),
        }
    }

    /// The value of [`OWNER_TAG`] on what belongs to one target: `stack/cluster/namespace`, with a
    /// hash at its end where the three are longer together than a tag's value may be (256).
    pub fn target(&self) -> String {
        shortened(&format!("{}/{}/{}", self.stack, self.cluster, self.namespace), 256)
    }

    /// The value of [`OWNER_TAG`] on what the clusters of a VPC share: the stack.
    pub fn shared(&self) -> String {
        self.stack.clone()
    }

    /// The key of the tag that marks a shared resource as used by this cluster. Its value is `true`.
    pub fn cluster_tag(&self) -> String {
        format!("{CLUSTER_TAG_PREFIX}{}", self.cluster)
    }
}

/// The KMS alias, `alias/eks-flux-bootstrap/<cluster>/<namespace>` unless the request names one.
pub fn key_alias(request: &Request) -> String {
    request
        .key
        .alias
        .clone()
        .unwrap_or_else(|| format!("alias/eks-flux-bootstrap/{}/{}", request.cluster, request.flux.namespace))
}

/// The repository, `<cluster>-<namespace>` unless the request names one (at most 100 characters).
pub fn repository(request: &Request) -> String {
    request
        .repository
        .name
        .clone()
        .unwrap_or_else(|| shortened(&format!("{}-{}", request.cluster, request.flux.namespace), 100))
}

/// The IAM user, `<cluster>-<namespace>-git` unless the request names one (at most 64 characters).
pub fn user(request: &Request) -> String {
    request
        .credentials
        .user_name
        .clone()
        .unwrap_or_else(|| shortened(&format!("{}-{}-git", request.cluster, request.flux.namespace), 64))
}

/// The secret, `eks-flux-bootstrap/<cluster>/<namespace>/git` unless the request names one. It does
/// not end in a hyphen and six characters, which Secrets Manager would take for its own suffix.
pub fn secret(request: &Request) -> String {
    request
        .credentials
        .secret_name
        .clone()
        .unwrap_or_else(|| format!("eks-flux-bootstrap/{}/{}/git", request.cluster, request.flux.namespace))
}

/// The endpoint's security group; one a VPC, like the endpoint.
pub const SECURITY_GROUP: &str = "eks-flux-bootstrap-git-codecommit";

/// Cuts a name to `max` characters, with a hash of the whole at its end, so that two long names
/// which begin alike stay two.
fn shortened(name: &str, max: usize) -> String {
    if name.len() <= max {
        return name.to_owned();
    }
    let digest = Sha256::digest(name.as_bytes());
    let hash: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", &name[..max - 9])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(cluster: &str) -> Request {
        Request::parse(&serde_json::json!({ "cluster": cluster })).expect("valid")
    }

    #[test]
    fn names_follow_from_the_request() {
        let request = request("demo");
        assert_eq!(key_alias(&request), "alias/eks-flux-bootstrap/demo/fluxcd");
        assert_eq!(repository(&request), "demo-fluxcd");
        assert_eq!(user(&request), "demo-fluxcd-git");
        assert_eq!(secret(&request), "eks-flux-bootstrap/demo/fluxcd/git");
        let owner = Owner::new("stack", &request);
        assert_eq!(owner.target(), "stack/demo/fluxcd");
        assert_eq!(owner.cluster_tag(), "eks-flux-bootstrap:cluster/demo");
    }

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        let one = user(&request(&format!("{}x", "c".repeat(90))));
        let two = user(&request(&format!("{}y", "c".repeat(90))));
        assert_eq!(one.len(), 64);
        assert_ne!(one, two);

        // The longest stack, cluster and namespace that there can be.
        let mut long = request(&"c".repeat(100));
        long.flux.namespace = "n".repeat(63);
        let stack = "s".repeat(128);
        let target = Owner::new(&stack, &long).target();
        assert_eq!(target.len(), 256);
        // The roles' conditions begin so.
        assert!(target.starts_with(&format!("{stack}/")));
        assert!(Owner::new(&stack, &long).cluster_tag().len() <= 128);
    }
}
