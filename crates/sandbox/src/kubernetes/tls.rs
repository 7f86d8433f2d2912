//! The certificates of the API server: a CA of its own and a certificate for this machine.

use std::sync::Arc;

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// What a server needs for TLS, and what a client needs to trust it.
pub struct Identity {
    /// The CA's certificate.
    pub ca_pem: String,
    /// The server's side, offering HTTP/2 and HTTP/1.1.
    pub server: Arc<rustls::ServerConfig>,
}

/// Makes new certificates.
pub fn identity() -> anyhow::Result<Identity> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name.push(DnType::CommonName, "kubernetes");
    let ca_key = KeyPair::generate().context("making the CA's key")?;
    let ca = params.self_signed(&ca_key).context("making the CA's certificate")?;
    let issuer = Issuer::new(params, ca_key);

    let mut params = CertificateParams::new(vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "kubernetes.default.svc".to_owned(),
    ])?;
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().context("making the server's key")?;
    let certificate = params.signed_by(&key, &issuer).context("signing the server's certificate")?;

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Identity { ca_pem: ca.pem(), server: Arc::new(server) })
}
