//! HTTP exchanges outside the SDK's clients, plain or signed, over the SDK's own HTTP client.
//!
//! EC2's SDK crate alone takes longer to compile than everything else together, and S3 is needed
//! for one GET; both are spoken to here by signed requests instead. The probe of the Git endpoint
//! and the download of a Flux release are plain ones.

use std::time::{Duration, SystemTime};

use aws_config::SdkConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_sigv4::http_request::{PayloadChecksumKind, SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use aws_smithy_runtime_api::client::http::{HttpConnector, SharedHttpConnector};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use http::{HeaderName, HeaderValue, Request, Response};
use step::clock::Clock;
use step::{Result, StepError};

/// Sends requests.
#[derive(Debug, Clone)]
pub struct Transport {
    connector: SharedHttpConnector,
    config: SdkConfig,
    clock: Clock,
}

impl Transport {
    /// Uses region, credentials and endpoint of the AWS configuration, and the process's connector.
    pub fn new(config: &SdkConfig) -> Self {
        Transport::with_connector(config, step::aws::connector())
    }

    /// The same over a connector of the caller's.
    pub fn with_connector(config: &SdkConfig, connector: SharedHttpConnector) -> Self {
        Transport { connector, config: config.clone(), clock: Clock::System }
    }

    /// The region of the configuration.
    ///
    /// # Errors
    /// `Internal`, where it has none.
    pub fn region(&self) -> Result<String> {
        self.config
            .region()
            .map(|region| region.as_ref().to_owned())
            .ok_or_else(|| StepError::internal("no region is configured (AWS_REGION)"))
    }

    /// The address of a service without a slash at its end: `AWS_ENDPOINT_URL_<SERVICE>` or
    /// `AWS_ENDPOINT_URL` where set, as in the SDK, or `fallback`.
    pub fn endpoint(&self, service: &str, fallback: &str) -> String {
        std::env::var(format!("AWS_ENDPOINT_URL_{}", service.to_uppercase()))
            .ok()
            .filter(|url| !url.is_empty())
            .or_else(|| self.config.endpoint_url().map(str::to_owned))
            .unwrap_or_else(|| fallback.to_owned())
            .trim_end_matches('/')
            .to_owned()
    }

    /// Signs a request with SigV4 for `service` (its signing name) and sends it.
    ///
    /// # Errors
    /// `Internal`, where there are no credentials or the request cannot be signed; else as
    /// [`Transport::send`].
    pub async fn send_signed(
        &self,
        service: &str,
        mut request: Request<Vec<u8>>,
        timeout: Duration,
        limit: usize,
    ) -> Result<Response<Vec<u8>>> {
        let provider = self
            .config
            .credentials_provider()
            .ok_or_else(|| StepError::internal("no AWS credentials are configured"))?;
        let credentials = provider
            .provide_credentials()
            .await
            .map_err(|_| StepError::internal("the AWS credentials could not be loaded"))?;
        sign_request(&mut request, service, &self.region()?, credentials, self.clock.now())?;
        self.send(request, timeout, limit).await
    }

    /// Sends a request as it is. The reply's body is read whole.
    ///
    /// # Errors
    /// `Transient`, where there is no whole answer within `timeout`; `InvalidInput`, where the body
    /// is larger than `limit` bytes.
    pub async fn send(
        &self,
        request: Request<Vec<u8>>,
        timeout: Duration,
        limit: usize,
    ) -> Result<Response<Vec<u8>>> {
        let uri = request.uri();
        // Never the query: it may carry what belongs to nobody else.
        let target = format!(
            "{}://{}{}",
            uri.scheme_str().unwrap_or("https"),
            uri.authority().map_or("", |authority| authority.as_str()),
            uri.path()
        );
        let request = HttpRequest::try_from(request.map(SdkBody::from))
            .map_err(|_| StepError::internal(format!("{target}: the request could not be built")))?;
        match tokio::time::timeout(timeout, self.exchange(request, &target, limit)).await {
            Ok(result) => result,
            Err(_) => {
                Err(StepError::transient(format!("{target}: no answer within {} s", timeout.as_secs())))
            }
        }
    }

    async fn exchange(&self, request: HttpRequest, target: &str, limit: usize) -> Result<Response<Vec<u8>>> {
        let reply = self.connector.call(request).await.map_err(|error| {
            let what = if error.is_timeout() { "timed out" } else { "failed" };
            StepError::transient(format!("{target}: the connection {what}"))
        })?;
        let mut whole = Response::builder().status(reply.status().as_u16());
        for (name, value) in reply.headers() {
            whole = whole.header(name, value);
        }
        let mut body = reply.into_body();
        let mut bytes = Vec::new();
        while let Some(chunk) = std::future::poll_fn(|context| {
            http_body::Body::poll_frame(std::pin::Pin::new(&mut body), context)
        })
        .await
        {
            let frame = chunk.map_err(|_| StepError::transient(format!("{target}: the reply broke off")))?;
            if let Ok(data) = frame.into_data() {
                if bytes.len() + data.len() > limit {
                    return Err(StepError::invalid_input(format!(
                        "{target}: the reply has more than {limit} bytes"
                    )));
                }
                bytes.extend_from_slice(&data);
            }
        }
        whole.body(bytes).map_err(|_| StepError::internal(format!("{target}: the reply has bad headers")))
    }
}

fn sign_request(
    request: &mut Request<Vec<u8>>,
    service: &str,
    region: &str,
    credentials: Credentials,
    time: SystemTime,
) -> Result<()> {
    let failed = || StepError::internal(format!("the request to {service} could not be signed"));
    let mut settings = SigningSettings::default();
    if service == "s3" {
        // S3 wants the payload's hash as a header and takes the path as it is.
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.percent_encoding_mode = aws_sigv4::http_request::PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = aws_sigv4::http_request::UriPathNormalizationMode::Disabled;
    }
    let identity = credentials.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(service)
        .time(time)
        .settings(settings)
        .build()
        .map_err(|_| failed())?
        .into();
    let uri = request.uri().to_string();
    let headers: Vec<(&str, &str)> = request
        .headers()
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
        .collect();
    let signable = SignableRequest::new(
        request.method().as_str(),
        uri,
        headers.into_iter(),
        SignableBody::Bytes(request.body()),
    )
    .map_err(|_| failed())?;
    let (instructions, _) = sign(signable, &params).map_err(|_| failed())?.into_parts();
    let (signed, _) = instructions.into_parts();
    for header in signed {
        let name = HeaderName::try_from(header.name()).map_err(|_| failed())?;
        let value = HeaderValue::try_from(header.value()).map_err(|_| failed())?;
        request.headers_mut().insert(name, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_signed_request_has_the_published_signature() {
        // AWS's own example "GET IAM ListUsers" of the Signature Version 4 documentation.
        let mut request = Request::builder()
            .uri("https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08")
            .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
            .body(Vec::new())
            .expect("request");
        let credentials =
            Credentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None, None, "test");
        let time = UNIX_EPOCH + Duration::from_secs(1_440_938_160);
        sign_request(&mut request, "iam", "us-east-1", credentials, time).expect("signed");
        let authorization = request.headers()["authorization"].to_str().expect("text");
        assert!(
            authorization
                .ends_with("Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"),
            "{authorization}"
        );
    }
}
