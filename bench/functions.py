"""Measures each function: zip size, cold start, peak memory. `make bench` runs it.

Cold start is the time from the start of the process to its first poll of the Runtime API, the median
of RUNS starts. Peak memory is the resident maximum (VmHWM) after one invocation, whose input is
refused by every step ({}), so that nothing outside this machine is called. An empty Rust function
and a Python peer are measured in the same run, in turn with the others, since timings of one machine
compare only within a run.
"""

import http.server
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import threading
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = int(os.environ.get("RUNS", "15"))
BUNDLE = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
STEPS = ["cluster", "endpoint", "key", "repo_seed", "credentials", "wait", "flux_install", "flux_sync"]


class Runtime:
    """As much of the Lambda Runtime API as one cold start and one invocation need."""

    def __init__(self):
        runtime = self
        self.polled = threading.Event()
        self.answered = threading.Event()
        self.first_poll = None
        self.polls = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                runtime.polls += 1
                if runtime.polls == 1:
                    runtime.first_poll = time.perf_counter()
                    runtime.polled.set()
                    body = b"{}"
                    self.send_response(200)
                    self.send_header("Lambda-Runtime-Aws-Request-Id", "00000000-0000-4000-8000-000000000000")
                    self.send_header("Lambda-Runtime-Deadline-Ms", str(int(time.time() * 1000) + 30000))
                    self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-west-1:123456789012:function:f")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                else:
                    runtime.answered.set()
                    time.sleep(30)

            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0) or 0))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()
                runtime.answered.set()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        # The function is killed while it polls; its broken connection is expected.
        self.server.handle_error = lambda *_: None
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"127.0.0.1:{self.server.server_port}"


def start(command):
    """One cold start: milliseconds to the first poll, and peak memory in MB."""
    runtime = Runtime()
    environment = {
        "PATH": os.environ["PATH"], "AWS_LAMBDA_RUNTIME_API": runtime.address, "AWS_REGION": "eu-west-1",
        "AWS_DEFAULT_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_LAMBDA_FUNCTION_NAME": "f", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
        "AWS_LAMBDA_FUNCTION_VERSION": "1", "AWS_LAMBDA_LOG_GROUP_NAME": "g", "AWS_LAMBDA_LOG_STREAM_NAME": "s",
        "STACK_NAME": "bench", "FLUX_ROLE_ARN": "arn:aws:iam::123456789012:role/flux", "LAMBDA_TASK_ROOT": "/nonexistent",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    # The image provided.al2023 has its root certificates in one bundle. Debian has a folder of hashed
    # links besides, which would be read too and cost 4 ms that no Lambda function spends.
    if BUNDLE.exists():
        environment["SSL_CERT_FILE"] = str(BUNDLE)
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        if not runtime.polled.wait(30):
            process.kill()
            sys.exit(f"{command}: no poll of the Runtime API within 30 s: {process.stderr.read(2000)!r}")
        milliseconds = (runtime.first_poll - began) * 1000
        runtime.answered.wait(30)
        with open(f"/proc/{process.pid}/status") as status:
            peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        runtime.server.shutdown()
        runtime.server.server_close()
    return milliseconds, peak


def zipped(path):
    target = ROOT / "target" / "bench.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.write(path, "bootstrap")
    size = target.stat().st_size
    target.unlink()
    return size / 1e6


def main():
    packages = [flag for name in ["empty_function", *STEPS] for flag in ("-p", name)]
    subprocess.run(["cargo", "build", "--locked", "--release", *packages], cwd=ROOT, check=True)
    release = ROOT / "target" / "release"
    rows = [("empty function", [str(release / "empty_function")], release / "empty_function")]
    rows += [(name, [str(release / name)], release / name) for name in STEPS]
    rows += [("key in Python (boto3)", [sys.executable, str(ROOT / "bench" / "peer_key.py")], None)]
    samples = {name: [] for name, _, _ in rows}
    for _ in range(RUNS):
        for name, command, _ in rows:
            samples[name].append(start(command))
    empty = statistics.median(t for t, _ in samples["empty function"])
    print(f"{platform.machine()}, {os.cpu_count()} cores, median of {RUNS} cold starts in turn\n")
    print("| function | zip MB | binary MB | cold start ms | × empty | peak memory MB |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, _, binary in rows:
        cold = statistics.median(t for t, _ in samples[name])
        peak = statistics.median(p for _, p in samples[name])
        size = f"{zipped(binary):.2f} | {binary.stat().st_size / 1e6:.1f}" if binary else "– | –"
        print(f"| {name} | {size} | {cold:.1f} | {cold / empty:.1f} | {peak:.1f} |")


if __name__ == "__main__":
    main()
