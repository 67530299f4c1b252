"""Models of the hub: what is fetched of them, what stays, and why they cannot be had."""

import errno
import json
import sys
from pathlib import Path

import pytest
from hub_server import TOKEN

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import Snapshot, find_hub, model_folder
from plugrl.plugins.huggingface.faults import hub_error

NAME = "someone/model"
CONFIG = json.dumps({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}).encode()
FILES = {
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 20_000,
    "onnx/model.json": b"{}",
    "README.md": b"# A model\n",
}
SHARDS = {
    "config.json": CONFIG,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    ).encode(),
    "model-1.safetensors": b"1" * 6000,
    "model-2.safetensors": b"2" * 6000,
    "other.safetensors": b"3" * 6000,
}


def held(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*.*"))


def test_configuration_and_tokenizer_come_without_the_weights(hub, server):
    commit = server.model(NAME, FILES)
    found = hub.model(NAME, None, weights=False)
    assert found.commit == commit
    assert held(found.folder) == ["config.json", "tokenizer.json"]
    assert not server.asked("model.safetensors")


def test_weights_come_once_and_are_whole(hub, server, forget):
    commit = server.model(NAME, FILES)
    folder = hub.model(NAME, None, weights=True).folder
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert held(folder) == ["config.json", "model.safetensors", "tokenizer.json"]
    forget()
    before = len(server.asked("/someone/"))
    assert hub.model(NAME, commit, weights=True).folder == folder
    assert len(server.asked("/someone/")) == before


def test_of_sharded_weights_those_of_the_index_come(hub, server):
    server.model(NAME, SHARDS)
    folder = hub.model(NAME, None, weights=True).folder
    names = ["model-1.safetensors", "model-2.safetensors"]
    assert [name for name in held(folder) if name.endswith(".safetensors")] == names


def test_a_branch_moves_and_a_commit_does_not(hub, server, forget):
    first = server.model(NAME, FILES)
    second = server.model(NAME, {"config.json": CONFIG + b" "})
    side = server.model(NAME, {"side.json": b"{}"}, branch="side")
    assert first != second
    assert hub.model(NAME, None, weights=False).commit == second
    assert hub.model(NAME, first, weights=False).commit == first
    assert hub.model(NAME, "side", weights=False).commit == side


def test_a_folder_here_wins(hub, server, tmp_path, monkeypatch):
    server.model(NAME, FILES)
    monkeypatch.chdir(tmp_path)
    source = {"path": NAME, "revision": None}
    assert model_folder(source, weights=False) != Path(NAME)
    Path(NAME).mkdir(parents=True)
    assert model_folder(source, weights=False) == Path(NAME)
    with pytest.raises(ConfigError, match="is a folder, and revision 'main' belongs to a model"):
        model_folder(source | {"revision": "main"}, weights=False)


@pytest.mark.parametrize("path", ["no", "no/such/folder", "./no/folder", "~/no", "/no/folder"])
def test_other_forms_are_folders(hub, server, path):
    with pytest.raises(ConfigError) as caught:
        model_folder({"path": path, "revision": None}, weights=False)
    says = f"{path}: there is no such folder; a model of the hub is written owner/name"
    assert str(caught.value) == says
    assert not server.requests


def test_a_private_model_is_there_for_its_token(hub, server, monkeypatch):
    server.model(NAME, FILES, private=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub.model(NAME, None, weights=True).folder.is_dir()
    # Another host has the large files, and is not told the token.
    assert server.asked("/large/")


def missing(server, monkeypatch):
    return "has no model someone/model, or it is private; check the name"


def private(server, monkeypatch):
    server.model(NAME, FILES, private=True)
    return "has no model someone/model, or it is private; check the name"


def gated(server, monkeypatch):
    server.model(NAME, FILES, gated=True)
    return f"is gated; accept its conditions at {server.url}/{NAME}, then set HF_TOKEN"


def wrong_token(server, monkeypatch):
    server.model(NAME, FILES)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "b" * 34)
    return "refuses the token (401); set a valid HF_TOKEN"


def busy(server, monkeypatch):
    server.model(NAME, FILES)
    server.failing["/api/models/"] = (503, 9)
    return "answers 503 (a fault of this server); try again later"


def forbidden(server, monkeypatch):
    server.model(NAME, FILES)
    server.failing["/api/models/"] = (403, 9)
    return "the token has no right to this (403)"


def often(server, monkeypatch):
    server.model(NAME, FILES)
    server.failing["/api/models/"] = (429, 9)
    return "is asked too often (429)"


def without_weights(server, monkeypatch):
    server.model(NAME, {"config.json": CONFIG, "model.gguf": b"g"})
    return "holds no weights (*.safetensors), only .gguf; name a repository that has them"


def own_code(server, monkeypatch):
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "code.py"}}
    server.model(NAME, FILES | {"config.json": json.dumps(config).encode(), "code.py": b""})
    return "needs code of its own (auto_map in config.json), and code of the hub is never run"


def broken_index(server, monkeypatch):
    server.model(NAME, {"config.json": CONFIG, "model.safetensors.index.json": b"[]"})
    return "model.safetensors.index.json cannot be read"


@pytest.mark.parametrize(
    "prepare",
    [missing, private, gated, wrong_token, busy, forbidden, often, without_weights, own_code,
     broken_index],
)  # fmt: skip
def test_what_cannot_be_had_is_one_line(hub, server, monkeypatch, prepare):
    says = prepare(server, monkeypatch)
    with pytest.raises(ConfigError) as caught:
        hub.model(NAME, None, weights=True)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_code_beside_an_architecture_of_transformers_is_not_run(hub, server):
    config = {"model_type": "qwen2", "auto_map": {"AutoConfig": "code.py"}}
    server.model(NAME, FILES | {"config.json": json.dumps(config).encode(), "code.py": b"1/0"})
    assert "code.py" not in held(hub.model(NAME, None, weights=True).folder)


def test_a_revision_that_is_not_there(hub, server):
    server.model(NAME, FILES)
    with pytest.raises(ConfigError, match="has no revision 'v2'; name a branch, tag or commit"):
        hub.model(NAME, "v2", weights=False)


def test_a_hub_that_cannot_be_reached(hub, server, set_up, tmp_path):
    set_up(ENDPOINT="http://127.0.0.1:9")
    with pytest.raises(ConfigError) as caught:
        hub.model(NAME, None, weights=False)
    assert str(caught.value) == (
        f"model someone/model is not in the cache {tmp_path / 'cache'}, and http://127.0.0.1:9 "
        "cannot be reached (ConnectError); check the network, and HF_ENDPOINT if it is set, and "
        "run the command again"
    )


def test_without_network_the_cache_serves_what_it_has(hub, server, set_up, forget):
    server.model(NAME, SHARDS)
    folder = hub.model(NAME, None, weights=True).folder
    before = len(server.requests)
    for change in (
        {"HF_HUB_OFFLINE": True},
        {"HF_HUB_OFFLINE": False, "ENDPOINT": "http://[::1]:9"},
    ):
        set_up(**change)
        forget()
        assert hub.model(NAME, None, weights=True).folder == folder
        assert hub.model_fault(NAME, None) is None
    assert len(server.requests) == before


def test_a_model_that_is_not_in_the_cache_offline(hub, server, set_up, tmp_path):
    set_up(HF_HUB_OFFLINE=True)
    with pytest.raises(ConfigError) as caught:
        hub.model(NAME, None, weights=False)
    assert str(caught.value) == (
        f"model someone/model is not in the cache {tmp_path / 'cache'}, and HF_HUB_OFFLINE is set; "
        "unset it, so that it is downloaded"
    )
    assert not server.requests


def test_a_model_of_which_a_part_is_in_the_cache_offline(hub, server, set_up, forget, tmp_path):
    server.model(NAME, SHARDS)
    hub.model(NAME, None, weights=False)
    forget()
    set_up(HF_HUB_OFFLINE=True)
    with pytest.raises(ConfigError) as caught:
        hub.model(NAME, None, weights=True)
    assert str(caught.value) == (
        f"model someone/model is in the cache {tmp_path / 'cache'} only in part, and "
        "HF_HUB_OFFLINE is set; unset it, so that it is downloaded"
    )


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub, server, set_up, monkeypatch):
    set_up(DOWNLOAD_CHUNK_SIZE=1000)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    server.model(NAME, FILES)
    server.cuts["model.safetensors"] = (12_000, 1)
    sent = server.sent
    folder = hub.model(NAME, None, weights=True).folder
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    weights = len(FILES["model.safetensors"])
    assert weights <= server.sent - sent < weights + 1000


def test_a_download_that_ends_too_often_is_said_and_goes_on_later(hub, server, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    server.model(NAME, FILES)
    server.cuts["model.safetensors"] = (0, 99)
    with pytest.raises(ConfigError) as caught:
        hub.model(NAME, None, weights=True)
    assert "someone/model" in str(caught.value)
    assert "run the command again" in str(caught.value)
    server.cuts.clear()
    assert hub.model(NAME, None, weights=True).folder.is_dir()


def test_no_space_and_no_right_to_write_name_the_folder(set_up, tmp_path):
    full = hub_error(OSError(errno.ENOSPC, "No space left on device"), "model a/b")
    assert str(full) == (
        f"model a/b: no space is left in {tmp_path / 'cache'}; free some, or set HF_HOME to a "
        "folder on another disk"
    )
    denied = hub_error(PermissionError(errno.EACCES, "Permission denied", "/hub"), "model a/b")
    assert "/hub cannot be written (Permission denied); set HF_HOME" in str(denied)


def test_a_hub_of_the_users_is_asked_in_its_place(tmp_path, monkeypatch):
    from plugrl.core.plugins import registry

    class Elsewhere(type(find_hub())):
        def model(self, name, revision, *, weights):
            return Snapshot(tmp_path / "mine", "c")

    held = registry.default_registry().snapshot()
    try:
        Elsewhere.__qualname__ = "Elsewhere"
        monkeypatch.setattr(sys.modules[__name__], "Elsewhere", Elsewhere, raising=False)
        registry.register_hub("huggingface")(Elsewhere)
        source = {"path": "someone/model", "revision": None}
        assert model_folder(source, weights=True) == tmp_path / "mine"
    finally:
        registry.default_registry().restore(held)
