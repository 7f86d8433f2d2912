//! The AWS configuration that every client is made from.

use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{AppName, BehaviorVersion, SdkConfig};
use aws_smithy_http_client::{Builder, tls};

/// Loads region, credentials and endpoints from the environment, once, in `main`.
///
/// TLS is rustls with ring, as in the Kubernetes client: two crypto providers in one binary make
/// rustls panic at the first connection. Three quick attempts are the SDK's; longer waits are the
/// state machine's.
pub async fn load() -> SdkConfig {
    let http = Builder::new()
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
        .build_https();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .retry_config(RetryConfig::standard().with_max_attempts(3))
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(Duration::from_secs(5))
                .operation_attempt_timeout(Duration::from_secs(10))
                .operation_timeout(Duration::from_secs(25))
                .build(),
        );
    if let Ok(name) = AppName::new("eks-flux-bootstrap") {
        loader = loader.app_name(name);
    }
    loader.load().await
}
