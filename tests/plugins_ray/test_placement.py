"""Which replica answers a request, and what is refused before any runs."""

import pytest
import torch

from plugrl.core.config.check import configure
from plugrl.core.config.plan import batch_plan
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.plugins.ray.engines import RayInferenceService
from plugrl.plugins.ray.placement import Placement, divide, group_of
from plugrl.testing import tiny


def request(item, run=0, turn=0):
    return GenerationRequest([1], SamplingParams(), (5, 2, item, run, turn))


def test_a_new_prompt_goes_where_the_fewest_requests_are_open():
    placement = Placement(3)
    assert [placement.place(group) for group in "abcd"] == [0, 1, 2, 0]
    placement.answered(2)
    assert placement.place("e") == 2
    placement.answered(1)
    placement.answered(2)
    assert placement.place("f") == 1


def test_attempts_at_a_prompt_and_their_turns_stay_where_it_is():
    placement = Placement(2)
    first = placement.place(group_of(request(7)))
    for _ in range(3):
        assert placement.place(group_of(request(7, run=1))) == first
    assert placement.place(group_of(request(8))) != first
    for _ in range(4):
        placement.answered(first)
    # Nothing is open there, and yet a later turn comes back.
    assert placement.place(group_of(request(7, run=1, turn=3))) == first


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("plugrl.plugins.ray.placement._REMEMBERED", 2)
    placement = Placement(4)
    assert [placement.place(group) for group in "abac"] == [0, 1, 0, 2]
    # The one that was asked last is kept, and the other is new again.
    assert placement.place("a") == 0
    assert placement.place("b") == 3


def test_a_list_is_divided_by_prompts_and_by_nothing_else():
    requests = [request(item, run) for item in range(5) for run in range(2)]
    parts = divide(requests, 2)
    assert parts == {0: [0, 1, 4, 5, 8, 9], 1: [2, 3, 6, 7]}
    assert divide(requests, 2) == parts
    assert divide(requests[:2], 3) == {0: [0, 1]}
    assert divide(requests, 1) == {0: list(range(10))}
    assert divide([], 2) == {}


def with_inference(folder, **section):
    tree = tiny.config("self_hosted_grpo", folder)
    tree["models"]["policy"]["inference"] = {"type": "ray", **section}
    tree["settings"]["cluster"] = {"cpus": 8}
    return tree


def test_more_replicas_than_fit_are_refused_before_a_run(tmp_path):
    said = (
        r"inference\.replicas \(.*: 5 actors with 2 CPU each do not fit: 4 do \(this machine has 8"
    )
    with pytest.raises(ConfigError, match=said):
        prepare(with_inference(tmp_path, replicas=5, resources={"CPU": 2}))
    prepare(with_inference(tmp_path, replicas=4, resources={"CPU": 2}))


def test_what_all_parts_ask_for_together_is_refused_before_a_run(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    tree = with_inference(tmp_path, replicas=2, resources={"CPU": 2})
    tree["rollout_worker"]["executor"] = {"type": "ray", "workers": 3}
    tree["models"]["policy"]["train"] = {"type": "fsdp", "workers": 2}
    tree["settings"]["device"] = "cpu"
    said = (
        r"executor\.workers \(.*: 3 rollout workers \(3\), 2 replicas of model 'policy' \(4\), 2 "
        r"ranks of model 'policy' \(2\) need 9 CPU in all, and this machine has 8; write fewer, or"
    )
    with pytest.raises(ConfigError, match=said) as raised:
        prepare(tree)
    assert len(raised.value.faults) == 1
    tree["rollout_worker"]["executor"]["workers"] = 2
    plan = dict(batch_plan(prepare(tree).validated))
    assert plan["prompts a replica of policy"] == "2 / 2 = 1"
    assert plan["taken by each replica of policy"] == "2 CPU"
    assert plan["taken of the cluster"] == "8 CPU"


def test_gpus_that_this_machine_lacks_are_refused_before_a_run(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    tree = with_inference(tmp_path, replicas=2, resources={"CPU": 1, "GPU": 1})
    with pytest.raises(ConfigError, match=r"do not fit: 1 do \(this machine has 8 CPU, 1 GPU\)"):
        prepare(tree)
    tree["models"]["policy"]["inference"]["resources"]["GPU"] = 0.5
    tree["rollout_worker"]["executor"] = {"type": "ray", "workers": 1, "resources": {"GPU": 0.5}}
    with pytest.raises(ConfigError, match=r"need 1\.5 GPU in all, and this machine has 1;"):
        prepare(tree)


def test_options_of_an_engine_are_those_of_its_service(tmp_path):
    with pytest.raises(ConfigError, match=r"inference\.engine\.max_batch_sise .*max_batch_size"):
        prepare(with_inference(tmp_path, engine={"type": "transformers", "max_batch_sise": 3}))
    with pytest.raises(ConfigError, match=r"inference\.engine\.max_batch_size .* 0"):
        prepare(with_inference(tmp_path, engine={"type": "transformers", "max_batch_size": 0}))
    with pytest.raises(ConfigError, match="inference_service 'transfomers'; did you mean transf"):
        prepare(with_inference(tmp_path, engine="transfomers"))


def test_an_actor_runs_another_service():
    for name in ("ray", "plugrl/ray"):
        with pytest.raises(ConfigError, match="name another service than ray"):
            configure(RayInferenceService, {"engine": name})


@pytest.mark.parametrize(
    ("sections", "count"),
    [
        # Those of evaluations are there beside those of training.
        ({}, 8),
        ({"validate": {"enabled": False}}, 4),
        ({"scenario": {"num_test_envs": 3}}, 7),
        ({"validate": {"enabled": False}, "rl": {"num_test_iterations": 2}}, 8),
    ],
)
def test_environments_that_do_not_fit_are_refused_before_a_run(
    tmp_path, monkeypatch, sections, count
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    tree = {
        "trainer": "vanilla_ppo",
        "scenario": {
            "type": "gymnasium",
            "id": "CartPole-v1",
            "num_envs": 4,
            "vectorization": "ray",
        },
        "settings": {"runs_folder": str(tmp_path), "cluster": {"cpus": count - 1}},
    }
    tree = tiny.merged(tree, sections)
    said = rf"scenario\.num_envs \(.*: {count} actors with 1 CPU each do not fit: {count - 1} do "
    with pytest.raises(ConfigError, match=said):
        prepare(tree)
    tree["settings"]["cluster"]["cpus"] = count
    prepare(tree)
