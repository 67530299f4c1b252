"""Each agent is trained as by an Adam of its own; what rests stays as it is, bit for bit."""

import copy

import pytest
import torch
from torch import nn

from plugrl.core.errors import RunError
from plugrl.core.run.checkpoints.state import Encoder, decode
from plugrl.core.tensordict.learn.optimizer import AgentOptimizer, ParameterGroup


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def groups_of(model, agent="a", rates=(1e-2, 1e-2, 1e-2)):
    parts = (("body", model[:2]), ("middle", model[2:4]), ("head", model[4:]))
    return [
        ParameterGroup(agent, part, list(module.parameters()), rate)
        for (part, module), rate in zip(parts, rates, strict=True)
    ]


def loss_of(model, step):
    generator = torch.Generator().manual_seed(step)
    seen = torch.randn(16, 3, generator=generator)
    # Large and small by turns, so that some gradients are clipped and some are not.
    return (model(seen) - 1).square().mean() * (100 if step % 3 else 1e-3)


def train(optimizer, models, steps, max_norm=0.5):
    norms = {}
    for step in steps:
        optimizer.zero_grad()
        sum(loss_of(model, step) for model in models).backward()
        norms = optimizer.step(max_norm)
    return norms


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def assert_same(one, other):
    texts = []
    for state in (one, other):
        encoder = Encoder()
        texts.append((encoder.encode(state), {k: v.tolist() for k, v in encoder.tensors.items()}))
    assert texts[0] == texts[1]


def give_gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    scale = 10 ** -(step % 4)
    for parameter in model.parameters():
        gradient = torch.randn(parameter.shape, generator=generator) * scale
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.copy_(gradient)


def beside_torch(rates):
    """A network and its optimizer, and equal ones of torch: the networks first."""
    model, theirs = network(), network()
    optimizer = AgentOptimizer(groups_of(model, rates=rates), eps=1e-5)
    reference = torch.optim.Adam(
        [{"params": g.parameters, "lr": g.lr} for g in groups_of(theirs, rates=rates)], eps=1e-5
    )
    return model, theirs, optimizer, reference


@pytest.mark.parametrize("rates", [(1e-2, 1e-2, 1e-2), (1e-2, 1e-3, 1e-2), (1e-4, 1e-3, 1e-2)])
def test_equals_torch(rates):
    model, theirs, optimizer, reference = beside_torch(rates)
    for step in range(100):
        # Given gradients: those of a loss would tell of rounding, which training multiplies.
        optimizer.zero_grad()
        give_gradients(model, step)
        give_gradients(theirs, step)
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        assert optimizer.step(0.5)["a"] == pytest.approx(float(expected), rel=1e-6)
        reference.step()
    torch.testing.assert_close(weights(model), weights(theirs), atol=1e-6, rtol=1e-6)


def test_parameters_of_two_types_step_as_in_torch():
    # A fused kernel takes one type of them at a time.
    ours, theirs = network(), network()
    for model in (ours, theirs):
        model[2].double()
    optimizer = AgentOptimizer(groups_of(ours))
    reference = torch.optim.Adam(theirs.parameters(), 1e-2, eps=1e-8)
    for step in range(5):
        for model in (ours, theirs):
            for number, parameter in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(10 * step + number)
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)
        optimizer.step()
        reference.step()
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, atol=1e-6, rtol=1e-6)


def test_rmsprop_equals_that_of_torch_with_the_decay_of_a2c():
    model, theirs = network(), network()
    optimizer = AgentOptimizer(groups_of(model, rates=(1e-3, 1e-2, 1e-3)), name="rmsprop", eps=1e-5)
    reference = torch.optim.RMSprop(
        [{"params": g.parameters, "lr": g.lr} for g in groups_of(theirs, rates=(1e-3, 1e-2, 1e-3))],
        alpha=0.99,
        eps=1e-5,
    )
    for step in range(100):
        optimizer.zero_grad()
        give_gradients(model, step)
        give_gradients(theirs, step)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step(0.5)
        reference.step()
    torch.testing.assert_close(weights(model), weights(theirs), atol=1e-6, rtol=1e-6)


def test_a_step_of_rmsprop_by_hand():
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = AgentOptimizer(
        [ParameterGroup("a", "head", [weight], 0.1)], name="rmsprop", eps=0.1
    )
    weight.grad = torch.tensor([0.5, -4.0])
    optimizer.step()
    # The mean of squares is a hundredth of the square, its root a tenth of the gradient.
    expected = [1 - 0.1 * 0.5 / (0.05 + 0.1), -2 + 0.1 * 4 / (0.4 + 0.1)]
    assert weight.tolist() == pytest.approx(expected)


def test_equals_torch_without_clipping():
    model, theirs = network(), network()
    optimizer = AgentOptimizer(groups_of(model))
    reference = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    train(optimizer, [model], range(40), max_norm=None)
    for step in range(40):
        reference.zero_grad()
        loss_of(theirs, step).backward()
        reference.step()
    torch.testing.assert_close(weights(model), weights(theirs), atol=1e-6, rtol=1e-6)


def test_learning_rates_follow_the_factor():
    model, theirs = network(), network()
    optimizer = AgentOptimizer(groups_of(model))
    reference = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    for step in range(30):
        optimizer.set_lr_factor(1 - step / 30)
        reference.param_groups[0]["lr"] = 1e-2 * (1 - step / 30)
        train(optimizer, [model], [step], max_norm=None)
        reference.zero_grad()
        loss_of(theirs, step).backward()
        reference.step()
    torch.testing.assert_close(weights(model), weights(theirs), atol=1e-6, rtol=1e-6)


def test_each_agent_is_clipped_by_its_own_norm():
    ours, alone, other = network(), network(), network(1)
    both = AgentOptimizer([*groups_of(other, "b"), *groups_of(ours, "a")])
    train(both, [other, ours], range(20))
    train(AgentOptimizer(groups_of(alone, "a")), [alone], range(20))
    assert torch.equal(weights(ours), weights(alone))


def test_a_part_that_rests_has_no_share_in_the_norm():
    model, theirs = network(), network()
    optimizer = AgentOptimizer(groups_of(model, rates=(1e-2, 0.0, 1e-2)))
    loss_of(model, 4).backward()
    loss_of(theirs, 4).backward()
    assert all(parameter.grad is None for parameter in model[2].parameters())
    learning = [*theirs[0].parameters(), *theirs[4].parameters()]
    expected = nn.utils.get_total_norm([parameter.grad for parameter in learning])
    assert optimizer.step(0.5)["a"] == pytest.approx(float(expected), rel=1e-5)


def test_an_agent_of_which_nothing_learns_is_not_active():
    ours, other = network(), network(1)
    optimizer = AgentOptimizer([*groups_of(ours, "a"), *groups_of(other, "b", (0.0, 0.0, 0.0))])
    before = weights(other)
    assert optimizer.active == {"a"}
    assert set(train(optimizer, [ours, other], range(3))) == {"a"}
    assert torch.equal(weights(other), before)


def test_a_learning_rate_of_0_is_rest():
    model = network()
    before = weights(model[4])
    optimizer = AgentOptimizer(groups_of(model, rates=(1e-2, 1e-2, 0.0)))
    train(optimizer, [model], range(3))
    assert torch.equal(weights(model[4]), before)
    assert not any(parameter.requires_grad for parameter in model[4].parameters())


def test_a_part_without_a_gradient_keeps_its_own_count_of_steps():
    model, theirs = network(), network()
    optimizer = AgentOptimizer(groups_of(model))
    reference = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    for step in range(30):
        optimizer.zero_grad()
        reference.zero_grad()
        for each in (model, theirs):
            loss_of(each, step).backward()
            if step % 3 == 1:
                each[4].zero_grad()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(weights(model), weights(theirs), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_a_gradient_that_is_not_finite_changes_nothing(name):
    model = network()
    optimizer = AgentOptimizer(groups_of(model), name=name)
    train(optimizer, [model], range(2))
    before = copy.deepcopy((weights(model), optimizer.state_dict()))
    optimizer.zero_grad()
    (loss_of(model, 3) * float("inf")).backward()
    assert not optimizer.step(0.5)["a"] < float("inf")
    assert torch.equal(weights(model), before[0])
    assert_same(optimizer.state_dict(), before[1])


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_resume_is_exact(name):
    whole, first, second = network(), network(), network(1)
    train(AgentOptimizer(groups_of(whole), name=name), [whole], range(12))
    before = AgentOptimizer(groups_of(first), name=name)
    train(before, [first], range(5))
    encoder = Encoder()
    saved = encoder.encode({"weights": dict(first.state_dict()), "adam": before.state_dict()})
    state = decode(saved, encoder.tensors)
    after = AgentOptimizer(groups_of(second), name=name)
    second.load_state_dict(state["weights"])
    after.load_state_dict(state["adam"])
    train(after, [second], range(5, 12))
    assert torch.equal(weights(second), weights(whole))


def test_learning_rates_are_those_of_before_after_a_resume():
    first, second = network(), network()
    before, after = AgentOptimizer(groups_of(first)), AgentOptimizer(groups_of(second))
    before.set_lr_factor(0.5)
    after.load_state_dict(before.state_dict())
    train(before, [first], range(3))
    train(after, [second], range(3))
    assert torch.equal(weights(second), weights(first))


def test_a_state_that_was_loaded_is_not_changed_by_what_loaded_it():
    model = network()
    optimizer = AgentOptimizer(groups_of(model))
    train(optimizer, [model], range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    given = copy.deepcopy(saved)
    optimizer.load_state_dict(given)
    train(optimizer, [model], range(2, 4))
    assert_same(given, saved)


def test_the_flat_state_of_version_0_1_is_taken():
    # As 0.1 wrote it: an agent's parameters one after the other, and a count of steps of each part.
    model, theirs = network(), network()
    reference = torch.optim.Adam(theirs.parameters(), lr=1e-2, fused=True)
    for step in range(5):
        reference.zero_grad()
        loss_of(theirs, step).backward()
        reference.step()
    model.load_state_dict(theirs.state_dict())
    moments = [reference.state[parameter] for parameter in theirs.parameters()]
    flat = {
        "parts": [["body", 32], ["middle", 72], ["head", 18]],
        "resting": [False, False, False],
        "averages": torch.cat([each["exp_avg"].flatten() for each in moments]),
        "squares": torch.cat([each["exp_avg_sq"].flatten() for each in moments]),
        "steps": torch.tensor([5.0, 5.0, 5.0]),
    }
    optimizer = AgentOptimizer(groups_of(model))
    optimizer.load_state_dict({"lr_factor": 1.0, "agents": {"a": flat}})
    for step in range(5, 10):
        reference.zero_grad()
        loss_of(theirs, step).backward()
        reference.step()
        train(optimizer, [model], [step], max_norm=None)
    assert torch.equal(weights(model), weights(theirs))


def test_a_state_of_another_optimizer_is_refused():
    state = AgentOptimizer(groups_of(network())).state_dict()
    rmsprop = AgentOptimizer(groups_of(network()), name="rmsprop")
    with pytest.raises(RunError, match="is of adam, .* resume with rl.optimizer=adam"):
        rmsprop.load_state_dict(state)


def test_a_state_of_other_parts_is_refused():
    state = AgentOptimizer(groups_of(network())[:2]).state_dict()
    with pytest.raises(RunError, match="of agent a is of other parts or sizes; resume with"):
        AgentOptimizer(groups_of(network())).load_state_dict(state)


def test_a_state_belongs_to_parts_whatever_their_learning_rates_are_now():
    whole, first, second = network(), network(), network()
    alike, apart = (1e-2, 1e-2, 1e-2), (1e-3, 1e-2, 1e-3)
    before = AgentOptimizer(groups_of(first, rates=alike))
    train(before, [first], range(5), max_norm=None)
    after = AgentOptimizer(groups_of(second, rates=apart))
    second.load_state_dict(first.state_dict())
    after.load_state_dict(before.state_dict())
    train(after, [second], range(5, 9), max_norm=None)
    reference = torch.optim.Adam(whole.parameters(), lr=1e-2, fused=True)
    for step in range(9):
        reference.zero_grad()
        loss_of(whole, step).backward()
        if step == 5:
            moments = reference.state_dict()["state"]
            groups = [{"params": g.parameters, "lr": g.lr} for g in groups_of(whole, rates=apart)]
            reference = torch.optim.Adam(groups, fused=True)
            kept = reference.state_dict()
            reference.load_state_dict({**kept, "state": moments})
        reference.step()
    assert torch.equal(weights(second), weights(whole))


def test_agents_of_other_rates_resume_as_they_were_saved():
    """Whatever the order in which the optimizer holds their parameters."""
    wholes, firsts, seconds = ([network(), network(1)] for _ in range(3))

    def both(models):
        ours, other = models
        rates = [(1e-2, 1e-3, 1e-2), (1e-3, 1e-2, 1e-3)]
        return AgentOptimizer([*groups_of(ours, "a", rates[0]), *groups_of(other, "b", rates[1])])

    train(both(wholes), wholes, range(8))
    before = both(firsts)
    train(before, firsts, range(4))
    # As torch counts the moments of an optimizer of one agent: in the order of its parameters.
    saved = before.state_dict()["agents"]
    for (agent, held), model in zip(saved.items(), firsts, strict=True):
        shapes = [tuple(held["state"][i]["exp_avg"].shape) for i in range(6)]
        assert shapes == [tuple(p.shape) for p in model.parameters()], agent
    after = both(seconds)
    for second, first in zip(seconds, firsts, strict=True):
        second.load_state_dict(first.state_dict())
    after.load_state_dict(before.state_dict())
    train(after, seconds, range(4, 8))
    for second, whole in zip(seconds, wholes, strict=True):
        assert torch.equal(weights(second), weights(whole))


def test_an_agent_that_is_lost_leaves_the_step_to_the_others():
    ours, alone, lost = network(), network(), network(1)
    both = AgentOptimizer([*groups_of(ours, "a"), *groups_of(lost, "b")])
    single = AgentOptimizer(groups_of(alone, "a"))
    before = weights(lost)
    for step in range(3):
        both.zero_grad()
        (loss_of(ours, step) + loss_of(lost, step) * float("inf")).backward()
        norms = both.step(0.5)
        assert norms["a"] < float("inf")
        assert not norms["b"] < float("inf")
    train(single, [alone], range(3))
    assert torch.equal(weights(ours), weights(alone))
    assert torch.equal(weights(lost), before)


def test_all_agents_step_in_one_call(monkeypatch):
    calls = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda adam: calls.append(step(adam)))
    ours, other = network(), network(1)
    optimizer = AgentOptimizer([*groups_of(ours, "a"), *groups_of(other, "b")])
    before = weights(ours), weights(other)
    train(optimizer, [ours, other], [1])
    assert len(calls) == 1
    assert not torch.equal(weights(ours), before[0])
    assert not torch.equal(weights(other), before[1])


def test_a_step_can_be_that_of_some_agents():
    ours, alone, other = network(), network(), network(1)
    both = AgentOptimizer([*groups_of(ours, "a"), *groups_of(other, "b")])
    single = AgentOptimizer(groups_of(alone, "a"))
    before = copy.deepcopy((weights(other), both.state_dict()["agents"]["b"]))
    for step in range(5):
        both.zero_grad()
        (loss_of(ours, step) + loss_of(other, step)).backward()
        assert set(both.step(0.5, agents=["a"])) == {"a"}
    train(single, [alone], range(5))
    assert torch.equal(weights(ours), weights(alone))
    assert torch.equal(weights(other), before[0])
    after = both.state_dict()["agents"]["b"]
    assert_same(after, before[1])


def step_as_in_a_graph(optimizer, model, norm=1.0):
    """What a compiled graph holds, uncompiled."""
    with torch.no_grad():
        scales = optimizer.scales(["a"])
        optimizer.step_in_graph(
            {"a": model.parameters()},
            optimizer.moments(["a"]),
            {"a": [parameter.grad for parameter in model.parameters()]},
            {"a": torch.tensor(norm)},
            scales,
        )


@pytest.mark.parametrize("rates", [(1e-2, 1e-2, 1e-2), (1e-4, 1e-3, 1e-2)])
def test_the_step_of_a_graph_is_that_of_torch(rates):
    model, theirs, optimizer, reference = beside_torch(rates)
    for step in range(40):
        give_gradients(model, step)
        give_gradients(theirs, step)
        # One goes on with the moments of the other.
        if step % 10 < 5:
            step_as_in_a_graph(optimizer, model)
        else:
            optimizer.step()
        reference.step()
    torch.testing.assert_close(weights(model), weights(theirs), atol=1e-6, rtol=1e-6)
    assert {float(p["step"]) for p in optimizer.state_dict()["agents"]["a"]["state"].values()} == {
        40.0
    }


def test_the_step_of_a_graph_resumes_and_follows_the_learning_rate():
    first, second = network(), network()
    before, after = AgentOptimizer(groups_of(first)), AgentOptimizer(groups_of(second))
    for step in range(6):
        if step == 3:
            second.load_state_dict(first.state_dict())
            after.load_state_dict(before.state_dict())
        for model, optimizer in ((first, before), (second, after))[: 1 if step < 3 else 2]:
            optimizer.set_lr_factor(1 - step / 6)
            give_gradients(model, step)
            step_as_in_a_graph(optimizer, model)
    assert torch.equal(weights(second), weights(first))
    assert_same(after.state_dict(), before.state_dict())


def test_the_step_of_a_graph_along_what_is_not_finite_changes_nothing():
    model = network()
    optimizer = AgentOptimizer(groups_of(model))
    give_gradients(model, 0)
    step_as_in_a_graph(optimizer, model)
    before = copy.deepcopy((weights(model), optimizer.state_dict()))
    model[0].weight.grad[0] = float("nan")
    step_as_in_a_graph(optimizer, model, float("nan"))
    assert torch.equal(weights(model), before[0])
    assert_same(optimizer.state_dict(), before[1])
