"""The inference service ``weaver``: samples from a model that a Weaver service keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.remote.connection import RemoteConnection
from plugrl.plugins.tinker import wire
from plugrl.plugins.tinker.inference_service import TinkerInferenceConfig, TinkerInferenceService
from plugrl.plugins.weaver.connection import Connection

_MODEL = re.compile(r"weaver://([^/]+)/")


@dataclass
class WeaverInferenceConfig(TinkerInferenceConfig):
    """Options of the inference service ``weaver``."""

    key_example: ClassVar[str] = Connection.default_key
    scheme: ClassVar[str] = "weaver://"


class WeaverInferenceService(TinkerInferenceService):
    """Does what the service ``tinker`` does, over the kit of Weaver."""

    Config: ClassVar[type] = WeaverInferenceConfig
    connection: ClassVar[type[RemoteConnection]] = Connection
    vendor: ClassVar[str] = Connection.vendor

    def _sampler_of(self, model_path: str | None = None) -> Any:
        found = _MODEL.match(model_path or "")
        chosen = {
            "base_model": self.config.base_model,
            "model_path": model_path,
            "model_id": found[1] if found else None,
        }
        client = self._connection.client
        return self._calls.call(
            f"sample from {model_path or self.config.base_model}",
            lambda: client.create_sampling_client(**chosen),
        )

    def _send(self, request: GenerationRequest, count: int) -> Any:
        from weaver import types

        prompt = types.ModelInput.from_ints(list(request.prompt_tokens))
        room, asked, sampler = self._room(request), request.sampling, self._sampler
        if not asked.max_new_tokens:
            return self._calls.begin("sample", lambda: sampler.compute_logprobs(prompt=prompt))
        if asked.min_new_tokens:
            raise ConfigError("min_new_tokens: the Weaver API has no such parameter; write 0")
        sampling = types.SamplingParams(
            max_tokens=min(asked.max_new_tokens, room),
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k or -1,
            stop=list(asked.stop_token_ids),
            seed=wire.seed_of(request),
        )

        def sample() -> Any:
            # Not wait=True, which decodes the tokens with a tokenizer that it downloads.
            handle = sampler.sample(
                prompt=prompt,
                sampling_params=sampling,
                num_samples=count,
                include_prompt_logprobs=request.prompt_logprobs,
                wait=False,
            )
            return _response(handle.result())

        return self._calls.begin("sample", sample)


def _response(payload: Any) -> SimpleNamespace:
    """An answer in the form that the service ``tinker`` reads."""
    result = payload.get("result", payload) if isinstance(payload, Mapping) else {}
    return SimpleNamespace(
        prompt_logprobs=result.get("prompt_logprobs"),
        sequences=[
            SimpleNamespace(
                tokens=entry.get("tokens") or [],
                logprobs=entry.get("logprobs"),
                stop_reason=entry.get("stop_reason"),
            )
            for entry in result.get("sequences") or []
        ],
    )
