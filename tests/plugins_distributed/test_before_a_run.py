"""What is said of ranks before a run: too many of them, and what each device will hold."""

import json

import pytest

from plugrl.commands.validate import report
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.plugins.ray import cluster
from plugrl.plugins.ray.cluster import Node
from plugrl.testing import tiny


def tree(folder, **train):
    """A run whose model has ranks, on a cluster of four CPUs."""
    sections = {
        "models": {"policy": {"train": {"type": "fsdp", **train}}},
        "settings": {"device": "cpu", "cluster": {"cpus": 4}},
    }
    return tiny.config("self_hosted_grpo", folder, sections)


def test_more_workers_than_devices_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    prepare(tree(tmp_path, workers=4))
    with pytest.raises(ConfigError, match=r"ask for 5 workers, and this machine has 4 CPU cores"):
        prepare(tree(tmp_path, workers=5))


def test_a_cluster_at_an_address_is_asked_for_its_devices(tmp_path, monkeypatch):
    own = tree(tmp_path, workers=5)
    own["settings"]["cluster"] = {"address": "10.0.0.1:6379"}
    nodes = [Node("a", "10.0.0.1", {"CPU": 3.0}), Node("b", "10.0.0.2", {"CPU": 1.0})]
    monkeypatch.setattr(cluster, "nodes", lambda: nodes)
    with pytest.raises(ConfigError, match=r"train\.workers .* 5 actors with 1 CPU each .*: 4 do"):
        prepare(own)
    own["models"]["policy"]["train"]["workers"] = 4
    prepare(own)


def test_a_cluster_that_is_not_there_is_told_before_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9 does not answer"):
        prepare(tree(tmp_path, workers=2))


@pytest.mark.parametrize("kind", ["fsdp", "local"])
def test_validate_prints_what_each_device_holds(tmp_path, capsys, kind):
    own = tree(tmp_path)
    own["models"]["policy"]["train"]["type"] = kind
    experiment = prepare(own)
    report(experiment, devices=2, as_json=True)
    (plan,) = json.loads(capsys.readouterr().out)["devices"].values()
    report(experiment, devices=2, as_json=False)
    printed = capsys.readouterr().out
    assert "model policy on 2 devices\n" in printed
    assert len(plan) == 10
    for what, amount in plan.items():
        assert f"{what}  " in printed
        assert amount in printed
    report(experiment, devices=1, as_json=False)
    printed = capsys.readouterr().out
    assert "model policy on 1 device\n" in printed
    assert "1, in 1 copy\n" in printed
    report(experiment, devices=4, machines=2, as_json=False)
    assert "model policy on 4 devices of 2 machines\n" in capsys.readouterr().out
    report(experiment, as_json=True)
    assert "devices" not in json.loads(capsys.readouterr().out)
