"""Starts MiniStack for the local world, adds what AWS has and MiniStack lacks, and ends with its parent.

Two processes. The watcher is the one that the sandbox starts: it starts the second, the server, in a
process group of its own and waits for the end of its standard input. That end comes when the sandbox
closes the pipe, exits, crashes or is killed, and then the whole group of the server, the functions'
processes among them, is killed and the world's folder is removed. Should the watcher itself be killed,
the server sees the end of its own standard input and kills its group.

The first line of standard input is a token. It opens the paths under /_sandbox/, by which the edge asks
for what only MiniStack knows. The server answers its start with one line of JSON on standard output.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time


def watch():
    """The watcher: starts the server and ends it when standard input ends."""
    folder = os.environ.get("SANDBOX_FOLDER", "")
    token = sys.stdin.buffer.readline()
    server = subprocess.Popen(
        [sys.executable, __file__, "serve"], stdin=subprocess.PIPE, start_new_session=True)
    server.stdin.write(token)
    server.stdin.flush()

    ending = threading.Event()

    def end_when_server_ends():
        server.wait()
        if not ending.is_set():
            os._exit(1)

    threading.Thread(target=end_when_server_ends, daemon=True).start()
    # Ctrl-C reaches the sandbox, which decides; a signal to the watcher alone must not orphan the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while sys.stdin.buffer.read(4096):
        pass
    ending.set()
    try:
        # Nothing of the world outlives it, so there is nothing to shut down in good order.
        os.killpg(server.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    server.wait()
    if folder:
        import shutil
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def serve():
    """The server: MiniStack with our patches, on a free port."""
    token = sys.stdin.buffer.readline().decode().strip()

    def end_with_watcher():
        while sys.stdin.buffer.read(4096):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end_with_watcher, daemon=True).start()

    # Binding here, not in MiniStack, leaves no moment in which another process could take the port.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    port = listener.getsockname()[1]
    os.environ["GATEWAY_PORT"] = str(port)

    import asyncio

    try:
        from hypercorn.asyncio import serve as hypercorn_serve
        from hypercorn.config import Config

        from ministack import app as ministack

        patch_history()
        patch_start_execution()
        patch_secrets()
        patch_keys()
        patch_alarms()
    except BaseException:
        # The usual end of Python would trip over the thread that reads standard input, and bury the cause.
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

    raise_file_limit()
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.keep_alive_timeout = 75
    config.loglevel = "WARNING"
    print(json.dumps({"port": port}), flush=True)
    # Whatever is printed from here on belongs to the log.
    os.dup2(2, 1)
    asyncio.run(hypercorn_serve(with_inside(ministack.app, token), config))


def raise_file_limit():
    """Lifts the soft limit of open files to the hard one, as MiniStack's own start does."""
    try:
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, ValueError, OSError):
        pass


# ---------------------------------------------------------------------------------------------
# What the edge asks for


def with_inside(app, token):
    """Wraps MiniStack so that the edge, by its token, reaches the paths under /_sandbox/."""

    async def wrapped(scope, receive, send):
        if scope["type"] != "http" or not scope["path"].startswith("/_sandbox/"):
            return await app(scope, receive, send)
        headers = dict(scope.get("headers", []))
        if headers.get(b"x-sandbox-token", b"").decode("latin-1") != token:
            return await answer(send, 403, {"message": "This path is the edge's."})
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            request = json.loads(body) if body else {}
            result = INSIDE[scope["path"]](request)
        except KeyError as missing:
            return await answer(send, 404, {"message": str(missing)})
        return await answer(send, 200 if result is not None else 404, result or {})

    return wrapped


async def answer(send, status, body):
    """Sends one JSON reply."""
    await send({"type": "http.response.start", "status": status,
                "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


def credential(request):
    """The secret and the principal behind an access key, for the edge to check signatures with."""
    from ministack.core import iam_evaluator as iam
    from ministack.services import sts

    key = request["accessKeyId"]
    session = sts._sessions.get(key) or {}
    account = session.get("AccountId") or iam._account_from_arn(session.get("Arn", ""))
    # Without an account of its own, the key is of the default one.
    found = iam.resolve_credential(key, account or iam.find_iam_access_key_account(key))
    if isinstance(found, iam.CredentialResolutionError):
        return None
    return {
        "arn": found.principal_arn,
        "account": found.account_id,
        "secretAccessKey": found.secret_access_key,
        "sessionToken": found.session_token,
        "userId": found.principal_id,
    }


def event(request):
    """Publishes an event of an AWS service, which PutEvents refuses to users (NotAuthorizedForSource)."""
    from ministack.core.responses import set_request_account_id, set_request_region
    from ministack.services import eventbridge

    set_request_account_id(os.environ.get("MINISTACK_ACCOUNT_ID", "000000000000"))
    set_request_region(request["region"])
    eventbridge._put_events({"Entries": [request["entry"]]}, allow_aws_source=True)
    return {"published": True}


def policies(request):
    """The statements of all identity policies of a user or role. Its path does not matter to its name."""
    import dataclasses

    from ministack.core import iam_evaluator as iam

    arn = request["principalArn"]
    account, kind = iam._account_from_arn(arn), arn.split(":", 5)[-1].split("/")[0]
    if kind == "user":
        found = iam._gather_user_policies(arn.rsplit("/", 1)[-1], account)
    elif kind == "role":
        found = iam._gather_role_policies(arn.rsplit("/", 1)[-1], account)
    elif kind == "assumed-role":
        found = iam._gather_role_policies(iam._role_name_from_assumed_arn(arn), account)
    else:
        return None
    return {"statements": [dataclasses.asdict(statement) for policy in found for statement in policy]}


INSIDE = {"/_sandbox/credential": credential, "/_sandbox/event": event, "/_sandbox/policies": policies}


# ---------------------------------------------------------------------------------------------
# What AWS has and MiniStack 1.5.33 lacks


def patch_history():
    """States inside Parallel and Map appear in the history, as on AWS.

    AWS writes StateEntered and StateExited for the states of a branch, with ParallelStateStarted and
    ParallelStateSucceeded around them, and each event names the one before it in its own branch.
    MiniStack writes only what the outermost states do. With them goes the scope of variables: on AWS
    a branch sees the variables around it, and what it assigns ends with it; MiniStack shares one set.
    """
    import contextvars
    import copy

    from ministack.services import stepfunctions as sfn

    lock = threading.Lock()
    previous = contextvars.ContextVar("previous_event", default={})

    def add_event(execution, event_type, details=None):
        with lock:
            identity = len(execution["events"]) + 1
            entry = {
                "id": identity,
                "previousEventId": previous.get().get(execution["executionArn"], 1),
                "type": event_type,
                "timestamp": sfn.now_iso(),
                **(details or {}),
            }
            execution["events"].append(entry)
        previous.set({execution["executionArn"]: identity})
        return entry

    def run_sub_machine(states, start_at, input_data, execution, ctx):
        # A branch has a State of its own (MiniStack's branches overwrite each other's) and inner variables.
        ctx = {**ctx, "variables": copy.deepcopy(ctx.get("variables", {}))}
        current, value = start_at, copy.deepcopy(input_data)
        while current:
            if execution["status"] != "RUNNING":
                return value
            state = states.get(current)
            if not state:
                raise sfn._ExecutionError("States.Runtime", f"State '{current}' not found")
            kind = state.get("Type")
            ctx["State"] = {"Name": current, "EnteredTime": sfn.now_iso(), "RetryCount": 0}
            add_event(execution, f"{kind}StateEntered", {
                "stateEnteredEventDetails": {"name": current, "input": json.dumps(value)}})
            name = current
            if kind == "Fail":
                raise sfn._ExecutionError(*sfn._fail_state_error(state, value, ctx))
            if kind == "Succeed":
                value, current = sfn._apply_output_path(state, sfn._apply_input_path(state, value, ctx), ctx), None
            elif kind in ("Task", "Parallel", "Map"):
                value, current = getattr(sfn, f"_execute_{kind.lower()}")(state, value, execution, ctx)
            elif kind in ("Pass", "Choice", "Wait"):
                value, current = getattr(sfn, f"_execute_{kind.lower()}")(state, value, ctx)
            else:
                raise sfn._ExecutionError("States.Runtime", f"Unknown state type: {kind}")
            add_event(execution, f"{kind}StateExited", {
                "stateExitedEventDetails": {"name": name, "output": json.dumps(value)}})
        return value

    parallel = sfn._run_parallel_branches

    def run_parallel_branches(state, raw_input, execution, ctx):
        add_event(execution, "ParallelStateStarted")
        try:
            result = parallel(state, raw_input, execution, ctx)
        except Exception:
            add_event(execution, "ParallelStateFailed")
            raise
        add_event(execution, "ParallelStateSucceeded")
        return result

    sfn._add_event = add_event
    sfn._run_sub_machine = run_sub_machine
    sfn._run_parallel_branches = run_parallel_branches


def patch_start_execution():
    """StartExecution with the name and input of a running execution answers with that execution.

    That is how AWS makes the call safe to repeat (API reference of StartExecution); MiniStack gives
    ExecutionAlreadyExists, as AWS does once the execution has ended or when the input differs.
    """
    from ministack.services import stepfunctions as sfn

    start = sfn._start_execution

    def start_execution(data):
        machine = sfn._resolve_state_machine_arn(data.get("stateMachineArn", "").split("#")[0])
        if machine and data.get("name"):
            arn = (f"arn:aws:states:{sfn.get_region()}:{sfn.get_account_id()}:execution:"
                   f"{sfn._state_machines[machine]['name']}:{data['name']}")
            running = sfn._executions.get(arn)
            if running and running["status"] == "RUNNING" and running["input"] == data.get("input", "{}"):
                return sfn.json_response({"executionArn": arn, "startDate": running["startDate"]})
        return start(data)

    sfn._start_execution = start_execution


def patch_secrets():
    """Secrets Manager's client tokens, and its answer to a name that is scheduled for deletion.

    On AWS the token becomes the version's id; a token that is in use for the same value is a
    repetition and changes nothing, for another value it is refused (API references of CreateSecret,
    PutSecretValue, UpdateSecret). MiniStack ignores or overwrites. A name in its recovery window is
    InvalidRequestException on AWS, ResourceExistsException in MiniStack.
    """
    from ministack.services import secretsmanager as sm

    create, put, update = sm._create_secret, sm._put_secret_value, sm._update_secret

    def refuse(code, message):
        return sm.error_response_json(code, message, 400)

    def value_of(data):
        return data.get("SecretString"), data.get("SecretBinary")

    def malformed(token):
        if token is not None and not 32 <= len(token) <= 64:
            return refuse("InvalidParameterException", "ClientRequestToken must be 32-64 characters long.")
        return None

    def repeated(secret, token, data):
        """The reply where the token has been used: None where it is new."""
        version = secret["Versions"].get(token) if token else None
        if version is None:
            return None
        if (version.get("SecretString"), version.get("SecretBinary")) != value_of(data):
            return refuse("ResourceExistsException",
                          f"You can't use ClientRequestToken {token} because that value is already in use "
                          f"for a version of secret {secret['ARN']}.")
        return sm.json_response({"ARN": secret["ARN"], "Name": secret["Name"], "VersionId": token,
                                 "VersionStages": list(version["Stages"])})

    def rename_version(secret, old, token):
        if token and old != token:
            secret["Versions"][token] = secret["Versions"].pop(old)

    def create_secret(data):
        token = data.get("ClientRequestToken")
        secret = sm._secrets.get(data.get("Name") or "")
        if secret is not None and secret.get("DeletedDate"):
            return refuse("InvalidRequestException",
                          "You can't create this secret because a secret with this name is already "
                          "scheduled for deletion.")
        if problem := malformed(token):
            return problem
        if secret is not None and any(value_of(data)):
            if reply := repeated(secret, token, data):
                return reply
        status, headers, body = create(data)
        if status == 200 and token:
            reply = json.loads(body)
            rename_version(sm._secrets[data["Name"]], reply["VersionId"], token)
            return sm.json_response({**reply, "VersionId": token})
        return status, headers, body

    def put_secret_value(data):
        token = data.get("ClientRequestToken")
        _, secret = sm._resolve(data.get("SecretId"))
        if secret is not None and not secret.get("DeletedDate"):
            if problem := malformed(token):
                return problem
            if reply := repeated(secret, token, data):
                return reply
        return put(data)

    def update_secret(data):
        token = data.get("ClientRequestToken")
        _, secret = sm._resolve(data.get("SecretId"))
        writes = any(value_of(data))
        if secret is not None and not secret.get("DeletedDate") and writes:
            if problem := malformed(token):
                return problem
            if reply := repeated(secret, token, data):
                return reply
        status, headers, body = update(data)
        if status == 200 and writes and token:
            reply = json.loads(body)
            rename_version(secret, reply["VersionId"], token)
            return sm.json_response({**reply, "VersionId": token})
        return status, headers, body

    sm._create_secret, sm._put_secret_value, sm._update_secret = create_secret, put_secret_value, update_secret


def patch_keys():
    """DescribeKey knows the key that AWS manages for CodeCommit, which is its own and in no list here."""
    from ministack.services import kms

    describe, created = kms._describe_key, int(time.time())
    managed = os.environ.get("SANDBOX_MANAGED_KEY", "")
    alias = "alias/aws/codecommit"
    names = {managed, managed.rsplit("/", 1)[-1], alias, managed.rsplit(":", 1)[0] + ":" + alias}

    def describe_key(data):
        if not managed or data.get("KeyId") not in names:
            return describe(data)
        return kms.json_response({"KeyMetadata": {
            "AWSAccountId": managed.split(":")[4], "KeyId": managed.rsplit("/", 1)[-1], "Arn": managed,
            "CreationDate": created, "Enabled": True, "KeyState": "Enabled", "KeyManager": "AWS",
            "Description": "Default key that protects my CodeCommit repositories when no other key is defined",
            "KeyUsage": "ENCRYPT_DECRYPT", "KeySpec": "SYMMETRIC_DEFAULT", "Origin": "AWS_KMS",
            "CustomerMasterKeySpec": "SYMMETRIC_DEFAULT", "EncryptionAlgorithms": ["SYMMETRIC_DEFAULT"],
            "MultiRegion": False}})

    kms._describe_key = describe_key


def patch_alarms():
    """CloudFormation takes an alarm on metric math, as AWS does.

    MiniStack refuses to create it. Here it stands on the first metric of its expression: that keeps its
    name, threshold and actions, and as MiniStack publishes no metrics of state machines, no expression
    over them would ever change.
    """
    from ministack.services.cloudformation import provisioners

    record = provisioners._cw_metric_alarm_record

    def metric_alarm_record(name, props):
        stats = [entry["MetricStat"] for entry in props.get("Metrics") or [] if "MetricStat" in entry]
        if stats:
            metric = stats[0]["Metric"]
            props = {key: value for key, value in props.items() if key != "Metrics"} | {
                "MetricName": metric.get("MetricName"), "Namespace": metric.get("Namespace"),
                "Dimensions": metric.get("Dimensions", []), "Period": stats[0].get("Period", 60),
                "Statistic": stats[0].get("Stat", "Sum")}
        return record(name, props)

    provisioners._cw_metric_alarm_record = metric_alarm_record


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else watch()
