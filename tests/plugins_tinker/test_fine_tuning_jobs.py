"""Fine-tuning jobs over servers of the Tinker API."""

import json

import pytest
from servers import against
from waiting import DEADLINE

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import RunError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.jobs.fine_tuning import PreferenceExample, SupervisedExample
from plugrl.core.text.jobs.model_groups import SharedModelGroup, wait_for_jobs
from plugrl.core.text.models import Models

pytest.importorskip("tinker")

pytestmark = against("server")
PROBLEMS = ["12+34=", "20+17=", "41+45=", "63+22="]
#: Wrong on purpose: the base model does not say so.
REPLY = "999"


def user(text):
    return [{"role": "user", "content": text}]


SUPERVISED = [
    SupervisedExample([*user(p), {"role": "assistant", "content": REPLY}]) for p in PROBLEMS
]
PREFERENCES = [PreferenceExample(user(p), REPLY, "046") for p in PROBLEMS]


@pytest.fixture
def group(server, tmp_path):
    made = []

    def make(**options):
        where = {"type": "tinker", "base_url": server.url, "base_model": server.model}
        where |= {"patience": DEADLINE, "timeout": DEADLINE}
        train = {**where, "lora_rank": 8, "learning_rate": 0.01, "weight_decay": 0.0}
        section = {"type": "tinker", "epochs": 4, "batch_size": 2, "train": train, **options}
        source = {
            "path": server.model, "config": {}, "dtype": "float32", "seed": None,
            "tokenizer": {
                "characters": None,
                # The model knows no end between question and answer.
                "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
            },
        }  # fmt: skip
        tree = {"source": source, "inference": where, "train": None, "fine_tune": section}
        models = ConfigView({"policy": {**tree, "adapter": None}}, "models")
        factory = Factory(default_registry())
        made.append(Models.load(models, factory, seed=3, device="cpu", folder=tmp_path))
        return SharedModelGroup("provers", ["a"], made[-1]["policy"])

    yield make
    for models in made:
        models.close()


def likelihood(model, reply=REPLY):
    tokenizer = model.inference.tokenizer
    total = 0.0
    for problem in PROBLEMS:
        prompt = tokenizer.apply_chat_template(user(problem))
        answer = [*tokenizer.encode(reply), tokenizer.eos_token_id]
        total += sum(model.inference.score([[*prompt, *answer]])[0][len(prompt) :])
    return total


@pytest.mark.integration
def test_replies_are_learned_and_a_later_process_samples_from_them(group):
    shared = group()
    before = likelihood(shared.model)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    (status,) = wait_for_jobs([shared]).values()
    assert status.message == "8 steps over 4 examples"
    shared.switch_to_next_model()
    after = likelihood(shared.model)
    assert after > before + 5
    assert shared.model.inference.version == 1
    resumed = group()
    resumed.load_state_dict(json.loads(json.dumps(shared.state_dict())))
    assert likelihood(resumed.model) == pytest.approx(after, abs=1e-3)


@pytest.mark.integration
def test_preferences_are_learned_though_the_service_has_no_such_loss(group):
    shared = group()
    before = likelihood(shared.model) - likelihood(shared.model, "046")
    shared.create_dpo_fine_tune_job({"a": PREFERENCES}, "j")
    (status,) = wait_for_jobs([shared]).values()
    shared.switch_to_next_model()
    assert likelihood(shared.model) - likelihood(shared.model, "046") > before + 5
    assert status.metrics["accuracy"] == 1.0
    assert status.metrics["loss"] < 0.693


@pytest.mark.integration
def test_a_job_goes_on_in_another_process_and_the_next_one_with_its_weights(group):
    shared = group(save_interval=0.0, epochs=1, from_scratch=False)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j0")
    assert shared.get_fine_tune_job_status().message == "step 1 of 2"
    resumed = group(save_interval=0.0, epochs=1, from_scratch=False)
    resumed.load_state_dict(shared.state_dict())
    (status,) = wait_for_jobs([resumed]).values()
    assert (status.state, status.message) == ("succeeded", "2 steps over 4 examples")
    resumed.switch_to_next_model()
    first = likelihood(resumed.model)
    resumed.create_supervised_fine_tune_job({"a": SUPERVISED}, "j1")
    wait_for_jobs([resumed])
    resumed.switch_to_next_model()
    whole = group(epochs=1)
    whole.create_supervised_fine_tune_job({"a": SUPERVISED}, "whole")
    wait_for_jobs([whole])
    whole.switch_to_next_model()
    assert first == pytest.approx(likelihood(whole.model), abs=1e-2)
    assert likelihood(resumed.model) > first + 0.5


def test_weights_that_the_service_dropped_are_made_again_of_the_state(group):
    shared = group(epochs=1)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    wait_for_jobs([shared])
    service = shared.service
    handed = dict(service.export_weights("j"))
    shared.switch_to_next_model()
    expected = likelihood(shared.model)
    base = group(epochs=1).model
    assert likelihood(base) != pytest.approx(expected, abs=1e-3)
    service._give(base.inference, {**handed, "sampler": "tinker://model_x/gone"}, 2)
    assert likelihood(base) == pytest.approx(expected, abs=1e-3)
    assert base.inference.version == 2
    gone = {"sampler": "tinker://model_x/gone", "state": "tinker://model_x/weights/gone"}
    with pytest.raises(RunError, match="has lost what is needed to load tinker://model_x/weights"):
        service._give(shared.model.inference, gone, 3)
