"""What compiling the layers of a language model costs and saves, as measured."""

from __future__ import annotations

from plugrl.core.run.process.compiler import Payback

#: Seconds that compiling takes: all that a training pass compiles, or all of a decode step.
_COST = {"cpu": 100.0, "cuda": 40.0}
#: Seconds of a training step that are saved, and the parameters of the model where that was
#: measured: steps of 2,000 tokens on one thread of a CPU, of 26,000 tokens on an H200.
_SAVED_BY_PASS = {"cpu": (0.02, 330_000), "cuda": (0.4, 600_000_000)}
#: Seconds of a decode step that are saved on an H200, and the layers of the model: between matrix
#: products, operations take as long for small models as for large ones.
_SAVED_BY_STEP = {"cuda": (0.0013, 28)}


def of_training_pass(device: str, parameters: int) -> Payback | None:
    """What compiled layers pay back in training steps of a model of this size; None: not known."""
    return _payback(device, _SAVED_BY_PASS, parameters)


def of_decode_step(device: str, layers: int) -> Payback | None:
    """What so many compiled layers pay back in decode steps; None: nothing is gained."""
    return _payback(device, _SAVED_BY_STEP, layers)


def _payback(device: str, saved: dict[str, tuple[float, int]], size: int) -> Payback | None:
    if device not in saved:
        return None
    seconds, measured_at = saved[device]
    return Payback(_COST[device], seconds * size / measured_at)
