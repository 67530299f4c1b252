"""``Recipe``: how a copy of an environment is made, and why it cannot be."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.loading import import_exported
from plugrl.core.plugins.user_code.error_location import one_line, raised_at
from plugrl.core.wording import close_names
from plugrl.scenarios.import_by_name import find, meant_argument

#: The extra of plugrl with what environments of a module need.
_EXTRAS = {
    "gymnasium.envs.mujoco": "plugrl[mujoco]",
    "gymnasium.envs.box2d": "plugrl[box2d]",
    "gymnasium.envs.phys2d": "gymnasium[jax]",
    "gymnasium.envs.tabular": "gymnasium[jax]",
}
_ATARI = re.compile(r"ALE/|.*(NoFrameskip|Deterministic|-ram)")
_PIP = re.compile(r"""pip install [`'"]?[\w\[\]-]+""")


@dataclass(frozen=True)
class Recipe:
    """What makes one copy of an environment. It can be sent to another process.

    Attributes:
        id: as configured, such as ``CartPole-v1`` or ``package.module:Id-v0``.
        spec: what is registered under the id.
        options: keyword arguments of the environment.
        wrappers: import path and keyword arguments of each wrapper, the innermost first.
        max_episode_steps: the time limit in place of the registered one.
        render_mode: of gymnasium; None: frames are not drawn.
    """

    id: str
    spec: EnvSpec
    options: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[tuple[str, Mapping[str, Any]]] = ()
    max_episode_steps: int | None = None
    render_mode: str | None = None

    def with_frames(self) -> Recipe:
        """The recipe of a copy whose frames can be looked at."""
        return replace(self, render_mode="rgb_array")

    def make(self) -> gymnasium.Env[Any, Any]:
        """Make a copy.

        Raises:
            ConfigError: it cannot be made; the text has the remedy.
        """
        classes = [(path, _wrapper(path), dict(options)) for path, options in self.wrappers]
        try:
            # Its checks are made here, once, and not in each copy.
            made: Any = gymnasium.make(self.spec, disable_env_checker=True, **self._arguments())
        except (Exception, SystemExit) as error:
            raise self._refusal(error) from error
        for path, wrapper, options in classes:
            try:
                made = wrapper(made, **options)
            except (Exception, SystemExit) as error:
                raise ConfigError(
                    f"environment {self.id}: wrapper {path} with {options} failed: "
                    f"{one_line(error)}; see scenario.wrappers"
                ) from error
        made_env: gymnasium.Env[Any, Any] = made
        return made_env

    @property
    def has_vector(self) -> bool:
        """Whether several copies can be stepped by code of the environment's own."""
        spec = self.spec
        plain = not self.wrappers and not spec.additional_wrappers
        return spec.vector_entry_point is not None and plain

    def make_vector(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        """Make ``num_envs`` copies that step together by code of the environment's own.

        Raises:
            ConfigError: they cannot be made; the text has the remedy.
        """
        try:
            return gymnasium.make_vec(
                self.spec,
                num_envs,
                vectorization_mode="vector_entry_point",
                **self._arguments(),
            )
        except (Exception, SystemExit) as error:
            raise self._refusal(error) from error

    def _arguments(self) -> dict[str, Any]:
        arguments = dict(self.options)
        if self.max_episode_steps is not None:
            arguments["max_episode_steps"] = self.max_episode_steps
        if self.render_mode is not None:
            arguments["render_mode"] = self.render_mode
        return arguments

    def _refusal(self, error: BaseException) -> ConfigError:
        """The one line about what its making raised."""
        if isinstance(error, (ImportError, gymnasium.error.DependencyNotInstalled)):
            return ConfigError(f"environment {self.id} {_needs(self.spec, error)}")
        at = raised_at(error, {str(self.spec.entry_point).partition(".")[0]})
        entry = self.spec.entry_point
        factory = load_env_creator(entry) if isinstance(entry, str) else entry
        meant = meant_argument(error, factory) if factory else ""
        # An argument that is not taken was refused by gymnasium, not by code of the environment.
        what = (
            one_line(error).partition(" was raised from")[0] + meant
            if meant
            else (f"{one_line(error)}{f' at {at}' if at else ''}")
        )
        given = f" with env_kwargs {dict(self.options)}" if self.options else ""
        return ConfigError(f"environment {self.id} cannot be made{given}: {what}")


def _needs(spec: EnvSpec, error: BaseException) -> str:
    entry = spec.entry_point if isinstance(spec.entry_point, str) else ""
    extra = next((extra for prefix, extra in _EXTRAS.items() if entry.startswith(prefix)), None)
    needs = f"needs a package that is not installed ({one_line(error)})"
    if extra is not None:
        missing = getattr(error, "name", None) or getattr(error.__cause__, "name", None)
        short = f"needs {missing}, which is not installed" if missing else needs
        return f'{short}; run: pip install "{extra}"'
    # Others say themselves what to run.
    return needs if _PIP.search(str(error)) else f"{needs}; install it with pip"


def _wrapper(path: str) -> Any:
    try:
        _, found = find(path)
    except ConfigError as error:
        raise ConfigError(f"scenario.wrappers: {error}") from error
    if found is None or not callable(found):
        raise ConfigError(
            f"scenario.wrappers: {path} names no wrapper; write package.module:Class, such as "
            "gymnasium.wrappers:FlattenObservation"
        )
    return found


def find_spec(id: str) -> EnvSpec:
    """What is registered under ``id``; ``module:Id`` imports the module that registers it.

    Raises:
        ConfigError: nothing is; the text names close ids or what to install.
    """
    name = import_registered(id)
    if name not in gymnasium.registry and _ATARI.match(name):
        _register_atari(id)
    spec = gymnasium.registry.get(name)
    if spec is not None:
        return spec
    raise ConfigError(f"no environment {name!r} is registered{_close(name)}")


def import_registered(id: str) -> str:
    """Import what registers ``id``, in this process; give the id without its module.

    Raises:
        ConfigError: the module of ``id`` cannot be imported.
    """
    import_exported()
    module, _, name = id.rpartition(":")
    if module:
        find(module)
    return name


def _register_atari(id: str) -> None:
    try:
        importlib.import_module("ale_py")
    except ImportError as error:
        raise ConfigError(
            f"environment {id} needs ale_py, which is not installed "
            f'({one_line(error)}); run: pip install "plugrl[atari]"'
        ) from error


def _close(name: str) -> str:
    base = re.sub(r"-v\d+$", "", name).lower()
    versions = [known for known in gymnasium.registry if base == known.rpartition("-v")[0].lower()]
    close = versions or close_names(name, gymnasium.registry)
    if close:
        return f"; did you mean {', '.join(close[:4])}?"
    return "; for one of another package write package.module:Id, the module that registers it"
