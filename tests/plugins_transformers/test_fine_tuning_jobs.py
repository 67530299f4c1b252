"""Fine-tuning jobs of the service ``local``, on tiny models."""

import json
import os
import signal
import sys
import textwrap

import forking
import pytest
import torch

from plugrl.core.errors import ConfigError, RunError, UsageError
from plugrl.core.text.jobs.fine_tuning import SupervisedExample
from plugrl.core.text.jobs.folder import JobFolder
from plugrl.core.text.jobs.model_groups import SharedModelGroup, wait_for_jobs
from plugrl.core.text.models import Models

sys.path.insert(0, os.path.dirname(__file__))

from job_models import PREFERENCES, SOURCE, SUPERVISED, group, loaded  # noqa: E402


def weights(model):
    """What a model samples from, as log-probabilities of some tokens."""
    return model.inference.score([[2, 3, 4, 5, 6, 7], [9, 8, 7, 6]])


def loss_of(model, examples=SUPERVISED):
    tokenizer = model.inference.tokenizer
    total = 0.0
    for example in examples:
        prompt = tokenizer.apply_chat_template(list(example.messages[:1]))
        answer = [*tokenizer.encode(example.messages[1]["content"]), tokenizer.eos_token_id]
        total -= sum(model.inference.score([[*prompt, *answer]])[0][len(prompt) :])
    return total


def test_a_job_teaches_the_replies_of_all_agents(tmp_path):
    shared = group(tmp_path, epochs=20)
    before = loss_of(shared.model)
    half = {"a": SUPERVISED[:3], "b": SUPERVISED[3:]}
    shared.create_supervised_fine_tune_job(half, "run_iter_0_provers")
    done = wait_for_jobs([shared])
    assert done["provers"].message == "60 steps over 6 examples"
    assert loss_of(shared.model) == pytest.approx(before), "not before the switch"
    shared.switch_to_next_model()
    assert loss_of(shared.model) < 0.05 * before
    assert shared.version == shared.model.inference.version == 1


def test_a_job_makes_preferred_replies_likelier(tmp_path):
    shared = group(tmp_path, epochs=5)

    def margins():
        tokenizer, found = shared.model.inference.tokenizer, []
        for example in PREFERENCES:
            prompt = tokenizer.apply_chat_template(list(example.messages))
            rows = [
                [*prompt, *tokenizer.encode(text), tokenizer.eos_token_id]
                for text in (example.preferred, example.other)
            ]
            chosen, rejected = (sum(row) for row in shared.model.inference.score(rows))
            found.append(chosen - rejected)
        return found

    before = margins()
    shared.create_dpo_fine_tune_job({"a": PREFERENCES}, "j")
    (status,) = wait_for_jobs([shared]).values()
    shared.switch_to_next_model()
    assert all(now > then for now, then in zip(margins(), before, strict=True))
    assert status.metrics["accuracy"] == 1.0


def test_the_first_step_of_preferences_has_the_loss_of_no_preference(tmp_path):
    shared = group(tmp_path, save_interval=0.0)
    shared.create_dpo_fine_tune_job({"a": PREFERENCES}, "j")
    status = shared.get_fine_tune_job_status()
    assert (status.state, status.message) == ("running", "step 1 of 6")
    # log 2: the model and its reference are one.
    assert status.metrics["loss"] == pytest.approx(0.693147, abs=1e-5)


def test_jobs_begin_with_the_first_weights_or_with_those_of_the_job_before(tmp_path):
    found = {}
    for scratch in (True, False):
        shared = group(tmp_path / str(scratch), from_scratch=scratch)
        for number in range(2):
            shared.create_supervised_fine_tune_job({"a": SUPERVISED}, f"j{number}")
            wait_for_jobs([shared])
            shared.switch_to_next_model()
            found[scratch, number] = weights(shared.model)
    assert found[True, 0] == found[True, 1] == found[False, 0]
    assert found[False, 1] != found[True, 1]


def test_few_examples_make_no_job_and_are_no_failure(tmp_path, caplog):
    shared = group(tmp_path, min_examples=7)
    before = weights(shared.model)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    assert "6 examples, and models.policy.fine_tune.min_examples is 7" in caplog.text
    assert wait_for_jobs([shared])["provers"].state == "succeeded"
    shared.switch_to_next_model()
    assert weights(shared.model) == before
    assert shared.service.find("j") is None


def test_a_frozen_group_stays_as_it_is(tmp_path):
    shared = SharedModelGroup("provers", ["a"], loaded(tmp_path), freeze=True)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    assert wait_for_jobs([shared])["provers"].message == "model 'policy' is frozen"


def test_a_job_that_is_stopped_anywhere_ends_with_the_same_weights(tmp_path):
    whole = group(tmp_path / "whole")
    whole.create_dpo_fine_tune_job({"a": PREFERENCES}, "run-1")
    wait_for_jobs([whole])
    whole.switch_to_next_model()
    # Other processes, and another name of the run: nothing but the examples counts.
    shared, steps = group(tmp_path / "parts", save_interval=0.0), 0
    while True:
        shared.create_dpo_fine_tune_job({"a": PREFERENCES}, "run-2")
        steps += 1
        if shared.get_fine_tune_job_status().state == "succeeded":
            break
        state = shared.state_dict()
        shared = group(tmp_path / "parts", save_interval=0.0)
        shared.load_state_dict(state)
    assert steps == 6
    shared.switch_to_next_model()
    assert weights(shared.model) == weights(whole.model)
    state = json.loads(json.dumps(shared.state_dict()))
    resumed = group(tmp_path / "parts")
    resumed.load_state_dict(state)
    assert weights(resumed.model) == weights(whole.model)
    assert resumed.version == 1


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from job_models import SUPERVISED, group
from plugrl.core.run.checkpoints import checkpoint
kill_at, folder = int(sys.argv[1]), Path(sys.argv[2])
calls = 0
def counted(function):
    def wrapped(*args, **kwargs):
        global calls
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapped
os.rename, os.replace, os.fsync = map(counted, (os.rename, os.replace, os.fsync))
shared = group(folder, save_interval=0.0, epochs=1)
shared.create_supervised_fine_tune_job({{"a": SUPERVISED}}, "j")
while shared.get_fine_tune_job_status().state != "succeeded":
    pass
print("ended", calls)
"""


@pytest.mark.integration
def test_a_job_survives_a_kill_at_every_write(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(KILLED.format(tests=os.path.dirname(__file__))))
    whole = group(tmp_path / "whole", epochs=1)
    whole.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    wait_for_jobs([whole])
    whole.switch_to_next_model()

    def run(kill_at, folder):
        return forking.run([script, kill_at, folder])

    count = int(run(0, tmp_path / "counted").stdout.split()[1])
    assert count > 12
    # Places all over the job, and the last ones, where the model is put in its place.
    for kill_at in sorted({1, *range(4, count, 9), count - 1, count}):
        folder = tmp_path / f"killed-{kill_at}"
        assert run(kill_at, folder).returncode == -signal.SIGKILL
        after = run(0, folder)
        assert after.returncode == 0, after.stderr
        resumed = group(folder, epochs=1)
        resumed.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
        resumed.switch_to_next_model()
        assert weights(resumed.model) == weights(whole.model), kill_at


def test_a_job_whose_loss_is_not_finite_fails_and_is_made_again_by_a_resume(tmp_path):
    wild = {**SOURCE, "config": {**SOURCE["config"], "initializer_range": 1e30}}
    shared = group(tmp_path, source=wild)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    with pytest.raises(RunError, match=r"job j of model 'policy' failed \(step \d+ of 6: the "):
        wait_for_jobs([shared])
    state = shared.state_dict()
    # The same process does not try again, and neither does a second question.
    with pytest.raises(RunError, match="learning_rate"):
        wait_for_jobs([shared])
    resumed = group(tmp_path)
    resumed.load_state_dict(state)
    assert wait_for_jobs([resumed])["provers"].fine_tuned_model == "j-r2"
    # Killed before it was noted that the job was begun: what repeats it is taken up.
    begun = group(tmp_path)
    begun.load_state_dict(group(tmp_path).state_dict())
    begun.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    assert begun.get_fine_tune_job_status().fine_tuned_model == "j-r2"
    assert begun.service.find("j-r3") is None
    resumed.switch_to_next_model()
    assert loss_of(resumed.model) < loss_of(loaded(tmp_path / "other"))


def test_a_cancelled_job_says_so(tmp_path):
    shared = group(tmp_path, save_interval=0.0)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    assert shared.get_fine_tune_job_status().state == "running"
    shared.service.cancel("j")
    with pytest.raises(RunError, match=r"^job j of model 'policy' was cancelled \(it was asked to"):
        wait_for_jobs([shared])


def test_a_model_that_vanished_is_named(tmp_path):
    import shutil

    shared = group(tmp_path)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    wait_for_jobs([shared])
    shared.switch_to_next_model()
    shutil.rmtree(tmp_path / "policy" / "j" / "model")
    with pytest.raises(RunError, match=r"^the model of job j is not in .*/policy/j; restore"):
        group(tmp_path).load_state_dict(shared.state_dict())


def test_a_model_that_is_damaged_is_named_with_its_remedy(tmp_path):
    folder = JobFolder(tmp_path, "j")
    folder.path.mkdir()
    folder.finish({"w": torch.ones(8)}, {})
    tensors = folder.path / "model" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:20])
    said = r"^the model of job j is damaged: .*tensors.safetensors is .*cut short; restore"
    with pytest.raises(RunError, match=said):
        folder.model()


def test_the_newest_models_are_kept(tmp_path):
    shared = group(tmp_path, keep=2)
    for number in range(4):
        shared.create_supervised_fine_tune_job({"a": SUPERVISED}, f"j{number}")
        wait_for_jobs([shared])
        shared.switch_to_next_model()
    kept = sorted(path.parent.name for path in tmp_path.glob("policy/*/model"))
    assert kept == ["j2", "j3"]
    resumed = group(tmp_path, keep=2)
    resumed.load_state_dict(shared.state_dict())
    assert weights(resumed.model) == weights(shared.model)
    with pytest.raises(ConfigError, match="keep: must be at least 2"):
        group(tmp_path, keep=1)


def test_long_examples_are_left_out(tmp_path, caplog):
    shared = group(tmp_path, max_length=6)
    long = SupervisedExample(
        [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "def"}]
    )
    shared.create_supervised_fine_tune_job({"a": [*SUPERVISED, long]}, "j")
    status = wait_for_jobs([shared])["provers"]
    assert status.message == "6 steps over 6 examples"
    assert "job j leaves out 1 examples of more than 6 tokens" in caplog.text
    shared.create_supervised_fine_tune_job({"a": [long]}, "k")
    with pytest.raises(RunError, match="all 1 examples have more than 6 tokens"):
        wait_for_jobs([shared])


def test_an_adapter_is_trained_and_merged(tmp_path):
    shared = group(tmp_path, adapter={"type": "lora", "r": 2, "alpha": 4.0, "dropout": 0.0,
                                      "target_modules": "auto"}, epochs=10)  # fmt: skip
    before = loss_of(shared.model)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    wait_for_jobs([shared])
    shared.switch_to_next_model()
    assert loss_of(shared.model) < before


def test_jobs_begin_with_what_an_earlier_phase_handed_over(tmp_path):
    first = group(tmp_path / "first", epochs=2)
    first.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    wait_for_jobs([first])
    first.switch_to_next_model()
    handed = first.service.export_weights(first.fine_tuned_model)
    second = group(tmp_path / "second", epochs=1, train={"learning_rate": 0.0})
    Models({"policy": second.model}).load_weights({"policy": handed})
    assert weights(second.model) == weights(first.model)
    second.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    wait_for_jobs([second])
    second.switch_to_next_model()
    assert weights(second.model) == weights(first.model), "a learning rate of 0 changes nothing"


def test_a_service_of_named_losses_trains_the_same(tmp_path):
    """The gradient of any loss goes through the weights of ``cross_entropy``."""
    found = {}
    for kind in ("local", "in_process"):
        for name, examples in (("s", SUPERVISED), ("p", PREFERENCES)):
            shared = group(tmp_path / kind / name, train={"type": kind})
            begin = (
                shared.create_dpo_fine_tune_job
                if name == "p"
                else shared.create_supervised_fine_tune_job
            )
            begin({"a": examples}, "j")
            (status,) = wait_for_jobs([shared]).values()
            shared.switch_to_next_model()
            found[kind, name] = torch.tensor(weights(shared.model)[0]), status.metrics["loss"]
    for name in "sp":
        ours, loss = found["local", name]
        theirs, other = found["in_process", name]
        assert torch.allclose(ours, theirs, atol=1e-4)
        assert loss == pytest.approx(other, abs=1e-5)


def test_names_that_leave_the_folder_are_refused(tmp_path):
    shared = group(tmp_path)
    for name in ("../j", "", ".hidden", "a/b", "x" * 201):
        with pytest.raises(UsageError, match=r"^a job cannot be called"):
            shared.create_supervised_fine_tune_job({"a": SUPERVISED}, name)


def test_an_agent_of_another_group_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="agent 'z' is not of the model group 'provers', which"):
        group(tmp_path).create_dpo_fine_tune_job({"z": PREFERENCES}, "j")
