"""The plan of a staged training: from problems to episodes and fine-tune jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from plugrl.core.errors import PlugrlError
from plugrl.core.protocol.protocol import make_protocol


def learners(models: Mapping[str, Any], section: Any) -> dict[str, str] | None:
    """The agents that learn, each with its model; None: the protocol is faulty.

    Args:
        models: the section ``models``.
        section: of the rollout worker.
    """
    try:
        names = make_protocol(section.protocol).agent_names
    except PlugrlError:
        # It says itself what is wrong with it.
        return None
    found = {}
    for name in names:
        own = section.agents.get(name) or {}
        model = own.get("model") or section.get("model")
        known = models.get(model)
        learns = known is None or known.get("fine_tune") is not None
        if learns and not own.get("frozen") and own.get("script") is None:
            found[name] = str(model)
    return found


def staged_plan(root: Any, per_attempt: int | None) -> list[tuple[str, str]]:
    """The plan as (what, how many) rows.

    Args:
        root: the whole configuration.
        per_attempt: the most episodes that an attempt at a problem gives; None: it is not known.
    """
    iterations, scheme = root.text_rl.num_iterations, root.text_rl.test_scheme
    rows = [
        ("problems an iteration", str(root.data.batch_size)),
        ("attempts at a problem", str(root.data.rollout_repeat_n)),
    ]
    rows += _episodes(root, per_attempt, iterations)
    rows += [("iterations", str(iterations)), ("tests", str(_tests(scheme, iterations)))]
    # A worker of a user may have agents of its own.
    known = None
    if {"agents", "protocol"} <= set(root.rollout_worker):
        known = learners(root.models, root.rollout_worker)
    if known is not None:
        jobs = len(set(known.values()))
        rows.append(("fine-tune jobs an iteration, at most", str(jobs)))
        rows.append(("fine-tune jobs in all, at most", str(iterations * jobs)))
    return rows


def _episodes(root: Any, per_attempt: int | None, iterations: int) -> list[tuple[str, str]]:
    if per_attempt is None:
        return []
    factors = [root.data.batch_size, root.data.rollout_repeat_n]
    rows, most = [], ""
    if per_attempt > 1:
        factors.append(per_attempt)
        most = ", at most"
        rows.append((f"episodes an attempt{most}", str(per_attempt)))
    episodes = math.prod(factors)
    product = " x ".join(map(str, factors))
    return [
        *rows,
        (f"episodes an iteration{most}", f"{product} = {episodes}"),
        (f"episodes in all{most}, without tests", str(iterations * episodes)),
    ]


def _tests(scheme: str, iterations: int) -> int:
    # Those after the last iteration are played even if it is the only thing that is.
    during = {"all": iterations, "first_and_last": min(iterations, 1)}
    return 0 if scheme == "none" else during.get(scheme, 0) + 1
