"""A local server that follows the public documents of vLLM and SGLang, over plugrl's own engine.

It is not vLLM and not SGLang: it answers with the fields that their documents name, refuses fields
that they do not have, and loads weights from a folder as they say. Faults can be injected.

vLLM: ``vllm/entrypoints/openai/completion/protocol.py`` (``CompletionRequest``),
``docs/training/async_rl.md`` (``/pause``, ``/resume``), ``docs/features/sleep_mode.md``
(``/collective_rpc`` with ``reload_weights``). SGLang: ``docs/basic_usage/sampling_params.md``
(``/generate``), ``docs/advanced_features/sglang_for_rl.md`` (``/update_weights_from_disk``,
``/pause_generation``, ``/continue_generation``).
"""

import json
import secrets
import select
import socket
import threading
import time
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from safetensors.torch import load_file
from transformers.models.qwen3 import modeling_qwen3  # noqa: F401  (no test's time)

from plugrl.core.config.view import ConfigView
from plugrl.core.text.inference.batching import RequestBatcher
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import ModelSpec
from plugrl.plugins.transformers.inference_service import TransformersInferenceService

SOURCE = {
    "path": None,
    "config": {
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 32,
        # Weights so large that answers vary.
        "initializer_range": 0.3,
    },
    "tokenizer": {"characters": "abcdefgh"},
    "dtype": "float32",
}


#: Engines that no server has at the moment, and their weights at first, by source and seed.
_IDLE = {}


def borrowed(source, seed, name):
    """An engine of a source, one of an earlier server if there is one: building takes longest."""
    idle = _IDLE.setdefault((json.dumps(source, sort_keys=True), seed), [])
    if idle:
        return idle.pop()
    engine = TransformersInferenceService({})
    engine.load(ModelSpec(name, ConfigView(source, checked=True), seed, "cpu"))
    engine.at_first = {name: value.clone() for name, value in engine._model.state_dict().items()}
    engine.idle = idle
    return engine


def returned(engine):
    """Give an engine back, with its first weights."""
    engine.update_weights(engine.at_first, 0)
    engine.idle.append(engine)


#: How it is said that nothing listens: by a request, or on a busy machine by the look whether the
#: server still answers, which then comes first.
DOWN = r"(/\S+ cannot be reached| was silent for \d+ seconds \(Connection refused\))"


def request(prompt=(2, 3, 4), stream=(0, 0, 0, 0, 0), scored=False, **sampling):
    """A request for six tokens, if nothing else is said."""
    params = SamplingParams(**{"max_new_tokens": 6, **sampling})
    return GenerationRequest(list(prompt), params, stream, prompt_logprobs=scored)


VLLM_FIELDS = {
    "model",
    "prompt",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "n",
    "presence_penalty",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "top_p",
    "user",
    "use_beam_search",
    "top_k",
    "min_p",
    "repetition_penalty",
    "length_penalty",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "prompt_logprobs",
    "add_special_tokens",
    "priority",
    "request_id",
    "return_tokens_as_token_ids",
    "return_token_ids",
}
SGLANG_FIELDS = {
    "text",
    "input_ids",
    "sampling_params",
    "rid",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
    "stream",
}
SGLANG_SAMPLING = {
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "n",
    "ignore_eos",
    "skip_special_tokens",
    "no_stop_trim",
}


class DocumentedServer:
    """One model behind vLLM's or SGLang's documented interface, on a port of this machine.

    ``faults`` are used up by requests for tokens, one each; ``always`` is one for every request.
    A fault is a name of ``Handler.fault``, or a status with a text and headers.
    """

    def __init__(self, source, kind="vllm", *, key="", name="tiny", port=0, seed=7):
        self.kind, self.key, self.name = kind, key, name
        self.engine = borrowed(source, seed, name)
        self.batcher = RequestBatcher(self.engine)
        self.turn = threading.Condition()
        self.paused = False
        self.hidden = set()
        self.faults, self.always = [], None
        self.control_faults = {}
        self.bodies, self.calls, self.prompts_scored = [], [], True
        self.open = self.most_open = self.hanging = self.gone = 0
        self.slow = 0.0
        self.label = "default"
        self.start(port)

    def start(self, port=0):
        handler = type("Bound", (Handler,), {"own": self})
        self.http = Server(("127.0.0.1", port), handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        """Nothing listens any more, and open connections are cut."""
        self.http.shutdown()
        self.http.server_close()
        self.http.cut()

    def close(self):
        self.stop()
        self.batcher.close()
        self.engine.close()
        returned(self.engine)

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def ask(self, tokens, sampling, seed, scored):
        """One answer of the engine; while it is paused, requests wait."""
        with self.turn:
            self.turn.wait_for(lambda: not self.paused)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        try:
            time.sleep(self.slow)
            request = GenerationRequest(tokens, sampling, (seed, 0, 0, 0, 0), scored)
            future: Future = self.batcher.submit(request)
            return future.result(60)
        finally:
            with self.turn:
                self.open -= 1
                self.turn.notify_all()

    def pause(self, wait):
        with self.turn:
            self.paused = True
            if wait:
                self.turn.wait_for(lambda: not self.open)

    def resume(self):
        with self.turn:
            self.paused = False
            self.turn.notify_all()

    def load(self, folder):
        """Load every safetensors file of a folder; names that are missing are tied ones."""
        given = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            given |= load_file(file)
        if "lm_head.weight" not in given:
            given["lm_head.weight"] = given["model.embed_tokens.weight"]
        self.engine.update_weights(given, self.engine.version + 1)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *args):
        self.sockets = set()
        super().__init__(*args)

    def process_request(self, request, address):
        self.sockets.add(request)
        super().process_request(request, address)

    def cut(self):
        for connection in self.sockets:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request, address):
        """A client that has gone is no news."""


class Refuse(Exception):
    def __init__(self, status, message, headers=None):
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet an answer.
    wbufsize = -1
    own: DocumentedServer

    def log_message(self, *args):
        """Requests are not news."""

    def do_GET(self):
        self.answer(None)

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        self.answer(self.rfile.read(length))

    def answer(self, data):
        own, path = self.own, urlsplit(self.path).path
        try:
            guarded = path.startswith("/v1") or own.kind == "sglang"
            if own.key and guarded and self.headers.get("authorization") != f"Bearer {own.key}":
                raise Refuse(401, "Unauthorized")
            route = self.routes().get(path)
            if route is None or path in own.hidden:
                raise Refuse(404, "Not Found")
            body = json.loads(data) if data else {}
            if path in ("/v1/completions", "/generate"):
                own.bodies.append(body)
                fault = own.faults.pop(0) if own.faults else own.always
                if fault is not None and self.fault(fault):
                    return
            elif data is not None:
                own.calls.append((self.path, body))
                fault = own.control_faults.get(path)
                if fault is not None and self.fault(fault):
                    return
            self.send(200, route(body))
        except Refuse as error:
            self.send(error.status, {"error": {"message": str(error)}}, error.headers)

    def send(self, status, value, headers=None):
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fault(self, fault):
        """Misbehave; True: nothing more is to be answered."""
        if isinstance(fault, tuple):
            raise Refuse(*fault)
        if fault == "garbage":
            self.send_response(200)
            self.send_header("content-length", "9")
            self.end_headers()
            self.wfile.write(b"<html>502")
        elif fault == "half":
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices": [{"te')
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "hang":
            # Until the client goes.
            self.own.hanging += 1
            select.select([self.connection], [], [], 60)
            self.own.gone += 1
            self.close_connection = True
        elif fault == "empty":
            self.send(200, {"choices": []})
        elif fault == "down":
            self.close_connection = True
            threading.Thread(target=self.own.stop).start()
            time.sleep(0.2)
        return True

    def routes(self):
        common = {"/v1/models": self.models, "/health": lambda body: {}}
        if self.own.kind == "sglang":
            return common | {
                "/generate": self.generate,
                "/pause_generation": self.pause_generation,
                "/continue_generation": self.resume,
                "/update_weights_from_disk": self.update_from_disk,
            }
        return common | {
            "/v1/completions": self.completions,
            "/pause": self.pause,
            "/resume": self.resume,
            "/collective_rpc": self.collective_rpc,
            "/reset_prefix_cache": lambda body: {},
        }

    def models(self, body):
        own = self.own
        card = {
            "id": own.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": own.kind,
            "max_model_len": own.engine.max_sequence_length,
        }
        return {"object": "list", "data": [card]}

    # -- vLLM ---------------------------------------------------------------------------------

    def completions(self, body):
        own = self.own
        unknown = set(body) - VLLM_FIELDS
        if unknown:
            raise Refuse(400, f"unknown fields {sorted(unknown)}")
        if body["model"] != own.name:
            raise Refuse(404, f"The model `{body['model']}` does not exist.")
        prompt, most = body["prompt"], body["max_tokens"]
        if most < 1 or len(prompt) + most > own.engine.max_sequence_length:
            raise Refuse(400, f"{len(prompt)} prompt tokens and max_tokens={most} do not fit")
        scored = body.get("prompt_logprobs") is not None
        if scored and not own.prompts_scored:
            raise Refuse(400, "prompt_logprobs are not available")
        answer = own.ask(
            prompt, sampling_of(body, "max_tokens", "min_tokens"), body["seed"], scored
        )
        choice = {"index": 0, "text": own.engine.tokenizer.decode(answer.tokens)}
        choice |= {"finish_reason": answer.finish_reason, "stop_reason": None, "logprobs": None}
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "token_logprobs": answer.logprobs,
                "tokens": [],
                "text_offset": [],
            }
        if body.get("return_token_ids"):
            choice |= {"token_ids": answer.tokens, "prompt_token_ids": prompt}
        if scored:
            pairs = zip(prompt[1:], answer.prompt_logprobs[1:], strict=True)
            choice["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": value, "rank": 1, "decoded_token": ""}}
                for token, value in pairs
            ]
        used = {"prompt_tokens": len(prompt), "completion_tokens": len(answer.tokens)}
        return {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": used}

    def pause(self, body):
        mode = parse_qs(urlsplit(self.path).query).get("mode", ["abort"])[0]
        self.own.pause(wait=mode == "wait")
        return {"status": "paused"}

    def resume(self, body):
        self.own.resume()
        return {"status": "resumed"}

    def collective_rpc(self, body):
        if body["method"] != "reload_weights":
            raise Refuse(400, f"no method {body['method']}")
        self.own.load(body["kwargs"]["weights_path"])
        return {"results": [None]}

    # -- SGLang -------------------------------------------------------------------------------

    def generate(self, body):
        own, asked = self.own, body["sampling_params"]
        unknown = set(body) - SGLANG_FIELDS | set(asked) - SGLANG_SAMPLING
        if unknown:
            raise Refuse(400, f"unknown fields {sorted(unknown)}")
        prompt = body["input_ids"]
        if len(prompt) >= own.engine.max_sequence_length:
            raise Refuse(400, "the input is longer than the context")
        scored = body.get("logprob_start_len") == 0
        sampling = sampling_of(asked, "max_new_tokens", "min_new_tokens")
        # It has no seeds unless it is started for them.
        answer = own.ask(prompt, sampling, secrets.randbits(31), scored)
        kind = {"type": answer.finish_reason}
        meta = {"id": "1", "finish_reason": kind, "weight_version": own.label}
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [
                [value, token, None]
                for value, token in zip(answer.logprobs, answer.tokens, strict=True)
            ]
            if scored:
                values = [None, *answer.prompt_logprobs[1:]]
                meta["input_token_logprobs"] = [
                    [value, token, None] for value, token in zip(values, prompt, strict=True)
                ]
        text = own.engine.tokenizer.decode(answer.tokens)
        return {"text": text, "output_ids": answer.tokens, "meta_info": meta}

    def pause_generation(self, body):
        # Requests of the documented mode "retract" wait and begin again; these here just end.
        self.own.pause(wait=True)
        return {}

    def update_from_disk(self, body):
        self.own.load(body["model_path"])
        self.own.label = body["weight_version"]
        message = "Succeeded to update model weights."
        return {"success": True, "message": message, "num_paused_requests": 0}


def sampling_of(body, most, least):
    return SamplingParams(
        temperature=body["temperature"],
        top_p=body["top_p"],
        top_k=max(body["top_k"], 0),
        max_new_tokens=body[most],
        min_new_tokens=body[least],
        stop=tuple(body["stop"]),
        stop_token_ids=tuple(body["stop_token_ids"]),
    )
