"""Log-probabilities and entropies from last hidden states, a chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint


class ChunkedHead:
    """Computes what is asked of the distribution of each token.

    The logits of one chunk are in memory at a time, forward and backward: those of a chunk are
    computed again in the backward pass.

    Args:
        logits: of hidden states, [P, V] of [P, H], in float32.
        chunk: tokens whose logits are there at the same time.
    """

    def __init__(self, logits: Callable[[torch.Tensor], torch.Tensor], chunk: int) -> None:
        self._logits = logits
        self._chunk = chunk
        self._compiled: Callable[..., torch.Tensor] | None = None

    def compile(self) -> None:
        """Let chunks be compiled graphs from now on, of one size each.

        Logits, softmax and entropy are then never written in float32, forward or backward.
        """
        self._compiled = torch.compile(_fused, dynamic=False)

    def undo(self) -> None:
        """Compute chunks uncompiled again."""
        self._compiled = None

    def __call__(
        self,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        temperature: float | torch.Tensor,
        *,
        entropy: bool = False,
    ) -> torch.Tensor:
        """Log-probabilities of ``targets``, [P], or with the entropies beside them, [P, 2].

        Args:
            hidden: [P, H].
            targets: [P].
            temperature: by which logits are divided: a number, or one for each token, [P, 1].
            entropy: whether it is asked for.
        """
        if self._compiled is not None:
            return self._in_equal_chunks(self._compiled, hidden, targets, temperature, entropy)
        of_chunk = _with_entropy if entropy else _log_probs
        if len(targets) <= self._chunk:
            return of_chunk(self._logits, hidden, targets, temperature)
        states, tokens = hidden.split(self._chunk), targets.split(self._chunk)
        heat: list[float | torch.Tensor] = [temperature] * len(states)
        if isinstance(temperature, torch.Tensor):
            heat = list(temperature.split(self._chunk))
        parts = zip(states, tokens, heat, strict=True)
        return torch.cat(
            [checkpoint(of_chunk, self._logits, *part, use_reentrant=False) for part in parts]
        )

    def _in_equal_chunks(
        self,
        compiled: Callable[..., torch.Tensor],
        hidden: torch.Tensor,
        targets: torch.Tensor,
        temperature: float | torch.Tensor,
        entropy: bool,
    ) -> torch.Tensor:
        """The last chunk is filled up, so that all are one graph."""
        count = len(targets)
        missing = -count % self._chunk
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, missing))
        targets = torch.nn.functional.pad(targets, (0, missing))
        heat: list[torch.Tensor | None] = [None] * (len(targets) // self._chunk)
        if isinstance(temperature, torch.Tensor):
            whole = torch.nn.functional.pad(temperature, (0, 0, 0, missing), value=1.0)
            heat = list(whole.split(self._chunk))
        elif temperature != 1:
            heat = [hidden.new_full((self._chunk, 1), temperature, dtype=torch.float32)] * len(heat)
        parts = zip(hidden.split(self._chunk), targets.split(self._chunk), heat, strict=True)
        found = [
            checkpoint(
                compiled, self._logits, *part, entropy,
                use_reentrant=False, preserve_rng_state=False,
            )
            for part in parts
        ]  # fmt: skip
        return torch.cat(found)[:count]


def _fused(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor | None,
    entropy: bool,
) -> torch.Tensor:
    """Sums over the vocabulary alone, which a compiler makes of logits as they are read."""
    logits = logits_of(hidden)
    if temperature is not None:
        logits = logits / temperature
    total = logits.logsumexp(-1, keepdim=True)
    # A sum over one place: the gradient of an index would be written beside that of the logits.
    places = torch.arange(logits.shape[-1], device=logits.device)
    chosen = torch.where(places == targets[:, None], logits, 0.0).sum(-1)
    log_probs = chosen - total[:, 0]
    if not entropy:
        return log_probs
    mean = ((logits - total).exp() * logits).sum(-1)
    return torch.stack([log_probs, total[:, 0] - mean], 1)


def _log_probs(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float | torch.Tensor,
) -> torch.Tensor:
    logits = _divided(logits_of(hidden), temperature)
    # One kernel a pass in place of a maximum, a sum of exponentials and a gather.
    return -torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def _with_entropy(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float | torch.Tensor,
) -> torch.Tensor:
    """Log-probabilities and entropies, [P, 2]."""
    log_probs = _divided(logits_of(hidden), temperature).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return torch.stack([log_probs.gather(1, targets[:, None])[:, 0], entropy], 1)


def _divided(logits: torch.Tensor, temperature: float | torch.Tensor) -> torch.Tensor:
    if isinstance(temperature, torch.Tensor) or temperature != 1:
        logits = logits / temperature
    return logits
