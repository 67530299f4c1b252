"""The environment of a run, with the models, prompts and scorer that its configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError
from plugrl.core.text.dialogue.language_models import LanguageModelSystem
from plugrl.core.text.dialogue.scorer import scorer_of_run
from plugrl.core.text.models import Models

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.environment import Environment
    from plugrl.core.trainer import TrainerContext


def environment_of(context: TrainerContext) -> Environment:
    """Load the models and build the environment of the section ``red_team``.

    Raises:
        ConfigError: a model cannot be loaded, or a section is wrong.
    """
    params, section = context.hyper_params, context.hyper_params.red_team
    models = Models.load(
        params.models, context.factory, seed=params.seed, device=context.settings.device
    )
    system = LanguageModelSystem(models, section)
    scorer = None
    # One that scores in a way of its own may have no such setting.
    if section.get("scorer") is not None:
        scorer = scorer_of_run(context.factory, section.scorer, "red_team.scorer", models)
    environment: Environment = context.factory.build("dialogue_environment", section, "red_team")
    environment.bind(system, prompts_of(context, section.get("split", "train")), scorer)
    return environment


def prompts_of(context: TrainerContext, split: str) -> Sequence[Any]:
    """The prompts of a split of the run's scenario.

    Raises:
        ConfigError: there is no scenario, or no such split.
    """
    if context.scenario_instance is None:
        raise ConfigError("there is no scenario; give one, such as scenario: red_team")
    return context.scenario_instance.dataset(split)
