use replies::{Exchange, Replies, on};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const SENTINEL: &str = "SENTINEL-p4ss=word/";
const ARN: &str =
    "arn:aws:secretsmanager:eu-west-1:111122223333:secret:eks-flux-bootstrap/demo/fluxcd/git-AbCdEf";
const URL: &str = "https://git-codecommit.eu-west-1.amazonaws.com/v1/repos/demo-fluxcd";
const PROBE: &str = "GET /v1/repos/demo-fluxcd/info/refs";

fn input() -> Input {
    serde_json::from_value(json!({
        "request": {"cluster": "demo"},
        "git": {"url": URL},
        "credentials": {"secretArn": ARN, "userName": "demo-fluxcd-git", "credentialId": "ACCAEXAMPLE"},
    }))
    .expect("input")
}

fn holding(text: &str) -> Exchange {
    on("GetSecretValue").with(ARN).json(json!({"ARN": ARN, "Name": "n", "SecretString": text}))
}

fn secret() -> Exchange {
    holding(
        &json!({"username": "demo-fluxcd-git-at-111122223333", "password": SENTINEL, "url": URL, "more": 1})
            .to_string(),
    )
}

fn step(replies: &Replies) -> Step {
    let config = replies.config();
    Step { secrets: Client::new(&config), transport: Transport::with_connector(&config, replies.connector()) }
}

/// Runs the step; whatever comes out of it must not show the password.
async fn run(exchanges: Vec<Exchange>) -> Result<Output> {
    let replies = Replies::new(exchanges);
    let step = step(&replies);
    let result = step.apply(input()).await;
    let encoded = STANDARD.encode(format!("demo-fluxcd-git-at-111122223333:{SENTINEL}"));
    let shown = format!("{result:?} {step:?} {:?}", result.as_ref().map(|r| json!(r).to_string()));
    assert!(!shown.contains(SENTINEL) && !shown.contains(&encoded), "{shown}");
    replies.finish();
    result
}

fn probe(status: u16, content_type: &str) -> Exchange {
    on(PROBE).with("service=git-upload-pack").raw(
        status,
        content_type,
        b"001e# service=git-upload-pack\n0000",
    )
}

#[tokio::test]
async fn an_advertisement_means_ready() {
    for content_type in [
        "application/x-git-upload-pack-advertisement",
        "Application/X-Git-Upload-Pack-Advertisement; charset=utf-8",
    ] {
        let answer = run(vec![secret(), probe(200, content_type)]).await.expect("an answer");
        assert_eq!(answer, Readiness::ready());
        assert_eq!(json!(answer), json!({"ready": true, "because": ""}));
    }
}

#[tokio::test]
async fn the_credential_goes_with_the_first_request() {
    let login = Login { username: "u".to_owned(), password: "p:w".to_owned().into() };
    let header = login.basic().expect("a header");
    assert_eq!(header, "Basic dTpwOnc=");
    assert!(header.is_sensitive());
    assert!(!format!("{header:?}").contains("dTpw"));

    // Over a real connection: what a server reads first.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/v1/repos/demo-fluxcd", listener.local_addr().expect("an address"));
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            seen.push(stream.read_u8().await.expect("a request"));
        }
        let reply = "HTTP/1.1 200 OK\r\ncontent-type: application/x-git-upload-pack-advertisement\r\ncontent-length: 4\r\n\r\n0000";
        stream.write_all(reply.as_bytes()).await.expect("a reply");
        String::from_utf8(seen).expect("text")
    });
    let replies = Replies::new([secret()]);
    let config = replies.config();
    let step = Step { secrets: Client::new(&config), transport: Transport::new(&config) };
    let mut input = input();
    input.git.url = url;
    assert_eq!(step.apply(input).await, Ok(Readiness::ready()));
    let seen = server.await.expect("the request");
    let expected = STANDARD.encode(format!("demo-fluxcd-git-at-111122223333:{SENTINEL}"));
    assert!(
        seen.starts_with("GET /v1/repos/demo-fluxcd/info/refs?service=git-upload-pack HTTP/1.1\r\n"),
        "{seen}"
    );
    assert!(seen.contains(&format!("authorization: Basic {expected}\r\n")), "{seen}");
}

#[tokio::test]
async fn what_passes_is_not_yet() {
    for (exchange, words) in [
        (probe(403, "text/plain"), "HTTP 403"),
        // Whoever stored another password by hand has to hear of it.
        (probe(403, "text/plain"), "does not hold the credential's password"),
        (probe(429, "text/plain"), "HTTP 429"),
        (probe(500, "text/plain"), "HTTP 500"),
        (probe(503, "text/html"), "HTTP 503"),
        (on(PROBE).lost(), "connection failed"),
    ] {
        let answer = run(vec![secret(), exchange]).await.expect("an answer");
        assert!(!answer.ready);
        assert!(answer.because.contains(words) && answer.because.contains(URL), "{}", answer.because);
    }
}

#[tokio::test]
async fn what_does_not_pass_is_an_error_that_says_what_next() {
    for (exchange, name, words) in [
        (probe(401, "text/plain"), ErrorName::Denied, "service-specific credential"),
        (probe(404, "text/plain"), ErrorName::PrerequisiteMissing, "start the execution again"),
        (
            probe(302, "text/html").header("location", "https://user:pw@proxy.example/login?token=t0ken"),
            ErrorName::Conflict,
            "\"proxy.example\"",
        ),
        (probe(301, "text/html"), ErrorName::Conflict, "redirects"),
        (probe(200, "text/html"), ErrorName::Conflict, "not as a Git server"),
        (probe(204, ""), ErrorName::Internal, "HTTP 204"),
        (probe(400, "text/plain"), ErrorName::Internal, "git ls-remote"),
    ] {
        let error = run(vec![secret(), exchange]).await.expect_err(words);
        assert_eq!(error.name, name, "{words}");
        assert!(error.message.contains(words) && error.message.contains(URL), "{}", error.message);
        assert!(!error.message.contains("t0ken") && !error.message.contains("pw@"), "{}", error.message);
    }
}

#[tokio::test]
async fn a_secret_that_cannot_be_read_is_told_apart() {
    let error = |code: &str, text: &str| on("GetSecretValue").error(400, code, text);
    for (exchange, name, words) in [
        (
            error("ResourceNotFoundException", "Secrets Manager can't find the specified secret."),
            ErrorName::PrerequisiteMissing,
            "start the execution again",
        ),
        (
            error(
                "InvalidRequestException",
                "You can't perform this operation on the secret because it was marked for deletion.",
            ),
            ErrorName::Conflict,
            "marked for deletion",
        ),
        (
            error(
                "AccessDeniedException",
                "User is not authorized to perform: secretsmanager:GetSecretValue",
            ),
            ErrorName::Denied,
            "secretsmanager:GetSecretValue",
        ),
        (error("ThrottlingException", "Rate exceeded"), ErrorName::Transient, "tried again"),
    ] {
        let error = run(vec![exchange]).await.expect_err(words);
        assert_eq!(error.name, name, "{words}");
        let text = error.message.to_lowercase();
        assert!(text.contains(&words.to_lowercase()) && error.message.contains(ARN), "{}", error.message);
    }
    for (code, text) in [
        ("AccessDeniedException", "Access to KMS is not allowed"),
        ("DecryptionFailure", "Secrets Manager can't decrypt the protected secret text"),
    ] {
        let answer = run(vec![error(code, text)]).await.expect("not yet");
        assert!(!answer.ready && answer.because.contains(text), "{}", answer.because);
    }
}

#[tokio::test]
async fn a_secret_that_is_not_ours_is_refused_without_a_word_of_it() {
    for text in [
        SENTINEL.to_owned(),
        format!("\"{SENTINEL}\""),
        String::new(),
        json!({"username": "u"}).to_string(),
        json!({"username": SENTINEL, "password": 7}).to_string(),
        json!({"username": "u", "password": {"x": SENTINEL}}).to_string(),
        json!({"username": "", "password": SENTINEL}).to_string(),
        json!({"username": "a:b", "password": SENTINEL}).to_string(),
    ] {
        let error = run(vec![holding(&text)]).await.expect_err("not ours");
        assert_eq!(error.name, ErrorName::Conflict);
        assert!(error.message.contains("credentials.secretName"), "{}", error.message);
    }
}

#[tokio::test]
async fn bad_input_makes_no_call() {
    let replies = Replies::new([]);
    let mut bad = input();
    bad.request.wait.seconds = 0;
    let error = step(&replies).apply(bad).await.expect_err("bad");
    assert_eq!(error.name, ErrorName::InvalidInput);
    replies.finish();
    assert!(serde_json::from_value::<Input>(json!({"request": Value::Null})).is_err());
}
