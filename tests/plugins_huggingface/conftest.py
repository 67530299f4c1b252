"""A hub of this machine, and the client set to it: nothing leaves it or lands in the home."""

import pytest

# Imported here, so that its time is not that of whichever test comes first.
import transformers.models.auto.configuration_auto  # noqa: F401
from hub_server import hub_server

from plugrl.core.hub.hub import find_hub
from plugrl.plugins.huggingface import hub as plugin


@pytest.fixture
def server():
    """A server that holds nothing yet."""
    with hub_server() as running:
        yield running


@pytest.fixture
def forget(monkeypatch):
    """Forgets what this process has asked the hub, as another process would not know it."""

    def act():
        for name in ("_models", "_data_sets", "_addresses"):
            monkeypatch.setattr(plugin, name, {})

    act()
    return act


@pytest.fixture
def set_up(monkeypatch, tmp_path):
    """Sets the client of this process: its constants are read from the environment once."""
    from huggingface_hub import constants, utils

    def act(**values):
        for name, value in values.items():
            monkeypatch.setattr(constants, name, value)

    monkeypatch.delenv("HF_TOKEN", raising=False)
    act(HF_HUB_CACHE=str(tmp_path / "cache"), HF_HUB_OFFLINE=False, HF_HUB_DISABLE_XET=True)
    # A client that another test has connected knows another server.
    utils.close_session()
    return act


@pytest.fixture
def hub(server, set_up, forget):
    """The hub as plugrl sees it, which is the server."""
    url = server.url
    set_up(
        ENDPOINT=url, HUGGINGFACE_CO_URL_TEMPLATE=url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    return find_hub()
