"""What training gives back: whole runs of the Python forms, and what can be done with them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import plugrl
from plugrl.core.errors import ConfigError, PluginError, RunTerminated, UsageError
from plugrl.results import Metrics, RunResult

LINES = [{"step": 1, "a": 0.5}, {"step": 2, "b": 3}, {"step": 3, "a": 0.25}]
TINY = {
    "config": {
        "model_type": "qwen3",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 32,
    },
    "tokenizer": {"characters": "0123456789+="},
}


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    runs = tmp_path_factory.mktemp("results") / "runs"
    form = plugrl.PPO(
        "CartPole-v1",
        hidden=[8],
        rl={"frames_per_batch": 64, "num_epochs": 1, "normalize_observations": True},
        validate={"episodes": 2},
        settings={"runs_folder": str(runs), "progress": "none"},
    )
    return form.train(total_steps=192)


def test_metrics_are_lines_with_columns_by_name() -> None:
    metrics = Metrics(LINES)
    assert metrics[-1] == LINES[2]
    assert metrics[:2] == LINES[:2]
    assert metrics["a"] == [0.5, 0.25]
    assert metrics.columns == ["step", "a", "b"]
    assert repr(metrics) == "Metrics(3 lines, 3 columns)"
    with pytest.raises(KeyError, match="no metric 'c'; there are step, a, b"):
        metrics["c"]


def test_metrics_become_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = Metrics(LINES).to_pandas()
    wanted = pandas.DataFrame({"step": [1, 2, 3], "a": [0.5, None, 0.25], "b": [None, 3, None]})
    pandas.testing.assert_frame_equal(frame, wanted, check_dtype=False)


def test_without_pandas_or_matplotlib_one_line_says_what_to_install(
    cartpole: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PluginError, match=r"pip install 'plugrl\[plot\]'"):
        cartpole.metrics.to_pandas()
    with pytest.raises(PluginError, match=r"pip install 'plugrl\[plot\]'"):
        cartpole.plot()


def test_a_result_is_shown_on_one_line_and_in_a_notebook_with_its_curve(
    cartpole: RunResult,
) -> None:
    returns = cartpole.metrics["validation/mean_episode_return"]
    assert len(returns) == 3
    line = f"done, step 3, validation/mean_episode_return {returns[0]:.4g} -> {returns[-1]:.4g})"
    assert repr(cartpole).startswith("RunResult(")
    assert repr(cartpole).endswith(line)
    html = cartpole._repr_html_()
    assert f"best {max(returns):.4g}" in html
    assert html.count("<polyline") == 1


def test_the_report_is_written_anew(cartpole: RunResult, tmp_path: Path) -> None:
    path = cartpole.report(tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    assert cartpole.folder.name in path.read_text("utf-8")
    cartpole.folder.joinpath("report.html").unlink()
    assert cartpole.report() == cartpole.folder / "report.html"
    assert (cartpole.folder / "report.html").exists()


def test_curves_are_drawn_over_steps(cartpole: RunResult) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    axes = cartpole.plot()
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == cartpole.metrics["validation/mean_episode_return"]
    assert axes.get_ylabel() == "validation/mean_episode_return"
    both = cartpole.plot("train/kl", "train/entropy", ax=axes)
    assert both is axes
    assert len(axes.get_lines()) == 3
    with pytest.raises(UsageError, match=r"no metric 'train/kll'; did you mean train/kl"):
        cartpole.plot("train/kll")
    matplotlib.pyplot.close("all")


def test_the_policy_acts_as_the_evaluation_of_the_run_does(cartpole: RunResult) -> None:
    environment = gymnasium.make("CartPole-v1")
    returns = []
    # Each copy of a test environment has a seed of its own, drawn from that of the run.
    for seed in np.random.SeedSequence(0).generate_state(2):
        seen, _ = environment.reset(seed=int(seed))
        total, over = 0.0, False
        while not over:
            seen, reward, ended, cut, _ = environment.step(cartpole.policy.act(seen))
            total, over = total + float(reward), ended or cut
        returns.append(total)
    assert cartpole.policy is cartpole.policies["agent"]
    test = {"scenario.num_test_envs": 2, "validate.episodes": 2}
    found = cartpole.evaluate(overrides=[f"{key}={value}" for key, value in test.items()])
    assert found["validation/mean_episode_return"] == np.mean(returns)


def test_a_run_that_is_done_stays_as_it_is(cartpole: RunResult) -> None:
    before = (cartpole.folder / "metrics.jsonl").read_bytes()
    assert repr(cartpole.resume()) == repr(cartpole)
    assert (cartpole.folder / "metrics.jsonl").read_bytes() == before
    assert repr(plugrl.load_run(cartpole.folder)) == repr(cartpole)
    assert repr(plugrl.resume(cartpole)) == repr(cartpole)


def test_what_a_run_cannot_do_says_so(
    cartpole: RunResult, tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    folder = cartpole.folder
    said = (
        "VanillaPpoTrainer trains small networks, not a language model; run plugrl eval "
        f'{folder} validation, or let plugrl.load_run("{folder}").policies act in Python'
    )
    with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
        cartpole.sample("1+1=")
    with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
        cartpole.export(tmp_path / "model")
    # No prompt is asked for that would not help.
    assert call("sample", folder) == (2, "", f"error: {said}\n")
    for wrong in (
        {"prompts": None},
        {"prompts": 5},
        {"prompts": [5]},
        {"prompts": [{"role": "user", "content": "1"}]},
        {"max_tokens": "9"},
        {"temperature": "hot"},
        {"top_p": None},
        {"samples": 1.5},
        {"seed": 2**70},
    ):
        name = next(iter(wrong))
        with pytest.raises(UsageError, match=f"^{name} (must be|is) "):
            cartpole.sample(**{"prompts": "1", **wrong})  # type: ignore[arg-type]
    for place in (5, None, "a\0b"):
        with pytest.raises(UsageError, match="folder must be text or a path"):
            cartpole.export(place)  # type: ignore[arg-type]
    with (
        pytest.raises(UsageError, match="port must be a whole number"),
        cartpole.serve(port="a"),  # type: ignore[arg-type]
    ):
        pass
    for missing in ("7", 7, None):
        with pytest.raises(UsageError, match=f"no checkpoint '{missing}'; it has steps"):
            cartpole.evaluate(checkpoint=missing)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"nope\.yaml: no such file"):
        cartpole.evaluate(tmp_path / "nope.yaml")
    with pytest.raises(UsageError, match="has no metric '5'"):
        cartpole.plot(5)  # type: ignore[arg-type]
    for place in (tmp_path, tmp_path / "no" / "r.html", "a\0b", 5):
        with pytest.raises(UsageError, match="cannot write the report"):
            cartpole.report(place)  # type: ignore[arg-type]


@pytest.mark.parametrize("run", [5, None, ["latest"]])
def test_what_names_no_run_is_refused(run: Any) -> None:
    for call in (plugrl.resume, plugrl.load_run):
        with pytest.raises(UsageError, match="run must be text or a path, not"):
            call(run)
        with pytest.raises(UsageError, match="runs_folder must be text or a path, not"):
            call("latest", runs_folder=run)


def lengths(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [float(len(answer)) for answer in completions]


@pytest.mark.integration
def test_a_language_model_is_trained_asked_evaluated_exported_and_served(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(8)]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    form = plugrl.GRPO(
        TINY,
        rows,
        lengths,
        steps=2,
        batch_size=2,
        samples=2,
        max_prompt_length=8,
        max_response_length=4,
        validation=tmp_path / "held_out.jsonl",
        settings={"runs_folder": str(tmp_path / "runs"), "progress": "none"},
    )
    run = form.train()
    assert run.status["state"] == "done"
    assert run.headline is not None
    assert run.headline.metric == "validation/reward"
    assert {row["reward"] for row in run.samples["rollouts"]} == {
        float(len(row["answer"])) for row in run.samples["rollouts"]
    }
    (answer,) = run.sample("1+1=", max_tokens=3)
    assert (answer["prompt"], len(answer["tokens"])) == ("1+1=", 3)
    assert len(run.sample(["1+1=", "2+2="], samples=2, temperature=1.0, max_tokens=2)) == 4
    assert run.evaluate()["validation/reward"] == run.metrics["validation/reward"][-1]

    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(run.export(tmp_path / "model")).config.hidden_size
    with pytest.raises(UsageError, match="trains no policies of small networks; sample"):
        run.policy  # noqa: B018 - it raises
    pytest.importorskip("uvicorn")
    from urllib.request import Request, urlopen

    with run.serve() as served:
        request = Request(f"{served.base_url}/models")
        request.add_header("Authorization", f"Bearer {served.api_key}")
        with urlopen(request, timeout=60) as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["policy"]


@pytest.mark.integration
def test_an_interrupted_run_of_a_program_goes_on_with_its_function(tmp_path: Path) -> None:
    def stop(step: int, metrics: dict[str, float]) -> None:
        if step == 1:
            signal.raise_signal(signal.SIGTERM)

    form = plugrl.GRPO(
        TINY,
        [{"prompt": f"{i}+1="} for i in range(8)],
        lengths,
        steps=3,
        batch_size=2,
        samples=2,
        max_prompt_length=8,
        max_response_length=4,
        settings={"progress": "none", "checkpoint_every": 1, "runs_folder": str(tmp_path)},
    )
    whole = form.train()
    with pytest.raises(RunTerminated):
        form.train(callbacks=[stop])
    stopped = plugrl.load_run("latest", tmp_path)
    assert stopped.status["step"] == 1
    with pytest.raises(UsageError, match=r"trained with reward=lengths.*plugrl\.resume"):
        stopped.resume()
    resumed = stopped.resume(reward=lengths)
    assert resumed.metrics["train/loss"] == whole.metrics["train/loss"]


NOTEBOOK = """
import plugrl
run = plugrl.PPO("CartPole-v1", hidden=[8], rl={"frames_per_batch": 64, "num_epochs": 1},
                 validate={"episodes": 1}).train(320)
run
"""


@pytest.mark.integration
def test_a_notebook_shows_one_line_that_moves_and_the_curve(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    client = pytest.importorskip("jupyter_client.manager")
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    manager, kernel = client.start_new_kernel(
        kernel_name="python3", cwd=str(tmp_path), env=environment, stderr=subprocess.DEVNULL
    )
    shown: list[tuple[str, dict[str, Any]]] = []
    try:
        kernel.execute_interactive(
            NOTEBOOK,
            output_hook=lambda message: shown.append((message["msg_type"], message["content"])),
            timeout=300,
        )
    finally:
        manager.shutdown_kernel(now=True)
    said = [content for kind, content in shown if kind in ("stream", "error")]
    # Ray, which TorchRL imports where it is installed, asks for the widgets of its own bars.
    assert not [content for content in said if "ipywidgets" not in content.get("text", "")]
    created = [content for kind, content in shown if kind == "display_data"]
    updated = [content for kind, content in shown if kind == "update_display_data"]
    assert [line["data"] for line in created] == [{"text/plain": "Training ..."}]
    assert {line["transient"]["display_id"] for line in updated} == {
        created[0]["transient"]["display_id"]
    }
    assert "Training: 5/5" in updated[-1]["data"]["text/plain"]
    (result,) = (content["data"] for kind, content in shown if kind == "execute_result")
    assert result["text/plain"].startswith("RunResult(runs/ppo/")
    assert "<svg" in result["text/html"]
