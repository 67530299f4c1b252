"""What services behind a network have in common in a configuration: where, with which key."""

from __future__ import annotations

import importlib.util
import os
import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.wording import did_you_mean_variable

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass
class RemoteSettings:
    """Where a service is, which model it is asked for, and how long it is waited for."""

    #: A variable that may hold the key, for messages, and what paths of the service begin with.
    key_example: ClassVar[str] = "SERVICE_API_KEY"
    scheme: ClassVar[str] = ""

    base_url: str | None = described(None, "address of the service; null: that of its vendor")
    api_key: str | None = described(None, "environment variable that holds the key")
    base_model: str | None = described(None, "name that the service has for the model")
    max_context: int | None = described(
        None,
        "longest sequence in tokens; null: as the service or the source's configuration says",
        at_least=2,
        at_most=10**9,
    )
    timeout: float = described(1200.0, "seconds that one request may take", above=0, at_most=1e8)
    patience: float = described(
        60.0, "seconds without a sign of life that end the run", above=0, at_most=1e8
    )

    def __post_init__(self) -> None:
        parent: Any = super()
        if hasattr(parent, "__post_init__"):
            parent.__post_init__()
        check_address(self.base_url, self.api_key, self.key_example)

    def check_path(self, name: str) -> None:
        """Check that the setting ``name`` is a path of the service, or null.

        Raises:
            ConfigError: it is something else.
        """
        path = getattr(self, name)
        if path is not None and not path.startswith(self.scheme):
            raise ConfigError(f"{name} must begin with {self.scheme}")


def check_address(base_url: str | None, api_key: str | None, example: str) -> None:
    """Check where a service is and which variable holds its key; ``example`` names one.

    Raises:
        ConfigError: the address is none, or a key is written where it would be stored.
    """
    if api_key is not None and not _NAME.fullmatch(api_key):
        # The value may be a key, so that it is not repeated.
        raise ConfigError(
            f"api_key must be the name of an environment variable, such as {example}; a "
            "key that is written here would be stored with the run"
        )
    if base_url is None:
        return
    try:
        parts = urllib.parse.urlsplit(base_url)
        # It is read when it is asked for.
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"base_url is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("base_url must begin with http:// or https:// and name a host")
    if parts.username or parts.password:
        raise ConfigError(
            "base_url must hold no user or password, since it is stored with the run; "
            "write the key into the environment variable that api_key names"
        )
    if parts.query or parts.fragment:
        raise ConfigError(
            "base_url must end with its path, without ? and #; a key belongs into the environment "
            "variable that api_key names"
        )


def is_local(url: str) -> bool:
    """Whether a service is on this machine."""
    return urllib.parse.urlsplit(url).hostname in _LOCAL


def key_of(config: Any, default: str, url: str, without: str) -> str:
    """The key of a service.

    Args:
        config: the service's section.
        default: the variable that is read when the section names none.
        url: where the service is.
        without: what a service on this machine gets when the variable is not set.

    Raises:
        ConfigError: the variable is not set, and the service is elsewhere.
    """
    name = config.api_key or default
    key = os.environ.get(name, "")
    if not key and not is_local(url):
        raise ConfigError(
            f"the environment variable {name}, which holds the key of {url}, is not set"
            f"{did_you_mean_variable(name)}; set it, or name another in api_key"
        )
    return key or without


def settings_findings(
    check: Preflight, *, default_key: str, url: str, kit: str
) -> Iterator[Finding]:
    """What is missing of the settings of a service; nothing is contacted.

    Args:
        check: the configuration.
        default_key: the variable that is read when the section names none.
        url: where the service is.
        kit: the module of the service's kit, and what of plugrl installs it.
    """
    config, path = check.section, check.path
    if importlib.util.find_spec(kit) is None:
        yield path, missing(kit, kit)
    if not config.base_model:
        yield f"{path}.base_model", "is needed: the name that the service has for the model"
    environment = check.root.environment
    if environment.setup_script or (config.api_key or default_key) in environment.variables:
        return
    try:
        key_of(config, default_key, url, "")
    except ConfigError as error:
        yield f"{path}.api_key", str(error)


def missing(sdk: str, extra: str) -> str:
    """What is said where the kit of a service is not installed."""
    return f"needs the package of {sdk!r}, which is not installed; pip install 'plugrl[{extra}]'"
