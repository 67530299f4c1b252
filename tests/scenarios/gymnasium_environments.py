"""Environments that do what their actions say; a file that registers them under their names."""

import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

NOTHING, ENDS, CUT, BOTH, RAISES, HANGS, DIES, NAN, INFINITE, SHAPE = range(10)


class Scripted(gymnasium.Env):
    """Observes [a drawn number, the step]; rewards half the step; its action says what happens.

    With ``reuses`` it writes each observation to the same array; with ``breaks`` every n-th reset
    raises; ``actions`` leaves out the last ones.
    """

    metadata = {"render_modes": []}

    def __init__(self, render_mode=None, reuses=False, breaks=0, actions=10):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(actions)
        self._buffer = np.zeros(2, np.float32)
        self._reuses = reuses
        self._breaks = breaks
        self._resets = 0

    def _observed(self):
        self._buffer[:] = self._drawn, self._step
        return self._buffer if self._reuses else self._buffer.copy()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._resets += 1
        if self._breaks and self._resets % self._breaks == 0:
            raise OSError("no way to begin")
        self._step, self._drawn = 0, int(self.np_random.integers(1_000_000))
        return self._observed(), {}

    def step(self, action):
        self._step += 1
        seen, reward = self._observed(), self._step / 2
        if action == RAISES:
            raise ValueError("the pole fell off\nthe cart")
        if action == HANGS:
            time.sleep(600)
        if action == DIES:
            os.kill(os.getpid(), signal.SIGSEGV)
        if action == NAN:
            seen = np.array([1.0, np.nan], np.float32)
        if action == SHAPE:
            seen = np.zeros(3, np.float32)
        if action == INFINITE:
            reward = float("inf")
        return seen, reward, action in (ENDS, BOTH), action in (CUT, BOTH), {}


class Spaced(gymnasium.Env):
    """Has the spaces that it is made with; observes what it is told, and keeps the actions."""

    def __init__(self, observation, action, seen=None, render_mode=None):
        self.observation_space, self.action_space = observation, action
        self._seen = observation.sample() if seen is None else seen
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen, {}

    def step(self, action):
        self.actions.append(action)
        return self._seen, 1.0, False, False, {}


class Opaque(Scripted):
    """Draws from what nobody can see."""

    def __init__(self, **options):
        super().__init__(**options)
        self._numbers = iter(range(1_000_000))


class Deadly(Scripted):
    """Ends its process."""

    def step(self, action):
        return super().step(DIES)


def vector(mode):
    def make(num_envs, **options):
        return SyncVectorEnv(
            [lambda: Scripted(**options)] * num_envs, autoreset_mode=mode, copy=False
        )

    return make


gymnasium.register("Scripted-v0", entry_point=Scripted)
gymnasium.register("Deadly-v0", entry_point=Deadly)
gymnasium.register("Opaque-v0", entry_point=Opaque)
gymnasium.register("Spaced-v0", entry_point=Spaced)
for mode in AutoresetMode:
    gymnasium.register(f"{mode.value}-v0", entry_point=Scripted, vector_entry_point=vector(mode))


class Drawing(gymnasium.Env):
    """Observes what it draws from its space."""

    def __init__(self, render_mode=None):
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


class Answering(Spaced):
    """Its steps give what ``answer`` is, its resets what ``begun`` is."""

    def __init__(self, answer=None, begun=None, observation=None, render_mode=None):
        super().__init__(observation or spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2))
        self._answer, self._begun = answer, begun

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed) if self._begun is None else self._begun

    def step(self, action):
        if self._answer is SystemExit:
            raise SystemExit(0)
        return self._answer


gymnasium.register("Drawing-v0", entry_point=Drawing)
gymnasium.register("Answering-v0", entry_point=Answering)
