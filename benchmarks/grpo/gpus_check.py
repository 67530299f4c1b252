"""One check of ``grpo_gpus``: several devices learn what one learns, and what dies is seen to.

It is given a JSON object as ``gpus_side`` is, with the name of the check: a function below, which
gives what it found, and whether that is as it should be.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

GIVEN = json.loads(sys.argv[1])
# What plugrl's side of the benchmarks on one device reads.
sys.argv[1:] = GIVEN["words"]
sys.path.insert(0, str(Path(__file__).parent))

import plugrl_side  # noqa: E402

import plugrl  # noqa: E402
from plugrl.core.config.sources.writer import dump_yaml  # noqa: E402
from plugrl.core.errors import RunError, RunInterrupted  # noqa: E402
from plugrl.core.experiment import apply_process_settings, prepare  # noqa: E402
from plugrl.core.text.batch import Batch  # noqa: E402
from plugrl.core.text.inference.services import ModelSpec  # noqa: E402
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss  # noqa: E402
from plugrl.core.text.learn.step import aggregation_weights  # noqa: E402
from plugrl.core.text.trajectory import Trajectory  # noqa: E402
from plugrl.plugins.distributed.train_service import FsdpTrainService  # noqa: E402
from plugrl.testing.tiny import merged  # noqa: E402
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer  # noqa: E402

WORLD = GIVEN["world"]
#: Steps of a run that is interrupted or loses somebody, and of weights that are compared.
STEPS, COMPARED = 6, 20
#: How many times as far as one device from itself several may be from it, see :func:`weights`.
ALLOWED = 4.0


@plugrl.register_trainer("checked_grpo")
class CheckedGrpo(SelfHostedGrpoTrainer):
    """Says when training begins, and when a step is about to end, with its checkpoint."""

    begins: Callable[[Any], None] = staticmethod(lambda trainer: None)
    ends: Callable[[Any, int], None] = staticmethod(lambda trainer, step: None)

    def _train(self) -> None:
        CheckedGrpo.begins(self)
        super()._train()

    def _end_step(self, step: int, metrics: dict[str, float]) -> None:
        CheckedGrpo.ends(self, step)
        super()._end_step(step, metrics)


def configuration() -> dict[str, Any]:
    """A run of a few steps with a checkpoint after each."""
    own = {
        "trainer": {"type": "checked_grpo", "total_train_steps": STEPS},
        "settings": {"checkpoint_every": 1},
    }
    return merged(merged(plugrl_side.configuration(plugrl_side.GIVEN), GIVEN["sections"]), own)


def run_folder(tree: Mapping[str, Any]) -> Path:
    """The folder of the one run that was made."""
    (folder,) = Path(tree["settings"]["runs_folder"], tree["experiment_name"]).iterdir()
    return folder


def steps_of(folder: Path) -> list[int]:
    """The steps that a run has recorded, in order."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["step"] for line in lines]


def digest(trainer: Any) -> int:
    """Another number for other weights."""
    found = 0
    for name, weight in sorted(trainer.models["policy"].service().weights().items()):
        flat = weight.detach().contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(flat.numpy().tobytes(), zlib.crc32(name.encode(), found))
    return found


def weights() -> dict[str, Any]:
    """Weights after 20 optimizer steps on all devices, beside those after the same on one.

    Answers are made up: sampled ones would differ from the first token on that a rounding decides.
    The tolerance is what rounding does to one device: it learns from the same rows in the reverse
    order too, whose sums are rounded otherwise. Several may be four times as far from it, as a
    share of the way that its weights went.
    """
    experiment = prepare(configuration())
    apply_process_settings(experiment)
    model = experiment.validated.hyper_params.models["policy"]
    options = {n: v for n, v in model.train.to_dict().items() if n != "type"}

    def learned(workers: int, order: int) -> dict[str, torch.Tensor]:
        service = FsdpTrainService({**options, "workers": workers})
        device = plugrl_side.GIVEN.device
        service.load(ModelSpec("policy", model.source, 0, device, None, True, COMPARED))
        begun.update(service.weights())
        for step in range(COMPARED):
            service.forward_backward(made_up(step, order), WeightedLoss(policy_gradient, None))
            service.optimizer_step()
        found = dict(service.weights())
        service.close()
        return found

    begun: dict[str, torch.Tensor] = {}
    one, other, several = learned(1, 1), learned(1, -1), learned(WORLD, 1)
    way = distance(one, begun)
    itself, devices = distance(one, other) / way, distance(one, several) / way
    return {
        "share_of_the_way_in_reverse_order": itself,
        "share_of_the_way_on_all_devices": devices,
        "passed": way > 0 and devices <= ALLOWED * itself,
    }


def made_up(step: int, order: int) -> Batch:
    """Answers as many and as long as the work's, with advantages; -1: last row first."""
    given = plugrl_side.GIVEN
    file = (given.folder / "model" / "config.json").read_text(encoding="utf-8")
    words, count = json.loads(file)["vocab_size"], given.prompts * given.samples
    draw = torch.Generator().manual_seed(step)
    ids = torch.randint(3, words, (count, 8 + given.tokens), generator=draw)
    advantages = torch.randn(count, generator=draw)
    rows = list(range(count))[::order]
    mask = [0] * 8 + [1] * given.tokens
    batch = Batch.from_trajectories([Trajectory(ids[row].tolist(), mask) for row in rows])
    trained = batch.values["loss_mask"]
    batch.values[LOSS_WEIGHTS] = aggregation_weights(trained, "token-mean")
    batch.values["advantages"] = trained * advantages[rows][:, None]
    return batch


def policy_gradient(
    logp: torch.Tensor, batch: Batch, config: Any
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The gradient that the first step of GRPO takes."""
    return -batch.values["advantages"] * logp, {}


def distance(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Of weights from weights."""
    return sum(float((one[n].double() - other[n].double()).square().sum()) for n in one) ** 0.5


def resume() -> dict[str, Any]:
    """A run of all devices goes on on one, and then on all again, each time after an interrupt.

    Each must begin with the very weights with which the one before was interrupted.
    """
    tree = configuration()
    begun: list[int] = []
    interrupted: list[int] = []

    def ends(trainer: Any, step: int) -> None:
        if step in (2, 4):
            interrupted.append(digest(trainer))
            signal.raise_signal(signal.SIGINT)

    CheckedGrpo.begins = staticmethod(lambda trainer: begun.append(digest(trainer)))
    CheckedGrpo.ends = staticmethod(ends)
    run_until_interrupted(lambda: plugrl.train(tree))
    folder = run_folder(tree)
    set_workers(folder, 1)
    run_until_interrupted(lambda: plugrl.resume(folder))
    set_workers(folder, WORLD)
    plugrl.resume(folder)
    steps = steps_of(folder)
    return {
        "steps": steps,
        "weights_equal": begun[1:] == interrupted,
        "passed": begun[1:] == interrupted and steps == list(range(STEPS + 1)),
    }


def run_until_interrupted(train: Callable[[], Any]) -> None:
    """A part of a run, which ends by an interrupt."""
    try:
        train()
    except RunInterrupted:
        return
    raise RunError("the run was not interrupted")


def set_workers(folder: Path, count: int) -> None:
    """Change how many ranks a run goes on with."""
    from plugrl.core.run.initialization import read_config

    tree = read_config(folder)
    tree["models"]["policy"]["train"]["workers"] = count
    (folder / "config.yaml").write_text(dump_yaml(tree), encoding="utf-8")


def killed_rank() -> dict[str, Any]:
    """The last rank is killed: the run says so, and comes to its end when it is resumed."""
    tree, died = configuration(), []

    def ends(trainer: Any, step: int) -> None:
        if step == 3 and not died:
            died.append(time.perf_counter())
            ranks = trainer.models["policy"].service().ranks
            os.kill(ranks.processes[-1], signal.SIGKILL)

    CheckedGrpo.ends = staticmethod(ends)
    try:
        plugrl.train(tree)
    except RunError as error:
        told = str(error)
    else:
        return {"passed": False, "told": "nothing: the run came to its end"}
    seconds = time.perf_counter() - died[0]
    folder = run_folder(tree)
    plugrl.resume(folder)
    named = f"rank {WORLD - 1} on node" in told
    steps = steps_of(folder)
    return {
        "told": told,
        "seconds_until_told": seconds,
        "steps": steps,
        "passed": named and steps == list(range(STEPS + 1)),
    }


def killed_engine() -> dict[str, Any]:
    """The first engine is killed: another one takes over, and the run comes to its end."""
    tree, replaced = configuration(), []

    def ends(trainer: Any, step: int) -> None:
        replicas = trainer.models["policy"].inference.replicas
        if step == 3:
            os.kill(int(replicas.places[0]["pid"]), signal.SIGKILL)
        replaced.append(replicas.restarts)

    CheckedGrpo.ends = staticmethod(ends)
    steps = steps_of(plugrl.train(tree).folder)
    return {
        "steps": steps,
        "replaced": replaced[-1],
        "passed": replaced[-1] == 1 and steps == list(range(STEPS + 1)),
    }


def main() -> None:
    """Make the check, and write what was found."""
    checks = {each.__name__: each for each in (weights, resume, killed_rank, killed_engine)}
    found = checks[GIVEN["check"]]()
    Path(GIVEN["file"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
