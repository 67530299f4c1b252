"""The connection to a service of the Tinker API, and what its errors mean."""

from __future__ import annotations

import os
import re
import threading
import weakref
from concurrent.futures import Future
from typing import Any

from plugrl.core.blame import one_line
from plugrl.core.errors import ConfigError, PlugrlError, RunError
from plugrl.core.suggest import did_you_mean
from plugrl.core.text.remote_calls import RemoteCalls
from plugrl.core.text.remote_settings import key_of, missing

DEFAULT_KEY = "TINKER_API_KEY"
VENDOR = "https://tinker.thinkingmachines.dev/services/tinker-prod"
#: What a service on this machine gets as a key; the kit refuses keys of another form.
_LOCAL_KEY = "tml-local"
_STATUS = re.compile(r"(?:Error code: |[( ]status )(\d{3})")
_OPENING = threading.Lock()
_OPEN: weakref.WeakValueDictionary[tuple[str, str], Connection] = weakref.WeakValueDictionary()


def url_of(config: Any) -> str:
    """Where the service is, as the section or the environment says."""
    return str(config.base_url or os.environ.get("TINKER_BASE_URL") or VENDOR).rstrip("/")


class Connection:
    """A session of the service, which the models of a run share; it ends with its last user."""

    def __init__(self, config: Any) -> None:
        self.url = url_of(config)
        self.key_name = config.api_key or DEFAULT_KEY
        self._key = key_of(config, DEFAULT_KEY, self.url, _LOCAL_KEY)
        self.client: Any = self.calls(config).call("open a session", self._open)
        # Otherwise its heartbeat would keep the session, and what it holds there, for ever.
        weakref.finalize(self, self.client.holder.close)

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
            "the tinker service",
            self.url,
            health=f"{self.url}/api/v1/healthz",
            timeout=config.timeout,
            patience=config.patience,
            explain=self._explain,
        )

    def _open(self) -> Any:
        try:
            import tinker
        except ImportError as error:
            raise ConfigError(f"the service tinker {missing('tinker', 'tinker')}") from error
        return tinker.ServiceClient(base_url=self.url, api_key=self._key)

    def context_of(self, base_model: str, calls: RemoteCalls) -> int | None:
        """The longest sequence that the service takes for a model; None: it does not say.

        Raises:
            ConfigError: it has no such model.
        """
        answer = calls.call("name its models", self.client.get_server_capabilities)
        lengths = {
            model.model_name: getattr(model, "max_context_length", None)
            for model in answer.supported_models
        }
        if base_model not in lengths:
            names = [name for name in lengths if name]
            known = ", ".join(names[:20]) or "none"
            raise ConfigError(
                f"base_model: the tinker service at {self.url} has no model {base_model!r}; it "
                f"has: {known}{did_you_mean(base_model, names, 1)}"
            )
        return lengths[base_model]

    def _explain(self, what: str, error: Exception) -> PlugrlError | None:
        where, text = f"the tinker service at {self.url}", self._without_key(one_line(error)[:400])
        status = getattr(error, "status_code", None)
        if status is None and (found := _STATUS.search(text)):
            status = int(found[1])
        if status in (401, 403):
            return ConfigError(
                f"{where} refuses the key of {self.key_name} ({status}); set that variable to a "
                "valid key"
            )
        if status == 402:
            return RunError(f"{where} wants payment before it can {what}: {text}")
        if status in (404, 410):
            return RunError(
                f"{where} has lost what is needed to {what}: {text}; it was restarted or let the "
                "session expire: resume the run, or start it anew if its saved states are gone too"
            )
        if "api_key" in text and type(error).__name__ == "TinkerError":
            # Keys that the kit refuses before it sends them; it tells by how they begin.
            return ConfigError(
                f"the environment variable {self.key_name} holds no key of {where}: keys begin "
                "with 'tml-'; set it to a key of that service, or name another in api_key"
            )
        return RunError(f"{where} failed to {what}: {text}")

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "<key>") if len(self._key) > len("tml-") else text


def plain(future: Any) -> Future[Any]:
    """The future of ``concurrent.futures`` behind one of the kit."""
    inner: Future[Any] = future.future() if hasattr(future, "future") else future
    return inner
