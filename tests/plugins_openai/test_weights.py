"""Weight updates of the service ``openai``, over servers that follow public documents."""

import asyncio
import functools
import threading
import time

import pytest
import torch
from documented_server import DOWN, SOURCE, request
from waiting import DEADLINE, wait_until

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.inference.services import ModelSpec
from plugrl.plugins.transformers.inference_service import TransformersInferenceService

KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
PROBE = [[2, 3, 4, 5, 6], [7, 8, 2]]


TIED = {**SOURCE, "config": {**SOURCE["config"], "tie_word_embeddings": True}}


@functools.cache
def model(seed, *, tied=False):
    """A trained model, which nobody changes."""
    source = TIED if tied else SOURCE
    engine = TransformersInferenceService({})
    engine.load(ModelSpec("policy", ConfigView(source, checked=True), seed, "cpu"))
    return engine


def weights(engine):
    return engine._model.state_dict()


@KINDS
def test_new_weights_are_loaded_between_pause_and_resume(server, connect, kind, tmp_path):
    there = server(kind)
    service = connect(there, weights_folder=str(tmp_path))
    for version, seed in enumerate((3, 4)):
        trained = model(seed)
        service.update_weights(weights(trained), version)
        for own, expected in zip(service.score(PROBE), trained.score(PROBE), strict=True):
            assert own == pytest.approx(expected, abs=1e-5)
        assert service.generate([request()])[0].version == version
    assert [folder.name for folder in tmp_path.glob("*/*")] == ["weights-1-2"]
    paths = [path for path, _ in there.calls]
    expected = {
        "vllm": ["/pause?mode=wait", "/collective_rpc", "/reset_prefix_cache", "/resume"],
        "sglang": ["/pause_generation", "/update_weights_from_disk", "/continue_generation"],
    }[kind]
    assert paths == expected * 2
    assert not there.paused


def test_tied_weights_are_written_once(server, connect, tmp_path):
    there = server(source=TIED)
    service = connect(there, source=TIED, weights_folder=str(tmp_path))
    trained = model(5, tied=True)
    service.update_weights(weights(trained), 1)
    assert service.score(PROBE)[0] == pytest.approx(trained.score(PROBE)[0], abs=1e-5)


@KINDS
def test_each_answer_is_of_the_weights_of_its_version(server, connect, kind):
    there = server(kind)
    there.slow = 0.01
    service = connect(there, connections=8)
    versions = {number: model(number) for number in range(4)}
    service.update_weights(weights(versions[0]), 0)
    answers, over = [], threading.Event()

    async def keep_asking(place):
        number = 0
        while not over.is_set():
            asked = request((2 + place, 3), (0, 0, place, number, 0))
            answers.append((asked, await service.complete(asked)))
            number += 1

    async def several():
        await asyncio.gather(*map(keep_asking, range(4)))

    def several_answers(version):
        return sum(answer.version == version for _, answer in answers) >= 4

    thread = threading.Thread(target=lambda: asyncio.run(several()))
    thread.start()
    for number in range(1, 4):
        wait_until(lambda number=number: several_answers(number - 1))
        service.update_weights(weights(versions[number]), number)
    wait_until(lambda: several_answers(3))
    over.set()
    thread.join(DEADLINE)
    for asked, answer in answers:
        whole = [*asked.prompt_tokens, *answer.tokens]
        expected = versions[answer.version].score([whole])[0][len(asked.prompt_tokens) :]
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_without_freezing_the_server_is_not_paused(server, connect):
    there = server()
    there.hidden = {"/pause", "/resume"}
    service = connect(there, freeze_for_weight_sync=False)
    trained = model(3)
    service.update_weights(weights(trained), 1)
    assert service.score(PROBE)[0] == pytest.approx(trained.score(PROBE)[0], abs=1e-5)
    assert [path for path, _ in there.calls] == ["/collective_rpc", "/reset_prefix_cache"]


@pytest.mark.parametrize(
    ("kind", "path", "remedy"),
    [
        ("vllm", "/pause", "VLLM_SERVER_DEV_MODE=1"),
        ("vllm", "/collective_rpc", "VLLM_SERVER_DEV_MODE=1"),
        ("sglang", "/pause_generation", "freeze_for_weight_sync: false"),
    ],
)
def test_a_server_without_the_interface_for_weights_is_told_what_it_needs(
    server, connect, kind, path, remedy
):
    there = server(kind)
    there.hidden = {path}
    service = connect(there)
    with pytest.raises(RunError, match=f"answers 404 .*{remedy}"):
        service.update_weights(weights(model(3)), 1)
    # Others are not left waiting.
    assert not there.paused
    assert service.generate([request()])[0].version == 0


def test_a_failed_load_is_named_and_the_server_goes_on(server, connect):
    there = server("sglang")
    service = connect(there, patience=1.0)
    there.control_faults = {"/update_weights_from_disk": (500, "shape mismatch")}
    with pytest.raises(RunError, match="answers 500: shape mismatch while asked to load new weig"):
        service.update_weights(weights(model(3)), 1)
    assert not there.paused
    there.control_faults = {}
    service.update_weights(weights(model(3)), 1)
    assert service.generate([request()])[0].version == 1


def test_a_server_that_is_down_at_an_update_is_named(server, connect):
    there = server()
    service = connect(there, patience=1.0)
    there.stop()
    with pytest.raises(RunError, match=f"{DOWN} .*while asked to load new wei"):
        service.update_weights(weights(model(3)), 1)


@pytest.mark.integration
def test_a_request_that_never_ends_does_not_hold_an_update_for_ever(server, connect):
    there = server()
    service = connect(there, timeout=1.5)
    there.faults = ["hang"]

    async def ask():
        with pytest.raises(RunError, match="within timeout="):
            await service.complete(request())

    thread = threading.Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    wait_until(lambda: there.hanging)
    service.update_weights(weights(model(3)), 1)
    thread.join(DEADLINE)
    assert service.generate([request()])[0].version == 1


@KINDS
def test_a_server_that_was_started_anew_gets_the_weights_again(server, connect, kind):
    there = server(kind)
    service = connect(there, patience=20.0)
    trained = model(3)
    service.update_weights(weights(trained), 1)
    there.stop()
    asked = request((2, 3), max_new_tokens=4)
    found = []
    thread = threading.Thread(target=lambda: found.extend(service.generate([asked])))
    thread.start()
    time.sleep(0.5)
    # The process comes back with the weights of its own folder.
    there.engine.update_weights(weights(model(9)), 0)
    there.label = "default"
    there.start(there.port)
    thread.join(DEADLINE)
    whole = [*asked.prompt_tokens, *found[0].tokens]
    expected = trained.score([whole])[0][2:]
    assert found[0].logprobs == pytest.approx(expected, abs=1e-5)
    assert found[0].version == 1


def test_sglang_weights_of_somebody_else_are_replaced(server, connect):
    there = server("sglang")
    service = connect(there)
    trained = model(3)
    service.update_weights(weights(trained), 1)
    there.engine.update_weights(weights(model(9)), 0)
    there.label = "step-17"
    answer = service.generate([request((2, 3), max_new_tokens=4)])[0]
    whole = [2, 3, *answer.tokens]
    assert answer.logprobs == pytest.approx(trained.score([whole])[0][2:], abs=1e-5)


def test_weights_that_cannot_be_written_are_named(server, connect, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    service = connect(server(), weights_folder=str(file / "in"))
    with pytest.raises(
        RunError, match="cannot be written .* in models.NAME.inference.weights_folder"
    ):
        service.update_weights(weights(model(3)), 1)


def test_a_server_that_gives_text_alone_cannot_be_trained(server, connect):
    with pytest.raises(ConfigError, match="neither token ids nor log-probabilities"):
        connect(server(), engine="generic")
    with pytest.raises(ConfigError, match=r"takes no weights \(engine plugrl\)"):
        connect(server(), engine="plugrl")


def test_weights_are_floats_of_any_layout(server, connect):
    there = server()
    service = connect(there)
    trained = model(3)
    odd = {k: v.t().contiguous().t() if v.ndim == 2 else v for k, v in weights(trained).items()}
    service.update_weights({k: v.to(torch.float64) for k, v in odd.items()}, 1)
    assert service.score(PROBE)[0] == pytest.approx(trained.score(PROBE)[0], abs=1e-5)
