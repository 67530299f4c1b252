"""A local server that follows the public documents of OpenAI's files and fine-tuning API.

It is not OpenAI: it checks requests and training files as the documents say, moves a job on by one
state whenever it is described, and its fine-tuned models answer prompts with the replies that they
were shown. Faults can be injected.

Documents: https://developers.openai.com/api/reference, resources files, fine_tuning and models;
guides supervised-fine-tuning and direct-preference-optimization.
"""

import email.parser
import email.policy
import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

STATES = ["validating_files", "queued", "running", "succeeded"]
JOB_FIELDS = {
    "model", "training_file", "hyperparameters", "integrations", "metadata", "method", "seed",
    "suffix", "validation_file",
}  # fmt: skip
HYPERPARAMETERS = {
    "supervised": {"n_epochs", "batch_size", "learning_rate_multiplier"},
    "dpo": {"n_epochs", "batch_size", "learning_rate_multiplier", "beta"},
}
FEWEST = 10


class Refuse(Exception):
    def __init__(self, status, message, code=None, param=None, headers=None):
        super().__init__(message)
        self.status, self.headers = status, headers or {}
        self.body = {
            "error": {
                "message": message, "type": "invalid_request_error", "param": param, "code": code,
            }
        }  # fmt: skip


class JobsServer:
    """The server; ``faults`` are (method and path, fault) pairs, used up by requests that match.

    A fault is "drop" (the connection ends unanswered), "drop after" (it is done, then the
    connection ends), "hang" (nothing comes until the server closes), or a status with headers.
    """

    def __init__(self, key="sk-test", end="succeeded"):
        self.key, self.end = key, end
        self.files, self.jobs, self.events = {}, {}, {}
        self.models = {"base": {}}
        self.faults, self.requests, self.chats = [], [], []
        #: What models say to prompts that they were not shown.
        self.otherwise = ""
        self.steps = 0
        self.filters_metadata = True
        self._lock = threading.RLock()
        self.closed = threading.Event()
        own = self

        class Bound(Handler):
            server_state = own

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def close(self):
        self.closed.set()
        self._http.shutdown()
        self._http.server_close()

    def count(self, request):
        return sum(said == request for said in self.requests)

    def new_id(self, kind):
        self.steps += 1
        return f"{kind}-{self.steps:06d}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server_state: JobsServer

    def log_message(self, *args):
        """Requests are not news."""

    def do_GET(self):
        self.answer("GET", b"")

    def do_POST(self):
        self.answer("POST", self.rfile.read(int(self.headers.get("content-length") or 0)))

    def answer(self, method, data):
        own, parts = self.server_state, urlsplit(self.path)
        path = parts.path.removeprefix("/v1")
        with own._lock:
            own.requests.append(f"{method} {path}")
            fault = self.fault(f"{method} {path}")
        if fault == "hang":
            own.closed.wait()
        if fault in ("hang", "drop"):
            return self.drop()
        with own._lock:
            try:
                if isinstance(fault, tuple):
                    raise Refuse(fault[0], "slow down", "rate_limit_exceeded", headers=fault[1])
                if self.headers.get("authorization") != f"Bearer {own.key}":
                    raise Refuse(401, "Incorrect API key provided", "invalid_api_key")
                status, value, headers = 200, self.route(method, path, parts.query, data), {}
            except Refuse as error:
                status, value, headers = error.status, error.body, error.headers
        if fault == "drop after":
            return self.drop()
        return self.send(status, value, headers)

    def fault(self, request):
        for place, (pattern, fault) in enumerate(self.server_state.faults):
            if re.fullmatch(pattern, request):
                del self.server_state.faults[place]
                return fault
        return None

    def drop(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def send(self, status, value, headers):
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"content-type": "application/json", **headers}.items():
            self.send_header(name, text)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def route(self, method, path, query, data):
        asked = {k: v[-1] for k, v in parse_qs(query, keep_blank_values=True).items()}
        routes = {
            ("POST", r"/files"): self.upload,
            ("GET", r"/files"): self.list_files,
            ("POST", r"/fine_tuning/jobs"): self.create,
            ("GET", r"/fine_tuning/jobs"): self.list_jobs,
            ("GET", r"/fine_tuning/jobs/([^/]+)"): self.describe,
            ("GET", r"/fine_tuning/jobs/([^/]+)/events"): self.list_events,
            ("POST", r"/fine_tuning/jobs/([^/]+)/cancel"): self.cancel,
            ("GET", r"/models"): self.list_models,
            ("GET", r"/models/([^/]+)"): self.model,
            ("POST", r"/completions"): self.complete,
            ("POST", r"/chat/completions"): self.chat,
        }
        for (verb, pattern), handle in routes.items():
            found = re.fullmatch(pattern, path)
            if verb == method and found:
                return handle(*map(unquote, found.groups()), asked=asked, data=data)
        raise Refuse(404, f"Invalid URL ({method} {path})")

    # -- files --------------------------------------------------------------------------------

    def upload(self, asked, data):
        own = self.server_state
        head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
        form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + data)
        fields = {p.get_param("name", header="content-disposition"): p for p in form.iter_parts()}
        if set(fields) - {"file", "purpose", "expires_after"}:
            raise Refuse(400, f"Unrecognized fields: {sorted(fields)}")
        if "file" not in fields or "purpose" not in fields:
            raise Refuse(400, "file and purpose are required")
        purpose = fields["purpose"].get_payload(decode=True).decode()
        if purpose not in ("assistants", "batch", "fine-tune", "vision", "user_data", "evals"):
            raise Refuse(400, f"{purpose!r} is not one of the purposes", param="purpose")
        content, name = fields["file"].get_payload(decode=True), fields["file"].get_filename()
        if purpose == "fine-tune" and not name.endswith(".jsonl"):
            raise Refuse(400, "Invalid file format. Files for fine-tune must be .jsonl")
        about = {
            "id": own.new_id("file"), "object": "file", "bytes": len(content),
            "created_at": int(time.time()), "filename": name, "purpose": purpose,
            "status": "processed",
        }  # fmt: skip
        own.files[about["id"]] = (about, content)
        return about

    def list_files(self, asked, data):
        found = [about for about, _ in self.server_state.files.values()]
        found = [f for f in found if asked.get("purpose") in (None, f["purpose"])]
        if asked.get("order", "desc") == "desc":
            found.reverse()
        return page(found, asked, 10000)

    # -- jobs ---------------------------------------------------------------------------------

    def create(self, asked, data):
        own, body = self.server_state, json.loads(data)
        check_job(own, body)
        job = {
            "object": "fine_tuning.job", "id": own.new_id("ftjob"), "model": body["model"],
            "created_at": int(time.time()), "finished_at": None, "fine_tuned_model": None,
            "organization_id": "org-1", "result_files": [], "status": STATES[0],
            "training_file": body["training_file"], "validation_file": None, "error": None,
            "hyperparameters": {}, "trained_tokens": None, "integrations": [],
            "seed": body.get("seed", 0), "estimated_finish": None,
            "method": body.get("method", {"type": "supervised"}),
            "metadata": body.get("metadata"), "suffix": body.get("suffix"),
        }  # fmt: skip
        own.jobs[job["id"]] = job
        own.events[job["id"]] = []
        self.note(job, "Created fine-tuning job", "info")
        return public(job)

    def note(self, job, message, level, **data):
        own = self.server_state
        own.events[job["id"]].insert(0, {
            "object": "fine_tuning.job.event", "id": own.new_id("ftevent"), "level": level,
            "created_at": int(time.time()), "message": message, "data": data,
            "type": "metrics" if data else "message",
        })  # fmt: skip

    def list_jobs(self, asked, data):
        own = self.server_state
        wanted = {k[9:-1]: v for k, v in asked.items() if k.startswith("metadata[")}
        found = list(own.jobs.values())[::-1]
        if own.filters_metadata:
            found = [j for j in found if wanted.items() <= (j["metadata"] or {}).items()]
        return page([public(job) for job in found], asked, 20)

    def job(self, name):
        if name not in self.server_state.jobs:
            raise Refuse(404, f"Could not find fine tune: {name}", "fine_tune_not_found")
        return self.server_state.jobs[name]

    def describe(self, name, asked, data):
        job = self.job(name)
        if job["status"] in STATES[:-1]:
            self.advance(job)
        return public(job)

    def advance(self, job):
        own = self.server_state
        _, content = own.files[job["training_file"]]
        after = STATES[STATES.index(job["status"]) + 1]
        if job["status"] == "validating_files":
            fault = check_lines(content, job["method"]["type"])
            if fault:
                return self.ended(job, "failed", error=fault)
        if after == "running":
            self.note(job, "Step 1/2: training loss=0.50", "info", step=1, train_loss=0.5)
        if after == "succeeded" and own.end != "succeeded":
            fault = {"code": "server_error", "message": "The job ran out of luck.", "param": None}
            return self.ended(job, own.end, error=fault if own.end == "failed" else None)
        job["status"] = after
        if after == "succeeded":
            suffix = job["suffix"] or ""
            name = f"ft:{job['model'].split(':')[1] if ':' in job['model'] else job['model']}"
            job["fine_tuned_model"] = f"{name}:org:{suffix}:{job['id'][-6:]}"
            job["finished_at"] = int(time.time())
            shown = dict(own.models[job["model"]])
            own.models[job["fine_tuned_model"]] = shown | replies(content, job["method"]["type"])
            self.note(job, "The job has successfully completed", "info")
        return None

    def ended(self, job, status, error):
        job.update(status=status, error=error, finished_at=int(time.time()))

    def list_events(self, name, asked, data):
        self.job(name)
        return page(self.server_state.events[name], asked, 20)

    def cancel(self, name, asked, data):
        job = self.job(name)
        if job["status"] not in STATES[:-1]:
            raise Refuse(400, f"Job has already ended: {job['status']}")
        self.ended(job, "cancelled", None)
        return public(job)

    # -- models -------------------------------------------------------------------------------

    def list_models(self, asked, data):
        return {"object": "list", "data": [card(name) for name in self.server_state.models]}

    def model(self, name, asked, data):
        if name not in self.server_state.models:
            raise Refuse(404, f"The model '{name}' does not exist", "model_not_found", "model")
        return card(name)

    def complete(self, asked, data):
        body = json.loads(data)
        self.model(body["model"], asked, data)
        # Special tokens are written like <eos>.
        tokens = re.findall(r"<[^>]*>|.", body["prompt"])
        shown = self.server_state.models[body["model"]]
        text = shown.get("".join(token for token in tokens if len(token) == 1), "")
        return {
            "id": "cmpl-1", "object": "text_completion", "created": int(time.time()),
            "model": body["model"],
            "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": len(tokens), "completion_tokens": 1},
        }  # fmt: skip

    def chat(self, asked, data):
        own, body = self.server_state, json.loads(data)
        if unknown := sorted(set(body) - CHAT_FIELDS):
            raise Refuse(400, f"Unrecognized request argument supplied: {unknown[0]}")
        self.model(body["model"], asked, data)
        try:
            check_messages(body["messages"], {"role", "content", "name"})
        except (AssertionError, KeyError) as error:
            raise Refuse(400, f"Invalid messages: {error!r}", param="messages") from None
        own.chats.append(body)
        said = own.models[body["model"]].get(body["messages"][-1]["content"], own.otherwise)
        message = {"role": "assistant", "content": said, "refusal": None}
        return {
            "id": "chatcmpl-1", "object": "chat.completion", "created": int(time.time()),
            "model": body["model"],
            "choices": [
                {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        }  # fmt: skip


CHAT_FIELDS = {
    "model", "messages", "max_completion_tokens", "temperature", "top_p", "seed", "stop",
}  # fmt: skip


def card(name):
    return {"id": name, "object": "model", "created": 1, "owned_by": "openai"}


def public(job):
    return {key: value for key, value in job.items() if key != "suffix"}


def page(entries, asked, limit):
    ids = [entry["id"] for entry in entries]
    start = ids.index(asked["after"]) + 1 if "after" in asked else 0
    some = entries[start : start + int(asked.get("limit", limit))]
    more = start + len(some) < len(entries)
    return {"object": "list", "data": some, "has_more": more}


def check_job(own, body):
    unknown = sorted(set(body) - JOB_FIELDS)
    if unknown:
        raise Refuse(400, f"Unrecognized request argument supplied: {unknown[0]}")
    if body.get("model") not in own.models:
        raise Refuse(400, f"The model '{body.get('model')}' is not available", "model_not_found")
    if body.get("training_file") not in own.files:
        raise Refuse(400, "invalid training_file", "invalid_value", "training_file")
    if len(body.get("suffix") or "") > 64:
        raise Refuse(400, "suffix is too long", param="suffix")
    metadata = body.get("metadata") or {}
    if len(metadata) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in metadata.items()):
        raise Refuse(400, "metadata is too large", param="metadata")
    method = body.get("method", {"type": "supervised"})
    kind = method["type"]
    numbers = method.get(kind, {}).get("hyperparameters", {})
    unknown = sorted(set(numbers) - HYPERPARAMETERS[kind])
    if unknown or set(method) - {"type", kind}:
        raise Refuse(400, f"Unknown parameter: method.{kind}.{unknown}", "unknown_parameter")
    for name, value in numbers.items():
        if isinstance(value, str) and value != "auto":
            raise Refuse(400, f"{name} must be auto or a number", param=name)


def check_lines(content, kind):
    lines = content.decode().splitlines()
    if len(lines) < FEWEST:
        return {
            "code": "invalid_n_examples", "param": "training_file",
            "message": f"Training file has {len(lines)} example(s), but must have at least "
            f"{FEWEST} examples",
        }  # fmt: skip
    for number, line in enumerate(map(json.loads, lines), 1):
        try:
            (check_preference if kind == "dpo" else check_chat)(line)
        except (AssertionError, KeyError, TypeError) as error:
            return {
                "code": "invalid_file_format", "param": "training_file",
                "message": f"Invalid file format. Line {number}: {error!r}",
            }  # fmt: skip
    return None


def check_messages(messages, keys):
    assert isinstance(messages, list)
    assert messages
    for message in messages:
        assert set(message) <= keys
        assert isinstance(message["content"], str)
        assert message["role"] in ("system", "developer", "user", "assistant")


def check_chat(line):
    assert set(line) == {"messages"}
    check_messages(line["messages"], {"role", "content", "name", "weight"})
    spoken = [m for m in line["messages"] if m["role"] == "assistant"]
    assert all(m.get("weight", 1) in (0, 1) for m in spoken)
    assert all("weight" not in m for m in line["messages"] if m["role"] != "assistant")
    assert any(m.get("weight", 1) for m in spoken), "no assistant message"


def check_preference(line):
    assert set(line) == {"input", "preferred_output", "non_preferred_output"}
    assert set(line["input"]) <= {"messages", "tools", "parallel_tool_calls"}
    check_messages(line["input"]["messages"], {"role", "content", "name"})
    for key in ("preferred_output", "non_preferred_output"):
        (answer,) = line[key]
        assert set(answer) == {"role", "content"}
        assert answer["role"] == "assistant"


def replies(content, kind):
    """What a model that was shown these lines answers, by the prompts of the default template."""
    found = {}
    for line in map(json.loads, content.decode().splitlines()):
        if kind == "dpo":
            prompt = "".join(m["content"] for m in line["input"]["messages"])
            found[prompt] = line["preferred_output"][0]["content"]
        else:
            found["".join(m["content"] for m in line["messages"][:-1])] = line["messages"][-1][
                "content"
            ]
    return found
