//! What the Git user may do: Git on one repository, and the repository's key.

use serde_json::{Value, json};

/// The six actions that CodeCommit's page on encryption asks of the caller for a customer-managed
/// key. Without them Git gets a bare 403.
const KMS_ACTIONS: [&str; 6] = [
    "kms:Encrypt",
    "kms:Decrypt",
    "kms:ReEncrypt*",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:DescribeKey",
];

/// The inline policy of the user.
pub fn document(repository_arn: &str, key_arn: &str) -> Value {
    json!({
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "Git",
                "Effect": "Allow",
                "Action": ["codecommit:GitPull", "codecommit:GitPush"],
                "Resource": repository_arn,
            },
            {"Sid": "Key", "Effect": "Allow", "Action": KMS_ACTIONS, "Resource": key_arn},
        ],
    })
}

/// The document that IAM gives back, which is percent-encoded (RFC 3986). `None` where it is no JSON:
/// then it is not what we wrote, and is written again.
pub fn decode(encoded: &str) -> Option<Value> {
    let bytes: Vec<u8> = percent_encoding::percent_decode_str(encoded).collect();
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_iam_gives_back_is_compared_as_json() {
        let ours = document("arn:aws:codecommit:eu-west-1:1:r", "arn:aws:kms:eu-west-1:1:key/k");
        assert_eq!(decode("%7B%22a%22%3A%20%5B1%5D%7D"), Some(json!({"a": [1]})));
        assert_eq!(decode(&ours.to_string()), Some(ours));
        assert_eq!(decode("%7B%22a"), None);
    }
}
