"""What episodes of text agents say in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from plugrl.core.protocol.state import Tally, Verdict

if TYPE_CHECKING:
    from plugrl.core.protocol.nested_array_dict import NestedArrayDict
    from plugrl.core.protocol.protocol import Protocol

#: Names of the metrics that :func:`episode_metrics` gives of all episodes.
OF_EPISODES = (
    *("accuracy", "accuracy_of_0", "accuracy_of_1", "undecided", "accepted"),
    *("rounds", "precision", "recall", "never_right"),
)
#: How those of one agent end, after ``AGENT/``.
OF_AGENTS = ("/reward", "/reward_min", "/retried")


def verdicts_of(rollouts: NestedArrayDict, protocol: Protocol) -> np.ndarray:
    """The verdict ``[n]`` of each episode: what was decided and counted, by the protocol's rule.

    A decision that was said when none counts is none.
    """
    said = np.asarray(rollouts["agents", "decision"]).astype(np.int64)
    padding = np.asarray(rollouts["padding"]).astype(bool)
    seeds, labels = np.asarray(rollouts["seed"])[:, 0], np.asarray(rollouts["y"])[:, 0]
    state = protocol.begin(seeds, labels)
    judge = protocol.index(protocol.verifier_names[0])
    forced = {"zero": 0 * labels, "one": 0 * labels + 1, "y": labels}.get(
        protocol.force_guess or ""
    )
    verdict = np.full(len(labels), int(Verdict.UNDECIDED), np.int64)
    for turn in range(said.shape[1]):
        counts = protocol.may_decide(np.full(len(labels), turn), state.seed)[:, judge]
        guess = said[:, turn, judge] if forced is None else forced
        new = counts & ~padding[:, turn] & (guess != Verdict.UNDECIDED)
        verdict = np.where(new & (verdict == Verdict.UNDECIDED), guess, verdict)
    return verdict


def returns_of(rollouts: NestedArrayDict) -> np.ndarray:
    """What each agent earned in each episode, ``[n, A]``."""
    rewards = np.asarray(rollouts["next", "agents", "reward"], dtype=np.float64)
    total: np.ndarray = np.where(np.asarray(rollouts["padding"])[..., None], 0.0, rewards).sum(1)
    return total


def episode_metrics(
    rollouts: NestedArrayDict, protocol: Protocol, prefix: str = "rollout"
) -> dict[str, float]:
    """Accuracy, rewards and lengths of some episodes.

    No verdict is as good as a wrong one in ``accuracy``. ``precision`` and ``recall`` are those of
    accepting; they are left out where nothing was accepted, or nothing is to be.
    """
    labels = np.asarray(rollouts["y"])[:, 0]
    verdict = verdicts_of(rollouts, protocol)
    tally = Tally.of(verdict, labels)
    padding = np.asarray(rollouts["padding"]).astype(bool)
    metrics = {
        "accuracy": tally.accuracy,
        "undecided": tally.undecided / len(labels),
        "accepted": float((verdict == Verdict.ACCEPT).mean()),
        "rounds": float((~padding).sum(1).mean()),
    }
    for label in (0, 1):
        own = labels == label
        if own.any():
            metrics[f"accuracy_of_{label}"] = float((verdict[own] == label).mean())
    both = float(((verdict == Verdict.ACCEPT) & (labels == 1)).sum())
    for name, all_of in (("precision", verdict == Verdict.ACCEPT), ("recall", labels == 1)):
        if all_of.any():
            metrics[name] = both / float(all_of.sum())
    metrics |= _worst_problem(rollouts, verdict == labels)
    metrics |= _by_agent(rollouts, padding, protocol.agent_names)
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def _worst_problem(rollouts: NestedArrayDict, right: np.ndarray) -> dict[str, float]:
    """The share of problems of which not one episode was judged rightly."""
    problems = np.asarray(rollouts["datapoint_id"])[:, 0]
    solved = np.isin(np.unique(problems), problems[right])
    return {"never_right": float(1 - solved.mean())}


def _by_agent(
    rollouts: NestedArrayDict, padding: np.ndarray, agents: Sequence[str]
) -> dict[str, float]:
    returns = returns_of(rollouts)
    metrics = {}
    for number, agent in enumerate(agents):
        metrics[f"{agent}/reward"] = float(returns[:, number].mean())
        metrics[f"{agent}/reward_min"] = float(returns[:, number].min())
        if ("agents", "retry_count") in rollouts:
            retried = np.asarray(rollouts["agents", "retry_count"])[..., number] > 0
            spoke = _spoke(rollouts, number) & ~padding
            if spoke.any():
                metrics[f"{agent}/retried"] = float(retried[spoke].mean())
    return metrics


def _spoke(rollouts: NestedArrayDict, agent: int) -> np.ndarray:
    """In which rounds ``[n, R]`` an agent was asked."""
    chats = rollouts["agents", "chat"][..., agent].astype(object)
    spoke: np.ndarray = np.vectorize(lambda text: bool(text), otypes=[bool])(chats)
    return spoke
