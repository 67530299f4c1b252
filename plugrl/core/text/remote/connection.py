"""A session of a service behind a network, and what the errors of its kit mean."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from plugrl.core.errors import ConfigError, PlugrlError, RunError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.text.remote.calls import RemoteCalls
from plugrl.core.text.remote.settings import key_of, settings_findings
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

_OPENING = threading.Lock()
_OPEN: weakref.WeakValueDictionary[tuple[type, str, str], Any] = weakref.WeakValueDictionary()
#: Seconds that a process waits at its exit for the sessions that it ends.
_EXIT_PATIENCE = 10.0
_FINALIZERS: set[weakref.finalize[Any, Any]] = set()
_ENDINGS: set[threading.Thread] = set()


def _end_in_background(end: Callable[[Any], None], client: Any) -> None:
    """End a session without holding up the code that dropped its last reference."""
    _FINALIZERS.difference_update([f for f in _FINALIZERS if not f.alive])
    _ENDINGS.difference_update([thread for thread in _ENDINGS if not thread.is_alive()])
    thread = threading.Thread(target=end, args=(client,), name="plugrl-session-end", daemon=True)
    _ENDINGS.add(thread)
    thread.start()


@atexit.register
def _end_at_exit() -> None:
    deadline = time.monotonic() + _EXIT_PATIENCE
    for finalizer in list(_FINALIZERS):
        finalizer()
    for thread in list(_ENDINGS):
        thread.join(max(0.0, deadline - time.monotonic()))


class HeldPath(str):
    """What a service keeps under a path; some forget it once the session that made it has ended."""

    __slots__ = ("connection",)
    connection: RemoteConnection


class RemoteConnection(ABC):
    """A session of a service, which the models of a run share; it ends with its last user.

    Subclasses say who the vendor is, and open the session with the vendor's kit.
    """

    #: The name of the services of this vendor, of its kit, and of what of plugrl installs it.
    vendor: ClassVar[str]
    #: The variable that is read when a section names none for its key.
    default_key: ClassVar[str]
    #: The variable that holds the address when a section has none, and the vendor's own address.
    address_variable: ClassVar[str]
    address: ClassVar[str]
    #: The path that answers whether the service is there.
    health: ClassVar[str]
    #: What keys begin with, and what a service on this machine gets as one.
    key_prefix: ClassVar[str]
    local_key: ClassVar[str]
    #: Why the service may have lost something, before what to do about it.
    lost: ClassVar[str] = ""

    def __init__(self, config: Any) -> None:
        self.url = self.url_of(config)
        self.key_name = config.api_key or self.default_key
        self._key = key_of(config, self.default_key, self.url, self.local_key)
        self.client: Any = self.calls(config).call("open a session", lambda: self._open(self._key))
        finalizer = weakref.finalize(self, _end_in_background, self._end, self.client)
        # Exits of the interpreter are `_end_at_exit`'s, which waits for what it began.
        finalizer.atexit = False
        _FINALIZERS.add(finalizer)

    @classmethod
    def url_of(cls, config: Any) -> str:
        """Where the service is, as the section or the environment says."""
        address = config.base_url or os.environ.get(cls.address_variable) or cls.address
        return str(address).rstrip("/")

    @classmethod
    def findings(cls, check: Preflight) -> Iterator[Finding]:
        """What is missing of the settings of a service; nothing is contacted."""
        yield from settings_findings(
            check, default_key=cls.default_key, url=cls.url_of(check.section), kit=cls.vendor
        )

    @classmethod
    def shared(cls, config: Any) -> Self:
        """The connection that has these settings; one is opened if there is none.

        Raises:
            ConfigError: the kit is not installed, there is no key, or the service refuses it.
            RunError: the service cannot be reached.
        """
        place = (cls, cls.url_of(config), config.api_key or cls.default_key)
        with _OPENING:
            connection: Self | None = _OPEN.get(place)
            if connection is None:
                connection = _OPEN[place] = cls(config)
            return connection

    def _stop_sharing(self) -> None:
        """Be shared no longer: a session that its service forgot is of no use to later runs."""
        place = (type(self), self.url, self.key_name)
        if _OPEN.get(place) is self:
            _OPEN.pop(place, None)

    def hold_path(self, path: str) -> HeldPath:
        """A path at the service, with which the session stays open."""
        held = HeldPath(path)
        held.connection = self
        return held

    @abstractmethod
    def _open(self, key: str) -> Any:
        """The client of the vendor's kit, with a session."""

    @staticmethod
    @abstractmethod
    def _end(client: Any) -> None:
        """End the session of ``client``; it runs in a thread that nobody waits for for long."""

    @abstractmethod
    def context_of(self, base_model: str, calls: RemoteCalls) -> int | None:
        """The longest sequence that the service takes for a model; None: it does not say.

        Raises:
            ConfigError: it has no such model.
        """

    def shortest_context(self, config: Any, source: int | None, calls: RemoteCalls) -> int | None:
        """The least of the limits of the section, the service and the source; None: there is none.

        Raises:
            ConfigError: the service has no such model.
        """
        limits = [
            config.max_context, self.context_of(str(config.base_model), calls), source,
        ]  # fmt: skip
        return min((limit for limit in limits if limit), default=None)

    def calls(self, config: Any) -> RemoteCalls:
        """What waits for the service as long as the section of one of its users says."""
        return RemoteCalls(
            f"the {self.vendor} service",
            self.url,
            health=f"{self.url}{self.health}",
            timeout=config.timeout,
            patience=config.patience,
            explain=self._explain,
        )

    def _check_known(self, base_model: str, models: Sequence[str]) -> None:
        if base_model in models:
            return
        names = [name for name in models if name]
        known = ", ".join(names[:20]) or "none"
        raise ConfigError(
            f"base_model: the {self.vendor} service at {self.url} has no model {base_model!r}; it "
            f"has: {known}{did_you_mean(base_model, names, 1)}"
        )

    def _status(self, error: Exception, text: str) -> int | None:
        """The status of HTTP that an error of the kit stands for; ``text`` is its line."""
        return getattr(error, "status_code", None)

    def _explain(self, what: str, error: Exception) -> PlugrlError | None:
        where, text = f"the {self.vendor} service at {self.url}", one_line(error)[:400]
        if len(self._key) > len(self.key_prefix):
            text = text.replace(self._key, "<key>")
        status = self._status(error, text)
        if status in (401, 403):
            return ConfigError(
                f"{where} refuses the key of {self.key_name} ({status}); set that variable to a "
                "valid key"
            )
        if status == 402:
            return RunError(f"{where} wants payment before it can {what}: {text}")
        if status in (404, 410):
            self._stop_sharing()
            return RunError(
                f"{where} has lost what is needed to {what}: {text}; {self.lost}resume the run, "
                "or start it anew if its saved states are gone too"
            )
        return self._other(where, text, error) or RunError(f"{where} failed to {what}: {text}")

    def _other(self, where: str, text: str, error: Exception) -> PlugrlError | None:
        """What stands for an error of the kit that has no status of these; None: nothing more."""
        return None
