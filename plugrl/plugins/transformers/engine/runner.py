"""Logits of a model: its layers in the form that fits it best, and its head."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from plugrl.plugins.transformers.engine.body import Body, Prefill, agree
from plugrl.plugins.transformers.engine.compiling import StepCompiler
from plugrl.plugins.transformers.engine.fast_body import FastBody, has_fast_body
from plugrl.plugins.transformers.engine.head import body_and_head
from plugrl.plugins.transformers.engine.projections import JoinedProjections
from plugrl.plugins.transformers.engine.slot_body import SlotBody
from plugrl.plugins.transformers.engine.whole_body import WholeBody

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

#: Positions whose logits over the vocabulary are in memory at once.
_HEAD_CHUNK = 1024


class Runner:
    """Computes logits with a model.

    The model's layers run over slots where that gives what the model gives: in joined operations
    for small models on the CPU, else as ``transformers`` has them. What does not fit runs over the
    cache of ``transformers``, whole batches at a time.

    Args:
        model: a causal language model, in evaluation mode.
        pad_token_id: what fills the rows of shorter prompts.
        compiler: compiles decode steps on an accelerator; None: they are not.
    """

    def __init__(
        self, model: PreTrainedModel, pad_token_id: int, compiler: StepCompiler | None = None
    ) -> None:
        self.model = model
        self.compiler = compiler or StepCompiler(model, "", False, None)
        self.device = model.device
        self.dtype = model.dtype
        self._plain, self._head = body_and_head(model)
        self.body: Body = self._choose(pad_token_id)
        #: Whether steps can be captured, until one shows that they cannot.
        self.captures = True
        #: Whether steps are launched before the tokens of the last ones are looked at.
        self.ahead = self.device.type != "cpu" and isinstance(self.body, SlotBody)

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        cache: Any,
        picks: Sequence[int],
        places: Sequence[int],
    ) -> Prefill:
        """Compute prompts, and give the states of prompt ``picks[i]`` to row ``places[i]``."""
        return self.body.prefill(prompts, cache, picks, places)

    def decode(
        self, tokens: torch.Tensor, positions: torch.Tensor, width: int, cache: Any
    ) -> torch.Tensor:
        """Logits [B, V] after one more token a row; see :class:`Body` for the arguments."""
        return self._head(self.body.step(tokens, positions, width, cache))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits over the vocabulary, float32."""
        return self._head(hidden)

    def refresh(self) -> None:
        """To be called when the model has got other weights."""
        self.body.refresh()

    def prompt_log_probs(self, prefill: Prefill, prompt: int, temperature: float) -> list[float]:
        """Log-probability of each token of a prompt given the ones before it, 0.0 first."""
        hidden = prefill.of(prompt)[:-1]
        targets = torch.tensor(prefill.prompts[prompt][1:], device=self.device)
        out = [0.0]
        for start in range(0, len(targets), _HEAD_CHUNK):
            logits = self.logits(hidden[start : start + _HEAD_CHUNK])
            if temperature != 1:
                logits = logits / temperature
            wanted = targets[start : start + _HEAD_CHUNK]
            out += (-cross_entropy(logits, wanted, reduction="none")).tolist()
        return out

    def _choose(self, pad: int) -> Body:
        """The first body that gives what the model gives for two rows."""
        model = self.model
        makers: list[Callable[[], Body]] = [lambda: SlotBody(model, self._plain)]
        if self.device.type == "cpu" and has_fast_body(model):
            makers.insert(0, lambda: FastBody(model))
        joined = JoinedProjections(model)
        if joined:
            makers.insert(0, lambda: SlotBody(model, self._plain, joined))
        expected = self._expected()
        for make in makers:
            try:
                body = make()
                fits = agree(self._trial(body), expected, self.dtype)
            except Exception as error:
                # Whatever a model's code does with arguments that it does not know.
                logger.debug("%s does not fit: %r", model.config.model_type, error)
                continue
            if fits:
                return body
        logger.warning(
            "models of type %s are sampled from through the cache of transformers, whole batches "
            "at a time, which is slower: their layers do not keep keys and values as the engine "
            "does",
            model.config.model_type,
        )
        return WholeBody(model, self._plain, pad)

    def _rows(self) -> tuple[list[list[int]], list[list[int]]]:
        """Prompts of a trial, one longer than the other, and the two tokens that follow each."""
        most = int(self.model.config.get_text_config(decoder=True).vocab_size) - 1
        return [[1, most, most // 2], [most // 3]], [[most // 2, 1], [1, most // 2]]

    @torch.no_grad()
    def _expected(self) -> torch.Tensor:
        """Hidden states of the trial's rows, by the model as it is."""
        states = []
        for prompt, more in zip(*self._rows(), strict=True):
            tokens = torch.tensor([[*prompt, *more]], device=self.device)
            states.append(
                self._plain(
                    input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False
                ).last_hidden_state[0]
            )
        return torch.cat(states).float()

    @torch.no_grad()
    def _trial(self, body: Body) -> torch.Tensor:
        """Hidden states of the trial's rows, by ``body``: prompts first, then token by token."""
        prompts, more = self._rows()
        cache = body.new_cache()
        cache.reserve(2, 16, 0)
        prefill = body.prefill(prompts, cache, [0, 1], [0, 1])
        states = [[prefill.of(0)], [prefill.of(1)]]
        lengths = [len(prompt) for prompt in prompts]
        body.arrange(cache, lengths)
        for tokens in zip(*more, strict=True):
            positions = torch.tensor(lengths, device=self.device)
            hidden = body.step(
                torch.tensor(tokens, device=self.device), positions, max(lengths) + 1, cache
            )
            lengths = [length + 1 for length in lengths]
            for own, state in zip(states, hidden, strict=True):
                own.append(state[None])
        return torch.cat([state for own in states for state in own]).float()
