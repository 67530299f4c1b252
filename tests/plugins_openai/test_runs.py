"""Runs whose model is sampled by a server that follows the documents of vLLM or SGLang."""

import importlib.util
import threading
from pathlib import Path

import pytest
from documented_server import DOWN, DocumentedServer
from waiting import DEADLINE, wait_until

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare, resume, start
from plugrl.core.plugins.hookspecs import hookimpl
from plugrl.plugins.openai import wire
from plugrl.testing import tiny

KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])


def source_of(tree):
    return tree["models"]["policy"]["source"]


@pytest.fixture
def setting(tmp_path, server, monkeypatch):
    """Make a server and a configuration of a run that samples there."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)

    def make(kind="vllm", inference=None, **sections):
        tree = tiny.config("self_hosted_grpo", tmp_path, sections)
        there = server(kind, {"path": None, "dtype": "float32", **source_of(tree)})
        asked = {"type": "openai", "base_url": there.base_url, "patience": 1.0}
        tree["models"]["policy"]["inference"] = asked | (inference or {})
        return there, tree

    return make


class Watch:
    """A hook plugin: which attempts were trained at which step, and what to do then."""

    def __init__(self, then=None):
        self.attempts, self.then = {}, then or {}

    @hookimpl
    def plugrl_rollouts_collected(self, run, step, trajectories, metrics):
        self.attempts[step] = [(t.group_id, t.run_id) for t in trajectories]
        self.then.pop(step, lambda: None)()


def watched(tree, watch):
    experiment = prepare(tree)
    experiment.plugins.manager.register(watch)
    return start(experiment)


def with_judge(tree, **section):
    """The configuration with a second model, whose source is a tokenizer alone."""
    judge = {"source": {"tokenizer": {"characters": "ab"}}, **section}
    return {**tree, "models": {**tree["models"], "judge": judge}}


@pytest.mark.integration
@KINDS
def test_a_run_samples_from_a_documented_server_with_parity_after_each_sync(setting, kind):
    there, tree = setting(kind)
    # A server keeps its weights, so that a tokenizer is enough.
    tree = with_judge(tree, inference={"type": "openai", "base_url": there.base_url})
    run = start(prepare(tree))
    parities = [line["sync/parity"] for line in run.metrics if line.get("step", 0) > 0]
    assert len(parities) == 2
    assert max(parities) <= 1e-4
    loads = "/collective_rpc" if kind == "vllm" else "/update_weights_from_disk"
    # At the beginning and after each step.
    assert [path for path, _ in there.calls].count(loads) == 3


@pytest.mark.slow
@KINDS
def test_grpo_over_a_documented_server_learns(setting, kind):
    there, tree = setting(
        kind,
        models={
            "policy": {
                "source": {"config": {"hidden_size": 32, "num_hidden_layers": 2}},
                "train": {"learning_rate": 0.003},
            }
        },
        trainer={"total_train_steps": 50},
        data={"batch_size": 4, "rollout_repeat_n": 16},
        rollout_worker={"max_response_length": 2},
        validate={"every": 0},
        settings={"checkpoint_every": 0},
    )
    run = start(prepare(tree))
    rewards = [line["rollout/reward"] for line in run.metrics if "rollout/reward" in line]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert last > first + 0.3
    assert max(line.get("sync/parity", 0.0) for line in run.metrics) <= 1e-4


@pytest.mark.integration
def test_parity_is_absent_and_said_once_where_prompts_are_not_scored(setting):
    there, tree = setting()
    there.prompts_scored = False
    run = start(prepare(tree))
    assert "sync/parity" not in run.last_metrics
    log = (run.folder / "log.txt").read_text()
    assert log.count("nothing proves that it samples from the trained weights") == 1


@pytest.mark.integration
def test_a_sampler_with_other_weights_fails_the_parity_probe(setting):
    there, tree = setting()
    there.load = lambda folder: None
    with pytest.raises(RunError, match="the sampler does not run the trained weights"):
        start(prepare(tree))


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """A run whose server never failed, and which attempts it trained."""
    folder, watch = tmp_path_factory.mktemp("untouched"), Watch()
    tree = tiny.config("self_hosted_grpo", folder)
    there = DocumentedServer({"path": None, "dtype": "float32", **source_of(tree)})
    tree["models"]["policy"]["inference"] = {"type": "openai", "base_url": there.base_url}
    yield watched(tree, watch), watch
    there.close()


@pytest.mark.integration
@pytest.mark.parametrize(
    "when", [pytest.param("while sampling", marks=pytest.mark.slow), "at the sync"]
)
def test_a_run_whose_server_goes_down_ends_and_resumes_without_loss(
    setting, when, tmp_path, untouched
):
    whole, expected = untouched
    there, tree = setting()
    fault = {
        "while sampling": lambda: setattr(there, "always", "down"),
        "at the sync": lambda: there.stop(),
    }[when]
    # After the rollouts of step 1 the sync comes, and after that those of step 2.
    watch = Watch({1: fault})
    with pytest.raises(RunError, match=f"{there.port}(/v1)?({DOWN}|/.* broke its)") as failure:
        watched(tree, watch)
    assert failure.value.exit_code == 1
    folder = max((tmp_path / "runs" / "conformance").iterdir(), key=lambda p: p.stat().st_mtime)
    there.always = None
    there.start(there.port)
    again = resume(folder)
    attempts = {
        line["step"]: line["rollout/reward"] for line in again.metrics if "rollout/reward" in line
    }
    assert attempts == {
        line["step"]: line["rollout/reward"] for line in whole.metrics if "rollout/reward" in line
    }
    assert watch.attempts[1] == expected.attempts[1]


@pytest.mark.integration
def test_a_server_that_fails_for_a_moment_does_not_end_a_run(setting, monkeypatch):
    there, tree = setting(inference={"patience": 20.0, "api_key": "SERVER_KEY"})
    there.key = "a-very-secret-key"
    monkeypatch.setenv("SERVER_KEY", there.key)
    faults = [(500, f"trouble with {there.key}"), "half", (429, "busy"), "garbage"]
    run = watched(tree, Watch({1: lambda: there.faults.extend(faults)}))
    assert run.status["state"] == "done"
    assert not there.faults
    # No key reaches the run folder.
    for file in Path(run.folder).rglob("*"):
        assert not file.is_file() or there.key.encode() not in file.read_bytes(), file


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["batch-async", "fully-async"])
@pytest.mark.parametrize("in_flight", ["finish", "continue"])
def test_the_asynchronous_modes_keep_many_requests_at_the_server(setting, mode, in_flight):
    weight = {"sync_mode": mode, "staleness_threshold": 2}
    pool = {}
    if mode == "fully-async":
        weight["in_flight"] = in_flight
        pool = {"check_batch_ready_function": "batch_size_reached", "batch_size": 8}
    elif in_flight == "continue":
        pytest.skip("weight.in_flight is of fully-async")
    there, tree = setting(weight=weight, trajectory_pool=pool, trainer={"total_train_steps": 3})
    there.slow = 0.01
    run = start(prepare(tree))
    assert run.status["state"] == "done"
    assert there.most_open > 1
    assert run.last_metrics.get("sync/staleness_mean", 0) <= 2
    assert run.last_metrics["sync/parity"] <= 1e-4


@pytest.mark.integration
def test_a_run_ends_when_the_server_that_it_waits_for_goes(setting):
    there, tree = setting(inference={"timeout": 60.0})
    watch = Watch({1: lambda: setattr(there, "always", "hang")})
    failures = []

    def train():
        try:
            watched(tree, watch)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    wait_until(lambda: there.hanging)
    there.stop()
    thread.join(DEADLINE)
    assert isinstance(failures[0], RunError)


@pytest.mark.integration
def test_settings_that_cannot_work_are_found_before_a_server_is_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)

    def refused(**inference):
        section = {"models": {"policy": {"inference": {"type": "openai", **inference}}}}
        with pytest.raises(ConfigError) as failure:
            prepare(tiny.config("self_hosted_grpo", tmp_path, section))
        return str(failure.value)

    here = "http://127.0.0.1:9/v1"
    assert "base_url" in refused()
    assert "generic gives neither token ids" in refused(base_url=here, engine="generic")
    assert "plugrl (plugrl serve) takes no weights" in refused(base_url=here, engine="plugrl")
    assert "weights_folder" in refused(base_url="https://gpu.example/v1")
    frozen = {"judge": {"source": {"tokenizer": {"characters": "ab"}}, "inference": {
        "type": "openai", "base_url": here, "engine": "chat"}}}  # fmt: skip
    asked = {"model": "judge", "stop": "b", "stop_token_ids": [7]}
    with pytest.raises(ConfigError, match="stop_token_ids.* cannot be asked of .* engine chat"):
        prepare(
            tiny.config("self_hosted_grpo", tmp_path, {"models": frozen, "rollout_worker": asked})
        )
    for tokens in ([3], []):
        # A server that cannot be asked now will say at the start what it is.
        frozen["judge"]["inference"] |= {"engine": "auto", "max_context": 16}
        sections = {"models": frozen, "rollout_worker": {**asked, "stop_token_ids": tokens}}
        prepare(tiny.config("self_hosted_grpo", tmp_path, sections))
    (tmp_path / "file").write_text("")
    for name in ("file", "file/in"):
        line = refused(base_url=here, weights_folder=str(tmp_path / name))
        assert "models.policy.inference.weights_folder (Python): " in line
        assert "is no folder and cannot become one; name a folder" in line
    assert "NO_SUCH_KEY is not set" in refused(base_url=here, api_key="NO_SUCH_KEY")
    assert "must begin with http" in refused(base_url="127.0.0.1:8000")
    assert "inference.connections (Python): must be at least 1" in refused(
        base_url=here, connections=0
    )


@pytest.mark.integration
@pytest.mark.parametrize(("kind", "able"), [("generic", False), ("vllm", True)])
def test_a_server_that_says_itself_what_it_is_is_asked_whether_it_stops_at_tokens(
    server, connect, tmp_path, kind, able
):
    there = server(kind)
    judge = {"type": "openai", "base_url": there.base_url, "max_context": 16}
    models = {"judge": {"source": {"tokenizer": {"characters": "ab"}}, "inference": judge}}
    asked = {"model": "judge", "stop_token_ids": [3]}
    sections = {"models": models, "rollout_worker": asked}
    tree = tiny.config("self_hosted_grpo", tmp_path, sections)
    if able:
        prepare(tree)
        assert connect(there, trained=False, max_context=16).stops_at_tokens
    else:
        with pytest.raises(ConfigError, match="stop_token_ids.* cannot be asked of .* generic"):
            prepare(tree)
        assert not wire.Generic.stops_at_tokens


@pytest.mark.integration
def test_sampling_that_vllm_gives_no_right_log_probabilities_of_is_found(tmp_path):
    def made(inference=None, judge=None, **sections):
        served = {"type": "openai", "base_url": "http://127.0.0.1:9/v1", "engine": "vllm"}
        models = {"policy": {"inference": served | (inference or {})}}
        if judge is not None:
            models["judge"] = {"source": {"tokenizer": {"characters": "ab"}}, "inference": served}
            sections["rollout_worker"] = {"evaluator": {"type": "llm_judge", **judge}}
        return tiny.config("self_hosted_grpo", tmp_path, {"models": models, **sections})

    def refused(*parts, **options):
        with pytest.raises(ConfigError) as failure:
            prepare(made(*parts, **options))
        return str(failure.value)

    warm, processed = {"temperature": 0.7}, {"logprobs_mode": "processed"}
    remedy = "write 1, or start it so and write models.policy.inference.logprobs_mode: processed"
    for section in ("rollout_worker", "validate"):
        text = refused(**{section: warm})
        assert f"{section}.temperature" in text
        assert "is 0.7, and vLLM" in text
        assert remedy in text
        prepare(made(processed, **{section: warm}))
        prepare(made({"engine": "sglang"}, **{section: warm}))
    assert "rollout_worker.evaluator.temperature" in refused(judge=warm)
    prepare(made(judge={"temperature": 0.0}))
    text = refused(processed, rollout_worker={"top_p": 0.9})
    assert "rollout_worker.top_p" in text
    assert "is 0.9, and models.policy.inference.logprobs_mode is processed" in text
    prepare(made(rollout_worker={"top_p": 0.9}))
    prepare(made(rollout_worker={"temperature": 1.0}, validate={"temperature": 0.0}))


@pytest.mark.integration
def test_what_is_not_installed_is_found_with_the_command_that_installs_it(tmp_path, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "httpx" else there(name, *a)
    )
    section = {"inference": {"type": "openai", "base_url": "http://127.0.0.1:9/v1"}}
    tree = tiny.config("self_hosted_grpo", tmp_path, {"models": {"policy": section}})
    with pytest.raises(ConfigError, match=r"'httpx', which is not.*pip install 'plugrl.openai.'"):
        prepare(tree)


@pytest.mark.integration
def test_a_tokenizer_alone_is_no_source_for_a_model_that_is_here(tmp_path):
    tree = with_judge(tiny.config("self_hosted_grpo", tmp_path))
    with pytest.raises(ConfigError, match="judge.source .*: holds a tokenizer alone"):
        prepare(tree)
