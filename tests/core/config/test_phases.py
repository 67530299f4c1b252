# ruff: noqa: E501
from __future__ import annotations

from pathlib import Path

import pytest

from plugrl.core.config.plan import batch_plan, plan_text
from plugrl.core.config.sources.writer import dump_yaml

TWO = """
seed: 3
data: {batch_size: 4}
trainer:
  type: phases
  phases:
    - name: first
      trainer: toy
      data: {rollout_repeat_n: 2}
    - name: second
      repeat: 5
      trainer: {type: other, depth: 2}
      rl: {lr: 1}
      seed: 9
"""


def test_each_phase_is_the_run_with_its_own_sections_on_top(files, check):
    files(a=TWO)
    validated = check("a.yaml")
    (first, one), (second, two) = validated.phases
    assert (first, second) == ("first", "second")
    assert one.tree["trainer"]["type"] == "toy"
    assert one.tree["data"]["batch_size"] == 4
    assert one.tree["data"]["rollout_repeat_n"] == 2
    assert one.tree["seed"] == 3
    assert two.tree["trainer"] == {"type": "other", "depth": 2}
    assert two.tree["seed"] == 9
    assert "data" not in two.tree
    assert two.tree["rl"] == {"lr": 1}
    assert validated.tree["data"] == {"batch_size": 4}
    assert validated.tree["seed"] == 3
    assert one.records["trainer.algorithm.loss"].name == "clipped"
    assert validated.unchecked == ["trainer.phases[1].rl"]


def test_the_written_tree_validates_to_itself(files, check):
    files(a=TWO)
    first = check("a.yaml")
    files(b=dump_yaml(first.tree))
    again = check("b.yaml")
    assert again.tree == first.tree
    assert [phase.tree for _, phase in again.phases] == [phase.tree for _, phase in first.phases]


def test_paths_in_the_sections_of_the_run_stay_right(files, check):
    folder = files(conf__a=TWO.replace("batch_size: 4", "data_files: [x.yaml]"), conf__x="")
    assert check("conf/a.yaml").tree["data"]["data_files"] == [str(folder / "conf" / "x.yaml")]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "trainer.phases[0].trainer.lrr=1",
            "trainer.phases[0].trainer.lrr (command line): unknown key; did you mean lr?",
        ),
        (
            "trainer.phases[0].data.batch_siz=1",
            "trainer.phases[0].data.batch_siz (command line): unknown key; did you mean batch_size?",
        ),
        (
            "trainer.phases[0].data.batch_size=0",
            "trainer.phases[0].data.batch_size (command line): must be at least 1, not 0",
        ),
        (
            "data.batch_siz=1",
            "data.batch_siz (command line): unknown key; did you mean batch_size?",
        ),
        ("dat={}", "dat (command line): unknown section; did you mean data?"),
        (
            "agents={}",
            "agents (command line): trainer phases does not read this section",
        ),
        (
            "trainer.phases[0].rl.lr=1",
            "trainer.phases[0].rl (command line): trainer toy does not read this section; read by other",
        ),
        (
            "trainer.phases[1].repeat=x",
            "trainer.phases[1].repeat (command line): must be a whole number, not 'x'",
        ),
        (
            "trainer.phases[1].name=null",
            "trainer.phases[1].name (command line): must be text, not null",
        ),
        (
            "trainer.phases[1].name=first",
            "trainer.phases[1].name (command line): another phase is called first; choose another name",
        ),
        (
            "trainer.phases[1]=5",
            "trainer.phases[1] (command line): must be a mapping with a name, not 5",
        ),
        (
            "trainer.phases=[]",
            "trainer.phases (command line): must be a list of at least one phase, each a mapping with a name",
        ),
        (
            "trainer.phases[1].trainer.type=othr",
            "trainer.phases[1].trainer.type (command line): unknown trainer 'othr'; did you mean other?"
            " installed: bare, checked, heir, other, phases, toy",
        ),
        ("seed=x", "seed (command line): must be a whole number, not 'x'"),
        (
            "trainer.phases[0].algorithm.epochs=x",
            "trainer.phases[0].algorithm.epochs (command line): must be a whole number, not 'x'",
        ),
    ],
)
def test_faults_of_phases(files, faults, override, line):
    files(a=TWO)
    assert faults("a.yaml", override) == [line]


def test_a_phase_without_a_trainer(files, faults):
    files(a="trainer:\n  type: phases\n  phases:\n    - {name: a}\n")
    (line,) = faults("a.yaml")
    assert line.startswith(
        "trainer.phases[0].trainer (a.yaml:4): type is missing; installed trainer"
    )


def test_the_batch_plan(files, check):
    files(
        a="trainer: {type: heir, algorithm: {epochs: 3, minibatches: 4}}\n"
        "data: {batch_size: 5, rollout_repeat_n: 6}\n",
        b="trainer: other",
    )
    assert batch_plan(check("a.yaml")) == [
        ("prompts a step", "5"),
        ("samples a prompt", "6"),
        ("sequences a step", "5 x 6 = 30"),
        ("sequences an optimizer step", "30 / 4 = 7 or 8"),
        ("optimizer steps a step", "3 x 4 = 12"),
    ]
    assert batch_plan(check("b.yaml")) == []
    files(a=TWO)
    rows = batch_plan(check("a.yaml"))
    assert rows[2] == ("first: sequences a step", "4 x 2 = 8")
    assert plan_text(rows).splitlines()[0] == "first: prompts a step               4"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        # Of the first phase that has such a key.
        ("depth: 3", "trainer.phases[1].trainer.depth"),
        ("steps: 3", "trainer.phases[0].trainer.steps"),
        # In a section that the run itself does not have, and phases read.
        ("rollout_repeat_n: 3", "data.rollout_repeat_n"),
        # In one of which the run has another key.
        ("rollout_repeat_n: 3\ndata: {batch_size: 4}", "data.rollout_repeat_n"),
    ],
)
def test_a_key_at_the_root_that_a_phase_has_is_told_its_place(files, faults, text, place):
    phases = "[{name: a, trainer: toy}, {name: b, trainer: {type: other, depth: 2}}]"
    files(a=f"trainer: {{type: phases, phases: {phases}}}\n{text}\n")
    (found,) = faults("a.yaml")
    assert found.startswith(f"{text.partition(':')[0]} (a.yaml:2): unknown section")
    assert found.endswith(f"did you mean {place}?")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("data.batch_size=x", "data.batch_size (command line): must be a whole number, not 'x'"),
        (
            "data.type=x",
            "data.type (command line): must be one of auto, files, hub, scenario, not 'x'",
        ),
    ],
)
def test_what_every_phase_overrides_is_checked_too(files, faults, override, line):
    """Nobody reads it, and whoever writes it believes that it counts."""
    files(
        a="""
        trainer:
          type: phases
          phases:
            - {name: first, trainer: toy, data: {batch_size: 2, type: auto}}
            - {name: second, trainer: toy, data: {batch_size: 3, type: auto}}
        """
    )
    assert faults("a.yaml", override) == [line]


def test_a_section_that_only_phases_complete_is_no_fault(files, check):
    files(
        a="""
        data: {type: files}
        trainer:
          type: phases
          phases:
            - {name: first, trainer: toy, data: {data_files: [x.jsonl]}}
        """
    )
    # The rule that `files` needs `data_files` is one of the section as each phase completes it.
    Path("x.jsonl").write_text("{}\n", encoding="utf-8")
    check("a.yaml")


def test_a_repeated_component_of_the_run_is_told_once(files, faults):
    files(a=TWO + "trackers: [jsonl, jsonl]\n")
    found = faults("a.yaml")
    assert len([line for line in found if "is the same as" in line]) <= 1
