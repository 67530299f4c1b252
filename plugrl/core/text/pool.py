"""``TrajectoryPool``: finished trajectories wait here until they form a training batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plugrl.core.text.trajectory import Trajectory


class TrajectoryPool:
    """Keeps trajectories by model and gives them back whole groups together.

    Args:
        key_list: trajectories that agree on these keys form a group.
    """

    def __init__(self, key_list: Sequence[str] = ("group_id",)) -> None:
        self._key_list = tuple(key_list)
        self._waiting: dict[str, list[Trajectory]] = {}

    def put(self, trajectories: Iterable[Trajectory]) -> None:
        """Add finished trajectories."""
        for trajectory in trajectories:
            self._waiting.setdefault(trajectory.model, []).append(trajectory)

    def models(self) -> list[str]:
        """Models that have trajectories waiting."""
        return sorted(self._waiting)

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def take(self, model: str) -> list[Trajectory]:
        """Everything that waits for ``model``: groups in order of arrival, members together."""
        groups: dict[tuple[object, ...], list[Trajectory]] = {}
        for trajectory in self._waiting.pop(model, []):
            key = tuple(trajectory.get(name) for name in self._key_list)
            groups.setdefault(key, []).append(trajectory)
        return [trajectory for group in groups.values() for trajectory in group]
