"""``VectorEnvironment``: several copies of an environment, stepped together as arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space

    from plugrl.core.tensordict.environment.layout import Layout

#: What an environment is made for: training, evaluation, or evaluation with frames to look at.
Split = Literal["train", "test", "film"]

#: A hand-made policy: spaces, observations ``[N, *observation]`` and a generator to actions
#: ``[N, *action]``.
Script = Callable[["AgentSpaces", "np.ndarray", "np.random.Generator"], "np.ndarray"]

#: The name of the only agent of an environment that has one.
AGENT = "agent"


def space_text(space: Space[Any]) -> str:
    """A space on one line, for messages."""
    return " ".join(str(space).split())


@dataclass(frozen=True, slots=True)
class RawSpaces:
    """The spaces of an environment itself, before its arrays are turned into those of networks.

    Attributes:
        observation: of one copy.
        action: of one copy.
        rescale: networks act in [-1, 1] instead of within the bounds of a Box.
    """

    observation: Space[Any]
    action: Space[Any]
    rescale: bool = False


@dataclass(frozen=True, slots=True)
class AgentSpaces:
    """What an agent sees and does.

    Attributes:
        observation: the space of what it sees.
        action: the space of what it does.
        layout: the named parts of an observation; None: it has none.
        scripts: hand-made policies that the task has, by name.
        raw: the environment's own spaces; None: there are no others.
        takes_turns: whether it is not asked at every step, in a preview of the task.
    """

    observation: Space[Any]
    action: Space[Any]
    layout: Layout | None = None
    scripts: Mapping[str, Script] = field(default_factory=dict, compare=False)
    raw: RawSpaces | None = field(default=None, compare=False)
    takes_turns: bool = field(default=False, compare=False)


@dataclass(slots=True)
class AgentStep:
    """What one step of N environments gave one agent.

    Attributes:
        observation: ``[N, *observation]``, what the next action is chosen from.
        reward: ``[N]``.
        terminated: ``[N]``, the episode ended in a state that is worth nothing.
        truncated: ``[N]``, the episode was cut off; its last state has a value.
        final_observation: ``[N, *observation]``; rows whose episode ended hold its true last
            observation. None: no episode ended, or ``observation`` is the last one and the next
            step is not ``real``.
        real: ``[N]``; false where the agent took no part: it had left, or the environment used
            the step to begin anew. None: it took part everywhere.
    """

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_observation: np.ndarray | None = None
    real: np.ndarray | None = None


class VectorEnvironment(ABC):
    """N copies of an environment with one or more agents; copies that end begin anew.

    Attributes:
        num_envs: N.
        spaces: the spaces of each agent by name, in the order of the agents.
        crashes: how many copies broke and were built again.
        needs_params: whether :meth:`take_params` is called before each step.
        score: of what :meth:`take_metrics` gives, the number by which a checkpoint is the best;
            None: the mean return.
    """

    num_envs: int
    spaces: Mapping[str, AgentSpaces]
    crashes: int = 0
    needs_params: bool = False
    score: str | None = None

    @property
    def takes_turns(self) -> bool:
        """Whether :meth:`acting` may leave an agent out; by default, whether it is overridden."""
        return type(self).acting is not VectorEnvironment.acting

    @property
    def render_fps(self) -> float:
        """Frames in a second of what :meth:`render` shows."""
        return 30.0

    @abstractmethod
    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Begin all episodes anew; give each agent's observations ``[N, *observation]``."""

    @abstractmethod
    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """Take one action ``[N, *action]`` of each agent in every copy.

        The arrays given belong to the caller, who may keep them.

        Raises:
            RunError: copies broke too often, or an observation or reward is not finite.
        """

    def acting(self) -> Mapping[str, np.ndarray] | None:
        """Whose next action has an effect: a mask ``[N]`` for each agent; None: all, always.

        Agents are not asked where it is false: the action there is 0. What they earn there and
        whether the episode ends there belongs to the last step in which they were asked.
        """
        return None

    def take_params(self, params: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Be told what the next actions were drawn from.

        Args:
            params: the parameters ``[N, P]`` of each agent's distribution, such as logits, with
                -inf for what is masked; zeros where the agent is not asked.
        """

    def take_metrics(self, episodes: int | None = None) -> dict[str, float]:
        """Numbers of the episodes that ended since the last call, besides returns and lengths.

        Args:
            episodes: of an evaluation, how many it plays, each copy its share of them; those
                beyond do not count. None: all count.
        """
        return {}

    def state_dict(self) -> dict[str, Any] | None:
        """All that the copies need to go on as they would have; None: that cannot be saved."""
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        raise NotImplementedError(f"{type(self).__name__} gives no state")

    def render(self) -> np.ndarray | None:
        """A frame ``[height, width, 3]`` of the first copy; None: it has none."""
        return None

    def close(self) -> None:  # noqa: B027 - most environments hold nothing
        """Release what the copies hold."""
