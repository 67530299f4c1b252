"""What a run came to and what to do next, as the commands that train say at their end."""

import json
import re
import shlex

import pytest
import yaml
from command_lines import command

import plugrl
from plugrl.cli import main
from plugrl.core.plugins.registry import default_registry
from plugrl.core.run.records.summary import summary, trained_steps
from plugrl.testing import tiny

STATUS = {
    "state": "done", "step": 5, "started": "2026-01-01T10:00:00+00:00", "resumed": None,
    "ended": "2026-01-01T11:02:03+00:00", "headline": {"metric": "validation/acc", "mode": "max"},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    def make(metrics, **status):
        place = tmp_path / "sums" / "20260101-100000-abc"
        place.mkdir(parents=True)
        (place / "status.json").write_text(json.dumps(STATUS | status))
        (place / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in metrics))
        return place

    return make


def validated(step, value, **more):
    return {"step": step, "validation/acc": value, **more}


def test_first_last_and_best_are_those_of_the_headline(folder):
    place = folder([validated(0, 0.25), {"step": 1}, validated(2, 0.75), validated(3, 0.5)])
    (place / "report.html").touch()
    assert summary(place) == [
        "sums: done, 3 steps in 1:02:03",
        "validation/acc  0.25 -> 0.5, best 0.75 at step 2",
        f"run     {place}",
        f"report  {place}/report.html",
    ]


def test_the_time_of_a_resumed_run_is_that_of_its_last_part(folder):
    place = folder([validated(0, 0.25), validated(3, 0.5)], resumed="2026-01-01T11:00:00+00:00")
    assert summary(place)[0] == "sums: done, 3 steps, 2:03 since it was resumed"


def test_a_loss_is_best_where_it_is_smallest(folder):
    place = folder(
        [validated(1, 2.0), validated(2, 1.0), validated(3, 1.5)],
        headline={"metric": "validation/acc", "mode": "min"},
    )
    assert summary(place)[1] == "validation/acc  2 -> 1.5, best 1 at step 2"


def test_a_run_of_phases_counts_as_they_are_configured(folder):
    # Each begins with a validation, steps 0 and 3 of the run, which trains nothing.
    metrics = [
        *(validated(step, 0.0, phase=1) for step in (0, 1, 2)),
        *(validated(step, step / 8, phase=2) for step in (3, 4, 5)),
    ]
    place = folder(metrics)
    assert summary(place, ["learn", "practise"])[:2] == [
        "sums: done, 4 steps in 1:02:03",
        "validation/acc  0 -> 0.625, best 0.625 at step 2 of practise",
    ]


def test_a_program_is_given_the_same_when_it_asks(folder, capsys):
    place = folder([validated(0, 0.25, phase=1), validated(1, 0.5, phase=1)])
    (place / "config.yaml").write_text("trainer: {phases: [{name: learn}]}\n", encoding="utf-8")
    run = plugrl.load_run(place)
    assert capsys.readouterr() == ("", "")
    assert run.summary().splitlines() == [
        "sums: done, 1 step in 1:02:03",
        "validation/acc  0.25 -> 0.5, best 0.5 at step 1 of learn",
        f"run     {place}",
    ]


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ([], "0 steps"),
        ([{"step": 0}], "0 steps"),
        ([{"step": 1}], "1 step"),
        ([{"step": 1}, {"step": 2}], "2 steps"),
        ([{"step": n, "iteration": n // 4 + 1} for n in range(8)], "2 iterations"),
    ],
)
def test_steps_are_counted_as_the_configuration_counts_them(metrics, text):
    assert trained_steps(metrics) == text


def test_a_run_without_metrics_or_times_has_a_summary_too(folder):
    place = folder([], state="failed", ended=None)
    assert summary(place) == ["sums: failed, 0 steps", f"run     {place}"]


SMALL = {
    "experiment_name": "small",
    "scenario": {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 2},
    "rl": {"num_iterations": 2, "frames_per_batch": 64},
    "validate": {"every": 1, "episodes": 2},
    "trainer": {"type": "vanilla_ppo"},
    "settings": {"progress": "none", "device": "cpu"},
}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ("self_hosted_grpo", ["sample", "eval", "export"]),
        ("reward_model", ["eval", "export"]),
        ("vanilla_ppo", ["eval"]),
    ],
)
def test_what_to_do_next_fits_the_trainer_and_can_be_done(
    trainer, expected, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    own = getattr(default_registry().get("trainer", trainer), "conformance", {})
    tree = SMALL if trainer == "vanilla_ppo" else tiny.config(trainer, tmp_path, own)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(SystemExit) as end:
        main(["train", "own.yaml"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 15
    following = [line.split(maxsplit=1)[1] for line in lines if line.startswith("next ")]
    assert [line.split()[1] for line in following] == [*expected, "report"]
    for line in following:
        words = line.removeprefix("plugrl ").replace("PROMPT", "ab").replace("FOLDER", "written")
        command(words.removesuffix(" --open"))


@pytest.mark.integration
def test_several_seeds_have_a_line_each(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(SMALL))
    with pytest.raises(SystemExit):
        main(["train", "own.yaml", "--seeds", "2", "-q"])
    folders = capsys.readouterr().out.splitlines()
    assert [re.fullmatch(r"runs/small/[\w-]+", line) is not None for line in folders] == [True] * 2
    with pytest.raises(SystemExit):
        main(["train", "own.yaml", "--seeds", "2"])
    head, *rows, mean = capsys.readouterr().out.splitlines()
    assert head.split() == ["SEED", "STATE", "FIRST", "LAST", "BEST", "RUN"]
    assert [shlex.split(row)[:2] for row in rows] == [["0", "done"], ["1", "done"]]
    last = [float(row.split()[3]) for row in rows]
    assert mean.startswith("validation/mean_episode_return: mean of the last ")
    told = float(mean.split("last ")[1].split()[0])
    assert told == pytest.approx(sum(last) / 2, rel=1e-3)
