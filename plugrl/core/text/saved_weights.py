"""The weights of a saved state, for those that sample, serve, export and evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl.core.text.jobs.model_groups import SharedModelGroup
    from plugrl.core.text.models import Models


def load_weights(
    models: Models,
    state: Mapping[str, Any] | None,
    *,
    initial: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, SharedModelGroup] | None = None,
) -> None:
    """Give models the last trained weights of a state, of which nothing else is read.

    Data positions, jobs, algorithms and optimizers of users are for training on; they may have
    come to keep more than the run did.

    Args:
        models: as they were loaded from their sources.
        state: of a trainer of language models; None: nothing was trained yet.
        initial: of an earlier phase, by model name.
        groups: of models that jobs train, whose weights are those of the last job.

    Raises:
        ConfigError: the trained models are not those of the state.
        RunError: weights do not fit their model.
    """
    models.load_weights(initial)
    if state is None:
        return
    models.load_state_dict(state["models"], weights_only=True)
    for name, group in (groups or {}).items():
        group.load_weights(state["groups"][name])
