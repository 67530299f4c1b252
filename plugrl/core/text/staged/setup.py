"""The parts of a staged trainer of text agents, made from the sections that describe them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plugrl.core.text.data.loader import attempts_at_all
from plugrl.core.text.jobs.model_groups import SharedModelGroup
from plugrl.core.text.models import Models
from plugrl.core.text.rollout.attempts import RolloutContext
from plugrl.core.text.rollout.worker import check_stops, sampling_of
from plugrl.core.text.staged.limits import Meter
from plugrl.core.text.staged.sampling import EpisodeSampler
from plugrl.core.text.trainer_parts import held_out, make_loader

if TYPE_CHECKING:
    from plugrl.core.protocol.nested_array_dict import NestedArrayDict
    from plugrl.core.protocol.protocol import Protocol
    from plugrl.core.text.data.loader import Prompt, PromptLoader
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.protocol.worker import ProtocolRolloutWorker
    from plugrl.core.text.rollout.task import RolloutTask
    from plugrl.core.text.staged.journal import RolloutJournal
    from plugrl.core.text.staged.sampling import Play, Sampled
    from plugrl.core.trainer import TrainerContext


@dataclass
class Parts:
    """What a staged trainer is made of.

    Attributes:
        worker: plays the episodes.
        models: of the run.
        groups: of agents that share a model, by model name.
        loader: gives the problems of iterations.
        held_out: an attempt at each held-out problem.
        sampler: plays attempts.
        meter: counts what they cost.
        sampling: how replies are sampled in training.
        test_sampling: and in tests.
        seed: the run's.
    """

    worker: ProtocolRolloutWorker
    models: Models
    groups: Mapping[str, SharedModelGroup]
    loader: PromptLoader
    held_out: Sequence[Prompt]
    sampler: EpisodeSampler
    meter: Meter
    sampling: SamplingParams
    test_sampling: SamplingParams
    seed: int

    @property
    def protocol(self) -> Protocol:
        """Who speaks when, and what it is worth."""
        return self.worker.protocol

    async def play(self, task: RolloutTask) -> NestedArrayDict:
        """One episode of a problem, to its end, as rollouts ``[1, R]``."""
        episode = await self.worker.begin(task).play()
        return self.sampler.rollouts(task, [episode], self.protocol)

    def sample(
        self,
        prompts: Sequence[Prompt],
        iteration: int,
        play: Play,
        journal: RolloutJournal | None,
        *,
        is_test: bool,
    ) -> Sampled:
        """The rollouts of prompts; the errors are those of :meth:`EpisodeSampler.sample`."""
        sampling = self.test_sampling if is_test else self.sampling
        context = RolloutContext(self.seed, iteration, sampling, is_test)
        return self.sampler.sample(prompts, context, play, journal)


def make_parts(context: TrainerContext, jobs: Path, *, tests: bool, keeps: bool = False) -> Parts:
    """Build the models, the worker, the data and what plays episodes.

    Args:
        context: of the run.
        jobs: where services that train in this process keep their jobs.
        tests: whether held-out episodes are played.
        keeps: whether trajectories are kept beside rollouts.

    Raises:
        ConfigError: a model, the data or the worker cannot be had.
    """
    params, factory = context.hyper_params, context.factory
    models = Models.load(
        params.models, factory, seed=params.seed, device=context.settings.device, folder=jobs
    )
    section = params.rollout_worker
    worker: ProtocolRolloutWorker = factory.build("rollout_worker", section, "rollout_worker")
    sampling = sampling_of(section)
    check_stops(section, worker, models.inference)
    meter = Meter(params.text_rl)
    return Parts(
        worker=worker,
        models=models,
        groups=make_groups(worker.models, worker.frozen, models),
        loader=make_loader(params, context.scenario_instance, lambda prompt: []),
        held_out=_held_out(context) if tests else [],
        sampler=EpisodeSampler(
            worker, models.inference, meter, timeout=section.get("timeout"), keeps=keeps
        ),
        meter=meter,
        sampling=sampling,
        test_sampling=replace(sampling, temperature=params.validate.temperature, top_p=1.0),
        seed=params.seed,
    )


def make_groups(
    models_of_agents: Mapping[str, str], frozen: Collection[str], models: Models
) -> dict[str, SharedModelGroup]:
    """One group for each model that agents have, by model name.

    Agents that are frozen do not learn; where none of a model does, the group is frozen.

    Raises:
        ConfigError: there is no such model.
    """
    groups = {}
    for model in dict.fromkeys(models_of_agents.values()):
        own = [agent for agent, name in models_of_agents.items() if name == model]
        learning = [agent for agent in own if agent not in frozen]
        groups[model] = SharedModelGroup(model, learning or own, models[model], freeze=not learning)
    return groups


def _held_out(context: TrainerContext) -> list[Prompt]:
    params = context.hyper_params
    data = params.validate.data
    splits = ["validation"] if data.data_files else list(data.splits)
    found = held_out(params, context.scenario_instance, splits)
    keys = (params.data.prompt_key, params.data.answer_key)
    return [
        prompt
        for split, items in found.items()
        for prompt in attempts_at_all(items, split, 1, keys)
    ]
