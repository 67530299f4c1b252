"""Building TorchRL environments by name, with transforms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torchrl.envs import (
    AutoResetTransform,
    Compose,
    EnvBase,
    GymEnv,
    Transform,
    TransformedEnv,
    VecGymEnvTransform,
)

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.scenarios.import_by_name import call, find

_SILENT = (
    "{name} begins new episodes by itself and does not tell how the last ones ended; leave "
    "num_envs and auto_reset out of env_kwargs and set scenario.num_envs"
)


class Maker:
    """Builds copies of one environment.

    Args:
        name: ``module:Class`` such as ``torchrl.envs:GymEnv``, or of a function that returns an
            environment, or ``file.py:Class``.
        options: what the class or function is called with.
        transforms: import path and keyword arguments of each, in the order of application.

    Raises:
        ConfigError: nothing of such a name can be called.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        transforms: Sequence[tuple[str, Mapping[str, Any]]] = (),
    ) -> None:
        self.name = name
        self.options = dict(options)
        self._factory = _factory(name)
        self._transforms = [(path, _transform(path), dict(given)) for path, given in transforms]

    def build(self, *, render: bool = False) -> EnvBase:
        """A new environment.

        Args:
            render: with frames, if it can.

        Raises:
            ConfigError: it cannot be built, or is no ``EnvBase``.
        """
        made = self._make_with_frames() if render and "render_mode" not in self.options else None
        made = self._call_factory() if made is None else made
        if not isinstance(made, EnvBase):
            raise ConfigError(
                f"{self.name} gives a {type(made).__name__}, which is no torchrl.envs.EnvBase; "
                "wrap it, such as with torchrl.envs:GymEnv, or take the scenario gymnasium or "
                "pettingzoo"
            )
        if _resets_itself(made):
            raise ConfigError(_SILENT.format(name=self.name))
        if not self._transforms:
            return made
        try:
            given = [transform(**options) for _, transform, options in self._transforms]
            transformed = TransformedEnv(made, Compose(*given))
            _ = transformed.full_observation_spec
        except (Exception, SystemExit) as error:
            paths = ", ".join(path for path, _, _ in self._transforms)
            raise ConfigError(
                f"{self.name} cannot be transformed by {paths}: {one_line(error)}; see "
                "scenario.transforms"
            ) from error
        return transformed

    def _call_factory(self) -> Any:
        vector = inspect.isclass(self._factory) and issubclass(self._factory, GymEnv)
        if vector and self.options.get("num_envs"):
            raise ConfigError(_SILENT.format(name=self.name))
        return call(self.name, self._factory, self.options)

    def _make_with_frames(self) -> Any:
        """With frames; None: it does not take that."""
        with suppress(Exception):
            return self._factory(**self.options, render_mode="rgb_array")
        return None


def _resets_itself(environment: Any) -> bool:
    """Whether what an episode ends with is replaced by what the next one begins with."""
    if getattr(environment, "_torchrl_native_autoreset", False):
        return True
    if not isinstance(environment, TransformedEnv):
        return False
    transform = environment.transform
    parts = list(transform) if isinstance(transform, Compose) else [transform]
    silent = any(isinstance(part, AutoResetTransform | VecGymEnvTransform) for part in parts)
    return silent or _resets_itself(environment.base_env)


def _factory(name: str) -> Callable[..., Any]:
    module, found = find(name)
    if found is None:
        own = [
            key
            for key, value in vars(module).items()
            if inspect.isclass(value) and issubclass(value, EnvBase) and key[0] != "_"
        ]
        raise ConfigError(
            f"{name} is a module; name a class in it, such as {name}:{own[-1] if own else 'MyEnv'}"
        )
    if not callable(found):
        raise ConfigError(f"{name} is a {type(found).__name__}; name a class or a function")
    return found  # type: ignore[no-any-return]


def _transform(path: str) -> Callable[..., Any]:
    try:
        _, found = find(path)
    except ConfigError as error:
        raise ConfigError(f"scenario.transforms: {error}") from error
    is_class = inspect.isclass(found) and issubclass(found, Transform)
    if not is_class and not inspect.isfunction(found):
        raise ConfigError(
            f"scenario.transforms: {path} names no transform; write module:Class, such as "
            "torchrl.envs:StepCounter"
        )
    return found  # type: ignore[no-any-return]
