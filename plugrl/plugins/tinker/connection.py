"""The connection to a service of the Tinker API, and what its errors mean."""

from __future__ import annotations

import re
from concurrent.futures import Future
from typing import Any, ClassVar

from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.core.text.remote.calls import RemoteCalls
from plugrl.core.text.remote.connection import RemoteConnection
from plugrl.core.text.remote.settings import missing

_STATUS = re.compile(r"(?:Error code: |[( ]status )(\d{3})")


class Connection(RemoteConnection):
    """A session of a service of the Tinker API."""

    vendor: ClassVar[str] = "tinker"
    default_key: ClassVar[str] = "TINKER_API_KEY"
    address_variable: ClassVar[str] = "TINKER_BASE_URL"
    address: ClassVar[str] = "https://tinker.thinkingmachines.dev/services/tinker-prod"
    health: ClassVar[str] = "/api/v1/healthz"
    key_prefix: ClassVar[str] = "tml-"
    #: The kit refuses keys of another form.
    local_key: ClassVar[str] = "tml-local"
    lost: ClassVar[str] = "it was restarted or let the session expire: "

    def _open(self, key: str) -> Any:
        try:
            import tinker
        except ImportError as error:
            raise ConfigError(f"the service tinker {missing('tinker', 'tinker')}") from error
        return tinker.ServiceClient(base_url=self.url, api_key=key)

    @staticmethod
    def _end(client: Any) -> None:
        # Otherwise its heartbeat would keep the session, and what it holds there, for ever.
        client.holder.close()

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
        self._check_known(base_model, list(lengths))
        return lengths[base_model]

    def _status(self, error: Exception, text: str) -> int | None:
        status = super()._status(error, text)
        if status is None and (found := _STATUS.search(text)):
            return int(found[1])
        return status

    def _other(self, where: str, text: str, error: Exception) -> PlugrlError | None:
        if "api_key" not in text or type(error).__name__ != "TinkerError":
            return None
        # Keys that the kit refuses before it sends them; it tells by how they begin.
        return ConfigError(
            f"the environment variable {self.key_name} holds no key of {where}: keys begin with "
            f"{self.key_prefix!r}; set it to a key of that service, or name another in api_key"
        )


def plain(future: Any) -> Future[Any]:
    """The future of ``concurrent.futures`` behind one of the kit."""
    inner: Future[Any] = future.future() if hasattr(future, "future") else future
    return inner
