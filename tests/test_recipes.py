"""Every packaged recipe is whole, trains, and learns what docs/recipe-results.md says."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import forking
import kills
import pytest

from plugrl.core.config.sources.lookup import RECIPES, recipes
from plugrl.core.experiment import load_run, prepare

ROOT = Path(__file__).parent.parent
NAMES = sorted(recipes())
#: They need a server; what they do is tested where one is started, in tests/plugins_tinker,
#: tests/plugins_openai and tests/plugins_huggingface.
SERVED = {"code_validation", "gsm8k", "tinker_grpo", "tinker_opd", "tinker_sft"}
SINGLE = ["sft", "remote_sft"]
#: They train small networks in environments.
ENVIRONMENTS = {n for n in NAMES if "\nrl:\n" in (RECIPES / f"{n}.yaml").read_text("utf-8")}
#: They let small networks learn labels alone, and some of them talk afterwards.
ALONE = {n for n in NAMES if "solo_agent:" in (RECIPES / f"{n}.yaml").read_text("utf-8")}
#: They fine-tune by jobs, iteration by iteration, and end with another trainer's steps.
STAGED = {n for n in NAMES if "type: ei_pure_text" in (RECIPES / f"{n}.yaml").read_text("utf-8")}
#: They learn from rollout trees after two warm starts.
TREES = {n for n in NAMES if "type: harness" in (RECIPES / f"{n}.yaml").read_text("utf-8")}
TOOLS = {"math_parquet": "math_verify", "reasoning_gym": "reasoning_gym"}

#: Groups of a model that is always wrong teach nothing: DAPO would wait for others in vain.
UNTRAINED = {"dapo": ["trainer.phases.1.trajectory_pool.drop_equal_groups=false"]}

#: Iterations whose thousands of updates or games are cut down.
SHORTENED = {
    "pendulum_sac": ["rl.frames_per_batch=150"],
    "graph_isomorphism_nip": [
        "scenario.train_size=480",
        "scenario.test_size=480",
        "trainer.phases.1.rl.frames_per_batch=576",
        "trainer.phases.1.validate.episodes=96",
    ],
    "graph_isomorphism_solo": ["scenario.train_size=480", "rl.frames_per_batch=384"],
}


def overrides(name: str, steps: int) -> list[str]:
    """What cuts each trainer of a recipe down to ``steps`` steps."""
    if name in SINGLE:
        return [f"trainer.total_train_steps={steps}"]
    count = len(prepare(name, preflight=False).validated.phases)
    return [f"trainer.phases.{i}.trainer.total_train_steps={steps}" for i in range(count)]


def trained(name: str, folder: Path, *words: str):
    """Train a recipe in ``folder`` as a user does, and give its run."""
    done = forking.run(["-m", "plugrl", "train", name, *words], cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    (run,) = folder.glob(f"runs/{name}/*")
    return load_run(run)


def test_what_is_listed_is_what_is_meant():
    expected = """arithmetic_claims arithmetic_claims_ei arithmetic_claims_solo calculator_agent
        cartpole_a2c cartpole_dqn cartpole_ppo cartpole_reinforce code_validation
        dapo digits_nip digits_solo dilemma_lola dpo dr_grpo external_agent
        graph_isomorphism_nip graph_isomorphism_solo gsm8k math_parquet opd pendulum_sac
        pendulum_td3 quickstart reasoning_gym red_team_quickstart red_team_quickstart_grpo
        red_team_quickstart_ipo red_team_quickstart_ppo remote_api remote_opd remote_sft
        reward_model sft tictactoe_ppo tinker_grpo tinker_opd tinker_sft two_cartpoles_ppo"""
    assert expected.split() == NAMES
    assert (RECIPES / "common").is_dir()


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_what_it_teaches_and_is_named_like_its_file(name):
    text = (RECIPES / f"{name}.yaml").read_text("utf-8")
    header = text.split("\n\n")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    assert re.search(r"(second|minute)s?\b", header), "how long does it take?"
    assert f"\nexperiment_name: {name}\n" in text


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"remote_api"} - SERVED))
def test_the_docs_have_its_figures(name):
    page = (ROOT / "docs" / "recipe-results.md").read_text("utf-8")
    assert re.search(rf"^\| `{name}` \|.*\d", page, re.MULTILINE)


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted(set(NAMES) - SERVED))
def test_nothing_is_wrong_with_it_before_it_is_trained(name):
    if name in TOOLS:
        pytest.importorskip(TOOLS[name])
    prepare(name, ["settings.device=cpu"])


# Of each sort some are trained in integration, and all of them in slow.
@pytest.mark.parametrize("name", kills.sampled(sorted(ENVIRONMENTS), 3))
def test_two_iterations(name, tmp_path):
    short = ["rl.num_iterations=2", "validate.episodes=2", *SHORTENED.get(name, [])]
    run = trained(name, tmp_path, *short)
    assert run.status["state"] == "done"
    assert [line["step"] for line in run.metrics] == [0, 1, 2]
    assert run.metrics[-1]["validation/episodes"] >= 2
    assert run.metrics[-1]["rollout/frames"] > run.metrics[1]["rollout/frames"] > 0


@pytest.mark.parametrize("name", kills.sampled(sorted(ALONE), 2))
def test_two_epochs_alone_and_two_iterations_together(name, tmp_path):
    if prepare(name, preflight=False).validated.phases:
        short = ["trainer.phases.0.solo_agent.num_epochs=2", "trainer.phases.1.rl.num_iterations=2"]
    else:
        short = ["solo_agent.num_epochs=2"]
    run = trained(name, tmp_path, *short, *SHORTENED.get(name, []))
    assert run.status["state"] == "done"
    assert [line.get("phase", 1) for line in run.metrics] == [1, 1, 1, 2, 2, 2][: 3 * len(short)]
    assert run.metrics[2]["test/verifier/accuracy"] > 0.45
    if len(short) == 2:
        assert run.metrics[-1]["rollout/frames"] > 0
        assert run.metrics[-1]["validation/accuracy"] > 0


@pytest.mark.parametrize(
    "name", kills.sampled(sorted(set(NAMES) - SERVED - ENVIRONMENTS - ALONE - STAGED - TREES), 5)
)
def test_two_steps(name, tmp_path):
    if name in TOOLS:
        pytest.importorskip(TOOLS[name])
    short = overrides(name, 2)
    run = trained(name, tmp_path, *short, *UNTRAINED.get(name, ()), "validate.data.limit=8")
    assert run.status["state"] == "done"
    phases = [line.get("phase", 1) for line in run.metrics]
    assert phases == [phase for phase in sorted(set(phases)) for _ in range(3)]
    assert max(phases) == len(short)
    for first in (line for line in run.metrics if line["step"] % 3 == 0):
        assert [key for key in first if key.startswith(("validation", "development"))]
    # Rewards of an untrained model are often all 0, so that the last phase may have no gradient.
    assert run.metrics[2]["train/loss"] > 0


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted(STAGED - SERVED))
def test_two_steps_and_an_iteration(name, tmp_path):
    short = [
        "trainer.phases.0.trainer.total_train_steps=2",
        "trainer.phases.1.text_rl.num_iterations=1",
        "trainer.phases.1.data.batch_size=16",
        "trainer.phases.1.trainer.reward_threshold=-1",
    ]
    run = trained(name, tmp_path, *short, "validate.data.limit=8")
    assert run.status["state"] == "done"
    assert {line.get("phase", 1) for line in run.metrics} == {1, 2}


@pytest.mark.parametrize("name", kills.sampled(sorted(TREES), 1))
def test_two_steps_and_two_experiences(name, tmp_path):
    warm = [f"trainer.phases.{phase}.trainer.total_train_steps=2" for phase in (0, 1)]
    # Probes of an untrained tester all fail, and only their other rewards differ.
    pairs = "min_margin" in (RECIPES / f"{name}.yaml").read_text("utf-8")
    free = ["trainer.phases.2.trainer.algorithm.min_margin=0"] if pairs else []
    run = trained(name, tmp_path, *warm, *free, "trainer.phases.2.trainer.training_steps=2")
    assert run.status["state"] == "done"
    assert [line.get("phase", 1) for line in run.metrics] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    first, *_, last = (line for line in run.metrics if line.get("phase") == 3)
    assert 0 <= first["test/success"] <= 0.2
    assert 0 < last["test/unique"] <= 1
    assert last["train/updates"] > 0
    assert last["rollout/exchanges"] == 64


@pytest.mark.parametrize(
    ("remote", "own"), kills.sampled([("remote_sft", "sft"), ("remote_opd", "opd")], 1)
)
def test_a_recipe_behind_an_api_gives_the_numbers_of_its_sibling(remote, own, tmp_path):
    runs = [trained(name, tmp_path, *overrides(name, 3)).metrics for name in (remote, own)]
    for one, other in zip(*runs, strict=True):
        for key in ("train/loss", "train/teacher_kl", "rollout/response_length"):
            assert (key in one) == (key in other)
            assert one.get(key, 0.0) == pytest.approx(other.get(key, 0.0), rel=1e-3, abs=1e-6), key


def test_the_parquet_files_are_what_their_script_writes(tmp_path):
    import pyarrow.parquet as pq

    folder = RECIPES / "math_parquet"
    script = folder / "make_problems.py"
    forking.run([script, tmp_path], check=True)
    held = {}
    for split in ("train", "validation"):
        rows = pq.read_table(folder / f"{split}.parquet").to_pylist()
        assert rows == pq.read_table(tmp_path / f"{split}.parquet").to_pylist()
        held[split] = {row["solution"].partition("=")[0] for row in rows}
        for row in rows:
            first, sign, second = re.fullmatch(r"(\d+)([+-])(\d+)=.*", row["solution"]).groups()
            total = int(first) + int(second) * (1 if sign == "+" else -1)
            assert row["answer"] == str(total)
            assert row["solution"].endswith(f"=\\boxed{{{total}}}")
    assert not held["train"] & held["validation"]


def test_the_demonstrations_are_what_their_script_writes(tmp_path):
    folder = RECIPES / "red_team_quickstart"
    forking.run([folder / "make_demonstrations.py", tmp_path], check=True)
    for name in ("tester", "target"):
        written = (folder / f"{name}.jsonl").read_text("utf-8")
        assert written == (tmp_path / f"{name}.jsonl").read_text("utf-8")
    answered = {True: set(), False: set()}
    for row in map(json.loads, (folder / "target.jsonl").read_text("utf-8").splitlines()):
        verb, word = row["prompt"][0]["content"].split()
        assert row["answer"] in (word, "no")
        answered[row["answer"] == word].add(verb)
    assert answered[True] == {"spell", "echo", "copy"}
    assert len(answered[False]) == 21
    assert not answered[True] & answered[False]


def test_a_curve_is_drawn_from_metrics(tmp_path):
    """Steps 0 and 4 lie at the ends of the axis, and values 0 and 1 at its ends too."""
    for seed, values in ((0, (0.0, 1.0)), (1, (0.5, 0.5))):
        run = tmp_path / "runs" / "sft" / str(seed)
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(f"seed: {seed}\n")
        lines = [
            {"step": step, "validation/exact_match": value}
            for step, value in zip((0, 4), values, strict=True)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    script = tmp_path / "curves.py"
    script.write_text((ROOT / "docs" / "curves.py").read_text("utf-8"), "utf-8")
    forking.run([script, tmp_path / "runs", "sft"], check=True)
    root = ET.parse(tmp_path / "curves" / "sft.svg").getroot()
    lines = [e.get("points") for e in root if e.tag.endswith("polyline")]
    assert lines == ["48.0,260.0 624.0,28.0", "48.0,144.0 624.0,144.0"]


def test_curves_of_the_zoo_are_means_over_seeds_without_changed_settings(tmp_path):
    """One of two algorithms runs twice as long; 0 and 300 lie at the ends of the axis."""
    rows = [
        ("dqn", [], [[10, 0.0], [20, 200.0]]),
        ("dqn", [], [[10, 100.0], [20, 300.0]]),
        ("dqn", ["dqn.double=true"], [[10, 900.0]]),
        ("ppo", [], [[20, 10.0], [40, 300.0]]),
        ("ppo", [], []),
    ]
    lines = [
        {"pair": f"{algorithm}/CartPole-v1", "overrides": changed, "curve": curve}
        for algorithm, changed, curve in rows
    ]
    lines.append({"pair": "a2c/CartPole-v1", "overrides": [], "error": "exit code 1"})
    (tmp_path / "zoo.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    script = tmp_path / "curves.py"
    script.write_text((ROOT / "docs" / "curves.py").read_text("utf-8"), "utf-8")
    forking.run([script, tmp_path / "zoo.jsonl"], check=True)
    root = ET.parse(tmp_path / "curves" / "CartPole-v1.svg").getroot()
    lines = [e.get("points") for e in root if e.tag.endswith("polyline")]
    assert lines == ["336.0,221.3 624.0,66.7", "336.0,252.3 624.0,28.0"]


def held_out(run, key, phase):
    """The values of a metric in one phase, in order."""
    return [line[key] for line in run.metrics if line.get("phase", 1) == phase and key in line]


#: Recipe, metric, phase, the most that it may begin with, and the least that it must end with.
LEARNS = [
    ("sft", "validation/exact_match", 1, 0.05, 0.9),
    ("opd", "validation/exact_match", 3, 0.55, 0.75),
    ("dpo", "validation/accuracy", 2, 0.6, 0.85),
    ("calculator_agent", "validation/exact_match", 2, 0.45, 0.85),
    ("external_agent", "validation/exact_match", 2, 0.45, 0.75),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "key", "phase", "first", "last"), LEARNS, ids=[row[0] for row in LEARNS]
)
def test_it_learns(name, key, phase, first, last, seed, tmp_path):
    run = trained(name, tmp_path, f"seed={seed}")
    values = held_out(run, key, phase)
    assert len(values) > 3
    assert values[0] <= first, "too little is left to learn"
    assert values[-1] >= last


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(TREES))
def test_a_tester_finds_the_weak_spot_and_does_not_babble(name, seed, tmp_path):
    run = trained(name, tmp_path, f"seed={seed}")
    first, last = held_out(run, "test/success", 3)
    assert first < 0.2
    assert last > 0.8
    # A tester with one probe for each word has 24 of 192.
    assert held_out(run, "test/unique", 3)[-1] > 0.15
    likely = held_out(run, "rollout/reward/fluency", 3)
    assert likely[-1] > 0.7 * likely[0]
