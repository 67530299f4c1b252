"""Returns and lengths of episodes that are still open are saved as they were."""

import numpy as np

from plugrl.core.tensordict.collect.episodes import EpisodeStatistics
from plugrl.core.tensordict.environment.vector_environment import AgentStep


def step(reward, ended):
    rewards, over = np.array(reward, np.float64), np.array(ended)
    nothing = np.zeros((len(rewards), 1))
    return {"agent": AgentStep(nothing, rewards, over, np.zeros_like(over))}


def test_a_saved_state_does_not_go_on_with_what_it_was_taken_of():
    statistics, restored = (EpisodeStatistics(["agent"], 2) for _ in range(2))
    statistics.add(step([1, 10], [False, False]))
    saved = statistics.state_dict()
    statistics.add(step([2, 20], [True, False]))
    restored.load_state_dict(saved)
    restored.add(step([4, 40], [False, True]))
    # The first episode of `statistics` got 1 + 2, the second of `restored` 10 + 40.
    assert statistics.take() == {"agent": [(3.0, 2)]}
    assert restored.take() == {"agent": [(50.0, 2)]}
    assert saved["agent"]["length"].tolist() == [1, 1]
    assert saved["agent"]["return"].tolist() == [1.0, 10.0]
