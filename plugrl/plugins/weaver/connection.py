"""The connection to a Weaver service."""

from __future__ import annotations

import atexit
from typing import Any, ClassVar

from plugrl.core.errors import ConfigError
from plugrl.core.text.remote.calls import RemoteCalls
from plugrl.core.text.remote.connection import RemoteConnection
from plugrl.core.text.remote.settings import missing


class Connection(RemoteConnection):
    """A session of a Weaver service."""

    vendor: ClassVar[str] = "weaver"
    default_key: ClassVar[str] = "WEAVER_API_KEY"
    address_variable: ClassVar[str] = "WEAVER_BASE_URL"
    address: ClassVar[str] = "https://weaver-console.nex-agi.cn"
    health: ClassVar[str] = "/api/v1/health"
    key_prefix: ClassVar[str] = "sk-"
    local_key: ClassVar[str] = "sk-local"

    def _open(self, key: str) -> Any:
        try:
            import weaver
        except ImportError as error:
            raise ConfigError(f"the service weaver {missing('weaver', 'weaver')}") from error
        client = weaver.ServiceClient(base_url=self.url, api_key=key)
        client.connect()
        # It ends models over the network, and would wait long for a service that is down.
        atexit.unregister(client.close)
        return client

    @staticmethod
    def _end(client: Any) -> None:
        client.close()

    def context_of(self, base_model: str, calls: RemoteCalls) -> int | None:
        """The longest sequence that the service takes for a model, as its name says.

        Raises:
            ConfigError: it has no such model.
        """
        self._check_known(
            base_model, calls.call("name its models", self.client.list_supported_models)
        )
        length = base_model.rpartition(":")[2]
        return int(length) if length.isdigit() else None
