"""The connection to a Weaver service, and what its errors mean."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Any

from plugrl.core.blame import one_line
from plugrl.core.errors import ConfigError, PlugrlError, RunError
from plugrl.core.suggest import did_you_mean
from plugrl.core.text.remote_calls import RemoteCalls
from plugrl.core.text.remote_settings import key_of, missing

DEFAULT_KEY = "WEAVER_API_KEY"
VENDOR = "https://weaver-console.nex-agi.cn"
#: What a service on this machine gets as a key.
_LOCAL_KEY = "sk-local"
#: Seconds that a session may take to end.
_ENDING = 10.0
_OPENING = threading.Lock()
_OPEN: weakref.WeakValueDictionary[tuple[str, str], Connection] = weakref.WeakValueDictionary()


def url_of(config: Any) -> str:
    """Where the service is, as the section or the environment says."""
    return str(config.base_url or os.environ.get("WEAVER_BASE_URL") or VENDOR).rstrip("/")


class Connection:
    """A session of the service, which the models of a run share; it ends with its last user."""

    def __init__(self, config: Any) -> None:
        self.url = url_of(config)
        self.key_name = config.api_key or DEFAULT_KEY
        self._key = key_of(config, DEFAULT_KEY, self.url, _LOCAL_KEY)
        self.client: Any = self.calls(config).call("open a session", self._open)
        weakref.finalize(self, _end, self.client)

    @classmethod
    def shared(cls, config: Any) -> Connection:
        """The connection that has these settings; one is opened if there is none.

        Raises:
            ConfigError: the kit is not installed, there is no key, or the service refuses it.
            RunError: the service cannot be reached.
        """
        place = (url_of(config), config.api_key or DEFAULT_KEY)
        with _OPENING:
            connection = _OPEN.get(place)
            if connection is None:
                connection = _OPEN[place] = cls(config)
            return connection

    def calls(self, config: Any) -> RemoteCalls:
        """What waits for the service as long as the section of one of its users says."""
        return RemoteCalls(
            "the weaver service",
            self.url,
            health=f"{self.url}/api/v1/health",
            timeout=config.timeout,
            patience=config.patience,
            explain=self._explain,
        )

    def _open(self) -> Any:
        try:
            import weaver
        except ImportError as error:
            raise ConfigError(f"the service weaver {missing('weaver', 'weaver')}") from error
        client = weaver.ServiceClient(base_url=self.url, api_key=self._key)
        client.connect()
        # It ends models over the network, and would wait long for a service that is down.
        atexit.unregister(client.close)
        return client

    def context_of(self, base_model: str, calls: RemoteCalls) -> int | None:
        """The longest sequence that the service takes for a model, as its name says.

        Raises:
            ConfigError: it has no such model.
        """
        names = calls.call("name its models", self.client.list_supported_models)
        if base_model not in names:
            known = ", ".join(names[:20]) or "none"
            raise ConfigError(
                f"base_model: the weaver service at {self.url} has no model {base_model!r}; it "
                f"has: {known}{did_you_mean(base_model, names, 1)}"
            )
        length = base_model.rpartition(":")[2]
        return int(length) if length.isdigit() else None

    def _explain(self, what: str, error: Exception) -> PlugrlError | None:
        where, text = f"the weaver service at {self.url}", one_line(error)[:400]
        if len(self._key) > len("sk-"):
            text = text.replace(self._key, "<key>")
        status = getattr(error, "status_code", None)
        if status in (401, 403):
            return ConfigError(
                f"{where} refuses the key of {self.key_name} ({status}); set that variable to a "
                "valid key"
            )
        if status == 402:
            return RunError(f"{where} wants payment before it can {what}: {text}")
        if status in (404, 410):
            return RunError(
                f"{where} has lost what is needed to {what}: {text}; resume the run, or start it "
                "anew if its saved states are gone too"
            )
        return RunError(f"{where} failed to {what}: {text}")


def _end(client: Any) -> None:
    ending = threading.Thread(target=client.close, daemon=True)
    ending.start()
    ending.join(_ENDING)
