//! The local world against clients that are not ours: the AWS CLI, Git and kubectl.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sandbox::edge::{Filter, Rule};
use sandbox::eks::ADMIN_POLICY;
use sandbox::wire::{Authenticator, GitAuthority};
use sandbox::world::{Options, World};
use serde_json::{Value, json};

async fn start() -> World {
    World::start(Options::quick()).await.expect("a world")
}

/// Runs the AWS CLI with these words and further environment; its JSON, or what it complains of.
async fn aws_as(world: &World, session: &[(&str, &str)], words: &[&str]) -> Result<Value, String> {
    let output = world
        .program("aws")
        .args(words)
        .args(["--output", "json"])
        .envs(session.iter().copied())
        .stdin(Stdio::null())
        .output()
        .await
        .expect("the AWS CLI runs");
    if output.status.success() {
        Ok(serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

async fn aws(world: &World, words: &[&str]) -> Result<Value, String> {
    aws_as(world, &[], words).await
}

async fn done(world: &World, words: &[&str]) -> Value {
    aws(world, words).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

async fn refused(world: &World, words: &[&str], with: &str) {
    match aws(world, words).await {
        Ok(reply) => panic!("{words:?} is let through: {reply}"),
        Err(error) => assert!(error.contains(with), "{words:?}: {error}"),
    }
}

/// Makes a role, and credentials of a session of it.
async fn session(world: &World, role: &str) -> Vec<(String, String)> {
    let trust = json!({"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]});
    let trust = trust.to_string();
    done(world, &["iam", "create-role", "--role-name", role, "--assume-role-policy-document", &trust]).await;
    let arn = format!("arn:aws:iam::123456789012:role/{role}");
    let assumed =
        done(world, &["sts", "assume-role", "--role-arn", &arn, "--role-session-name", "tester"]).await;
    let credentials = &assumed["Credentials"];
    [
        ("AWS_ACCESS_KEY_ID", "AccessKeyId"),
        ("AWS_SECRET_ACCESS_KEY", "SecretAccessKey"),
        ("AWS_SESSION_TOKEN", "SessionToken"),
    ]
    .map(|(variable, field)| (variable.to_owned(), credentials[field].as_str().unwrap().to_owned()))
    .to_vec()
}

fn borrowed(session: &[(String, String)]) -> Vec<(&str, &str)> {
    session.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_played_here_passes_through() {
    let world = start().await;
    let path = world.folder().join("big");
    let mut bytes = vec![0_u8; 9 << 20];
    for (number, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::try_from((number * 31 + number / 255) % 251).unwrap();
    }
    std::fs::write(&path, &bytes).unwrap();
    done(&world, &["s3", "mb", "s3://tryout"]).await;
    let back = world.folder().join("back");
    let (path, back) = (path.display().to_string(), back.display().to_string());
    done(&world, &["s3", "cp", &path, "s3://tryout/a folder/x+1"]).await;
    done(&world, &["s3", "cp", "s3://tryout/a folder/x+1", &back]).await;
    assert_eq!(std::fs::read(back).unwrap(), bytes, "bodies pass unchanged");

    let session = session(&world, "reader").await;
    let mark = world.edge().mark();
    let who = aws_as(&world, &borrowed(&session), &["sts", "get-caller-identity"]).await.unwrap();
    let arn = "arn:aws:sts::123456789012:assumed-role/reader/tester";
    assert_eq!(who["Arn"], arn);
    // The role has no policy at all: which calls it may make is not MiniStack's to decide.
    aws_as(&world, &borrowed(&session), &["kms", "create-key"]).await.unwrap();
    done(&world, &["iam", "create-user", "--user-name", "person", "--path", "/people/"]).await;
    let made =
        done(&world, &["iam", "create-access-key", "--user-name", "person"]).await["AccessKey"].clone();
    let person = [
        ("AWS_ACCESS_KEY_ID", made["AccessKeyId"].as_str().unwrap()),
        ("AWS_SECRET_ACCESS_KEY", made["SecretAccessKey"].as_str().unwrap()),
    ];
    let listed = world.edge().mark();
    aws_as(&world, &person, &["eks", "list-clusters"]).await.unwrap();
    let call = world.edge().calls_where(&Filter::after(listed)).remove(0);
    assert_eq!(call.caller.as_deref(), Some("arn:aws:iam::123456789012:user/people/person"));

    let mut forged = session.clone();
    forged[1].1 = "forged".to_owned();
    let forging = world.edge().mark();
    let error = aws_as(&world, &borrowed(&forged), &["kms", "list-keys"]).await.unwrap_err();
    assert!(error.contains("signature"), "{error}");
    let error = aws_as(&world, &borrowed(&forged), &["eks", "list-clusters"]).await.unwrap_err();
    assert!(error.contains("InvalidSignatureException"), "{error}");

    let calls = world.edge().calls_where(&Filter::after(mark));
    let told: Vec<(String, Option<&str>, u16, bool)> =
        calls.iter().map(|call| (call.name(), call.caller.as_deref(), call.status, call.write)).collect();
    assert_eq!(told[0], ("sts:GetCallerIdentity".to_owned(), Some(arn), 200, false));
    assert_eq!(told[1], ("kms:CreateKey".to_owned(), Some(arn), 200, true));
    for call in world.edge().calls_where(&Filter::after(forging)) {
        assert!(call.caller.is_none() && call.failed(), "{call:?}");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn git_credentials_are_those_of_iam() {
    let world = start().await;
    let user = ["--user-name", "flux"];
    let credential = |action: &'static str| ["iam", action, user[0], user[1]];
    let service = ["--service-name", "codecommit.amazonaws.com"];
    let create = [&credential("create-service-specific-credential")[..], &service].concat();
    refused(&world, &create, "(NoSuchEntity)").await;
    refused(&world, &create, "The user with name flux cannot be found.").await;
    done(&world, &["iam", "create-user", user[0], user[1], "--path", "/eks-flux-bootstrap/"]).await;
    let unknown = [&credential("create-service-specific-credential")[..], &["--service-name", "s3"]].concat();
    refused(&world, &unknown, "No such service s3 is supported for Service Specific Credentials").await;

    let first = done(&world, &create).await["ServiceSpecificCredential"].clone();
    assert_eq!(first["ServiceUserName"], "flux-at-123456789012");
    assert_eq!(first["Status"], "Active");
    let second = done(&world, &create).await["ServiceSpecificCredential"].clone();
    assert_ne!(second["ServiceUserName"], first["ServiceUserName"]);
    refused(&world, &create, "(LimitExceeded)").await;

    let listed = done(&world, &credential("list-service-specific-credentials")).await;
    assert_eq!(listed["ServiceSpecificCredentials"].as_array().unwrap().len(), 2);
    assert!(!listed.to_string().contains("Password"), "{listed}");

    let text = |value: &Value, field: &str| value[field].as_str().unwrap().to_owned();
    let id = text(&first, "ServiceSpecificCredentialId");
    let named = |action: &'static str| {
        let id = id.clone();
        move |world: &World, more: &[&str]| {
            let words: Vec<String> =
                ["iam", action, user[0], user[1], "--service-specific-credential-id", &id]
                    .iter()
                    .chain(more)
                    .map(ToString::to_string)
                    .collect();
            let program = world.program("aws");
            (program, words)
        }
    };
    let run = async |action: &'static str, more: &[&str]| {
        let (mut program, words) = named(action)(&world, more);
        let output = program.args(words).args(["--output", "json"]).output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or(Value::Null)
    };

    // Rights come from the user's policies: Git's on the repository, and those on its key.
    let allows = async |credential: &Value, write: bool| {
        let (user, password) = (text(credential, "ServiceUserName"), text(credential, "ServicePassword"));
        world.iam().allows(&user, &password, "demo", write).await
    };
    assert!(!allows(&first, false).await, "no policy yet");
    let key = done(&world, &["kms", "create-key"]).await["KeyMetadata"]["Arn"].as_str().unwrap().to_owned();
    let git = json!({"Effect": "Allow", "Action": "codecommit:GitPull",
        "Resource": "arn:aws:codecommit:eu-west-1:123456789012:demo"});
    let kms = json!({"Effect": "Allow", "Resource": key, "Action": ["kms:Encrypt", "kms:Decrypt",
        "kms:ReEncrypt*", "kms:GenerateDataKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:DescribeKey"]});
    let put = async |statements: Value| {
        let policy = json!({"Version": "2012-10-17", "Statement": statements}).to_string();
        let words =
            ["iam", "put-user-policy", user[0], user[1], "--policy-name", "p", "--policy-document", &policy];
        done(&world, &words).await;
    };
    put(json!([git])).await;
    assert!(allows(&first, false).await);
    assert!(!allows(&first, true).await, "GitPush is not allowed");
    done(&world, &["codecommit", "create-repository", "--repository-name", "demo", "--kms-key-id", &key])
        .await;
    assert!(!allows(&first, false).await, "the repository has a key now");
    put(json!([git, kms])).await;
    assert!(allows(&first, false).await);

    run("update-service-specific-credential", &["--status", "Inactive"]).await;
    assert!(!allows(&first, false).await, "inactive");
    let reset = run("reset-service-specific-credential", &[]).await["ServiceSpecificCredential"].clone();
    assert_eq!(reset["Status"], "Inactive", "a new password does not activate");
    assert_eq!(reset["ServiceSpecificCredentialId"], first["ServiceSpecificCredentialId"]);
    run("update-service-specific-credential", &["--status", "Active"]).await;
    assert!(!allows(&first, false).await, "the old password");
    assert!(allows(&reset, false).await, "the new password");

    refused(&world, &credential("delete-user"), "(DeleteConflict)").await;
    run("delete-service-specific-credential", &[]).await;
    assert!(!allows(&reset, false).await);
    let gone =
        [&credential("delete-service-specific-credential")[..], &["--service-specific-credential-id", &id]];
    refused(&world, &gone.concat(), &format!("No such credential {id} exists")).await;

    world.iam().set_delay(Duration::from_millis(1500));
    let slow = done(&world, &create).await["ServiceSpecificCredential"].clone();
    let made = Instant::now();
    assert!(!allows(&slow, false).await, "a new password takes its time");
    while !allows(&slow, false).await {
        assert!(made.elapsed() < Duration::from_secs(10));
        sandbox::clock::sleep(Duration::from_millis(50)).await;
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn git_works_with_the_aws_credential_helper() {
    let world = start().await;
    done(&world, &["codecommit", "create-repository", "--repository-name", "tryout"]).await;
    let url = format!("{}/tryout", world.git_url());
    let folder = world.folder().join("clone");
    let helper = "credential.helper=!aws codecommit credential-helper --ignore-host-check $@";
    let git = async |at: &Path, words: &[&str]| {
        // `program` takes absolute paths as they are, and gives the environment of the AWS CLI.
        let output = world
            .program("/usr/bin/env")
            .arg("git")
            .args(["-c", "credential.helper=", "-c", helper, "-c", "credential.UseHttpPath=true"])
            .args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"])
            .args(words)
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .current_dir(at)
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    git(world.folder(), &["clone", "-q", &url, "clone"]).await;
    std::fs::write(folder.join("file"), "text").unwrap();
    git(&folder, &["checkout", "-q", "-b", "main"]).await;
    git(&folder, &["add", "file"]).await;
    git(&folder, &["commit", "-q", "-m", "first"]).await;
    git(&folder, &["push", "-q", "origin", "main"]).await;
    let words = ["codecommit", "get-branch", "--repository-name", "tryout", "--branch-name", "main"];
    let branch = done(&world, &words).await;
    let head = git(&folder, &["rev-parse", "HEAD"]).await;
    assert_eq!(branch["branch"]["commitId"], head.trim());
    let pushes = world.edge().calls_where(&Filter {
        service: Some("git".to_owned()),
        write: Some(true),
        ..Filter::default()
    });
    let pushed = pushes.iter().find(|call| call.status == 200).expect("a push");
    assert_eq!(pushed.caller.as_deref(), Some("arn:aws:iam::123456789012:root"));
    assert_eq!(pushed.resource.as_deref(), Some("tryout"));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_profiles_and_access_entries_are_those_of_eks() {
    let world = start().await;
    let cluster = ["--cluster-name", "demo"];
    let eks = |action: &'static str| vec!["eks", action, cluster[0], cluster[1]];
    let described = done(&world, &["eks", "describe-cluster", "--name", "demo"]).await["cluster"].clone();
    assert_eq!(described["status"], "ACTIVE");
    assert_eq!(described["endpoint"], world.kubernetes().endpoint());
    assert_eq!(described["accessConfig"]["authenticationMode"], "API_AND_CONFIG_MAP");
    let missing = ["eks", "describe-cluster", "--name", "missing"];
    refused(&world, &missing, "(ResourceNotFoundException)").await;
    refused(&world, &missing, "No cluster found for name: missing.").await;

    let profile =
        done(&world, &[&eks("describe-fargate-profile")[..], &["--fargate-profile-name", "flux"]].concat())
            .await["fargateProfile"]
            .clone();
    assert_eq!(profile["selectors"][0]["namespace"], "fluxcd");
    world.eks().set_profile_delay(Duration::from_secs(60));
    let create = |name: &'static str| {
        let role = "arn:aws:iam::123456789012:role/pods";
        [
            &eks("create-fargate-profile")[..],
            &[
                "--fargate-profile-name",
                name,
                "--pod-execution-role-arn",
                role,
                "--selectors",
                "namespace=apps-*",
            ],
        ]
        .concat()
    };
    assert_eq!(done(&world, &create("apps")).await["fargateProfile"]["status"], "CREATING");
    let busy = "Cannot create Fargate Profile more because cluster demo currently has Fargate profile apps in status \
                CREATING";
    refused(&world, &create("more"), busy).await;
    let names = done(&world, &[&eks("list-fargate-profiles")[..], &["--max-items", "1"]].concat()).await;
    assert_eq!(names["fargateProfileNames"], json!(["apps"]));

    let entry =
        |action: &'static str, arn: &'static str| [&eks(action)[..], &["--principal-arn", arn]].concat();
    let role = "arn:aws:iam::123456789012:role/flux";
    let invalid = "The specified principalArn is invalid: invalid principal";
    refused(&world, &entry("create-access-entry", role), invalid).await;
    session(&world, "flux").await;
    let assumed = "arn:aws:sts::123456789012:assumed-role/flux/tester";
    refused(&world, &entry("create-access-entry", assumed), invalid).await;
    refused(&world, &entry("describe-access-entry", role), "(ResourceNotFoundException)").await;
    let made = done(&world, &entry("create-access-entry", role)).await["accessEntry"].clone();
    assert_eq!(made["username"], "arn:aws:sts::123456789012:assumed-role/flux/{{SessionName}}");
    let again = "(ResourceInUseException) when calling the CreateAccessEntry operation: The specified access entry \
                 resource is already in use on this cluster.";
    refused(&world, &entry("create-access-entry", role), again).await;
    let scope = ["--policy-arn", ADMIN_POLICY, "--access-scope", "type=cluster"];
    let associate = [&entry("associate-access-policy", role)[..], &scope].concat();
    done(&world, &associate).await;
    done(&world, &associate).await;
    let policies = done(&world, &entry("list-associated-access-policies", role)).await;
    assert_eq!(policies["associatedAccessPolicies"].as_array().unwrap().len(), 1);
    assert_eq!(policies["associatedAccessPolicies"][0]["policyArn"], ADMIN_POLICY);
    done(&world, &[&entry("disassociate-access-policy", role)[..], &["--policy-arn", ADMIN_POLICY]].concat())
        .await;
    done(&world, &entry("delete-access-entry", role)).await;
    let entries = done(&world, &eks("list-access-entries")).await;
    assert_eq!(entries["accessEntries"], json!(["arn:aws:iam::123456789012:root"]));
    world.stop().await;

    let options = Options { mode: "CONFIG_MAP".to_owned(), ..Options::quick() };
    let world = World::start(options).await.unwrap();
    let mode = "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to perform this \
                operation.";
    refused(&world, &eks("list-access-entries"), mode).await;
    refused(&world, &entry("create-access-entry", role), mode).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_lets_in_whom_sts_knows_and_an_entry_names() {
    let world = start().await;
    let session = session(&world, "flux").await;
    let mint = async |session: &[(&str, &str)], cluster: &str| {
        let words = ["eks", "get-token", "--cluster-name", cluster];
        let token = aws_as(&world, session, &words).await.unwrap();
        token["status"]["token"].as_str().unwrap().to_owned()
    };
    let tokens = sandbox::eks::Tokens::new(world.eks().clone(), "demo", &world.edge().url());
    let asked = async |token: &str| tokens.authenticate(token).await;

    let creator = asked(&mint(&[], "demo").await).await.expect("the cluster's creator");
    assert!(creator.groups.contains(&"system:masters".to_owned()));
    let token = mint(&borrowed(&session), "demo").await;
    assert_eq!(asked(&token).await, None, "no access entry yet");
    let role = "arn:aws:iam::123456789012:role/flux";
    let entry = ["--cluster-name", "demo", "--principal-arn", role];
    done(&world, &[&["eks", "create-access-entry"][..], &entry].concat()).await;
    let user = asked(&token).await.expect("an entry");
    assert_eq!(user.username, "arn:aws:sts::123456789012:assumed-role/flux/tester");
    assert_eq!(user.groups, ["system:authenticated"]);
    let scope = ["--policy-arn", ADMIN_POLICY, "--access-scope", "type=cluster"];
    done(&world, &[&["eks", "associate-access-policy"][..], &entry, &scope].concat()).await;
    assert!(asked(&token).await.unwrap().groups.contains(&"system:masters".to_owned()));

    let other = mint(&borrowed(&session), "other").await;
    assert_eq!(asked(&other).await, None, "signed for another cluster");
    let mut forged = session.clone();
    forged[1].1 = "forged".to_owned();
    assert_eq!(asked(&mint(&borrowed(&forged), "demo").await).await, None, "signed with another secret");
    let mut without = session.clone();
    without[2].1 = "another-token".to_owned();
    assert_eq!(asked(&mint(&borrowed(&without), "demo").await).await, None, "another session token");
    let tampered = |from: &str, to: &str| {
        let url = URL_SAFE_NO_PAD.decode(token.strip_prefix("k8s-aws-v1.").unwrap()).unwrap();
        let url = String::from_utf8(url).unwrap();
        assert!(url.contains(from), "{from} in {url}");
        format!("k8s-aws-v1.{}", URL_SAFE_NO_PAD.encode(url.replacen(from, to, 1)))
    };
    let cases = [
        ("X-Amz-Expires=60", "X-Amz-Expires=61"),
        ("X-Amz-Expires=60&", ""),
        ("X-Amz-Date=20", "X-Amz-Date=19"),
        ("Version=2011-06-15", "Version=2011-06-16"),
        ("&X-Amz-Signature=", "&x-id=GetCallerIdentity&X-Amz-Signature="),
    ];
    for (from, to) in cases {
        assert_eq!(asked(&tampered(from, to)).await, None, "{to}");
    }

    // A role that is deleted and made anew is another principal, although its ARN is the same.
    done(&world, &["iam", "delete-role", "--role-name", "flux"]).await;
    let renewed = crate::session(&world, "flux").await;
    assert_eq!(asked(&mint(&borrowed(&renewed), "demo").await).await, None, "made anew");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_gets_in_as_the_aws_cli_sets_it_up() {
    let world = start().await;
    let config = world.folder().join("eks-kubeconfig").display().to_string();
    done(&world, &["eks", "update-kubeconfig", "--name", "demo", "--kubeconfig", &config]).await;
    for kubeconfig in [config, world.kubeconfig().display().to_string()] {
        let output = world
            .program("/usr/bin/env")
            .args(["kubectl", "get", "namespace", "kube-system", "-o", "name"])
            .env("KUBECONFIG", &kubeconfig)
            .output()
            .await
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert_eq!(told.trim(), "namespace/kube-system", "{}", String::from_utf8_lossy(&output.stderr));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_delay_fail_and_lose_calls() {
    let world = start().await;
    let settings = |body: Value| {
        reqwest::Client::new().post(format!("{}/_sandbox/settings", world.edge().url())).json(&body).send()
    };
    let rule = json!({"service": "kms", "action": "CreateKey", "times": 1, "answer":
        {"error": {"status": 400, "code": "LimitExceededException", "message": "no more keys"}}});
    assert_eq!(settings(json!({"rules": [rule]})).await.unwrap().status(), 200);
    assert_eq!(settings(json!({"rule": []})).await.unwrap().status(), 400);
    refused(&world, &["kms", "create-key"], "(LimitExceededException)").await;
    done(&world, &["kms", "create-key"]).await;
    let formats = [
        ("iam", "list-users", "ListUsers"),
        ("ec2", "describe-vpcs", "DescribeVpcs"),
        ("eks", "list-clusters", "ListClusters"),
        ("codecommit", "list-repositories", "ListRepositories"),
    ];
    let rules =
        formats.map(|(service, _, action)| Rule::on(service, action).error(400, "OurCode", "our <text>"));
    world.edge().set_rules(rules.to_vec());
    for (service, command, _) in formats {
        let error = aws(&world, &[service, command]).await.unwrap_err();
        assert!(error.contains("(OurCode)") && error.contains("our <text>"), "{service}: {error}");
    }

    // The reply is lost, but the call has acted: the CLI asks again, and finds the name taken.
    world.edge().set_rules(vec![
        Rule::on("codecommit", "CreateRepository").lost().times(1),
        Rule::on("sts", "*").delay(Duration::from_millis(1200)),
    ]);
    refused(&world, &["codecommit", "create-repository", "--repository-name", "r"], "").await;
    let listed = done(&world, &["codecommit", "list-repositories"]).await;
    assert_eq!(listed["repositories"][0]["repositoryName"], "r");
    let mark = world.edge().mark();
    done(&world, &["sts", "get-caller-identity"]).await;
    let call = world.edge().calls_where(&Filter::after(mark)).remove(0);
    assert!(call.milliseconds >= 1200 && call.ruled, "{call:?}");

    let url = format!("{}/_sandbox/calls?service=sts&after={mark}", world.edge().url());
    let listed: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
    assert_eq!(listed["calls"][0]["action"], "GetCallerIdentity");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_have_tokens_and_recovery_windows() {
    let world = start().await;
    let secrets =
        |action: &'static str, more: &[&'static str]| [&["secretsmanager", action][..], more].concat();
    let token = "0123456789abcdef0123456789abcdef";
    let create =
        secrets("create-secret", &["--name", "s", "--secret-string", "one", "--client-request-token", token]);
    let made = done(&world, &create).await;
    assert_eq!(made["VersionId"], token);
    assert_eq!(done(&world, &create).await["ARN"], made["ARN"], "a repetition");
    let other = secrets("create-secret", &["--name", "s", "--secret-string", "two"]);
    refused(&world, &other, "The operation failed because the secret s already exists.").await;
    let put = secrets(
        "put-secret-value",
        &["--secret-id", "s", "--secret-string", "two", "--client-request-token", token],
    );
    refused(
        &world,
        &put,
        &format!("You can't use ClientRequestToken {token} because that value is already in use"),
    )
    .await;
    done(&world, &secrets("update-secret", &["--secret-id", "s", "--secret-string", "two"])).await;
    let value = secrets("get-secret-value", &["--secret-id", "s"]);
    assert_eq!(done(&world, &value).await["SecretString"], "two");
    done(&world, &secrets("delete-secret", &["--secret-id", "s", "--recovery-window-in-days", "7"])).await;
    let scheduled = "(InvalidRequestException) when calling the CreateSecret operation: You can't create this secret \
                     because a secret with this name is already scheduled for deletion.";
    refused(&world, &create, scheduled).await;
    done(&world, &secrets("restore-secret", &["--secret-id", "s"])).await;
    assert_eq!(done(&world, &value).await["SecretString"], "two");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_show_the_states_of_branches() {
    let world = start().await;
    let pass = |next: Option<&str>| match next {
        Some(next) => json!({"Type": "Pass", "Assign": {"inner": 1}, "Next": next}),
        None => json!({"Type": "Pass", "Output": "{% $outer %}", "End": true}),
    };
    let wait = json!({"Type": "Wait", "Seconds": 30, "Next": "RightEnd"});
    let definition = json!({"QueryLanguage": "JSONata", "StartAt": "Start", "States": {
        "Start": {"Type": "Pass", "Assign": {"outer": "seen"}, "Next": "Both"},
        "Both": {"Type": "Parallel", "Next": "After", "Branches": [
            {"StartAt": "Left", "States": {"Left": pass(Some("LeftEnd")), "LeftEnd": pass(None)}},
            {"StartAt": "Right", "States": {"Right": wait, "RightEnd": pass(None)}}]},
        "After": {"Type": "Pass", "Output":
            {"both": "{% $states.input %}", "inner": "{% $exists($inner) %}"}, "End": true}}});
    let trust = json!({"Version": "2012-10-17", "Statement": [{"Effect": "Allow",
        "Principal": {"Service": "states.amazonaws.com"}, "Action": "sts:AssumeRole"}]})
    .to_string();
    done(&world, &["iam", "create-role", "--role-name", "m", "--assume-role-policy-document", &trust]).await;
    let machine = done(
        &world,
        &[
            "stepfunctions",
            "create-state-machine",
            "--name",
            "m",
            "--definition",
            &definition.to_string(),
            "--role-arn",
            "arn:aws:iam::123456789012:role/m",
        ],
    )
    .await["stateMachineArn"]
        .as_str()
        .unwrap()
        .to_owned();
    let states = async |target: &'static str, body: Value| {
        let target = format!("AWSStepFunctions.{target}");
        world.upstream().json("states", "eu-west-1", &target, &body).await.unwrap()
    };
    let start = json!({"stateMachineArn": machine, "name": "one", "input": "{}"});
    let first = states("StartExecution", start.clone()).await;
    let again = states("StartExecution", start.clone()).await;
    assert_eq!(again.json()["executionArn"], first.json()["executionArn"], "the same while it runs");
    let mut other = start.clone();
    other["input"] = json!("{\"x\": 1}");
    assert!(states("StartExecution", other).await.body.contains("ExecutionAlreadyExists"));

    let arn = first.json()["executionArn"].as_str().unwrap().to_owned();
    let began = Instant::now();
    let output = loop {
        let described = states("DescribeExecution", json!({"executionArn": arn})).await.json();
        if described["status"] != "RUNNING" {
            break described["output"].as_str().unwrap().to_owned();
        }
        assert!(began.elapsed() < Duration::from_secs(20));
        sandbox::clock::sleep(Duration::from_millis(50)).await;
    };
    let output: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(output, json!({"both": ["seen", "seen"], "inner": false}), "a branch's variables end with it");
    assert!(states("StartExecution", start).await.body.contains("ExecutionAlreadyExists"), "it has ended");

    let history = states("GetExecutionHistory", json!({"executionArn": arn})).await.json()["events"].clone();
    let events = history.as_array().unwrap();
    let find = |kind: &str, name: &str| {
        events
            .iter()
            .find(|event| {
                let details = [&event["stateEnteredEventDetails"], &event["stateExitedEventDetails"]];
                event["type"] == kind
                    && (name.is_empty() || details.iter().any(|details| details["name"] == name))
            })
            .unwrap_or_else(|| panic!("{kind} {name} in {history}"))
    };
    let started = find("ParallelStateStarted", "");
    for (first, last) in [(("Pass", "Left"), ("Pass", "LeftEnd")), (("Wait", "Right"), ("Pass", "RightEnd"))]
    {
        let entered = find(&format!("{}StateEntered", first.0), first.1);
        assert_eq!(entered["previousEventId"], started["id"], "a branch begins with the Parallel state");
        let left = find(&format!("{}StateExited", first.0), first.1);
        assert_eq!(left["previousEventId"], entered["id"], "events are chained within their branch");
        let next = find(&format!("{}StateEntered", last.0), last.1);
        assert_eq!(next["previousEventId"], left["id"]);
    }
    let ids: Vec<u64> = events.iter().map(|event| event["id"].as_u64().unwrap()).collect();
    let expected: Vec<u64> = (1..).take(ids.len()).collect();
    assert_eq!(ids, expected);
    world.stop().await;
}

/// Starts the program and waits for its environment: the process, the edge's address, the folder.
async fn program() -> (tokio::process::Child, String, String) {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_sandbox"))
        .args(["up", "--empty", "--port", "0"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut edge, mut folder) = (String::new(), String::new());
    while folder.is_empty() {
        let line = lines.next_line().await.unwrap().expect("the environment");
        if let Some(url) = line.strip_prefix("export AWS_ENDPOINT_URL=") {
            edge = url.to_owned();
        }
        if let Some(path) = line.strip_prefix("export KUBECONFIG=") {
            folder = Path::new(path).parent().unwrap().display().to_string();
        }
    }
    (child, edge, folder)
}

/// Processes that have this folder among their words.
fn processes(folder: &str) -> usize {
    let listed = std::process::Command::new("ps").args(["-eo", "args"]).output().unwrap();
    String::from_utf8_lossy(&listed.stdout).lines().filter(|line| line.contains(folder)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_however_it_ends() {
    // No world is started in this process, and reqwest wants a provider even for plain HTTP.
    let _ = rustls::crypto::ring::default_provider().install_default();
    for signal in ["INT", "TERM", "KILL"] {
        let (mut child, edge, folder) = program().await;
        assert!(processes(&folder) > 0);
        assert!(reqwest::get(format!("{edge}/_sandbox/calls")).await.unwrap().status().is_success());
        let id = child.id().unwrap().to_string();
        let sent = std::process::Command::new("kill").args(["-s", signal, &id]).status().unwrap();
        assert!(sent.success());
        child.wait().await.unwrap();
        let began = Instant::now();
        while processes(&folder) > 0 || Path::new(&folder).exists() {
            assert!(began.elapsed() < Duration::from_secs(10), "something stays after {signal}");
            sandbox::clock::sleep(Duration::from_millis(50)).await;
        }
    }
}
