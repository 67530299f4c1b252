"""The commits that a configuration gets before its run begins, in whichever section names what."""

import hub_files
import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.hub.revisions import pin_revisions
from plugrl.core.plugins.registry import default_registry
from plugrl.testing import tiny

MODEL = {
    "config.json": b'{"model_type": "qwen2"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 6000,
}
FILE = {"a.jsonl": b'{"prompt": "ab", "answer": "a"}\n'}


def pinned(tree):
    return pin_revisions(prepare(tree, preflight=False).validated, default_registry())


def configured(tmp_path, kind, **sections):
    tree = tiny.config(kind, tmp_path)
    for name, section in sections.items():
        tree[name] = section
    return tree


@pytest.fixture
def commits(hub, server):
    """Repositories, whose branches have moved on from tag v1."""
    for model in ("a/policy", "a/judge"):
        server.repo("model", model).refs["v1"] = server.model(model, MODEL)
        server.model(model, {"more.json": b"{}"})
    server.repo("dataset", "a/data").refs["v1"] = server.data_set("a/data", hub_files.data_set())
    server.data_set("a/data", {"more.txt": b""})
    server.data_set("a/files", FILE)
    return lambda kind, name, ref="main": server.repo(kind, name).refs[ref]


def test_models_data_and_files_get_their_commits(commits, server, tmp_path):
    policy = {"source": {"path": "a/policy", "revision": "v1"}, "train": "local"}
    judge = {"source": {"path": "a/judge"}}
    tree = configured(
        tmp_path, "self_hosted_grpo",
        models={"policy": policy, "judge": judge},
        data={"name": "a/data", "subset": "main", "revision": "v1", "prompt_key": "question"},
        validate={"data": {"data_files": ["hf://datasets/a/files/*.jsonl"]}},
    )  # fmt: skip
    found = pinned(tree).tree
    sources = {name: model["source"]["revision"] for name, model in found["models"].items()}
    assert sources == {
        "policy": commits("model", "a/policy", "v1"), "judge": commits("model", "a/judge"),
    }  # fmt: skip
    assert found["data"]["revision"] == commits("dataset", "a/data", "v1")
    at = commits("dataset", "a/files")
    assert found["validate"]["data"]["data_files"] == [f"hf://datasets/a/files@{at}/*.jsonl"]
    # A second time nothing changes and nothing is asked.
    before = len(server.asked("/api/datasets")) + len(server.asked("/api/models"))
    assert pinned(found).tree == found
    assert len(server.asked("/api/datasets")) + len(server.asked("/api/models")) == before


def test_phases_get_theirs_and_the_run_says_so(commits, tmp_path):
    grpo = {"type": "self_hosted_grpo", "total_train_steps": 1}
    tree = configured(
        tmp_path, "sequence",
        models={"policy": {"source": {"path": "a/policy"}, "train": "local"}},
        data={"name": "a/data", "subset": "main", "prompt_key": "question"},
        validate={"enabled": False},
        trainer={"type": "sequence", "phases": [
            {"name": "one", "trainer": grpo},
            {"name": "two", "trainer": grpo, "data": {"revision": "v1"}},
        ]},
    )  # fmt: skip
    found = pinned(tree)
    main, tagged = commits("dataset", "a/data"), commits("dataset", "a/data", "v1")
    assert main != tagged
    assert [phase.tree["data"]["revision"] for _, phase in found.phases] == [main, tagged]
    assert found.tree["data"]["revision"] == main
    assert found.tree["trainer"]["phases"][1]["data"]["revision"] == tagged
    for tree in (found.tree, *(phase.tree for _, phase in found.phases)):
        assert tree["models"]["policy"]["source"]["revision"] == commits("model", "a/policy")


SERVED = {"type": "openai", "base_url": "http://127.0.0.1:9/v1"}


@pytest.mark.parametrize("served", [SERVED, {"type": "ray", "engine": SERVED}], ids=["", "ray"])
def test_what_needs_no_weights_gets_the_tokenizer_alone(commits, server, tmp_path, served):
    source = {"path": "a/policy"}
    tree = configured(
        tmp_path, "self_hosted_grpo",
        models={
            "policy": {"source": {"path": "a/judge"}, "train": "local"},
            "teacher": {"source": source, "inference": served},
        },
        validate={"enabled": False},
    )  # fmt: skip
    pinned(tree)
    assert [path for _, path in server.asked("tokenizer.json") if path.startswith("/a/policy")]
    weights = [path for _, path in server.asked("model.safetensors")]
    assert weights
    assert not [path for path in weights if path.startswith("/a/policy")]


def test_engines_of_a_service_get_the_weights_that_they_load(commits, server, tmp_path):
    tree = configured(
        tmp_path, "self_hosted_grpo",
        models={
            "policy": {"source": {"path": "a/judge"}, "train": "local"},
            "teacher": {"source": {"path": "a/policy"}, "inference": "ray"},
        },
        validate={"enabled": False},
    )  # fmt: skip
    pinned(tree)
    weights = [path for _, path in server.asked("model.safetensors")]
    assert [path for path in weights if path.startswith("/a/policy")]


def test_a_setting_is_named_where_nothing_can_be_had(commits, tmp_path):
    tree = configured(
        tmp_path, "self_hosted_grpo",
        models={"policy": {"source": {"path": "a/none"}, "train": "local"}},
        validate={"enabled": False},
    )  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"^models\.policy\.source\.path: http.*has no model a/none"
    ):
        pinned(tree)
