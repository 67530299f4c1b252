"""A server with the routes that the kit of Weaver asks, over a model in this process.

It is written after the kit's own code: no server of Weaver can be had for tests.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.learn.optimizer import AdamParams
from plugrl.core.text.remote.service import Datum


class WeaverServer:
    """Answers every operation at once.

    Args:
        make_trainer: a train service ``in_process``.
        make_sampler: an inference service ``transformers`` of the same model.
        model: the name that it has here.
    """

    def __init__(self, make_trainer, make_sampler, model="tiny:16"):
        self.model, self.asked, self.refuses = model, [], None
        self.passes, self.fails_at = 0, None
        self.trainers, self.samplers, self.saved = {}, {}, {}
        self._make_trainer, self._make_sampler = make_trainer, make_sampler
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.loads(body) if body else {}
                if self.path.endswith("/health"):
                    status, given = 200, {}
                else:
                    with server._lock:
                        status, given = server.handled(self.command, self.path, body)
                data = json.dumps(given).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def handled(self, command, path, body):
        path = path.partition("?")[0].removeprefix("/api/v1/")
        self.asked.append((command, path, body))
        if self.refuses is not None:
            return self.refuses, {"code": "refused", "message": "made up", "retryable": False}
        if path in ("supported-models", "model-catalog"):
            return 200, {"items": [{"name": self.model, "status": "healthy"}], "total_count": 1}
        found = re.fullmatch(r"(models|sampling-sessions)/([^/]+)/(.+)", path)
        if found:
            try:
                made = self.operated(found[2], found[3], body.get("payload", body))
            except KeyError as error:
                return 404, {"code": "not_found", "message": f"no {error}", "retryable": False}
            if isinstance(made, list):
                return 200, {"items": made}
            return 202, {"id": f"op-{next(self._numbers)}", "status": "done", "response": made}
        number = next(self._numbers)
        if re.fullmatch(r"sessions/[^/]+/models", path):
            name = f"m{number}"
            self.trainers[name] = self._make_trainer()
            return 201, {"id": name, "base_model": self.model, "tokenizer_path": "none"}
        if re.fullmatch(r"sessions/[^/]+/sampling-sessions", path):
            name, sampler = f"s{number}", self._make_sampler()
            if body.get("model_path"):
                if body["model_path"] not in self.saved:
                    return 404, {"code": "not_found", "message": "no such weights"}
                sampler.update_weights(self.saved[body["model_path"]], 1)
            self.samplers[name] = sampler
            return 201, {"id": name, "tokenizer_path": "none"}
        return 200, {"id": f"session{number}", "status": "active"}

    def operated(self, name, what, body):
        if what in ("samples", "logprobs"):
            return {"result": self.sampled(self.samplers[name], what, body)}
        trainer = self.trainers[name]
        if what in ("forward-passes", "forward-backward-passes"):
            return self.passed(trainer, body)
        if what == "optimizer-steps":
            given = body["adam_params"]
            betas = (given.pop("beta1"), given.pop("beta2"))
            metrics = trainer.optim_step(AdamParams(betas=betas, **given)).result()
            return {"result": {"metrics": dict(metrics)}}
        path = body.get("path") or body.get("name")
        if what == "export-sampler":
            path = f"weaver://{name}/checkpoints/{path}"
            self.saved[path] = {k: v.clone() for k, v in trainer.weights().items()}
            return {"model_path": path}
        if what == "checkpoints" and "type" not in body:
            return []
        if what == "checkpoints":
            path = f"weaver://{name}/checkpoints/{path}"
            self.saved[path] = copy.deepcopy(trainer.save_state("").result())
            return {"id": path, "path": path, "status": "completed", "name": body["name"]}
        if what == "load":
            state = self.saved[path]
            if body["include_optimizer"]:
                trainer.load_state(state)
            else:
                trainer.load_weights(state["weights"])
            return {"ok": True}
        raise KeyError(what)

    def passed(self, trainer, body):
        self.passes += 1
        if self.passes == self.fails_at:
            raise KeyError("model, says the test")
        given = body.get("forward_backward_input") or body.get("forward_input") or body
        datums = []
        for entry in given["data"]:
            inputs = {k: v["data"] for k, v in entry["loss_fn_inputs"].items()}
            inputs["mask"] = [int(v) for v in inputs.pop("loss_mask")]
            tokens = [t for chunk in entry["model_input"]["chunks"] for t in chunk["tokens"]]
            datums.append(Datum(tokens, inputs))
        if given["loss_fn"] == "forward_logprob":
            rows, metrics = trainer.forward(datums).result(), {}
        else:
            answer = trainer.forward_backward(
                datums, given["loss_fn"], given.get("loss_fn_config")
            ).result()
            rows, metrics = answer.logprobs, {"loss": answer.loss}
        outputs = [{"logprobs": {"data": r, "dtype": "float32", "shape": [len(r)]}} for r in rows]
        return {"result": {"loss_fn_outputs": outputs, "metrics": metrics}}

    def sampled(self, sampler, what, body):
        prompt = [t for chunk in body["prompt"]["chunks"] for t in chunk["tokens"]]
        if what == "logprobs":
            return {"prompt_logprobs": [None, *sampler.score([prompt])[0][1:]]}
        asked = body["sampling_params"]
        sampling = SamplingParams(
            asked["temperature"], asked["top_p"], asked["max_tokens"],
            tuple(asked.get("stop_token_ids", ())), max(asked["top_k"], 0),
        )  # fmt: skip
        scored = body["prompt_logprobs"]
        requests = [
            GenerationRequest(prompt, sampling, (asked["seed"], 0, 0, run, 0), scored)
            for run in range(body["num_samples"])
        ]
        answers = sampler.generate(requests)
        found = {
            "sequences": [
                {"tokens": a.tokens, "logprobs": a.logprobs, "stop_reason": a.finish_reason}
                for a in answers
            ]
        }
        if body["prompt_logprobs"]:
            found["prompt_logprobs"] = [None, *answers[0].prompt_logprobs[1:]]
        return found
