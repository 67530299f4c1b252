"""Fine-tuning jobs at a server that follows the documents of OpenAI's API."""

import json
import os
import signal
import time
from pathlib import Path

import forking
import pytest
from documented_server import SOURCE, request
from jobs_server import JobsServer
from waiting import DEADLINE

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.jobs.fine_tuning import PreferenceExample, SupervisedExample
from plugrl.core.text.jobs.model_groups import SharedModelGroup, wait_for_jobs
from plugrl.core.text.models import Models

HERE = Path(__file__).parent
WORDS = [a + b for a in "abcdefgh" for b in "abcdefgh" if a != b][:12]


def user(word):
    return {"role": "user", "content": word}


def assistant(word):
    return {"role": "assistant", "content": word}


SUPERVISED = [SupervisedExample([user(word), assistant(word[::-1])]) for word in WORDS]
PREFERENCES = [PreferenceExample([user(word)], word[::-1], word) for word in WORDS]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    made = JobsServer()
    yield made
    made.close()


#: Characters and template of prompts in ChatML.
CHATML = {
    "characters": "abcdefgh<|im_start>_end\nuloy",
    "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


def loaded(url, folder, engine="generic", **options):
    section = {"type": "openai", "poll_interval": 0.01, "patience": 5.0, **options}
    section = {key: value for key, value in section.items() if value is not None}
    inference = {
        "type": "openai", "base_url": url, "model": "base", "engine": engine,
        "max_context": 32, "patience": 5.0,
    }  # fmt: skip
    source = SOURCE
    if engine == "chat":
        source = {"path": None, "config": {}, "tokenizer": CHATML, "dtype": "float32"}
        inference["max_context"] = 200
    tree = {"source": source, "inference": inference, "train": None, "fine_tune": section}
    models = ConfigView({"policy": {**tree, "adapter": None}}, "models")
    factory = Factory(default_registry())
    return Models.load(models, factory, seed=3, device="cpu", folder=Path(folder))


@pytest.fixture
def group(server, tmp_path):
    made = []

    def make(**options):
        made.append(loaded(server.base_url, tmp_path, **options))
        return SharedModelGroup("provers", ["a", "b"], made[-1]["policy"])

    yield make
    for models in made:
        models.close()


def answer(model, word):
    tokenizer = model.inference.tokenizer
    prompt = tokenizer.apply_chat_template([user(word)])
    (completion,) = model.inference.generate([request(prompt)])
    return tokenizer.decode(completion.tokens)


@pytest.mark.integration
def test_the_server_understands_the_vendors_own_client(server, tmp_path):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=server.base_url, api_key="sk-test", max_retries=0)
    path = tmp_path / "x.jsonl"
    lines = [{"messages": [user(word), assistant("a")]} for word in WORDS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = client.files.create(file=path, purpose="fine-tune")
    assert [f.id for f in client.files.list(purpose="fine-tune")] == [file.id]
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}
    job = client.fine_tuning.jobs.create(
        model="base", training_file=file.id, method=method, metadata={"plugrl_job": "n"}, seed=1
    )
    found = client.fine_tuning.jobs.list(extra_query={"metadata[plugrl_job]": "n"})
    assert [j.id for j in found] == [job.id]
    for state in ("queued", "running", "succeeded"):
        job = client.fine_tuning.jobs.retrieve(job.id)
        assert job.status == state
    assert client.models.retrieve(job.fine_tuned_model).id == job.fine_tuned_model
    assert [e.level for e in client.fine_tuning.jobs.list_events(job.id)] == ["info"] * 3
    with pytest.raises(openai.BadRequestError, match="already ended"):
        client.fine_tuning.jobs.cancel(job.id)


def test_a_job_is_made_of_the_examples_and_its_model_is_sampled_from(server, group):
    shared = group(suffix="mine", epochs=2)
    assert answer(shared.model, "ab") == ""
    shared.create_supervised_fine_tune_job({"a": SUPERVISED[:6], "b": SUPERVISED[6:]}, "run_iter_0")
    told = []
    done = wait_for_jobs([shared], told=lambda _, status: told.append(status))
    assert [status.state for status in told] == ["queued", "running", "succeeded"]
    assert told[1].message == "Step 1/2: training loss=0.50"
    assert told[1].metrics == {"step": 1.0, "train_loss": 0.5}
    shared.switch_to_next_model()
    assert shared.fine_tuned_model == done["provers"].fine_tuned_model
    assert [answer(shared.model, word) for word in ("ab", "ac")] == ["ba", "ca"]
    (job,) = server.jobs.values()
    about, content = server.files[job["training_file"]]
    assert (about["filename"], about["purpose"]) == ("run_iter_0.jsonl", "fine-tune")
    first = json.loads(content.decode().splitlines()[0])
    assert first == {"messages": [user("ab"), assistant("ba")]}
    assert job["metadata"] == {"plugrl_job": "run_iter_0"}
    assert (job["seed"], job["suffix"], job["model"]) == (3, "mine", "base")
    assert job["method"]["supervised"]["hyperparameters"] == {
        "n_epochs": 2, "batch_size": "auto", "learning_rate_multiplier": "auto",
    }  # fmt: skip


def test_models_that_answer_messages_alone_are_sampled_from(server, group, caplog):
    shared = group(engine="chat")
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    wait_for_jobs([shared])
    shared.switch_to_next_model()
    messages = [assistant("a"), user("b c"), {"role": "system", "content": "\n"}, user("ab")]
    tokenizer = shared.model.inference.tokenizer
    prompt = tokenizer.encode_chat(tokenizer.writable(tokenizer.render_chat(messages)))
    (completion,) = shared.model.inference.generate([request(prompt, max_new_tokens=2)])
    assert tokenizer.decode(completion.tokens) == "ba"
    # The space is none of the characters.
    messages[1] = user("bc")
    assert server.chats[-1]["messages"] == messages
    assert server.chats[-1]["max_completion_tokens"] == 2
    assert server.chats[0]["messages"][0]["role"] == "user", "a prompt that is no ChatML"
    assert "reads a prompt" not in caplog.text


def test_preferences_are_a_job_of_the_method_dpo(server, group):
    shared = group(beta=0.2)
    shared.create_dpo_fine_tune_job({"a": PREFERENCES}, "j")
    wait_for_jobs([shared])
    shared.switch_to_next_model()
    assert answer(shared.model, "ab") == "ba"
    (job,) = server.jobs.values()
    assert job["method"]["type"] == "dpo"
    assert job["method"]["dpo"]["hyperparameters"]["beta"] == 0.2


def test_replies_that_are_not_learned_have_no_weight(server, group):
    two = [user("ab"), assistant("c"), user("d"), assistant("e")]
    shared = group()
    shared.create_supervised_fine_tune_job({"a": [SupervisedExample(two, (3,))] * 10}, "j")
    (_, content) = next(iter(server.files.values()))
    sent = json.loads(content.decode().splitlines()[0])["messages"]
    assert [message.get("weight") for message in sent] == [None, 0, None, None]
    wait_for_jobs([shared])


@pytest.mark.parametrize("scratch", [True, False])
def test_the_next_job_begins_with_the_base_or_the_model_before(server, group, scratch):
    shared = group(from_scratch=scratch)
    for name in ("j0", "j1"):
        shared.create_supervised_fine_tune_job({"a": SUPERVISED}, name)
        wait_for_jobs([shared])
        shared.switch_to_next_model()
    first, second = server.jobs.values()
    assert second["model"] == ("base" if scratch else first["fine_tuned_model"])
    assert shared.version == shared.model.inference.version == 2


def test_fewer_examples_than_the_api_takes_make_no_job(server, group):
    shared = group()
    shared.create_supervised_fine_tune_job({"a": SUPERVISED[:9]}, "j")
    assert "9 examples" in wait_for_jobs([shared])["provers"].message
    assert not server.jobs
    assert not server.files


def test_what_the_service_says_of_a_failed_job_is_told_and_a_resume_makes_it_again(server, group):
    server.end = "failed"
    shared = group(min_examples=1)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    said = r"^job j of model 'policy' failed \(The job ran out of luck\. \[server_error\]\); resume"
    with pytest.raises(RunError, match=said):
        wait_for_jobs([shared])
    with pytest.raises(RunError, match=said):
        wait_for_jobs([shared])
    assert len(server.jobs) == 1
    state = json.loads(json.dumps(shared.state_dict()))
    server.end = "succeeded"
    resumed = group()
    resumed.load_state_dict(state)
    wait_for_jobs([resumed])
    resumed.switch_to_next_model()
    assert answer(resumed.model, "ab") == "ba"
    first, second = server.jobs.values()
    assert second["training_file"] == first["training_file"]
    assert second["metadata"] == {"plugrl_job": "j-r2"}


def test_a_file_that_is_refused_is_explained(server, group):
    shared = group(min_examples=1)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED[:2]}, "j")
    with pytest.raises(RunError, match=r"Training file has 2 example.*invalid_n_examples, train"):
        wait_for_jobs([shared])


def test_a_cancelled_job_ends_the_wait(server, group):
    shared = group()
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    shared.service.cancel(shared.service.find("j"))
    with pytest.raises(RunError, match=r"^job j of model 'policy' was cancelled"):
        wait_for_jobs([shared])


def test_a_job_that_takes_too_long_ends_the_wait_and_is_taken_up_later(server, group):
    shared = group(timeout=1e-6, poll_interval=1e-6)
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    with pytest.raises(
        RunError, match=r"^job j .* is still queued after models\.policy\.fine_tune"
    ):
        wait_for_jobs([shared])
    resumed = group()
    resumed.load_state_dict(shared.state_dict())
    assert wait_for_jobs([resumed])["provers"].state == "succeeded"
    assert len(server.jobs) == 1


@pytest.mark.parametrize(
    "fault", ["drop", "drop after", (500, {}), (429, {"retry-after": "0"}), (503, {})]
)
@pytest.mark.parametrize("where", [r"POST /files", r"POST /fine_tuning/jobs"])
def test_a_request_that_breaks_off_makes_no_second_job(server, group, fault, where):
    server.faults = [(where, fault)]
    shared = group()
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    wait_for_jobs([shared])
    assert len(server.jobs) == 1


def test_rate_limits_are_waited_for_as_long_as_the_server_asks(server, group):
    server.faults = [(r"GET /fine_tuning/jobs/[^/]+", (429, {"retry-after": "0.3"}))]
    shared = group()
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    started = time.monotonic()
    shared.get_fine_tune_job_status()
    assert time.monotonic() - started >= 0.3


def test_rate_limits_without_end_end_the_run(server, group):
    shared = group(patience=0.5)
    server.faults = [(r"POST /fine_tuning/jobs", (429, {}))] * 50
    with pytest.raises(RunError, match=r"answers 429: slow down while asked to make job j"):
        shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    server.faults = []
    # The file that was uploaded is used.
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    assert len(server.files) == len(server.jobs) == 1


def test_a_server_that_does_not_filter_by_metadata_is_searched(server, group):
    server.filters_metadata = False
    shared = group()
    for number in range(150):
        job = {"id": f"other-{number}", "metadata": None, "status": "succeeded"}
        server.jobs[job["id"]] = job
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    for number in range(150):
        job = {"id": f"later-{number}", "metadata": {"plugrl_job": "x"}, "status": "succeeded"}
        server.jobs[job["id"]] = job
    assert shared.service.find("j") == shared._job
    assert shared.service.find("k") is None


def test_a_model_that_vanished_is_named(server, group):
    shared = group()
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    wait_for_jobs([shared])
    shared.switch_to_next_model()
    del server.models[shared.fine_tuned_model]
    with pytest.raises(RunError, match=r"no longer has the fine-tuned model ft:base:org::\d+; "):
        group().load_state_dict(shared.state_dict())
    with pytest.raises(RunError, match=r"answers 404.*The model 'ft:.* does not exist"):
        answer(shared.model, "ab")


def test_a_job_that_vanished_is_named(server, group):
    shared = group()
    shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")
    server.jobs.clear()
    with pytest.raises(RunError, match=r"knows no job ftjob-\d+; was it made with another key"):
        wait_for_jobs([shared])
    resumed = group()
    resumed.load_state_dict(shared.state_dict())
    with pytest.raises(RunError, match=r"^job j of model 'policy' is no longer at its service"):
        wait_for_jobs([resumed])


def test_a_key_that_is_refused_is_a_fault_of_the_configuration(server, group, monkeypatch):
    shared = group()
    server.key = "sk-other"
    with pytest.raises(ConfigError, match=r"refuses the key of OPENAI_API_KEY \(401\)"):
        shared.create_supervised_fine_tune_job({"a": SUPERVISED}, "j")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": "many"}, "epochs: must be auto or a number"),
        ({"learning_rate_multiplier": 0}, "learning_rate_multiplier: must be above 0"),
        ({"api_key": "sk-secret"}, "api_key: must be the name of an environment variable"),
        ({"base_url": "nowhere"}, "base_url: must begin with http"),
        ({"patience": 0}, "patience: must be above 0"),
    ],
)
def test_settings_that_cannot_be(server, group, options, said):
    with pytest.raises(ConfigError, match=said):
        group(**options)


def test_jobs_that_are_trained_here_need_a_sampler_that_takes_weights(server, tmp_path):
    options = {"type": "local", "poll_interval": 1.0}
    with pytest.raises(ConfigError, match=r"policy\.inference: its server takes no weights"):
        loaded(server.base_url, tmp_path, patience=None, **options)


KILLED = """
import os, signal, sys
sys.path[:0] = [{tests!r}, {support!r}]
from test_fine_tuning_jobs import SUPERVISED, loaded
from plugrl.core.text.jobs.model_groups import SharedModelGroup
from plugrl.plugins.openai.transport import Transport
kill_at, url, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
calls, ask = 0, Transport.ask
async def counted(self, what, url, body, **options):
    global calls
    result = await ask(self, what, url, body, **options)
    calls += 1
    if calls == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
models = loaded(url, folder)
Transport.ask = counted
shared = SharedModelGroup("provers", ["a"], models["policy"])
shared.create_supervised_fine_tune_job({{"a": SUPERVISED}}, "j")
while shared.get_fine_tune_job_status().state != "succeeded":
    pass
print("ended", calls)
"""


@pytest.mark.integration
def test_a_process_that_is_killed_after_any_request_makes_no_second_job(server, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(KILLED.format(tests=str(HERE), support=str(HERE.parent / "support")))
    environment = {**os.environ, "OPENAI_API_KEY": "sk-test"}
    # After the job was looked for, the file uploaded, the job made, and its event read.
    for kill_at in (2, 3, 4, 6):
        server.jobs.clear()
        server.files.clear()
        for attempt, number in ((1, kill_at), (2, 0)):
            words = [script, number, server.base_url, tmp_path]
            done = forking.run(words, env=environment, timeout=DEADLINE)
            assert done.returncode == (-signal.SIGKILL if attempt == 1 else 0), done.stderr
        assert len(server.jobs) == len(server.files) == 1
