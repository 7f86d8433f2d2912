//! The demo as a user sees it, to its end and broken off.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Starts `sandbox demo` with a folder of its own for temporary files, by which everything that it
/// starts can be told.
fn demo(folder: &tempfile::TempDir) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sandbox"))
        .arg("demo")
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts")
}

/// Processes, except this one, that have inherited the folder.
fn left(folder: &tempfile::TempDir) -> Vec<String> {
    let mark = format!("TMPDIR={}", folder.path().display());
    std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            std::fs::read(path.join("environ")).is_ok_and(|environment| {
                environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
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
    for moment in ["── A local AWS", "── sam deploy", "── Execution", " Key "] {
        let folder = tempfile::tempdir().expect("folder");
        let mut child = demo(&folder);
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        loop {
            let line = lines.next_line().await.expect("output").unwrap_or_else(|| panic!("no {moment}"));
            if line.contains(moment) {
                break;
            }
        }
        let id = child.id().expect("a running program").to_string();
        let sent = Command::new("kill").args(["-INT", &id]).status().await.expect("kill");
        assert!(sent.success());
        let ended = tokio::time::timeout(Duration::from_secs(20), child.wait()).await;
        assert!(ended.is_ok_and(|status| status.is_ok_and(|status| !status.success())), "{moment}");
        nothing_is_left(folder).await;
    }
}
