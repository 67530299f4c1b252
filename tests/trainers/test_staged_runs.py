"""Staged trainings of text agents, as runs."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import text_agents
import torch
import yaml
from transformers import AutoModelForCausalLM

import plugrl
from plugrl.core import experiment
from plugrl.core.config.plan import batch_plan
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import TrainedRun, prepare, resume
from plugrl.core.loaded_run import open_checkpoint
from plugrl.core.protocol.nested_array_dict import NestedArrayDict
from plugrl.core.text.jobs.fine_tuning import JobStatus
from plugrl.core.text.jobs.folder import JobFolder
from plugrl.core.text.jobs.service import TrainedJobs
from plugrl.testing import tiny

ALL = {"reward_threshold": -1.0}


def trained(folder, trainer="ei_pure_text", /, **sections):
    sections.setdefault("trainer", ALL if trainer == "ei_pure_text" else {})
    return plugrl.train(text_agents.config(trainer, folder, **sections))


def when_tested(run):
    """The iteration of each test, and how many models came before it."""
    return [
        (row["iteration"], sum("fine_tuned/policy" in r for r in run.metrics[: row["step"]]))
        for row in run.metrics
        if "test/accuracy" in row
    ]


class Listening:
    """Keeps what it is told of the rollouts of each iteration, and stops where it is asked to."""

    def __init__(self, stop=None):
        self.told, self.stop = [], stop

    @plugrl.hookimpl
    def plugrl_rollouts_collected(self, step, trajectories, metrics):
        self.told.append((step, [t.state_dict() for t in trajectories], metrics))

    @plugrl.hookimpl
    def plugrl_step_end(self, run, step):
        if step == self.stop:
            run.mark_resumable("enough for now")
            raise plugrl.StopRun("enough for now")


@dataclasses.dataclass
class Whole:
    run: TrainedRun
    told: list


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two iterations that ends by itself, and what a plugin was told of its rollouts."""
    plugin = Listening()
    tree = text_agents.config("ei_pure_text", tmp_path_factory.mktemp("whole"), trainer=ALL)
    return Whole(tiny.train(tree, plugin), plugin.told)


#: One iteration and no test, for what one iteration shows.
SHORT = {"num_iterations": 1, "test_scheme": "none"}


@pytest.mark.integration
def test_several_epochs_over_two_problems_end(tmp_path):
    run = trained(
        tmp_path,
        data={"batch_size": 3, "keep": {"label": [1]}},
        text_rl={"num_iterations": 3, "test_scheme": "none"},
    )
    rows = [row for row in run.metrics if "spent/requests" in row]
    # Two requests an episode, whatever the epoch.
    assert [row["spent/requests"] for row in rows] == [6, 12, 18]
    assert run.status["state"] == "done"
    assert run.checkpoint()["trainer"]["stage"] == "done"


@pytest.mark.integration
def test_all_previous_rollouts_can_be_learned_from(tmp_path):
    text_rl = {"fine_tune_on_all_previous_rollouts": True, "test_scheme": "none"}
    run = trained(tmp_path, text_rl=text_rl)
    jobs = sorted((run.folder / "fine_tuning" / "policy").iterdir())
    counts = [len((job / "examples.jsonl").read_text().splitlines()) for job in jobs]
    # An example of each of two agents in four episodes, then in eight.
    assert counts == [8, 16]


@pytest.mark.integration
def test_a_part_of_the_held_out_problems_can_be_enough(tmp_path):
    run = trained(
        tmp_path,
        data={"batch_size": 1},
        text_rl={"num_iterations": 0, "test_on_whole_dataset": False},
    )
    assert run.last_metrics["spent/requests"] == 2


LIMITS = {
    "max_requests": {"max_requests": 12},
    "max_tokens": {"max_tokens": 170},
    "max_cost": {"max_cost": 12.0, "prices": {"policy": {"output": 5e5}}},
}


def limited(folder, limit, caplog):
    """A run that a limit has ended, and its state."""
    run = trained(folder, text_rl=LIMITS[limit])
    assert run.status["state"] == "done"
    assert f"text_rl.{limit}={LIMITS[limit][limit]:g} is reached" in caplog.text
    state = run.checkpoint()["trainer"]
    assert state["stage"] not in ("done", "")
    assert state["usage"]["requests"] <= 12
    return run, state


@pytest.mark.integration
@pytest.mark.parametrize("limit", ["max_tokens", "max_cost"])
def test_a_limit_ends_the_run_cleanly(tmp_path, limit, caplog):
    limited(tmp_path, limit, caplog)


@pytest.mark.integration
@pytest.mark.parametrize(
    "limit",
    [
        "max_requests",
        pytest.param("max_tokens", marks=pytest.mark.slow),
        pytest.param("max_cost", marks=pytest.mark.slow),
    ],
)
def test_a_higher_limit_goes_on(tmp_path, limit, caplog):
    run, state = limited(tmp_path, limit, caplog)
    again = resume(run.folder)
    assert again.checkpoint()["trainer"]["stage"] == state["stage"]
    config = run.folder / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree["text_rl"][limit] = None
    config.write_text(yaml.safe_dump(tree, sort_keys=False))
    done = resume(run.folder)
    assert done.checkpoint()["trainer"]["stage"] == "done"
    # Two trainings and two tests of four episodes of two agents; what was cut short is not in it.
    assert done.last_metrics["spent/requests"] == 32


@pytest.mark.integration
def test_transcripts_and_samples_can_be_read(tmp_path):
    run = trained(tmp_path, text_rl={**SHORT, "transcript_format": "json"})
    episodes = json.loads((run.folder / "rollouts" / "iteration-0001.json").read_text())
    assert {episode["question"] for episode in episodes} == {
        claim["prompt"] for claim in text_agents.claims()
    }
    assert {said["agent"] for said in sum(episodes[0]["rounds"], [])} == {"prover", "verifier"}
    samples = (run.folder / "samples" / "rollouts.jsonl").read_text().splitlines()
    assert json.loads(samples[0])["verdict"] in ("accept", "reject", "undecided")
    off = trained(tmp_path, text_rl={**SHORT, "save_transcripts": False})
    assert not list((off.folder / "rollouts").glob("*.yaml"))


@pytest.mark.integration
def test_a_saved_run_is_evaluated_with_the_model_of_its_last_job(whole):
    run = whole.run
    with open_checkpoint(str(run.folder)) as saved:
        scores = saved.trainer.evaluate()
        samples = list(saved.run.samples)
    last = run.last_metrics
    names = [name for name in last if name.startswith("test/")]
    assert {name: scores[name] for name in names} == {name: last[name] for name in names}
    assert len(samples) == len(text_agents.claims())


def assert_last_job(run, job, exported):
    """What was exported is the model of a job, which is the last one."""
    (folder,) = run.folder.glob(f"**/{job}")
    weights = AutoModelForCausalLM.from_pretrained(exported).state_dict()
    trained = JobFolder(folder.parent, job).model()
    assert all(torch.equal(weights[name], value) for name, value in trained.items())


@pytest.mark.integration
def test_weights_of_a_staged_run_are_those_of_its_last_job(tmp_path):
    run = trained(tmp_path, text_rl=SHORT)
    with open_checkpoint(str(run.folder)) as saved:
        saved.trainer.export(saved.trainer.loaded_models()["policy"], tmp_path / "out")
    job = run.checkpoint()["trainer"]["groups"]["policy"]["fine_tuned_model"]
    assert job.endswith("iteration-1-policy")
    assert_last_job(run, job, tmp_path / "out")


@pytest.mark.integration
def test_weights_of_the_last_job_need_nothing_else_and_are_evaluated(whole, tmp_path):
    state = whole.run.checkpoint()["trainer"]
    job = state["groups"]["policy"]["fine_tuned_model"]
    assert job.endswith("iteration-2-policy")
    own = {"version": 2, "fine_tuned_model": job}
    with open_checkpoint(str(whole.run.folder)) as saved:
        saved.trainer._pending_state = {"models": state["models"], "groups": {"policy": own}}
        models = saved.trainer.loaded_models()
        saved.trainer.export(models["policy"], tmp_path / "out")
        scores = saved.trainer.evaluate()
    last = whole.run.last_metrics
    assert scores["test/accuracy"] == last["test/accuracy"]
    assert scores["test/prover/reward"] == last["test/prover/reward"]
    assert_last_job(whole.run, job, tmp_path / "out")


@pytest.mark.integration
def test_agents_with_models_of_their_own_have_jobs_of_their_own(tmp_path):
    base = text_agents.config("ei_pure_text", tmp_path)
    model = base["models"]["policy"]
    run = trained(
        tmp_path,
        text_rl=SHORT,
        models={"policy": None, "p": model, "v": model},
        rollout_worker={
            "model": "v",
            "agents": {"prover": {"model": "p"}, "verifier": {"model": "v"}},
        },
    )
    assert run.last_metrics["fine_tuned/p"] == run.last_metrics["fine_tuned/v"] == 1.0
    for name in "pv":
        jobs = list((run.folder / "fine_tuning" / name).iterdir())
        assert len(jobs) == 1
        assert {len((j / "examples.jsonl").read_text().splitlines()) for j in jobs} == {4}


@pytest.mark.integration
def test_a_frozen_agent_does_not_learn(tmp_path):
    run = trained(tmp_path, rollout_worker={"agents": {"prover": {"frozen": True}}}, text_rl=SHORT)
    (job,) = (run.folder / "fine_tuning" / "policy").iterdir()
    assert len((job / "examples.jsonl").read_text().splitlines()) == 4


@pytest.mark.integration
def test_verifiers_can_be_taught_the_right_decision(tmp_path):
    run = trained(
        tmp_path,
        trainer={"reward_threshold": 5.0},
        text_rl={**SHORT, "verifier_guess_replacement_proportion": 0.5},
    )
    (job,) = (run.folder / "fine_tuning" / "policy").iterdir()
    lines = map(json.loads, (job / "examples.jsonl").read_text().splitlines())
    labels = {claim["prompt"]: claim["label"] for claim in text_agents.claims()}
    taught = [(e["messages"][0]["content"].split()[0], e["messages"][-1]["content"]) for e in lines]
    assert len(taught) == 2
    assert all(said == "ny"[labels[claim]] for claim, said in taught)


@pytest.mark.integration
def test_without_examples_no_job_is_made_and_the_run_goes_on(tmp_path, caplog):
    run = trained(tmp_path, trainer={"reward_threshold": 5.0}, text_rl=SHORT)
    assert run.status["state"] == "done"
    assert "0 examples" in caplog.text
    assert run.last_metrics["fine_tuned/policy"] == 0.0


@pytest.mark.integration
def test_a_failed_job_ends_the_run_and_is_made_again_when_it_is_resumed(tmp_path, monkeypatch):
    status = TrainedJobs.status
    monkeypatch.setattr(TrainedJobs, "status", lambda *_: JobStatus("failed", "no more credit"))
    with pytest.raises(RunError, match=r"failed \(no more credit\); resume to make it again"):
        trained(tmp_path)
    (folder,) = (tmp_path / "runs").glob("*/[0-9]*")
    (job,) = (folder / "fine_tuning" / "policy").iterdir()
    (job / "ended.json").write_text(json.dumps({"state": "failed", "message": "no more credit"}))
    monkeypatch.setattr(TrainedJobs, "status", status)
    run = resume(folder)
    assert run.status["state"] == "done"
    names = sorted(each.name for each in job.parent.iterdir())
    assert [name.rpartition("iteration-")[2] for name in names] == [
        "1-policy",
        "1-policy-r2",
        "2-policy",
    ]


@pytest.mark.integration
def test_a_problem_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(RunError, match="no character '9'"):
        trained(tmp_path, data={"data_files": [nine(tmp_path)]})


def nine(folder):
    path = folder / "nine.jsonl"
    path.write_text(json.dumps({"prompt": "9+1=2", "label": 0}) + "\n")
    return str(path)


FAULTS = [
    ({"models": {"policy": {"fine_tune": None}}}, "no model is fine-tuned"),
    ({"rollout_worker": {"processes": 2}}, "must be 0: finished rollouts"),
    ({"text_rl": {"test_scheme": "sometimes"}}, "test_scheme"),
    ({"text_rl": {"prices": {"polcy": {"input": 1.0}}}}, "no model 'polcy' in models"),
    ({"text_rl": {"max_cost": 1.0}}, "needs prices, such as"),
    ({"text_rl": {"max_cost": 1.0, "prices": {"policy": {}}}}, "all prices are 0; raise one"),
    *(
        (
            {"text_rl": {"test_scheme": scheme}, "validate": {"enabled": False}},
            f"is {scheme}, and validate.enabled=false leaves all tests out; write",
        )
        for scheme in ("all", "last", "first_and_last")
    ),
    ({"validate": {"data": {"data_files": []}}}, "or set text_rl.test_scheme=none"),
    ({"rollout_worker": {"label_key": "truth"}}, "has no column 'truth'"),
    ({"validate": {"every": 2}}, "validate.every"),
]


@pytest.mark.integration
@pytest.mark.parametrize(("sections", "said"), FAULTS)
def test_faults_are_told_before_anything_is_paid_for(tmp_path, sections, said):
    with pytest.raises(ConfigError) as caught:
        prepare(text_agents.config("ei_pure_text", tmp_path, **sections))
    assert any(said in fault for fault in caught.value.faults), caught.value.faults


REPLACED = "verifier_guess_replacement"
UNUSED = [
    ({"text_rl": {f"{REPLACED}_annealing": "linear"}}, f"{REPLACED}_proportion is 0"),
    ({"text_rl": {f"{REPLACED}_annealing_rate": 0.2}}, f"{REPLACED}_proportion is 0"),
    (
        {"text_rl": {f"{REPLACED}_annealing_rate": 0.2, f"{REPLACED}_proportion": 0.5}},
        f"{REPLACED}_annealing is none",
    ),
    (
        {"text_rl": {"transcript_format": "json", "save_transcripts": False}},
        "save_transcripts is false",
    ),
    (
        {"validate": {"score": "test/rounds"}, "text_rl": {"test_scheme": "none"}},
        "text_rl.test_scheme is none",
    ),
    (
        {"validate": {"score_mode": "min"}, "text_rl": {"test_scheme": "none"}},
        "text_rl.test_scheme is none",
    ),
    ({"trainer": {"weighting_minimum": 0.0}}, "rollout_selection_method is threshold"),
    (
        {"trainer": {"reward_threshold": 0.1, "rollout_selection_method": "weighted_sampling"}},
        "rollout_selection_method is weighted_sampling",
    ),
    (
        {"rollout_worker": {"agents": {"prover": {"temperature": 0.5, "script": "prompt"}}}},
        "its replies are written, not sampled",
    ),
]


@pytest.mark.integration
@pytest.mark.parametrize(("sections", "why"), UNUSED)
def test_options_that_others_switch_off_are_told_of(tmp_path, sections, why, caplog):
    prepare(text_agents.config("ei_pure_text", tmp_path, **sections))
    (line,) = [line for line in caplog.messages if "has no effect" in line]
    (path, keys), *_ = sections.items()
    assert line.startswith(f"{path}.")
    written = keys["agents"]["prover"] if "agents" in keys else keys
    assert line.split("=")[0].rpartition(".")[2] == next(iter(written))
    assert line.endswith(f"has no effect: {why}")


@pytest.mark.integration
def test_options_that_are_used_are_not_told_of(tmp_path, caplog):
    share = {f"{REPLACED}_proportion": 0.5, f"{REPLACED}_annealing": "linear"}
    sections = {
        "text_rl": {**share, f"{REPLACED}_annealing_rate": 0.2, "transcript_format": "json"},
        "validate": {"score": "test/rounds", "score_mode": "min"},
        "trainer": {"reward_threshold": 0.1},
        "rollout_worker": {"agents": {"prover": {"temperature": 0.5}}},
    }
    prepare(text_agents.config("ei_pure_text", tmp_path, **sections))
    assert not [line for line in caplog.messages if "has no effect" in line]


#: The iteration of each test, and how many models came before it.
SCHEMES = [
    ("none", 2, []),
    ("all", 2, [(1, 0), (2, 1), (2, 2)]),
    ("all", 0, [(0, 0)]),
    ("last", 2, [(2, 2)]),
    ("first_and_last", 2, [(1, 0), (2, 2)]),
    ("first_and_last", 0, [(0, 0)]),
]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("trainer", "scheme", "iterations", "tests"),
    [
        pytest.param(trainer, *row, marks=[] if row[:2] in quick else pytest.mark.integration)
        for trainer, quick in (
            ("ei_pure_text", [("all", 2)]),
            ("malt_pure_text", [("last", 2)]),
        )
        for row in SCHEMES
    ],
)
def test_the_plan_is_what_a_run_does(tmp_path, trainer, scheme, iterations, tests):
    text_rl = {"num_iterations": iterations, "test_scheme": scheme}
    data = {"batch_size": 3, "rollout_repeat_n": 2}
    tree = text_agents.config(trainer, tmp_path, text_rl=text_rl, data=data)
    tree["trainer"] |= ALL if trainer == "ei_pure_text" else {}
    plan = dict(batch_plan(prepare(tree).validated))
    assert not [what for what in plan if "optimizer" in what or "batch" in what]
    run = plugrl.train(tree)
    played = [
        len(NestedArrayDict.load(path)) for path in (run.folder / "rollouts").glob("iter*.npz")
    ]
    assert plan["iterations"] == str(len(played)) == str(iterations)
    leaves = {"ei_pure_text": "", "malt_pure_text": " x 4"}[trainer]
    most = ", at most" if leaves else ""
    # In this protocol nobody decides before the last round, so that all trees are full.
    each = 3 * 2 * (4 if leaves else 1)
    assert plan[f"episodes an iteration{most}"] == f"3 x 2{leaves} = {each}"
    assert played == [each] * iterations
    assert plan[f"episodes in all{most}, without tests"] == str(sum(played))
    assert when_tested(run) == tests
    assert plan["tests"] == str(len(tests))
    jobs = list((run.folder / "fine_tuning").glob("policy/*"))
    assert plan["fine-tune jobs in all, at most"] == str(len(jobs))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("agents", "jobs"),
    [({}, "1"), ({"prover": {"model": "other"}}, "2"), ({"prover": {"frozen": True}}, "1")],
)
def test_the_plan_counts_the_jobs_of_models_that_learn(tmp_path, agents, jobs):
    tree = text_agents.config("ei_pure_text", tmp_path, rollout_worker={"agents": agents})
    tree["models"]["other"] = tree["models"]["policy"]
    plan = dict(batch_plan(prepare(tree).validated))
    assert plan["fine-tune jobs an iteration, at most"] == jobs


@pytest.mark.integration
def test_a_worker_without_episodes_is_refused(tmp_path):
    tree = text_agents.config("ei_pure_text", tmp_path)
    tree["rollout_worker"] = {"type": "single_turn", "evaluator": "exact_match"}
    with pytest.raises(ConfigError, match="plays no episodes of a protocol; write protocol"):
        prepare(tree)


@pytest.mark.integration
def test_malt_says_what_has_no_effect(tmp_path):
    sections = {"text_rl": {"verifier_guess_replacement_proportion": 0.1}}
    with pytest.raises(ConfigError, match="malt_pure_text learns from comparisons"):
        prepare(text_agents.config("malt_pure_text", tmp_path, **sections))


@pytest.mark.integration
def test_trees_that_nobody_means_to_pay_for_are_refused(tmp_path):
    long = {"rollout_worker": {"protocol": {"type": "nip", "max_message_rounds": 13}}}
    with pytest.raises(ConfigError, match="13 rounds are 8,192 episodes a problem"):
        prepare(text_agents.config("malt_pure_text", tmp_path, **long))


@pytest.mark.integration
def test_a_tree_has_every_reply_to_every_reply_and_learns_at_the_first_turn_too(tmp_path):
    trainer = {"num_responses_per_timestep": 3}
    run = trained(
        tmp_path, "malt_pure_text", trainer=trainer, seed=1, text_rl={"test_scheme": "none"}
    )
    rollouts = NestedArrayDict.load(run.folder / "rollouts" / "iteration-0001.npz")
    # Nine leaves of each of four trees: three arguments, three verdicts after each.
    assert rollouts.batch_size == (36, 2)
    later = NestedArrayDict.load(run.folder / "rollouts" / "iteration-0002.npz")["tree"]
    trees = [set(each[:, 0].tolist()) for each in (rollouts["tree"], later)]
    assert [len(each) for each in (*trees, trees[0] | trees[1])] == [4, 4, 8]
    for tree in trees[0]:
        own = rollouts["tree"][:, 0] == tree
        assert len(set(rollouts["node_id"][own, 0].tolist())) == 3
        assert len(set(rollouts["node_id"][own, 1].tolist())) == 9
        for node in set(rollouts["node_id"][own, 0].tolist()):
            same = own & (rollouts["node_id"][:, 0] == node)
            assert same.sum() == 3
            assert len(set(rollouts["agents", "raw_message"][same, 0, 0].tolist())) == 1
            assert len(set(rollouts["agents", "chat"][same, 1, 1].tolist())) == 1
    assert run.metrics[0]["spent/requests"] == 4 * (3 + 9)
    jobs = (run.folder / "fine_tuning" / "policy").glob("*/examples.jsonl")
    asked = [
        json.loads(line)["messages"][0]["content"]
        for job in jobs
        for line in job.read_text().splitlines()
    ]
    first = {claim["prompt"] for claim in text_agents.claims()}
    assert first & set(asked), "no preference is of the prover's turn, the first"
    assert set(asked) - first, "no preference is of the verifier's turn"


@pytest.mark.integration
def test_plugins_are_told_of_the_trajectories_of_every_episode(whole):
    # The second stage of each iteration, of four and in the first of five: that one has a test.
    assert [step for step, _, _ in whole.told] == [2, 7]
    assert when_tested(whole.run) == [(1, 0), (2, 2)]
    check_told(whole)


@pytest.mark.integration
def test_plugins_are_told_of_the_trajectories_of_trees(tmp_path):
    data = {"batch_size": 2, "rollout_repeat_n": 2}
    tree = text_agents.config("malt_pure_text", tmp_path, text_rl=SHORT, data=data)
    plugin = Listening()
    trees = Whole(tiny.train(tree, plugin), plugin.told)
    assert [step for step, _, _ in trees.told] == [2]
    check_told(trees)
    # Each of two attempts at each of two problems is a tree of four leaves.
    rollouts = NestedArrayDict.load(trees.run.folder / "rollouts" / "iteration-0001.npz")
    numbers, leaves = np.unique(rollouts["tree"][:, 0], return_counts=True)
    assert leaves.tolist() == [4] * 4
    for number in numbers:
        assert len(set(rollouts["datapoint_id"][rollouts["tree"][:, 0] == number, 0])) == 1


def check_told(whole):
    run = whole.run
    for number, (step, told, metrics) in enumerate(whole.told):
        path = run.folder / "rollouts" / f"iteration-000{number + 1}.npz"
        rollouts = NestedArrayDict.load(path)
        # Trajectories come problem by problem, whatever their order in the iteration.
        rollouts = rollouts[np.argsort(rollouts["datapoint_id"][:, 0], kind="stable")]
        rewards = rollouts["next", "agents", "reward"].sum(1)
        for place, agent in enumerate(("prover", "verifier")):
            own = [t for t in told if t["extra_fields"]["agent"] == agent]
            assert [t["reward"] for t in own] == rewards[:, place].tolist()
            said = [str(text) for text in rollouts["agents", "raw_message"][:, place, place]]
            assert [written(t) for t in own] == said
            assert all(set(t["versions"]) == {-1, number} for t in own)
            assert not any(t["is_val"] for t in own)
        assert metrics["rollout/accuracy"] == run.metrics[step - 1]["rollout/accuracy"]


def written(trajectory):
    """The text of the tokens that are trained, without the end token."""
    trained = zip(trajectory["tokens"], trajectory["loss_mask"], strict=True)
    # Special tokens come first: padding and the end.
    return "".join(text_agents.CHARACTERS[n - 2] for n, mask in trained if mask and n > 1)


@pytest.mark.integration
@pytest.mark.parametrize("stop", [1, pytest.param(2, marks=pytest.mark.slow), 5])
def test_a_resumed_run_tells_the_same_trajectories(tmp_path, whole, stop):
    plugin = Listening(stop)
    run = tiny.train(text_agents.config("ei_pure_text", tmp_path, trainer=ALL), plugin)
    plugin.stop = None
    resumed(run.folder, plugin)
    assert plugin.told == whole.told
    assert [len(each) for _, each, _ in whole.told] == [8, 8]


def resumed(folder, plugin):
    """Go on with a run, with one more plugin."""

    def registered(*arguments, **options):
        prepared = prepare(*arguments, **options)
        prepared.plugins.manager.register(plugin)
        return prepared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "prepare", registered)
        resume(folder)


@pytest.mark.integration
def test_nothing_is_kept_for_plugins_where_none_listens(tmp_path):
    run = trained(tmp_path, text_rl=SHORT)
    lines = (run.folder / "rollouts" / "iteration-0001.jsonl").read_text().splitlines()
    assert not any("trajectories" in json.loads(line) for line in lines)


OWN = '''
"""Learns from the first rollouts alone, and says how long the arguments are."""

import numpy as np

from plugrl import PureTextRlTrainer, supervised_examples


class FirstTwo(PureTextRlTrainer):
    async def _rollouts_of(self, task):
        rollouts = await super()._rollouts_of(task)
        rollouts["mine"] = np.full(tuple(rollouts.batch_size), task.item)
        return rollouts

    def _sample_rollouts(self, iteration, *, is_test=False):
        return super()._sample_rollouts(iteration, is_test=is_test)[:2]

    def _get_log_stats(self, rollouts, *, train=True):
        stats = super()._get_log_stats(rollouts, train=train)
        name = "rollout/episodes" if train else "test/episodes"
        return stats | {name: float(len(rollouts))}

    def _stage_create_fine_tune_jobs(self, rollouts):
        assert rollouts["mine"].shape == (2, 2)
        for group in self.shared_model_groups.values():
            examples = {
                agent: supervised_examples(rollouts, range(2), self.protocol.index(agent))
                for agent in group.agents
            }
            group.create_supervised_fine_tune_job(examples, self._get_fine_tune_job_name(group))
'''


@pytest.mark.integration
def test_a_trainer_of_a_user_changes_what_is_sampled_logged_and_learned(tmp_path):
    file = tmp_path / "first_two.py"
    file.write_text(OWN)
    own = {"custom_trainer_module_path": str(file), "custom_trainer_class_name": "FirstTwo"}
    text_rl = {"num_iterations": 1, "test_scheme": "last"}
    tree = text_agents.config("ei_pure_text", tmp_path, text_rl=text_rl)
    tree["trainer"] = own
    run = plugrl.train(tree)
    assert run.last_metrics["rollout/episodes"] == run.last_metrics["test/episodes"] == 2.0
    jobs = (run.folder / "fine_tuning" / "policy").iterdir()
    assert {len((job / "examples.jsonl").read_text().splitlines()) for job in jobs} == {4}


@pytest.mark.integration
def test_phases_follow_one_another_with_the_weights_of_the_last_job(tmp_path):
    phase = {"trainer": {"type": "ei_pure_text", **ALL}, "text_rl": {"num_iterations": 1}}
    tree = text_agents.config("sequence", tmp_path)
    del tree["text_rl"]
    tree["trainer"]["phases"] = [{"name": name, **phase} for name in ("first", "second")]
    for each in tree["trainer"]["phases"]:
        each["text_rl"] = {**each["text_rl"], "test_scheme": "first_and_last"}
    run = plugrl.train(tree)
    folders = [run.folder / f"phase-{number}" for number in (1, 2)]
    for folder in folders:
        (job,) = (folder / "fine_tuning" / "policy").iterdir()
        assert job.name.endswith(f"-{folder.name}-iteration-1-policy")
        assert (folder / "jobs.jsonl").is_file()
    # The test that ends the first phase is the one that begins the second.
    last, following = (
        NestedArrayDict.load(folders[number] / "rollouts" / f"test-after-{name}.npz")
        for number, name in ((0, "0001"), (1, "0000"))
    )
    assert (last["agents", "raw_message"] == following["agents", "raw_message"]).all()
    before = NestedArrayDict.load(folders[0] / "rollouts" / "test-after-0000.npz")
    assert not (before["agents", "raw_message"] == last["agents", "raw_message"]).all()
    with open_checkpoint(str(run.folder)) as saved:
        scores = saved.trainer.evaluate()
    assert scores["test/accuracy"] == run.last_metrics["test/accuracy"]
