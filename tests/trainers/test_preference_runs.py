"""Runs on judged answers: they learn, resume exactly, and name bad rows before the first step."""

import itertools
import json
import random
import re
from pathlib import Path

import pytest

from plugrl.core.config.plan import batch_plan
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import build_trainer, prepare, resume, start
from plugrl.core.loaded_run import open_checkpoint
from plugrl.core.null_run import NullRun
from plugrl.core.replay import replay

LETTERS = "abcdef"
PAIRS = [
    {"prompt": a + b, "chosen": a, "rejected": b} for a, b in itertools.permutations(LETTERS, 2)
]
random.Random(0).shuffle(PAIRS)
TRAINED, HELD_OUT = PAIRS[:24], PAIRS[24:]
SMALL = {
    "config": {"hidden_size": 32, "intermediate_size": 64},
    "tokenizer": {"characters": LETTERS},
}


@pytest.fixture
def tree(config, tmp_path):
    """A run on the given rows; ``reference`` is a frozen model like the policy."""

    def make(name="self_hosted_dpo", rows=TRAINED, held_out=HELD_OUT, steps=2, **sections):
        files = []
        for file, content in (("rows.jsonl", rows), ("held_out.jsonl", held_out)):
            (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in content))
            files.append(str(tmp_path / file))
        made = config(
            name,
            models={"policy": {"source": SMALL, "train": {"value_head": name == "reward_model"}}},
            data={"data_files": files[:1], "batch_size": len(rows), "rollout_repeat_n": 1},
            validate={"data": {"data_files": files[1:]}, "every": 0},
            rollout_worker={"type": "preference", "evaluator": None},
            trainer={"total_train_steps": steps},
        )
        if name == "self_hosted_dpo":
            made["models"]["reference"] = {"source": made["models"]["policy"]["source"]}
        for section, changes in sections.items():
            given = made.get(section) or {}
            made[section] = merged(given, changes) if isinstance(changes, dict) else changes
        return made

    return make


def merged(base, over):
    from plugrl.testing.tiny import merged

    return merged(base, over)


def labels(rows):
    return [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in rows
        for side in ("chosen", "rejected")
    ]


WORDS = ["".join(word) for word in itertools.product("ab", repeat=4)]
#: The answer with more letters a is the better one.
MORE_A = [
    {"prompt": "f", "chosen": one, "rejected": other}
    for one, other in itertools.permutations(WORDS, 2)
    if one.count("a") > other.count("a")
]
random.Random(0).shuffle(MORE_A)


def judged(tree, name, loss, steps, rate=0.01, **sections):
    """A run that learns to prefer the letter a, from 48 pairs, or from the words' labels."""
    rows, held_out = MORE_A[:48], MORE_A[48:88]
    if loss == "kto":
        rows = [
            {"prompt": "f", "completion": word, "label": word.count("a") > 2}
            for word in WORDS
            if word.count("a") != 2
        ]
        rows, held_out = rows[::2] + rows[1::4], rows[3::4]
        sections["rollout_worker"] = {"layout": "labels"}
    made = tree(name, rows, held_out, steps, trainer={"algorithm": {"loss": loss}}, **sections)
    made["rollout_worker"]["max_response_length"] = 8
    made["models"]["policy"]["train"]["learning_rate"] = rate
    made["settings"]["checkpoint_every"] = steps
    return start(prepare(made)).metrics


@pytest.mark.integration
def test_dpo_learns_a_preference(tree):
    before, *_, after = judged(tree, "self_hosted_dpo", "dpo", 8, 0.03)
    # The policy begins as its reference.
    assert before["validation/loss"] == pytest.approx(0.6931, abs=1e-4)
    assert before["validation/margin"] == pytest.approx(0, abs=1e-5)
    assert after["validation/accuracy"] > 0.9
    assert after["validation/margin"] > 0.5
    assert after["train/reward_chosen"] > after["train/reward_rejected"]


@pytest.mark.integration
def test_a_reward_model_learns_what_is_better(tree):
    before, *_, after = judged(tree, "reward_model", "bradley_terry", 8, 0.03)
    assert before["validation/accuracy"] == 0
    assert after["validation/accuracy"] > 0.9
    assert after["validation/margin"] > 0.5


LEARNING = [
    ("self_hosted_dpo", "dpo"),
    ("self_hosted_dpo", "ipo"),
    ("self_hosted_dpo", "kto"),
    ("reward_model", "bradley_terry"),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("name", "loss"), LEARNING)
def test_learning_on_three_seeds(tree, name, loss, seed):
    last = judged(tree, name, loss, 60, seed=seed)[-1]
    print(name, loss, seed, last["train/accuracy"], last["validation/accuracy"])
    assert last["validation/accuracy"] > 0.9


@pytest.mark.integration
@pytest.mark.parametrize(
    "algorithm",
    [
        {"reference_weights": "policy", "epochs": 2, "minibatches": 3},
        {"loss": "kto", "minibatches": 2},
        {"loss": "ipo", "reference": "none"},
    ],
)
def test_resumed_runs_equal_uninterrupted_ones(tree, algorithm):
    made = tree(steps=3, trainer={"algorithm": algorithm}, data={"batch_size": 7})
    made["validate"]["every"] = 1
    if algorithm.get("reference") == "none":
        del made["models"]["reference"]
    else:
        made["models"]["reference"] = merged(made["models"]["reference"], {"source": {"seed": 5}})
    whole = start(prepare(made))
    checkpoints = sorted((whole.folder / "checkpoints").iterdir())
    expected = numbers(whole)
    for late in checkpoints[2:]:
        for file in sorted(late.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        late.rmdir()
    assert numbers(resume(whole.folder)) == expected


def numbers(run):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in run.metrics]


@pytest.mark.integration
def test_the_reference_scores_each_row_once(tree, monkeypatch):
    from plugrl.plugins.transformers.inference_service import TransformersInferenceService

    scored = []
    plain = TransformersInferenceService.score

    def counting(self, sequences, temperature=1.0):
        scored.extend(map(tuple, sequences))
        return plain(self, sequences, temperature)

    monkeypatch.setattr(TransformersInferenceService, "score", counting)
    # Four passes over six pairs; the parity probe scores rows too, and validation is off.
    monkeypatch.setattr("plugrl.core.text.schedule.weight_sync.WeightSync.observe", lambda *_: None)
    made = tree(rows=TRAINED[:6], steps=8, data={"batch_size": 3})
    made["validate"] = {"enabled": False}
    start(prepare(made))
    assert len(scored) == len(set(scored)) == 12


@pytest.mark.integration
def test_the_reference_may_begin_as_the_policy(tree):
    made = tree(steps=1, trainer={"algorithm": {"reference_weights": "policy"}})
    made["models"]["reference"] = merged(made["models"]["reference"], {"source": {"seed": 5}})
    run = start(prepare(made))
    assert run.metrics[0]["validation/margin"] == pytest.approx(0, abs=1e-5)
    made["trainer"]["algorithm"]["reference_weights"] = "source"
    run = start(prepare(made))
    assert abs(run.metrics[0]["validation/margin"]) > 1e-3


@pytest.mark.integration
@pytest.mark.parametrize("name", ["self_hosted_dpo", "reward_model"])
def test_a_saved_run_evaluates_to_what_it_said(tree, name):
    made = tree(name)
    if name == "self_hosted_dpo":
        made["trainer"]["algorithm"] = {"reference_weights": "policy"}
        made["models"]["reference"] = merged(made["models"]["reference"], {"source": {"seed": 5}})
    run = start(prepare(made))
    with open_checkpoint(str(run.folder)) as saved:
        found = saved.trainer.evaluate()
    assert found["validation/margin"] != 0
    said = {k: v for k, v in run.metrics[-1].items() if k.startswith("validation/")}
    assert found == pytest.approx(said, rel=1e-5, abs=1e-6)


@pytest.mark.integration
def test_sampled_validation_stands_beside_where_answers_are_judged(tree):
    made = tree(
        steps=1,
        held_out=[{**row, "answer": row["chosen"]} for row in HELD_OUT],
        rollout_worker={"evaluator": "exact_match"},
    )
    last = start(prepare(made)).metrics[-1]
    assert {"validation/accuracy", "validation/exact_match", "validation/reward"} <= set(last)


@pytest.mark.integration
def test_plan_and_dry_run_count_both_answers(tree):
    experiment = prepare(tree())
    plan = dict(batch_plan(experiment.validated))
    assert plan["sequences a step"] == "24 x 2 = 48"
    for name, loss in (("self_hosted_dpo", "dpo"), ("self_hosted_dpo", "kto"), ("reward_model", 0)):
        made = tree(name, trainer={"algorithm": {"loss": loss}} if loss else {})
        made["models"]["policy"]["train"]["micro_batch_size"] = 5
        experiment = prepare(made)
        trainer = build_trainer(experiment.validated, experiment.registry, NullRun("a dry run"))
        assert trainer.dry_run()["rows"] == (5 if loss == "kto" else 4)


def changed(row, **changes):
    return [*TRAINED[:3], {**TRAINED[3], **changes}]


#: Rows of no form, which are found before the run.
UNFIT_ROWS = [
    (
        changed(3, rejected=None),
        r":4 has columns prompt, chosen; the columns of one of these forms are expected: "
        r"prompt with chosen, rejected; prompt with completion, label; chosen with rejected",
    ),
    ([*TRAINED[:3], {"prompt": "ab", "chosen": "a"}], r":4 has columns prompt, chosen; "),
    (
        changed(3, chosen=["a"]),
        r":4: column 'chosen': message 0 is 'a'; a mapping with role and content is expected",
    ),
    (changed(3, chosen=3), r":4: column 'chosen' holds int; a text or a list of messages is exp"),
    (
        changed(3, chosen=[{"role": "assistant", "content": "a"}]),
        r":4: column 'rejected' is text and must be a list of messages, as column 'chosen' is",
    ),
    (
        [*TRAINED[:3], {"chosen": "aab", "rejected": "aac"}],
        r":4 has columns chosen, rejected \(chosen with rejected, as text\), and .*:1 is prompt "
        r"with chosen, rejected, as text; give all rows one form",
    ),
    ([{"chosen": "ab", "rejected": "ba"}], r":1: 'chosen' and 'rejected' begin with nothing in c"),
]


@pytest.mark.integration
@pytest.mark.parametrize(("rows", "complaint"), UNFIT_ROWS)
def test_rows_of_no_form_are_named_before_the_run(tree, rows, complaint):
    fault = faults(tree(rows=rows))
    assert re.search(complaint, fault)
    assert "\n" not in fault


@pytest.mark.integration
def test_held_out_rows_of_no_form_are_named_before_the_first_step(tree):
    with pytest.raises(RunError, match=UNFIT_ROWS[0][1]):
        start(prepare(tree(held_out=UNFIT_ROWS[0][0])))


BAD_ROWS = [
    (changed(3, rejected=TRAINED[3]["chosen"]), "problem 3 has equal answers in 'chosen'"),
    (changed(3, chosen=""), "problem 3 has an empty answer in column 'chosen'"),
    (changed(3, chosen="abcabc"), "problem 3 has an answer of 7 tokens .*max_response_length=3"),
    (changed(3, chosen="xyz"), "no character 'x'"),
    (changed(3, prompt=""), "problem 3 has an empty prompt"),
]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("place", "rows", "complaint"),
    [
        *(("rows", *row) for row in BAD_ROWS),
        ("held_out", *BAD_ROWS[0]),
        *(pytest.param("held_out", *row, marks=pytest.mark.slow) for row in BAD_ROWS[1:]),
    ],
)
def test_bad_rows_are_named_before_the_first_step(tree, place, rows, complaint):
    made = tree(**{place: rows})
    made["data"]["batch_size"] = 1
    with pytest.raises(RunError, match=complaint):
        start(prepare(made))
    (folder,) = (path for path in Path(made["settings"]["runs_folder"]).glob("*/*"))
    assert not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("label", "complaint"),
    [
        (
            "perhaps",
            r"problem 3 has 'perhaps' in column 'label' \(rollout_worker.label_key\); true",
        ),
        (0.5, "problem 3 has 0.5 in column 'label'"),
        (None, "problem 3 has nothing in column 'label'"),
    ],
)
def test_labels_are_true_or_false(tree, label, complaint):
    rows = labels(TRAINED[:2])
    rows[3]["label"] = label
    made = tree(
        rows=rows,
        held_out=labels(HELD_OUT),
        rollout_worker={"layout": "labels"},
        trainer={"algorithm": {"loss": "kto"}},
    )
    with pytest.raises(RunError, match=complaint):
        start(prepare(made))


@pytest.mark.integration
def test_labels_are_known_by_their_columns(tree):
    def trained(**worker):
        made = tree(
            rows=labels(TRAINED[:4]),
            held_out=labels(HELD_OUT),
            steps=1,
            rollout_worker=worker,
            trainer={"algorithm": {"loss": "kto"}},
        )
        last = start(prepare(made)).metrics[-1]
        return {name: value for name, value in last.items() if not name.startswith("time/")}

    assert trained() == trained(layout="labels")


@pytest.mark.integration
def test_single_answers_are_nothing_to_compare(tree):
    made = tree(rows=labels(TRAINED[:4]), held_out=labels(HELD_OUT))
    complaint = "data: rows hold one answer with a label, and loss dpo .*write .*loss=kto"
    with pytest.raises(RunError, match=complaint):
        start(prepare(made))


@pytest.mark.integration
def test_answers_of_messages_are_learned_as_their_texts(tree):
    def said(row):
        # The template of characters writes the content and the end alone, as texts have it.
        roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
        return {key: [{"role": roles[key], "content": row[key]}] for key in roles}

    def losses(change):
        made = tree(rows=[change(row) for row in TRAINED[:4]], held_out=HELD_OUT, steps=2)
        made["models"]["policy"]["source"]["tokenizer"]["chat_template"] = (
            "{% for m in messages %}{{ m.content }}"
            "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        )
        return [line["train/loss"] for line in start(prepare(made)).metrics[1:]]

    whole = losses(lambda row: row)
    assert losses(said) == whole
    joined = losses(
        lambda row: {key: [*said(row)["prompt"], *said(row)[key]] for key in ("chosen", "rejected")}
    )
    assert joined == whole


@pytest.mark.integration
def test_margins_are_numbers_and_reach_the_loss(tree):
    section = {"margin_key": "better"}
    rows = [{**row, "better": 3.0} for row in TRAINED[:4]]
    held_out = [{**row, "better": 3.0} for row in HELD_OUT]
    made = tree("reward_model", rows=rows, held_out=held_out, steps=1, rollout_worker=section)
    # All rewards begin at 0: -log sigmoid(-3).
    run = start(prepare(made))
    assert run.metrics[0]["validation/loss"] == pytest.approx(3.04859, abs=1e-5)
    rows[2]["better"] = "much"
    made = tree("reward_model", rows=rows, held_out=held_out, steps=1, rollout_worker=section)
    with pytest.raises(RunError, match=r"problem 2 has 'much' in column 'better' .*finite number"):
        start(prepare(made))


def faults(made):
    with pytest.raises(ConfigError) as caught:
        prepare(made)
    return " ".join(map(str, caught.value.faults))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "sections", "complaint"),
    [
        (
            "self_hosted_dpo",
            {"trainer": {"algorithm": {"reference": "referense"}}},
            "no model 'referense' in models; it has: policy, reference",
        ),
        (
            "self_hosted_dpo",
            {"trainer": {"algorithm": {"reference": "policy"}}},
            "model 'policy' is trained; a reference must be frozen",
        ),
        (
            "self_hosted_dpo",
            {"trainer": {"algorithm": {"reference": "none", "loss": "kto"}}},
            "loss kto needs a reference model",
        ),
        (
            "self_hosted_dpo",
            {"trainer": {"algorithm": {"reference": "none", "reference_weights": "policy"}}},
            "has no effect: reference is none",
        ),
        ("self_hosted_dpo", {"data": {"rollout_repeat_n": 2}}, "must be 1 with"),
        ("self_hosted_dpo", {"rollout_worker": {"margin_key": "m"}}, "loss dpo takes no margins"),
        ("self_hosted_dpo", {"rollout_worker": {"chosen_key": "good"}}, "no column 'good'"),
        (
            "self_hosted_dpo",
            {"rollout_worker": {"layout": "labels"}},
            "is labels, and loss dpo compares pairs",
        ),
        (
            "self_hosted_dpo",
            {"data": {"batch_size": 1}, "trainer": {"algorithm": {"loss": "kto"}}},
            "needs at least 2 rows",
        ),
        (
            "self_hosted_dpo",
            {"trainer": {"algorithm": {"aggregation": "token-mean"}}},
            "aggregation",
        ),
        ("reward_model", {"rollout_worker": {"evaluator": "exact_match"}}, "has no effect"),
        (
            "reward_model",
            {"models": {"policy": {"train": {"value_head": False}}}},
            "models.policy.train.value_head=true",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(tree, name, sections, complaint):
    assert complaint in faults(tree(name, **sections))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("self_hosted_dpo", "dpo"),
        pytest.param("self_hosted_dpo", "kto", marks=pytest.mark.slow),
        pytest.param("reward_model", "bradley_terry", marks=pytest.mark.integration),
    ],
)
def test_dumped_steps_are_repeated_exactly(tree, name, loss):
    options = {"type": loss} | ({"center_coefficient": 0.5} if name == "reward_model" else {})
    made = tree(name, steps=2, trainer={"algorithm": {"loss": options}})
    made["runtime_monitor"] = {"dump_steps": [2]}
    run = start(prepare(made))
    (found,) = replay(run.folder, 2)
    assert found.equal
    assert found.metrics["grad_norm"] == run.metrics[-1]["train/grad_norm"]


@pytest.mark.integration
def test_a_loss_in_a_file_is_named_by_its_function(tree, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from plugrl.trainers.self_hosted_dpo import dpo as mine\n", encoding="utf-8"
    )
    loss = {
        "type": None,
        "custom_loss_module_path": str(tmp_path / "mine.py"),
        "custom_loss_class_name": "mine",
    }
    prepare(tree(trainer={"algorithm": {"loss": loss}}))
    found = faults(tree(rollout_worker={"layout": "labels"}, trainer={"algorithm": {"loss": loss}}))
    assert "is labels, and loss mine compares pairs" in found
