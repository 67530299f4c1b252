"""dpo, ipo, ppo and grpo over rollout trees: by hand, by TRL, and by what a gradient must do."""

import math
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch
from testers import SECTION, TINY, make_environment, make_system

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.harness import Harness
from plugrl.core.text.dialogue.language_models import LanguageModelSystem
from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree
from plugrl.trainers.red_team.dpo import HarnessDpo
from plugrl.trainers.red_team.grpo import HarnessGrpo
from plugrl.trainers.red_team.ipo import HarnessIpo
from plugrl.trainers.red_team.ppo import HarnessPpo, ProbeStep, add_advantages, whiten_rows
from plugrl.trainers.red_team.trees import returns_of

sys.path.insert(0, str(Path(__file__).parent))
import preference_models
from test_preference_losses import OPTIONS, TRL

PREFERENCES = [(HarnessDpo, "dpo"), (HarnessIpo, "ipo")]
ROOT = Dialogue("goal")


def node(reward, *children, probe=(1, 2), failure="", context=ROOT, prompt=(3,), **fields):
    """An exchange whose children follow it."""
    own = RolloutNode(
        context,
        "".join(map(chr, probe)),
        reward=float(reward),
        prompt_tokens=list(prompt),
        probe_tokens=list(probe),
        probe_logprobs=[-1.0] * len(probe),
        baseline_logprobs=[-1.0] * len(probe),
        failure=failure,
        **fields,
    )
    own.children = list(children)
    return own


def full(width, depth, rewards):
    """A whole tree whose exchanges have different probes and rewards."""
    if not depth:
        return []
    made = []
    for _ in range(width):
        number = next(rewards)
        made.append(node(number, *full(width, depth - 1, rewards), probe=(number, 2)))
    return made


def tree(*children):
    return RolloutTree(ROOT, list(children))


# Pairs


@pytest.mark.parametrize(("width", "depth", "count"), [(2, 3, 7), (4, 2, 5)])
def test_each_group_of_siblings_gives_one_pair(width, depth, count):
    made = tree(*full(width, depth, iter(range(1, 1000))))
    assert sum(1 for _ in made.nodes()) == sum(width**level for level in range(1, depth + 1))
    pairs = HarnessDpo({}).flatten(made)
    assert len(pairs) == count
    assert all(good.reward > bad.reward for good, bad in pairs)


def test_best_and_worst_are_compared_and_the_rest_is_left_out():
    (pair,) = HarnessDpo({}).flatten(
        tree(*(node(r, probe=(n, 9)) for n, r in enumerate([3, 8, 1, 5])))
    )
    assert [row.reward for row in pair] == [8.0, 1.0]
    assert [row.tokens for row in pair] == [[3, 1, 9], [3, 2, 9]]
    assert [row.loss_mask for row in pair] == [[0, 1, 1], [0, 1, 1]]
    assert [row["preferred"] for row in pair] == [1.0, 0.0]


@pytest.mark.parametrize(
    "children",
    [
        (node(2, probe=(1,)), node(2, probe=(4,))),
        (node(2, probe=(1,)), node(1, probe=(1,))),
        (node(2, probe=(1,)), node(1, probe=(4,), failure="no answer")),
        (node(2, probe=(1,)),),
        (),
    ],
    ids=["a tie", "one probe twice", "one that failed", "an only child", "nothing"],
)
def test_what_tells_nothing_gives_no_pair(children):
    assert HarnessDpo({}).flatten(tree(*children)) == []


def test_a_margin_can_be_asked_for():
    made = tree(node(1.0, probe=(1,)), node(1.25, probe=(4,)))
    assert len(HarnessDpo({"min_margin": 0.2}).flatten(made)) == 1
    assert HarnessDpo({"min_margin": 0.25}).flatten(made) == []


def test_groups_below_an_only_child_are_read():
    below = (node(1, probe=(5,)), node(0, probe=(6,)))
    assert len(HarnessIpo({}).flatten(tree(node(0, *below)))) == 1


def test_returns_may_decide_instead_of_rewards():
    early = node(1, node(0, probe=(5,)), probe=(1,))
    late = node(0, node(4, probe=(5,)), node(2, probe=(6,)), probe=(2,))
    made = tree(early, late)
    by_reward = HarnessDpo({}).flatten(made)[0]
    assert [row.reward for row in by_reward] == [1.0, 0.0]
    # 1 + 0.5 * 0 = 1 against 0 + 0.5 * (4 + 2) / 2 = 1.5.
    by_return = HarnessDpo({"by": "return", "gamma": 0.5}).flatten(made)[0]
    assert [row.reward for row in by_return] == [0.0, 1.0]


# Losses of pairs


class Given(LanguageModelSystem):
    """A system whose models others made."""

    def __init__(self, models):
        self._train = models["policy"].trained()


def judged():
    """The pairs of ``preference_models`` as siblings, with what its reference says of them."""
    models = preference_models.make_models()
    tokenizer = models["policy"].inference.tokenizer
    trees = []
    for prompt, *answers in preference_models.PAIRS:
        nodes = []
        for reward, answer in zip((1.0, 0.0), answers, strict=True):
            before = tokenizer.encode(prompt)
            after = [*tokenizer.encode(answer), tokenizer.eos_token_id]
            made = node(reward, probe=after, prompt=before)
            (scores,) = models["reference"].inference.score([[*before, *after]])
            made.baseline_logprobs = scores[len(before) :]
            nodes.append(made)
        trees.append(tree(*nodes))
    return Given(models), trees


@pytest.mark.parametrize(("algorithm", "name"), PREFERENCES)
def test_losses_and_gradients_are_those_of_trl(algorithm, name):
    system, trees = judged()
    made = algorithm(OPTIONS[name], system)
    steps = [step for each in trees for step in made.flatten(each)]
    loss, _ = made.step(made.collate_fn(steps))
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in system.parameters()])
    assert (float(loss.detach()), float(norm)) == pytest.approx(TRL[name], rel=2e-5)


def compared(algorithm, config):
    """A system with a baseline, the algorithm, and its steps of real rollouts."""
    section = {**SECTION, "baseline": "baseline"}
    system = make_system(section=section, baseline=TINY)
    made = algorithm(config)
    harness = Harness(
        make_environment(system, baseline="baseline", tree_width=4), made, batch_size=4
    )
    return harness, made


@pytest.mark.parametrize(
    ("algorithm", "at_first"), [(HarnessDpo, math.log(2)), (HarnessIpo, 1 / (4 * 0.1**2))]
)
def test_where_the_tester_is_the_baseline_the_loss_is_known(algorithm, at_first):
    harness, _ = compared(algorithm, {"beta": 0.1})
    batches = list(harness.experience(0))
    assert batches
    for batch in batches:
        loss, logs = harness.step(batch)
        assert float(loss) == pytest.approx(at_first, rel=1e-4)
        assert logs["margin"] == pytest.approx(0.0, abs=1e-4)


def test_two_pairs_by_hand():
    """h is 1.5 for the first pair, from sums 3 against 1.5, and -1 for the second."""

    class Fixed(LanguageModelSystem):
        def __init__(self):
            self.logp = torch.tensor(
                [[0, -1.0, -2.0], [0, -0.5, -3.0], [0, -4.0, 0], [0, -1.0, 0]], requires_grad=True
            )

        def log_probs(self, batch, needs=()):
            return self.logp, {}

    groups = [
        tree(node(1, probe=(1, 2)), node(0, probe=(2, 2))),
        tree(node(1, probe=(1,)), node(0, probe=(2,))),
    ]
    numbers = [[-2.0, -4.0], [-1.0, -4.0], [-4.0], [-2.0]]
    nodes = [each for one in groups for each in one.nodes()]
    for each, own in zip(nodes, numbers, strict=True):
        each.baseline_logprobs = own
    for algorithm, expected in (
        # h: (-3 + 6) - (-3.5 + 5) = 1.5; (-4 + 4) - (-1 + 2) = -1.
        (HarnessDpo, fmean(-math.log(1 / (1 + math.exp(-0.5 * h))) for h in (1.5, -1.0))),
        # By means over tokens: 3 / 2 - 1.5 / 2 = 0.75; 0 - 1 = -1; the margin aimed at is 1.
        (HarnessIpo, fmean([(0.75 - 1) ** 2, (-1 - 1) ** 2])),
    ):
        system = Fixed()
        made = algorithm({"beta": 0.5}, system)
        batch = made.collate_fn([step for one in groups for step in made.flatten(one)])
        loss, logs = made.step(batch)
        assert float(loss) == pytest.approx(expected)
        assert logs["accuracy"] == 0.5
        (gradient,) = torch.autograd.grad(loss, system.logp)
        assert (gradient[[0, 2], 1] < 0).all(), "a step makes the better probe likelier"
        assert (gradient[[1, 3], 1] > 0).all()


@pytest.mark.parametrize("algorithm", [HarnessDpo, HarnessIpo, HarnessGrpo])
def test_trees_of_width_one_are_refused_with_the_reason(algorithm):
    environment = make_environment(make_system(), tree_width=1, baseline=None)
    with pytest.raises(ConfigError, match=r"tree_width is 1, and \w+ needs at least 2, because"):
        Harness(environment, algorithm({}))


@pytest.mark.parametrize("algorithm", [HarnessDpo, HarnessIpo])
def test_a_missing_baseline_is_refused(algorithm):
    with pytest.raises(ConfigError, match="baseline is missing"):
        Harness(make_environment(make_system()), algorithm({}))
    bare = node(1, probe=(1,))
    bare.baseline_logprobs = None
    with pytest.raises(ContractError, match="without baseline_logprobs"):
        algorithm({}).flatten(tree(bare, node(0, probe=(2,))))


# Returns and advantages


def test_returns_by_hand():
    leaf, lost = node(4), node(100, failure="no answer")
    last = node(2)
    first = node(1, leaf, last, lost)
    returns = returns_of(tree(first), gamma=0.5)
    # 1 + 0.5 * (4 + 2) / 2; what failed is in no mean and has no return.
    assert returns == {id(leaf): 4.0, id(last): 2.0, id(first): 2.5}


def test_group_advantages_by_hand():
    made = tree(*(node(r, probe=(n, 7)) for n, r in enumerate([1, 2, 3, 6])))
    for options, scale in (({}, 1 / (math.sqrt(14 / 3) + 1e-6)), ({"normalize": False}, 1.0)):
        rows = HarnessGrpo(options).flatten(made)
        found = [row["advantages"] for row in rows]
        assert found == [
            pytest.approx([0.0, (r - 3) * scale, (r - 3) * scale]) for r in (1, 2, 3, 6)
        ]


@pytest.mark.parametrize(
    "children",
    [
        (node(2, probe=(1,)), node(2, probe=(4,))),
        (node(2, probe=(1,)), node(1, probe=(4,), failure="no answer")),
    ],
)
def test_groups_with_nothing_to_compare_give_no_step(children):
    assert HarnessGrpo({}).flatten(tree(*children)) == []


def chain(lam, gamma):
    """Two turns: rewards 1 and 2, values (0.5, 0.25) and (0.75,)."""
    second = ProbeStep(node(2, probe=(1,)), values=[0.75])
    first = ProbeStep(node(1, probe=(1, 2)), [second], values=[0.5, 0.25])
    for step in (second, first):
        add_advantages(step, gamma, lam)
    return first.advantages, second.advantages


def test_generalized_advantages_by_hand():
    first, second = chain(lam=0.5, gamma=0.5)
    # Last turn: 2 - 0.75. Second token: 1 + 0.5 * 0.75 - 0.25 + 0.25 * 1.25 = 1.4375.
    assert second == pytest.approx([1.25])
    # First token: 0.25 - 0.5 + 0.5 * 1.4375.
    assert first == pytest.approx([0.46875, 1.4375])


def test_with_lambda_one_they_are_returns_minus_values():
    first, second = chain(lam=1.0, gamma=0.5)
    assert second == pytest.approx([2 - 0.75])
    assert first == pytest.approx([2 - 0.5, 2 - 0.25])


def test_several_ways_to_go_on_count_by_their_mean():
    later = [ProbeStep(node(r, probe=(1,)), values=[v]) for r, v in ((2, 1.0), (4, 0.0))]
    first = ProbeStep(node(0, probe=(1,)), later, values=[0.5])
    for step in (*later, first):
        add_advantages(step, 1.0, 1.0)
    # The return is 0 + (2 + 4) / 2.
    assert first.advantages == pytest.approx([3 - 0.5])


def test_advantages_are_normalized_over_tokens():
    found = whiten_rows([[1.0, 2.0], [6.0]], 0.0)
    scale = math.sqrt(((1 - 3) ** 2 + (2 - 3) ** 2 + (6 - 3) ** 2) / 3)
    assert found == [pytest.approx([-2 / scale, -1 / scale]), pytest.approx([3 / scale])]


# Gradients of the clipped loss


def valued(config=None, **section):
    system = make_system(train={"value_head": True})
    environment = make_environment(system, tree_width=1, **section)
    algorithm = HarnessPpo(config or {})
    return Harness(environment, algorithm, num_episodes_per_experience=3, batch_size=2), system


def gradient_of(harness, system, batch):
    for parameter in system.parameters():
        parameter.grad = None
    loss, logs = harness.step(batch)
    loss.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in system.parameters()]
    return float(loss), torch.cat([g.flatten() for g in grads]), logs


def one(harness, reward, **more):
    """A batch of a single exchange that earned ``reward``."""
    (made,) = harness.environment.rollouts([0])[0].children
    made.reward, made.children = float(reward), []
    steps = harness.algorithm.prepare(harness.algorithm.flatten(tree(made)))
    return harness.algorithm.collate_fn(steps)


def test_the_gradient_of_one_exchange_turns_with_its_reward():
    harness, system = valued({"value": {"coefficient": 1e-9}})
    grads = [gradient_of(harness, system, one(harness, r))[1] for r in (1.0, -1.0, 5.0)]
    torch.testing.assert_close(grads[0], -grads[1], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(grads[2], 5 * grads[0], atol=1e-5, rtol=1e-4)
    assert grads[0].abs().max() > 1e-3


def test_in_the_first_pass_the_ratio_is_one_and_nothing_is_clipped():
    harness, system = valued()
    for batch in harness.experience(0):
        logp, _ = system.log_probs(batch)
        torch.testing.assert_close(logp.detach(), batch.values["old_log_probs"])
        _, logs = harness.step(batch)
        assert logs["clip_fraction"] == 0.0
        assert logs["kl_to_sampler"] == pytest.approx(0.0, abs=1e-6)


def test_an_experience_is_trained_on_as_often_as_there_are_epochs():
    harness, _ = valued({"epochs": 3})
    # Three dialogues of two exchanges, in batches of two.
    assert [len(batch) for batch in harness.experience(0)] == [2] * 9


def test_where_it_was_clipped_there_is_no_gradient():
    harness, system = valued({"value": {"coefficient": 1e-9}, "clip_ratio_high": 0.2})
    batch = one(harness, 1.0)
    mask = batch.values["loss_mask"]
    # As though the tester had been less likely to say so: every ratio is e.
    batch.values["old_log_probs"] = batch.values["old_log_probs"] - mask
    loss, gradient, logs = gradient_of(harness, system, batch)
    assert logs["clip_fraction"] == 1.0
    assert gradient.abs().max() < 1e-6
    wide, _ = valued({"value": {"coefficient": 1e-9}, "clip_ratio_high": 10.0})
    wide.algorithm.system = system
    other, gradient, _ = gradient_of(wide, system, batch)
    assert gradient.abs().max() > 1e-3
    assert (loss, other) == pytest.approx((-1.2, -math.e), rel=1e-4)


def test_the_value_is_no_part_of_the_policys_gradient():
    harness, system = valued({"value": {"coefficient": 1e-9}})
    head = system._train._forward.value_head
    gradient_of(harness, system, one(harness, 3.0))
    assert head.weight.grad.abs().max() < 1e-6
    taught, own = valued({"value": {"coefficient": 1.0}})
    gradient_of(taught, own, one(taught, 3.0))
    assert own._train._forward.value_head.weight.grad.abs().max() > 1e-2


def test_values_are_learned():
    harness, system = valued({"value": {"clip": None}})
    optimizer = torch.optim.Adam(system.parameters(), lr=1e-2)
    batch = one(harness, 1.0)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss, logs = harness.step(batch)
        losses.append(logs["value_loss"])
        loss.backward()
        optimizer.step()
    # The head gives 0 at first: half the square of 1.
    assert losses[0] == pytest.approx(0.5, abs=1e-4)
    assert losses[-1] < 0.1


@pytest.mark.parametrize("algorithm", [HarnessPpo, HarnessGrpo])
def test_padding_changes_nothing(algorithm):
    system = make_system(train={"value_head": True})
    environment = make_environment(system, tree_width=2)
    made = algorithm({})
    harness = Harness(environment, made, batch_size=3)
    batch = next(iter(harness.experience(1)))
    loss, gradient, _ = gradient_of(harness, system, batch)
    for name, values in batch.values.items():
        batch.values[name] = torch.nn.functional.pad(values, (0, 5))
    longer, same, _ = gradient_of(harness, system, batch)
    assert longer == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(same, gradient, atol=1e-6, rtol=1e-4)


def test_values_of_a_tester_without_a_head_are_refused():
    harness, _ = valued()
    bare = make_system()
    harness.algorithm.system = bare
    harness.environment._system = bare
    with pytest.raises(ConfigError, match=r"models\.NAME\.train\.value_head=true"):
        harness.experience(0)


def test_leaving_the_baseline_costs_what_its_coefficient_says():
    harness, made = compared(HarnessGrpo, {"kl": {"coefficient": 1.0}})
    assert made.needs_baseline
    batch = next(iter(harness.experience(0)))
    _, logs = harness.step(batch)
    assert logs["kl"] == pytest.approx(0.0, abs=1e-5)
    mask = batch.values["loss_mask"]
    batch.values["ref_log_probs"] = batch.values["ref_log_probs"] - 0.5 * mask
    _, logs = harness.step(batch)
    # low_var_kl of a log-ratio of 0.5: exp(-0.5) - 1 + 0.5.
    assert logs["kl"] == pytest.approx(math.exp(-0.5) - 0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("algorithm", "config", "complaint"),
    [
        (HarnessDpo, {"beta": 0}, "beta: must be above 0"),
        (HarnessDpo, {"gamma": 2}, "gamma: must be at most 1"),
        (HarnessIpo, {"min_margin": -1}, "min_margin: must be at least 0"),
        (HarnessPpo, {"epochs": 0}, "epochs: must be at least 1"),
        (HarnessPpo, {"lam": 1.5}, "lam: must be at most 1"),
        (HarnessGrpo, {"clip_ratio_low": 2}, "clip_ratio_low"),
        (HarnessGrpo, {"betta": 1}, "betta"),
    ],
)
def test_settings_out_of_range_are_refused(algorithm, config, complaint):
    with pytest.raises(ConfigError, match=complaint):
        algorithm(config)
