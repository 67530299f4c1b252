"""The Ray cluster of this process: joined or started once, and ended with the process.

``settings.cluster`` says which. A cluster that was started here is kept between the runs of one
process, since starting it takes seconds; the actors of a run end with what uses them.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import platform
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plugrl.core.config.schemas.sections import ClusterConfig
from plugrl.core.errors import ConfigError, PluginError, RunError
from plugrl.core.plugins.kinds import OWN
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.run.process.cluster import settings
from plugrl.plugins.ray.errors import reason

_CPU = "CPU"
#: Whether tokenizers have threads, of which those of actors would be too many.
_TOKENIZERS = "TOKENIZERS_PARALLELISM"
#: Resources that have an argument of their own in Ray.
_ARGUMENTS = {_CPU: "num_cpus", "GPU": "num_gpus", "memory": "memory"}
#: Has the address of the cluster where ``settings.cluster`` has none.
ADDRESS_VARIABLE = "RAY_ADDRESS"
_AUTO = "auto"
_MEGABYTE = 1_000_000
#: Seconds in which the port of a cluster must answer; Ray itself waits for minutes.
_REACHED_WITHIN = 10.0
#: What this process has joined or started.
_joined: ClusterConfig | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster.

    Attributes:
        id: Ray's name of it.
        address: its address, as messages name it.
        resources: what it has, such as ``{"CPU": 8.0}``.
    """

    id: str
    address: str
    resources: Mapping[str, float]


def load_ray() -> Any:
    """The package ``ray``.

    Raises:
        ConfigError: it is not installed.
    """
    # Nothing about a run is reported to the makers of Ray unless somebody asks for it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"ray needs the package ray, which cannot be imported ({one_line(error)}); run: pip "
            'install "plugrl[ray]"'
        ) from error
    return ray


def connect() -> Any:
    """Join or start the cluster of ``settings.cluster``, unless that was done; give ``ray``.

    A program that has called ``ray.init`` itself keeps that cluster.

    Raises:
        ConfigError: ray is not installed, or there is no cluster at the address.
        RunError: a cluster of this machine could not be started.
    """
    global _joined
    ray, wanted = load_ray(), settings()
    if ray.is_initialized():
        if _joined is None or _joined == wanted:
            return ray
        stop()
    address = wanted.address or os.environ.get(ADDRESS_VARIABLE) or "local"
    if address not in ("local", _AUTO):
        _reach(address)
    own: dict[str, Any] = {}
    if address == "local":
        own = {"num_cpus": wanted.cpus, "include_dashboard": False}
        if wanted.object_store_memory is not None:
            own["object_store_memory"] = int(wanted.object_store_memory * _MEGABYTE)
    try:
        with _kept_signals(), _plain_tokenizers():
            variables = actor_variables(wanted)
            if address == "local":
                # Processes of a cluster that starts here have those of this one. Others of their
                # own cost seconds: Ray's agent is waited for, and no process that waits is taken.
                variables = {n: v for n, v in variables.items() if os.environ.get(n) != v}
            ray.init(
                address=address,
                namespace=wanted.namespace,
                runtime_env={"env_vars": variables} if variables else None,
                log_to_driver=wanted.log_to_driver,
                logging_level=logging.ERROR,
                **own,
            )
    except (Exception, SystemExit) as error:
        with contextlib.suppress(Exception):
            ray.shutdown()
        if address == "local":
            raise RunError(
                f"no Ray cluster could be started on this machine: {reason(error)}; see the logs "
                "below /tmp/ray/session_latest, or name one by settings.cluster.address"
            ) from error
        raise ConfigError(
            f"the Ray cluster {address} cannot be joined: {reason(error)}; start it by ray start "
            "--head, or correct settings.cluster.address"
        ) from error
    _joined = wanted
    return ray


def stop() -> None:
    """Leave the cluster; one that was started here ends, with all of its processes."""
    global _joined
    if _joined is not None:
        _joined = None
        with _kept_signals():
            load_ray().shutdown()


def actor_variables(config: ClusterConfig) -> dict[str, str]:
    """The environment variables of actors, as strings."""
    passed = ("OMP_NUM_THREADS", "PYTHONPATH", "HF_HOME", "HF_HUB_OFFLINE")
    own = {name: os.environ[name] for name in passed if name in os.environ}
    return {_TOKENIZERS: "false", **own, **config.variables}


def actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """What an actor takes of its machine, as Ray's options."""
    own = {name: amount for name, amount in resources.items() if name not in _ARGUMENTS}
    given = {_ARGUMENTS[name]: n for name, n in resources.items() if name in _ARGUMENTS}
    return {**given, "resources": own}


def nodes() -> list[Node]:
    """The machines of the cluster that are there, in the order of their addresses."""
    found = [
        Node(each["NodeID"], each["NodeManagerAddress"], each["Resources"])
        for each in connect().nodes()
        if each["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.id))


def unplaceable(resources: Mapping[str, float], count: int) -> str | None:
    """Why ``count`` actors that need ``resources`` each do not fit in the cluster; None: they do.

    It looks at what the cluster has, not at what others use of it at the moment.
    """
    return unfit(nodes(), resources, count)


def unfit(there: Sequence[Node], resources: Mapping[str, float], count: int) -> str | None:
    """Why ``count`` actors that need ``resources`` each do not fit on machines; None: they do."""
    needed = {name: amount for name, amount in resources.items() if amount}
    if not needed:
        return None
    fitting = sum(
        min(int(node.resources.get(name, 0) / amount) for name, amount in needed.items())
        for node in there
    )
    if fitting >= count:
        return None
    each = ", ".join(f"{amount:g} {name}" for name, amount in needed.items())
    has = "; ".join(
        f"{node.address} has " + ", ".join(f"{node.resources.get(n, 0):g} {n}" for n in needed)
        for node in there
    )
    return f"{count} actors with {each} each do not fit: {fitting} do ({has})"


def packages(distributions: Iterable[str | None]) -> dict[str, str]:
    """The versions here of Python, plugrl and the distributions of a run's components."""
    names = sorted({OWN, *(name for name in distributions if name is not None)})
    return {"Python": platform.python_version()} | {name: _version(name) for name in names}


def described_packages() -> str:
    """What is installed here, in a line, as lists of actors tell it."""
    return ", ".join(f"{name} {version}" for name, version in packages(["ray"]).items())


def check_nodes(distributions: Iterable[str | None]) -> None:
    """Check that every machine has the versions of this one.

    Args:
        distributions: packages that actors load components from.

    Raises:
        PluginError: machines lack a package or have another version; all are named.
    """
    ray, here = connect(), packages(distributions)
    own = ray.get_runtime_context().get_node_id()
    others = [node for node in nodes() if node.id != own]
    if not others:
        # The actors run with the interpreter of this process.
        return
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    ask = ray.remote(num_cpus=0, max_retries=0)(packages)
    asked = {
        ask.options(scheduling_strategy=strategy(node.id, soft=False)).remote(list(here)[1:]): node
        for node in others
    }
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=settings().start_timeout)
    faults = [f"{asked[ref].address} does not answer" for ref in late]
    for ref in done:
        try:
            faults += _differences(asked[ref], here, ray.get(ref))
        except ray.exceptions.RayError as error:
            faults.append(f"{asked[ref].address} cannot say what it has: {reason(error)}")
    if faults:
        raise PluginError(
            f"machines of the cluster differ from this one: {'; '.join(sorted(faults))}; install "
            "the same versions everywhere"
        )


def _differences(node: Node, here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    return [
        f"{node.address} has {f'{name} {there[name]}' if there.get(name) else f'no {name}'}, "
        f"here is {version or 'none'}"
        for name, version in here.items()
        if there.get(name, "") != version
    ]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _reach(address: str) -> None:
    """Find out in seconds whether anything answers at the address of a cluster.

    Raises:
        ConfigError: nothing does, or it is no address.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    remedy = "start it by ray start --head, or correct settings.cluster.address"
    if not host or not port.isdigit():
        raise ConfigError(
            f"settings.cluster.address is {address!r}; write host:port, such as 10.0.0.1:6379, or "
            "auto"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_REACHED_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"the Ray cluster {address} does not answer ({one_line(error)}); {remedy}"
        ) from error


@contextlib.contextmanager
def _plain_tokenizers() -> Iterator[None]:
    """Have the variable of all actors here too, while a cluster starts."""
    kept = os.environ.get(_TOKENIZERS)
    os.environ[_TOKENIZERS] = "false"
    try:
        yield
    finally:
        if kept is None:
            del os.environ[_TOKENIZERS]
        else:
            os.environ[_TOKENIZERS] = kept


@contextlib.contextmanager
def _kept_signals() -> Iterator[None]:
    """Ray takes the signals that a run answers by a checkpoint; give them back."""
    kept: dict[int, Any] = {}
    with contextlib.suppress(ValueError):  # another thread may not, and Ray does not either
        kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            with contextlib.suppress(ValueError, TypeError):
                signal.signal(number, handler)
