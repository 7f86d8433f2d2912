//! The demo as a user sees it, to its end and broken off.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Starts `sandbox demo` with a folder of its own for temporary files, by which everything that it
/// starts can be told.
fn demo(folder: &tempfile::TempDir) -> Child {
    program("demo", folder).spawn().expect("the program starts")
}

fn program(name: &str, folder: &tempfile::TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandbox"));
    command
        .arg(name)
        .env("TMPDIR", folder.path())
        // A proxy that leads nowhere: nothing of the local world may ask it.
        .envs(
            ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"]
                .map(|name| (name, "http://127.0.0.1:9")),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// How a program fails that is told something wrong: the text, once nothing is left of it.
async fn failure(change: impl FnOnce(&mut Command)) -> String {
    let folder = tempfile::tempdir().expect("folder");
    let mut command = program("demo", &folder);
    change(&mut command);
    let output = command.output().await.expect("output");
    assert!(!output.status.success());
    nothing_is_left(folder).await;
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Processes that keep their temporary files in the folder, or below it.
fn left(folder: &tempfile::TempDir) -> Vec<String> {
    let mark = format!("TMPDIR={}", folder.path().display());
    std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            std::fs::read(path.join("environ")).is_ok_and(|environment| {
                environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(mark.as_bytes()))
            })
        })
        .filter_map(|path| std::fs::read_to_string(path.join("cmdline")).ok())
        .map(|words| words.replace('\0', " "))
        .filter(|words| !words.is_empty())
        .collect()
}

async fn nothing_is_left(folder: tempfile::TempDir) {
    let began = Instant::now();
    loop {
        let processes = left(&folder);
        let files: Vec<_> = std::fs::read_dir(folder.path()).expect("folder").flatten().collect();
        if processes.is_empty() && files.is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "left: {processes:?} {files:?}");
        sandbox::clock::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn the_demo_shows_nginx_from_the_repository_in_the_cluster() {
    let folder = tempfile::tempdir().expect("folder");
    let output = demo(&folder).wait_with_output().await.expect("output");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("Report: SUCCEEDED"), "{text}");
    let commit = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("commit "))
        .unwrap_or_else(|| panic!("no commit: {text}"));
    for object in ["gitrepository/fluxcd", "kustomization/fluxcd"] {
        let line = text.lines().find(|line| line.contains(object) && line.contains("True"));
        assert!(line.is_some_and(|line| line.contains(commit)), "{object}: {text}");
    }
    assert!(text.lines().any(|line| line.contains("deployment/nginx") && line.contains("1/1")), "{text}");
    // The timeline shows the three branches.
    for state in ["Endpoint ", "Key ", "FluxInstall "] {
        assert!(text.lines().any(|line| line.contains(state) && line.contains('█')), "{state}: {text}");
    }
    nothing_is_left(folder).await;
}

#[tokio::test]
async fn ctrl_c_leaves_nothing_behind() {
    // The pause lets `sam` come to its own temporary files.
    let pause = Duration::from_millis(1500);
    let moments = ["── A local AWS", "── sam deploy", "── Execution", " Key "].map(|m| (m, Duration::ZERO));
    for (moment, pause) in moments.into_iter().chain([("── sam deploy", pause)]) {
        let folder = tempfile::tempdir().expect("folder");
        let mut child = demo(&folder);
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        loop {
            let line = lines.next_line().await.expect("output").unwrap_or_else(|| panic!("no {moment}"));
            if line.contains(moment) {
                break;
            }
        }
        sandbox::clock::sleep(pause).await;
        let id = child.id().expect("a running program").to_string();
        let sent = Command::new("kill").args(["-INT", &id]).status().await.expect("kill");
        assert!(sent.success());
        let ended = tokio::time::timeout(Duration::from_secs(20), child.wait()).await;
        assert!(ended.is_ok_and(|status| status.is_ok_and(|status| !status.success())), "{moment}");
        nothing_is_left(folder).await;
    }
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let text = failure(|demo| _ = demo.env("FLUX_RELEASE_DIR", "/nonexistent/v2.9.4")).await;
    assert!(text.contains("FLUX_RELEASE_DIR is /nonexistent/v2.9.4"), "{text}");
    let text = failure(|demo| _ = demo.env("FLUX_RELEASE_DIR", "/")).await;
    assert!(text.contains("must be an unpacked Flux release"), "{text}");

    let text = failure(|demo| _ = demo.env("PATH", "/nonexistent")).await;
    assert!(text.contains("git does not run"), "{text}");

    let text = failure(|demo| _ = demo.env("SANDBOX_VENV", "/nonexistent")).await;
    assert!(text.contains("/nonexistent/bin/python is missing; `make setup` makes it"), "{text}");

    // A Python that lacks MiniStack.
    let venv = tempfile::tempdir().expect("folder");
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(venv.path()).status();
    assert!(made.await.expect("python3").success());
    let text = failure(|demo| _ = demo.env("SANDBOX_VENV", venv.path())).await;
    assert!(text.contains("`make setup`") && text.contains("ModuleNotFoundError"), "{text}");
}

#[tokio::test]
async fn nothing_is_told_to_a_closed_pipe() {
    let folder = tempfile::tempdir().expect("folder");
    let mut child = demo(&folder);
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    lines.next_line().await.expect("output");
    drop(lines);
    let output = child.wait_with_output().await.expect("output");
    assert!(!output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    nothing_is_left(folder).await;
}
