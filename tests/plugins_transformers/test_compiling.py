"""The train service with its layers through ``torch.compile``: when, and that numbers stay."""

import copy

import pytest
import torch
import torch._inductor.config
from torch._inductor.utils import run_and_get_code

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.plugins.transformers.training.compiling import worth_compiling
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

LOSS = WeightedLoss(cross_entropy, {})


def batch(seed, rows=6):
    """Rows of other lengths for each seed; two begin alike."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for row in range(rows):
        length = int(torch.randint(3, 20, (), generator=draw))
        answer = torch.randint(2, 9, (length,), generator=draw).tolist()
        made.append(Trajectory([2 + row // 2, 5, *answer], [0, 0] + [1] * length))
    whole = Batch.from_trajectories(made, temperature=1.0)
    whole.values[LOSS_WEIGHTS] = aggregation_weights(whole.values["loss_mask"], "token-mean")
    return whole


def step(service, seed):
    service.forward_backward(batch(seed), LOSS)
    service.optimizer_step()


@pytest.mark.parametrize(
    ("setting", "steps", "expected"),
    [
        (True, 1, True),
        (False, 10**9, False),
        # 19,264 parameters save 0.02 s * 19,264 / 330,000 = 1.1675 ms, and 100 s are 85,652 such.
        ("auto", 85_651, False),
        ("auto", 85_652, True),
        ("auto", None, False),
    ],
)
def test_auto_compiles_where_the_run_is_long_enough_for_its_model(
    gradient_service, setting, steps, expected
):
    model = gradient_service().module
    assert model.num_parameters() == 19_264
    assert worth_compiling(setting, model, steps) is expected


def test_without_a_compiler_there_is_one_line_and_the_run_goes_on(
    train_service, monkeypatch, caplog
):
    plain = train_service(compile=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    service = train_service(compile=True)
    (record,) = caplog.records
    assert record.getMessage() == (
        "models.policy.train.compile: goes on uncompiled: there is no C++ compiler "
        "no-such-compiler, which torch.compile needs; install it"
    )
    assert not service.is_compiled
    step(service, 0)
    step(plain, 0)
    for name, weight in plain.weights().items():
        assert torch.equal(service.weights()[name], weight), name


@pytest.mark.integration
def test_what_cannot_be_compiled_goes_on_as_it_was(train_service, monkeypatch, caplog, tmp_path):
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    # A program that refuses whatever it is given; the variable is read when torch is imported.
    with torch._inductor.config.patch({"cpp.cxx": ("false",)}):
        service = train_service(compile=True)
    lines = [r.getMessage() for r in caplog.records if "uncompiled" in r.getMessage()]
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert not service.is_compiled
    assert all(parameter.grad is None for parameter in service.parameters())
    step(service, 0)


@pytest.mark.integration
@pytest.mark.parametrize(
    "options",
    # Other graphs, of which the compiler makes the code for half a minute.
    [{}, pytest.param({"gradient_checkpointing": True}, marks=pytest.mark.slow)],
    ids=str,
)
def test_compiled_layers_give_the_numbers_of_the_model(train_service, options):
    compiled = train_service(compile=True, **options)
    plain = train_service(compile=False, **options)
    assert compiled.is_compiled
    assert all(parameter.grad is None for parameter in compiled.parameters())
    for seed in (1, 2):
        data = batch(seed)
        torch.testing.assert_close(
            compiled.compute_log_prob(data), plain.compute_log_prob(data), rtol=1e-5, atol=1e-5
        )
        ours, theirs = (each.forward_backward(data, LOSS) for each in (compiled, plain))
        assert ours["loss"][0] == pytest.approx(theirs["loss"][0], rel=1e-5)
        for own, other in zip(compiled.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-6)
        compiled.optimizer_step()
        plain.load_state_dict(copy.deepcopy(compiled.state_dict()))
        for each in (compiled, plain):
            for parameter in each.parameters():
                parameter.grad = None


@pytest.mark.integration
def test_a_resumed_run_goes_on_exactly_whatever_sizes_it_meets_first(train_service, spec):
    service = train_service(compile=True)
    for seed in range(2):
        step(service, seed)
    state = copy.deepcopy(service.state_dict())
    for seed in range(2, 4):
        step(service, seed)
    # As in another process: what was traced is forgotten.
    torch._dynamo.reset()
    resumed = LocalTrainService({"learning_rate": 0.01, "compile": "auto"})
    resumed.load(spec())
    assert not resumed.is_compiled
    _, sources = run_and_get_code(lambda: resumed.load_state_dict(state))
    assert resumed.is_compiled
    # No epsilon of a norm is an input: a graph for a GPU would read it by code for the CPU.
    assert sources
    assert not any("double" in source for source in sources)
    for seed in range(2, 4):
        step(resumed, seed)
    for name, weight in service.weights().items():
        assert torch.equal(resumed.weights()[name], weight), name
