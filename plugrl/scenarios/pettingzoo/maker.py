"""Building PettingZoo environments by name, and what their agents see and do."""

from __future__ import annotations

import importlib.util
import inspect
import re
import warnings
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from gymnasium import spaces

from plugrl.core.config.sources.files import is_code_file
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.tensordict.environment.layout import ACTION_MASK, Layout
from plugrl.core.tensordict.environment.spaces import WRAP, Spaces
from plugrl.core.wording import did_you_mean
from plugrl.scenarios.import_by_name import call, find, submodules
from plugrl.scenarios.pettingzoo.agents_copy import Seat, is_array

MISSING = 'pettingzoo is not installed; run: pip install "plugrl[pettingzoo]"'
#: What modules of PettingZoo and packages like it call their environments, the best first.
_USUAL = ("parallel_env", "env")
#: Spaces that networks take as they are.
_KINDS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def installed() -> bool:
    """Whether PettingZoo can be imported."""
    return importlib.util.find_spec("pettingzoo") is not None


class Maker:
    """Builds copies of one environment.

    Args:
        name: a module such as ``mpe2.simple_spread_v3``, ``module:factory`` or
            ``file.py:factory`` for a class or function, an id of PettingZoo's registry such
            as ``sisl/pursuit-v5``, or one of its own by name, such as ``tictactoe_v3``.
        options: what the class or function is called with.

    Raises:
        ConfigError: PettingZoo is missing, or nothing of that name can be called.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        if not installed():
            raise ConfigError(MISSING)
        self.name = name
        self.options = dict(options)
        self._factory = _factory(name)

    def build(self, *, render: bool = False) -> Any:
        """A new environment: with the parallel interface, or AEC where agents take turns.

        Args:
            render: with frames, if the environment can.

        Raises:
            ConfigError: it cannot be built, or is not of the kind.
        """
        extra = {"render_mode": "rgb_array"} if render and "render_mode" not in self.options else {}
        if extra and not _takes(self._factory, "render_mode"):
            extra = {}
        made = call(self.name, self._factory, self.options, **extra)
        return _stepped(made, self.name)


def _factory(name: str) -> Callable[..., Any]:
    if "/" in name and not is_code_file(name):
        return _registered(name)
    modules = _own_modules()
    if name in modules:
        return _registered(modules[name])
    try:
        module, found = find(name)
    except ConfigError as error:
        close = did_you_mean(name, modules) if re.fullmatch(r"\w+_v\d+", name) else ""
        if not close or not str(error).startswith("there is no module"):
            raise
        raise ConfigError(f"there is no module {name!r}, and none of PettingZoo{close}") from error
    if found is None:
        found = next((getattr(module, each) for each in _USUAL if hasattr(module, each)), None)
        if found is None:
            raise ConfigError(
                f"{name} has neither parallel_env nor env; name what builds the environment: "
                f"{_suggested(module, name)}"
            )
    if not callable(found) or isinstance(found, ModuleType):
        raise ConfigError(f"{name} is a {type(found).__name__}; name a class or a function")
    return found  # type: ignore[no-any-return]


def _own_modules() -> dict[str, str]:
    """The ids of PettingZoo's registry by the names of their modules, such as tictactoe_v3."""
    import pettingzoo

    known = [
        *getattr(pettingzoo, "aec_registry", ()),
        *getattr(pettingzoo, "parallel_registry", ()),
    ]
    return {"_v".join(each.partition("/")[2].rsplit("-v", 1)): each for each in known}


def _registered(name: str) -> Callable[..., Any]:
    """What makes the environment that is registered as ``name``; parallel ones come first.

    Raises:
        ConfigError: there is none.
    """
    import pettingzoo

    if not hasattr(pettingzoo, "make"):
        raise ConfigError(
            f"PettingZoo {pettingzoo.__version__} has no registry; name the module that "
            f"{name} is in, or run: pip install -U pettingzoo"
        )
    for sort in ("parallel", "aec"):
        try:
            pettingzoo.spec(sort, name)
        except (Exception, SystemExit) as error:
            if "v" in name.rpartition("-")[2] and "Available version" in str(error):
                raise ConfigError(f"{name} is not registered: {one_line(error)}") from error
            continue
        return partial(_made, sort, name)
    known = [*pettingzoo.parallel_registry, *pettingzoo.aec_registry]
    close = did_you_mean(name, known)
    raise ConfigError(
        f"PettingZoo has no environment {name!r}{close}"
        + ("" if close else "; name its module, or register it in a file given with -p")
    )


def _made(sort: Any, name: str, **options: Any) -> Any:
    """An environment of PettingZoo's registry.

    Raises:
        ConfigError: a package that it needs is not installed.
    """
    import pettingzoo

    try:
        return pettingzoo.make(sort, name, **options)
    except Exception as error:
        lacking = error.__cause__ or error.__context__
        if not isinstance(lacking, ModuleNotFoundError):
            raise
        raise ConfigError(
            f"{name} needs {str(lacking.name).partition('.')[0]}, which is not installed; run: "
            f'pip install "pettingzoo[{name.partition("/")[0]}]"'
        ) from error


def _suggested(module: ModuleType, name: str) -> str:
    inside = [each for each in submodules(module) if re.fullmatch(r"\w+_v\d+", each)]
    if inside:
        return f"{name}.{inside[0]}, or another of its modules"
    own = [
        key
        for key, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and key[0] != "_"
    ]
    return f"{name}:{own[-1] if own else 'NAME'}"


def _takes(factory: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def takes_turns(environment: Any) -> bool:
    """Whether the agents of what a :class:`Maker` built act one after the other."""
    from pettingzoo import AECEnv

    return isinstance(environment, AECEnv)


def _stepped(made: Any, name: str) -> Any:
    """``made`` as it is stepped: at once where that is right, else turn by turn.

    Raises:
        ConfigError: it is no environment of PettingZoo.
    """
    from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel_wrapper

    if isinstance(made, turn_based_aec_to_parallel_wrapper):
        # Its step is a move of one agent too, and hides whose.
        made = made.aec_env
    if takes_turns(made):
        if not (getattr(made, "metadata", None) or {}).get("is_parallelizable", False):
            return made
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = aec_to_parallel(made)
    if not all(callable(getattr(made, each, None)) for each in ("reset", "step")):
        raise ConfigError(f"{name} gives a {type(made).__name__}, which is no environment")
    if not hasattr(made, "action_space") or not callable(made.action_space):
        raise ConfigError(
            f"{name} gives a {type(made).__name__}, whose action_space is no function of the "
            "agent, so it is no PettingZoo environment; for one agent take scenario.type gymnasium"
        )
    return made


def agents_of(environment: Any, name: str) -> dict[str, Hashable]:
    """The agents that may ever take part, by name.

    Raises:
        ConfigError: the environment does not tell, or there is none.
    """
    possible = list(getattr(environment, "possible_agents", None) or ())
    if not possible:
        raise ConfigError(f"{name} has no possible_agents; list there all that may take part")
    return {str(agent): agent for agent in possible}


def spaces_of(
    environment: Any, name: str, seats: Mapping[str, Seat], *, rescale: bool = False
) -> dict[str, Spaces]:
    """The spaces of each agent, and what its arrays are turned into.

    Raises:
        ConfigError: a space is of a kind that networks cannot take; the message names it.
    """
    found = {}
    for agent, seat in seats.items():
        who = f"{name} (agent {agent!r})"
        action = raw_spaces(environment, name, seat.agent)[1]
        _refuse_kind(action, f"{who} acts in")
        if seat.layout is None:
            _refuse_kind(seat.space, f"{who} observes")
        found[agent] = Spaces(
            who,
            seat.space if seat.layout is None else seat.layout.space(),
            action,
            rescale=rescale,
            remedies=WRAP,
            layout=seat.layout,
        )
    return found


def seats_of(environment: Any, name: str) -> dict[str, Seat]:
    """The agents that may ever take part, by name, and what they observe.

    Raises:
        ConfigError: the environment does not tell, or parts of an observation are of a kind that
            networks cannot take.
    """
    seats = {}
    masked = takes_turns(environment) and _has_masks_in_infos(environment)
    for agent, original in agents_of(environment, name).items():
        who = f"{name} (agent {agent!r})"
        observation, action = raw_spaces(environment, name, original)
        mask = _choices(action)
        if not masked or mask is None or isinstance(observation, spaces.Dict):
            seats[agent] = Seat(original, observation, _layout(observation, who))
            continue
        parts = {"observation": observation, ACTION_MASK: spaces.MultiBinary(mask)}
        seats[agent] = Seat(original, observation, _layout(spaces.Dict(parts), who), mask)
    return seats


def _has_masks_in_infos(environment: Any) -> bool:
    """Whether an environment of turns masks actions in ``infos``, seen after a reset."""
    try:
        environment.reset(seed=0)
        return any(ACTION_MASK in info for info in environment.infos.values())
    except (Exception, SystemExit):
        # The first episode meets it again, where it can be told what broke.
        return False


def _choices(action: Any) -> int | None:
    """How many numbers a mask of an action has; None: it is not masked."""
    if isinstance(action, spaces.Discrete):
        return int(action.n)
    return int(action.nvec.sum()) if isinstance(action, spaces.MultiDiscrete) else None


def _layout(space: Any, who: str) -> Layout | None:
    """The parts of a ``Dict``, flat where they are no arrays; None: the space is no ``Dict``."""
    if not isinstance(space, spaces.Dict):
        return None
    fields = {}
    for key, part in space.items():
        if not _is_numbers(part):
            raise ConfigError(
                f"{who} observes a Dict whose {key!r} is a {type(part).__name__}, which networks "
                "cannot take; name a function of yours that wraps the environment so that the "
                "parts of its observations are Box, Discrete, MultiDiscrete or MultiBinary"
            )
        fields[str(key)] = tuple(part.shape or ()) if is_array(part) else (spaces.flatdim(part),)
    return Layout(fields)


def _is_numbers(space: Any) -> bool:
    """Whether what is observed can be one vector."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.values() if isinstance(space, spaces.Dict) else space.spaces
        return all(map(_is_numbers, inner))
    return isinstance(space, _KINDS)


def raw_spaces(environment: Any, name: str, agent: Hashable) -> tuple[Any, Any]:
    """What the environment says that an agent sees and does.

    Raises:
        ConfigError: it does not say.
    """
    try:
        with warnings.catch_warnings():
            # Of environments that have dictionaries of spaces only, which will do.
            warnings.simplefilter("ignore")
            return environment.observation_space(agent), environment.action_space(agent)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{name} tells no spaces of agent {agent!r}: {one_line(error)}"
        ) from error


def _refuse_kind(space: Any, what: str) -> None:
    if isinstance(space, _KINDS):
        return
    has = f" of {', '.join(map(str, space))}" if isinstance(space, spaces.Dict) else ""
    raise ConfigError(
        f"{what} a {type(space).__name__}{has}, which networks cannot take; name a function of "
        "yours that wraps the environment so that its spaces are Box, Discrete, MultiDiscrete or "
        "MultiBinary"
    )
