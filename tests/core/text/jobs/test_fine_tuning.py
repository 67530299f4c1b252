"""Examples, statuses and waiting of fine-tuning jobs, and what is said before a run."""

from dataclasses import dataclass

import pytest
import text_agents

import plugrl
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, ContractError, RunError
from plugrl.core.experiment import prepare
from plugrl.core.text.jobs.examples import read, to_lines, trajectories
from plugrl.core.text.jobs.fine_tuning import (
    FineTuneConfig,
    FineTuneService,
    JobStatus,
    PreferenceExample,
    SupervisedExample,
)
from plugrl.core.text.jobs.model_groups import SharedModelGroup, wait_for_jobs
from plugrl.core.text.models import Model
from plugrl.plugins.transformers.tokenizer import character_tokenizer


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


DIALOGUE = [user("ab"), said("c"), user("d"), said("ef")]


@pytest.mark.parametrize(
    ("messages", "trained", "fault"),
    [
        ([user("a")], None, "names the assistant's messages, and it has none"),
        (DIALOGUE, (0,), "message 0 is none of the assistant's"),
        (DIALOGUE, (4,), "message 4 is none of the assistant's"),
        (DIALOGUE, (-1,), "message -1 is none of the assistant's"),
        (DIALOGUE, (), "it has none"),
        ([], None, "an empty list"),
        ([{"content": "a"}], None, "a mapping with role and content is expected"),
    ],
)
def test_examples_without_a_reply_to_learn_are_refused(messages, trained, fault):
    with pytest.raises(ContractError, match=fault):
        SupervisedExample(messages, trained)


def test_preferences_between_equals_are_refused():
    with pytest.raises(ContractError, match="equal, so none is preferred"):
        PreferenceExample([user("a")], "b", "b")
    with pytest.raises(ContractError, match="are texts"):
        PreferenceExample([user("a")], "b", None)


def test_examples_come_back_from_their_lines(tmp_path):
    for examples in (
        [SupervisedExample(DIALOGUE), SupervisedExample(DIALOGUE, (3,))],
        [PreferenceExample([user("a\u2028é\ud800")], "b", "c")],
    ):
        path = tmp_path / "examples.jsonl"
        path.write_text(to_lines(examples), encoding="utf-8")
        again = read(path)
        assert to_lines(again) == to_lines(examples)
        assert [type(e) for e in again] == [type(e) for e in examples]


PLAIN = (
    "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
#: Says of the history only what the user said, so that no prompt continues the one before.
FORGETFUL = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"


def rows_of(example, template, limit=100):
    made, dropped = trajectories([example], character_tokenizer("abcdef", template), limit)
    return [(row.tokens, row.loss_mask) for rows in made for row in rows], dropped


def test_replies_share_a_row_where_one_prompt_continues_the_other():
    # a to f are 2 to 7, the end is 1.
    rows, _ = rows_of(SupervisedExample(DIALOGUE), PLAIN)
    assert rows == [([2, 3, 4, 1, 5, 6, 7, 1], [0, 0, 1, 1, 0, 1, 1, 1])]
    rows, _ = rows_of(SupervisedExample(DIALOGUE, (3,)), PLAIN)
    assert rows == [([2, 3, 4, 1, 5, 6, 7, 1], [0, 0, 0, 0, 0, 1, 1, 1])]


def test_replies_have_rows_of_their_own_where_it_does_not():
    rows, _ = rows_of(SupervisedExample(DIALOGUE), FORGETFUL)
    assert rows == [
        ([2, 3, 4, 1], [0, 0, 1, 1]),
        ([2, 3, 5, 6, 7, 1], [0, 0, 0, 1, 1, 1]),
    ]


def test_a_preference_is_two_rows_of_one_prompt():
    rows, _ = rows_of(PreferenceExample([user("ab")], "c", "de"), PLAIN)
    assert rows == [([2, 3, 4, 1], [0, 0, 1, 1]), ([2, 3, 5, 6, 1], [0, 0, 1, 1, 1])]
    assert rows_of(PreferenceExample([user("ab")], "c", "de"), PLAIN, limit=4) == ([], 1)


@dataclass
class ScriptedConfig(FineTuneConfig):
    poll_interval: float = 1.0
    longest_interval: float = 5.0


class Scripted(FineTuneService):
    """Answers with what a test wrote."""

    Config = ScriptedConfig

    def __init__(self, states, **config):
        super().__init__(config)
        self.states = list(states)
        self.made = {}

    def load(self, spec, context):
        """Nothing is needed."""

    def find(self, name):
        return self.made.get(name)

    def create(self, name, examples, base):
        self.made[name] = f"id-{name}"
        return self.made[name]

    def status(self, job):
        return self.states.pop(0)

    def cancel(self, job):
        """Nothing to end."""


def group(states, name="one", **config):
    service = Scripted(states, **config)
    made = SharedModelGroup(name, ["a"], Model(name, None, None, service))
    made.create_supervised_fine_tune_job({"a": [SupervisedExample(DIALOGUE)]}, f"job-{name}")
    return made


QUEUED, RUNNING, DONE = JobStatus("queued"), JobStatus("running"), JobStatus("succeeded")


def test_waits_grow_to_the_longest_and_services_may_want_none():
    pauses = []
    wait_for_jobs([group([QUEUED, *[RUNNING] * 4, DONE])], sleep=pauses.append)
    assert pauses == [1, 2, 4, 5, 5]
    pauses.clear()
    wait_for_jobs([group([JobStatus("running", wait=0.0)] * 3 + [DONE])], sleep=pauses.append)
    assert pauses == [0, 0, 0]


def test_jobs_are_waited_for_together():
    told = []
    groups = [group([RUNNING, DONE], "one"), group([RUNNING] * 3 + [DONE], "two")]
    done = wait_for_jobs(
        groups, sleep=lambda _: None, told=lambda g, s: told.append((g.name, s.state))
    )
    assert set(done) == {"one", "two"}
    assert told.count(("two", "running")) == 3
    assert told.count(("one", "succeeded")) == 1


def test_a_service_that_keeps_no_examples_cannot_repeat_a_job():
    shared = group([JobStatus("failed", "no luck")])
    shared.load_state_dict(shared.state_dict())
    with pytest.raises(plugrl.UsageError, match="Scripted cannot repeat job id-job-one"):
        wait_for_jobs([shared])


def test_a_group_says_what_it_lacks():
    model = Model("policy", None, None)
    with pytest.raises(ConfigError, match=r"frozen; give models\.policy\.fine_tune to train it"):
        SharedModelGroup("g", ["a"], model).service  # noqa: B018 - it raises
    with pytest.raises(ConfigError, match="'g' has no agents"):
        SharedModelGroup("g", [], model)
    with pytest.raises(RunError, match="has no job to ask about"):
        SharedModelGroup("g", ["a"], model).get_fine_tune_job_status()
    with pytest.raises(RunError, match="is running, so it has no model yet"):
        group([RUNNING]).switch_to_next_model()


@pytest.mark.parametrize("name", ["timeout", "longest_interval"])
def test_no_time_to_wait_ends_before_the_first_pause_does(name):
    with pytest.raises(
        ConfigError, match=f"{name}: is 0.5, below poll_interval=1; raise {name}, or"
    ):
        Scripted([], **{name: 0.5})
    Scripted([], **{name: 0.5, "poll_interval": 0.5})


def faults(tmp_path, trainer="ei_pure_text", **sections):
    tree = text_agents.config(trainer, tmp_path, **sections)
    with pytest.raises(ConfigError) as caught:
        plugrl.train(tree)
    return str(caught.value)


@pytest.mark.parametrize("loss", ["kto", "bradley_terry"])
def test_a_loss_that_jobs_cannot_use_is_named_before_a_run(tmp_path, loss):
    section = {"fine_tune": {"preference_loss": {"type": loss}}}
    found = faults(tmp_path, models={"policy": section})
    assert "models.policy.fine_tune.preference_loss" in found
    assert f"{loss} " in found
    assert "write dpo or ipo" in found


def test_a_model_has_one_way_to_be_trained(tmp_path):
    found = faults(tmp_path, models={"policy": {"train": "local"}})
    assert "train and fine_tune exclude each other" in found


def test_a_trainer_without_jobs_refuses_them(tmp_path):
    from plugrl.testing import tiny

    tree = tiny.config("self_hosted_grpo", tmp_path, {})
    tree["models"]["other"] = {
        "source": tree["models"]["policy"]["source"],
        "fine_tune": {"type": "local"},
    }
    with pytest.raises(ConfigError, match=r"models\.other\.fine_tune.* such as ei_pure_text"):
        plugrl.train(tree)


def test_a_tokenizer_without_a_template_is_named(tmp_path):
    from plugrl.core.text.inference.services import ModelSpec
    from plugrl.core.text.jobs.fine_tuning import JobContext
    from plugrl.core.text.jobs.service import TrainedJobs

    class Bare:
        pass

    class Inference:
        tokenizer, takes_weights = Bare(), True

    spec = ModelSpec("policy", ConfigView({}, "source"), 0, "cpu")
    with pytest.raises(ConfigError, match=r"model 'policy' \(Bare\) has no chat template"):
        TrainedJobs({}).load(spec, JobContext(tmp_path, None, Inference()))


def test_the_model_of_the_last_job_is_exported(tmp_path):
    from safetensors.torch import load_file

    from plugrl.core.loaded_run import open_checkpoint
    from plugrl.core.run.checkpoints.checkpoint import load
    from plugrl.core.text.loaded_models import export

    tree = text_agents.config(
        "ei_pure_text",
        tmp_path,
        trainer={"reward_threshold": -1.0},
        text_rl={"num_iterations": 2, "test_scheme": "none"},
    )
    run = plugrl.train(tree)
    with open_checkpoint(str(run.folder)) as saved:
        export(saved, "policy", tmp_path / "exported")
    written = load_file(tmp_path / "exported" / "model.safetensors")
    jobs = run.folder / "fine_tuning" / "policy"
    first, second = (load(jobs / f"{run.folder.name}-iteration-{n}-policy" / "model") for n in "12")
    assert set(written) == set(second)
    assert all(written[name].equal(second[name]) for name in written)
    assert any(not written[name].equal(first[name]) for name in written)
    with (
        open_checkpoint(str(run.folder)) as saved,
        pytest.raises(plugrl.UsageError, match="merged in"),
    ):
        export(saved, "policy", tmp_path / "adapter", adapter=True)


def test_a_service_that_keeps_weights_exports_none(tmp_path):
    with pytest.raises(plugrl.UsageError, match="Scripted keeps the weights of its model"):
        Scripted([]).export(None, tmp_path, None)


def test_a_loss_in_a_file_is_refused_by_its_name(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from plugrl.trainers.losses.kto import kto as mine\n", encoding="utf-8"
    )
    at = "trainer.phases.1.models.policy.fine_tune.preference_loss"
    named = f"custom_loss_module_path: {tmp_path / 'mine.py'}, custom_loss_class_name: mine"
    with pytest.raises(ConfigError, match="mine compares no pairs of replies; write dpo or ipo"):
        prepare("arithmetic_claims_ei", [f"{at}=", f"{at}={{{named}}}"])
