//! The AWS configuration that every client is made from.

use std::sync::OnceLock;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{AppName, BehaviorVersion, SdkConfig};
use aws_smithy_http_client::{Connector, tls};
use aws_smithy_runtime_api::client::http::{HttpConnectorSettings, SharedHttpConnector, http_client_fn};

/// The one connector of the process, for the SDK's clients and for what is sent beside them.
///
/// Each connector parses the machine's root certificates, which is most of a cold start; and one
/// pool of connections is enough. TLS is rustls with ring, as in the Kubernetes client: two crypto
/// providers in one binary make rustls panic at the first connection.
pub fn connector() -> SharedHttpConnector {
    static CONNECTOR: OnceLock<SharedHttpConnector> = OnceLock::new();
    CONNECTOR
        .get_or_init(|| {
            let settings = HttpConnectorSettings::builder().connect_timeout(Duration::from_secs(5)).build();
            SharedHttpConnector::new(
                Connector::builder()
                    .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
                    .connector_settings(settings)
                    .build(),
            )
        })
        .clone()
}

/// Loads region, credentials and endpoints from the environment, once, in `main`.
///
/// Three quick attempts are the SDK's; longer waits are the state machine's.
pub async fn load() -> SdkConfig {
    let connector = connector();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http_client_fn(move |_, _| connector.clone()))
        .retry_config(RetryConfig::standard().with_max_attempts(3))
        .timeout_config(
            TimeoutConfig::builder()
                .operation_attempt_timeout(Duration::from_secs(10))
                .operation_timeout(Duration::from_secs(25))
                .build(),
        );
    if let Ok(name) = AppName::new("eks-flux-bootstrap") {
        loader = loader.app_name(name);
    }
    loader.load().await
}
