"""A local server of the public wire format of the Tinker API, over a small model in this process.

It is not Tinker: it follows the requests and responses that the vendor's kit declares
(``tinker/types`` and ``tinker/resources``) and its docstrings, refuses fields that those do not
have, keeps the order of ``seq_id``, answers a repeated request once, and samples and trains for
real. Faults of the network are those of ``faults.Door``, which goes in front.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from wire_model import Adapter, Base, UserError

#: Path: fields that must be there, and those that may.
REQUESTS = {
    "client/config": ({"sdk_version"}, set()),
    "create_session": ({"tags", "user_metadata", "sdk_version"}, {"project_id"}),
    "session_heartbeat": ({"session_id"}, set()),
    "telemetry": ({"events", "session_id", "platform", "sdk_version"}, set()),
    "create_model": (
        {"session_id", "model_seq_id", "base_model"}, {"user_metadata", "lora_config"}
    ),
    "create_sampling_session": (
        {"session_id", "sampling_session_seq_id"}, {"base_model", "model_path"}
    ),
    "asample": (
        {"prompt", "sampling_params", "sampling_session_id", "seq_id"},
        {"num_samples", "prompt_logprobs", "topk_prompt_logprobs", "base_model", "model_path"},
    ),
    "forward": ({"forward_input", "model_id", "seq_id"}, set()),
    "forward_backward": ({"forward_backward_input", "model_id", "seq_id"}, set()),
    "optim_step": ({"adam_params", "model_id", "seq_id"}, set()),
    "save_weights": ({"model_id", "path", "seq_id"}, {"ttl_seconds", "overwrite"}),
    "save_weights_for_sampler": (
        {"model_id", "seq_id"}, {"path", "sampling_session_seq_id", "ttl_seconds"}
    ),
    "load_weights": ({"model_id", "path", "optimizer", "seq_id"}, {"weights_access_token"}),
    "retrieve_future": ({"request_id"}, {"allow_metadata_only"}),
    "healthz": (set(), set()),
    "get_server_capabilities": (set(), set()),
}  # fmt: skip
SAMPLING = {"max_tokens", "seed", "stop", "temperature", "top_k", "top_p"}
ADAM = {"learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm"}
MOST_RANK = 64


class Refuse(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class WireServer:
    """A server of one base model, whose name is its folder.

    Attributes:
        waits: how often a result that is asked for is not there yet, from now on.
        lacking: losses that it refuses.
    """

    #: Where weights are loaded without the optimizer, its moments begin anew.
    leaves_moments_out = True

    def __init__(self, folder: Path) -> None:
        self.base, self.model = Base(folder), str(folder)
        self.waits = 0
        self.lacking: set[str] = set()
        self.saved: dict[str, dict] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._running = threading.Event()
        self._running.set()
        self._http: Http | None = None
        self.port = 0
        self.start()

    def start(self, *, fresh: bool = False) -> None:
        """Listen, with no session; ``fresh``: what was saved is gone too."""
        with self._lock:
            self._models: dict[str, dict] = {}
            self._samplers: dict[str, dict] = {}
            self._sessions: set[str] = set()
            self._results: dict[str, dict] = {}
            self._known: dict[tuple, dict] = {}
            if fresh:
                self.saved.clear()
        self._http = Http(("127.0.0.1", self.port), type("Bound", (Handler,), {"own": self}))
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        """Nothing listens any more, and open connections are cut."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http.cut()
            self._http = None

    def halt(self) -> None:
        """Accept connections and answer nothing."""
        self._running.clear()

    def go_on(self) -> None:
        """Answer again."""
        self._running.set()

    def lacks(self, loss: str) -> None:
        """Refuse a loss, as servers do that offer fewer."""
        self.lacking.add(loss)

    def __enter__(self) -> WireServer:
        """The server, which listens already."""
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def answer(self, path: str, body: dict) -> dict:
        """The answer to a request."""
        self._running.wait()
        required, optional = REQUESTS.get(path) or refuse(404, f"no path {path}")
        given = set(body) - {"type"}
        if given - required - optional or required - given:
            raise Refuse(422, f"{path} has {sorted(given)}")
        with self._lock:
            if "seq_id" in body:
                return self._in_order(path, body)
            return getattr(self, path.replace("/", "_"))(**body)

    def _in_order(self, path: str, body: dict) -> dict:
        """A request of a model or a sampler; one that was made before is not carried out again."""
        of = body.get("model_id") or body["sampling_session_id"]
        holder = self._models.get(of) or self._samplers.get(of) or refuse(404, f"{of} not found")
        place = (of, body["seq_id"])
        if place not in self._known:
            # Samples may come in any order.
            if "model_id" in body and body["seq_id"] != holder["next"]:
                raise Refuse(400, f"seq_id {body['seq_id']} before {holder['next']}")
            holder["next"] += 1
            self._known[place] = self._promise(getattr(self, path), holder, body)
        return self._known[place]

    def _promise(self, work, *words) -> dict:
        """Do the work; what came of it is asked for later."""
        number = f"request-{next(self._numbers)}"
        try:
            self._results[number] = work(*words)
        except UserError as error:
            self._results[number] = {"error": str(error), "category": "user"}
        return {"request_id": number}

    # -- without a promise ----------------------------------------------------------------------

    def healthz(self) -> dict:
        return {"status": "ok"}

    def client_config(self, **_: object) -> dict:
        return {"use_pyqwest_transport": False}

    def telemetry(self, **_: object) -> dict:
        return {"status": "accepted"}

    def get_server_capabilities(self) -> dict:
        model = {"model_name": self.model, "max_context_length": self.base.context}
        return {"supported_models": [model]}

    def create_session(self, **_: object) -> dict:
        name = f"session-{secrets.token_hex(4)}"
        self._sessions.add(name)
        return {"type": "create_session", "session_id": name}

    def session_heartbeat(self, session_id: str, **_: object) -> dict:
        self._check(session_id)
        return {"type": "session_heartbeat"}

    def _check(self, session: str) -> None:
        if session not in self._sessions:
            raise Refuse(404, f"session {session} not found")

    def create_sampling_session(
        self, session_id, sampling_session_seq_id, base_model=None, model_path=None, **_
    ) -> dict:
        self._check(session_id)
        if model_path is None and base_model != self.model:
            raise Refuse(404, f"model {base_model} not found")
        kept = self._kept(model_path)["pairs"] if model_path else {}
        name = f"{session_id}:sample:{sampling_session_seq_id}"
        self._samplers[name] = {"pairs": kept, "next": 0}
        return {"type": "create_sampling_session", "sampling_session_id": name}

    def _kept(self, path: str) -> dict:
        return self.saved.get(path) or refuse(404, f"checkpoint {path} not found")

    def create_model(self, session_id, model_seq_id, base_model, lora_config=None, **_) -> dict:
        self._check(session_id)
        if base_model != self.model:
            raise Refuse(404, f"model {base_model} not found")
        lora = lora_config or {"rank": 32}
        if not 1 <= lora["rank"] <= MOST_RANK:
            raise Refuse(400, f"LoRA rank {lora['rank']} must be between 1 and {MOST_RANK}")
        name = f"{session_id}:train:{model_seq_id}"
        self._models[name] = {"adapter": Adapter(self.base, lora), "next": 1}
        return self._promise(lambda: {"type": "create_model", "model_id": name})

    def retrieve_future(self, request_id: str, **_: object) -> dict:
        if request_id not in self._results:
            raise Refuse(404, f"future {request_id} not found")
        if self.waits:
            self.waits -= 1
            return {"type": "try_again", "request_id": request_id, "queue_state": "active"}
        return self._results[request_id]

    # -- of a sampler or a model, in order ------------------------------------------------------

    def asample(self, sampler: dict, body: dict) -> dict:
        asked = body["sampling_params"]
        if unknown := set(asked) - SAMPLING:
            raise UserError(f"sampling_params has {sorted(unknown)}")
        prompt = tokens_of(body["prompt"])
        if len(prompt) > self.base.context:
            raise UserError(f"{len(prompt)} tokens do not fit into {self.base.context}")
        asked = {"seed": None, "stop": None, "temperature": 1, "top_k": -1, "top_p": 1, **asked}
        found = {
            "type": "sample",
            "sequences": self.base.sample(
                prompt, body.get("num_samples", 1), asked, sampler["pairs"]
            ),
        }
        if body.get("prompt_logprobs"):
            found["prompt_logprobs"] = self.base.scores(prompt, sampler["pairs"])
        return found

    def forward(self, model: dict, body: dict) -> dict:
        return self._passed(model, body["forward_input"], back=False)

    def forward_backward(self, model: dict, body: dict) -> dict:
        return self._passed(model, body["forward_backward_input"], back=True)

    def _passed(self, model: dict, given: dict, *, back: bool) -> dict:
        if given["loss_fn"] in self.lacking:
            raise UserError(f"no loss {given['loss_fn']} here")
        datums = [
            {
                "tokens": tokens_of(datum["model_input"]),
                "inputs": {name: v["data"] for name, v in datum["loss_fn_inputs"].items()},
            }
            for datum in given["data"]
        ]
        rows, loss = self.base.passed(
            datums, given["loss_fn"], given.get("loss_fn_config") or {}, model["adapter"], back=back
        )
        outputs = [{"logprobs": {"data": r, "dtype": "float32", "shape": [len(r)]}} for r in rows]
        return {
            "loss_fn_output_type": "TorchLossReturn",
            "loss_fn_outputs": outputs,
            "metrics": {"loss:sum": loss},
        }

    def optim_step(self, model: dict, body: dict) -> dict:
        if set(body["adam_params"]) != ADAM:
            raise UserError(f"adam_params has {sorted(body['adam_params'])}")
        return {"metrics": {"grad_norm": model["adapter"].step(body["adam_params"])}}

    def save_weights(self, model: dict, body: dict) -> dict:
        return {"type": "save_weights", "path": self._save(model, body, "weights")}

    def save_weights_for_sampler(self, model: dict, body: dict) -> dict:
        path = self._save(model, body, "sampler_weights")
        return {"type": "save_weights_for_sampler", "path": path}

    def _save(self, model: dict, body: dict, kind: str) -> str:
        name = body["path"]
        if not re.fullmatch(r"[\w-]{1,100}", name):
            raise UserError(f"{name!r} is no name")
        path = f"tinker://{body['model_id']}/{kind}/{name}"
        if path in self.saved:
            raise UserError(f"{path} is there already")
        self.saved[path] = model["adapter"].saved()
        return path

    def load_weights(self, model: dict, body: dict) -> dict:
        model["adapter"].load(self._kept(body["path"]), optimizer=body["optimizer"])
        return {"type": "load_weights", "path": body["path"]}


def refuse(status: int, detail: str):
    raise Refuse(status, detail)


def tokens_of(model_input: dict) -> list[int]:
    """The token ids of a ``ModelInput``."""
    return [token for chunk in model_input["chunks"] for token in chunk["tokens"]]


class Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *words) -> None:
        self.connections = set()
        super().__init__(*words)

    def process_request(self, request, address):
        self.connections.add(request)
        super().process_request(request, address)

    def shutdown_request(self, request):
        self.connections.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request, address):
        """A client that has gone is no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet an answer.
    wbufsize = -1
    own: WireServer

    def log_message(self, *words):
        """Requests are not news."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0].removeprefix("/api/v1/")
        try:
            status, answer = 200, self.own.answer(path, json.loads(body) if body else {})
        except Refuse as error:
            status, answer = error.status, {"detail": str(error)}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST
