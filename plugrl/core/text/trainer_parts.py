"""The parts of a trajectory trainer, made from the sections that describe them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.text.data.curriculum import Curriculum
from plugrl.core.text.data.files import place_of_problem
from plugrl.core.text.data.loader import PromptLoader, filter_items, problems, require_column
from plugrl.core.text.evaluate.pass_at_k import Passing
from plugrl.core.text.evaluate.validation import Validation
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.text.schedule.collector import LockstepCollector, TrajectoryCollector
from plugrl.core.text.schedule.free_running import Streaming
from plugrl.core.text.schedule.overlapping import BatchAhead, Sizes
from plugrl.core.text.schedule.pool import TrajectoryPool
from plugrl.core.text.schedule.state_machine import (
    BATCH_ASYNC,
    FULLY_ASYNC,
    SYNC,
    Rules,
    Versions,
    WeightStates,
)
from plugrl.core.text.schedule.weight_sync import PARITY_TOLERANCE, WeightSync

if TYPE_CHECKING:
    from plugrl.core.config.view import ConfigView
    from plugrl.core.scenario import DataItem, ScenarioInstance
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.models import Models
    from plugrl.core.text.rollout.lockstep import LockstepRollouts
    from plugrl.core.text.rollout.stream import Spent

logger = logging.getLogger(__name__)


def decode_steps(params: ConfigView) -> dict[str, int]:
    """Steps of decoding that training takes, by the model that rollouts sample from.

    They are counted as one answer after another: as if a training step had one of full length. A
    trainer or worker without such numbers, as one that only validates, has none.
    """
    worker = params.get("rollout_worker") or {}
    steps, length = params.trainer.get("total_train_steps"), worker.get("max_response_length")
    return {} if None in (steps, length) else {worker["model"]: steps * length}


def make_pool(params: ConfigView) -> TrajectoryPool:
    """The pool of ``trajectory_pool``; a group is complete after ``rollout_repeat_n`` attempts."""
    section = params.trajectory_pool
    return TrajectoryPool(
        section.key_list,
        group_size=section.group_size or params.data.rollout_repeat_n,
        batch_size=section.batch_size or 1,
        rule=section.check_batch_ready_function,
        drop_equal_groups=section.drop_equal_groups,
        oldest_first=params.weight.sync_mode == FULLY_ASYNC,
    )


def make_loader(
    params: ConfigView,
    scenario: ScenarioInstance | None,
    encode: Callable[[Any], Sequence[int]],
    worker: type[RolloutWorker] = RolloutWorker,
) -> PromptLoader:
    """The training prompts of ``data``.

    Args:
        params: the whole configuration.
        scenario: where problems come from when there are no files.
        encode: gives the tokens of a prompt, by which it is measured.
        worker: reads the rows.

    Raises:
        ConfigError: there are no problems, a column is missing, or every prompt is too long.
    """
    data = params.data
    items = filter_items(problems(data, data.split, scenario), data.keep)
    items = worker.read_rows(items, params.rollout_worker, data, "data", is_val=False)
    if data.filter_prompts:
        require_column(items, data.prompt_key, "data.filter_prompts")
        items = _short_enough(
            items, data.prompt_key, params.rollout_worker.max_prompt_length, encode
        )
    seed = params.seed if data.seed is None else data.seed
    order = None
    if data.curriculum is not None:
        order = Curriculum(items, data.curriculum, shuffle=data.shuffle, seed=seed)
    return PromptLoader(
        items,
        order=order,
        batch_size=data.batch_size,
        repeat=data.rollout_repeat_n,
        shuffle=data.shuffle,
        seed=seed,
        prompt_key=data.prompt_key,
        answer_key=data.answer_key,
    )


def _length(item: DataItem, number: int, key: str, encode: Callable[[Any], Sequence[int]]) -> int:
    try:
        return len(encode(item[key]))
    except Exception as error:
        said = error if isinstance(error, PlugrlError) else one_line(error)
        where = place_of_problem(item, number)
        raise ConfigError(f"data.filter_prompts: {where}, column {key!r}: {said}") from error


def _short_enough(
    items: Sequence[DataItem], key: str, limit: int, encode: Callable[[Any], Sequence[int]]
) -> list[DataItem]:
    kept = [item for n, item in enumerate(items) if _length(item, n, key, encode) <= limit]
    if not kept:
        raise ConfigError(
            f"data.filter_prompts: all {len(items)} prompts have more than "
            f"rollout_worker.max_prompt_length={limit} tokens"
        )
    left_out = len(items) - len(kept)
    if left_out:
        logger.info(
            "data.filter_prompts: %d of %d problems are left out, their prompts have more than "
            "%d tokens",
            left_out,
            len(items),
            limit,
        )
    return kept


def held_out(
    params: ConfigView,
    scenario: ScenarioInstance | None,
    splits: Sequence[str],
    worker: type[RolloutWorker] = RolloutWorker,
) -> dict[str, Sequence[DataItem]]:
    """The problems of ``validate.data`` by split, as ``worker`` reads their rows.

    Raises:
        ConfigError: there are no problems, or a column is missing.
    """
    data, found = params.validate.data, {}
    for split in splits:
        items = problems(data, split, scenario, section="validate.data", general=params.data)
        section, place = params.rollout_worker, f"validate.data ({split})"
        items = worker.read_rows(items, section, params.data, place, is_val=True)
        found[split] = items[: data.limit]
    return found


def make_validation(
    params: ConfigView,
    scenario: ScenarioInstance | None,
    rollouts: LockstepRollouts,
    sampling: SamplingParams,
    splits: Sequence[str],
) -> Validation | None:
    """The evaluation of ``validate`` on ``splits``; None when it is switched off.

    Raises:
        ConfigError: there are no problems, or a column is missing.
    """
    section, data = params.validate, params.data
    if not section.enabled:
        return None
    return Validation(
        rollouts,
        held_out(params, scenario, splits, type(rollouts.worker)),
        sampling,
        temperature=section.temperature,
        keys=(data.prompt_key, data.answer_key),
        samples=section.samples,
        passing=Passing(section.pass_metric, section.pass_threshold),
        source_key=section.data_source_key,
    )


def make_states(params: ConfigView, models: Models) -> WeightStates:
    """The state machine of ``weight``; the versions are those of now."""
    section = params.weight
    rules = Rules(
        mode=section.sync_mode,
        threshold=section.staleness_threshold,
        in_flight=section.in_flight,
        batch_size=params.trajectory_pool.batch_size or 1,
    )
    return WeightStates(rules, {name: Versions() for name in models.trained})


def make_collector(
    common: tuple[Any, ...],
    rollouts: LockstepRollouts,
    states: WeightStates,
    steps: int,
    spent: Spent,
) -> TrajectoryCollector:
    """What collects trajectories in the mode of ``weight.sync_mode``.

    Args:
        common: the arguments of :class:`TrajectoryCollector`; the first is the whole configuration.
        rollouts: makes the attempts.
        states: the state machine.
        steps: training steps of the whole training.
        spent: told how long attempts in the background took.
    """
    params = common[0]
    if states.rules.mode == SYNC:
        return LockstepCollector(*common, rollouts=rollouts)
    kind = BatchAhead if states.rules.mode == BATCH_ASYNC else Streaming
    per_attempt = rollouts.worker.trajectories_per_attempt(params.rollout_worker)
    sizes = Sizes(steps, per_attempt)
    stream, check = rollouts.stream(spent), rollouts.attribution.check
    return kind(*common, stream=stream, states=states, sizes=sizes, check=check)


def make_syncs(params: ConfigView, models: Models) -> dict[str, WeightSync]:
    """One weight sync for each trained model, by name."""
    shares = params.weight.sync_mode == SYNC
    return {
        name: WeightSync(
            models[name], _tolerance(params.weight, params.models[name]), shares=shares
        )
        for name in models.trained
    }


def _tolerance(weight: Mapping[str, Any], model: ConfigView) -> float:
    configured = weight["parity_tolerance"]
    return PARITY_TOLERANCE[model.source.dtype] if configured is None else float(configured)
