"""Rollout trees: their sizes, how often models are asked, seeds, and what may be overridden."""

import pytest
from testers import CONFIG, PROMPTS, SECTION, TINY, PolicyGradient, make_environment, make_system

from plugrl import TrainingConfiguration
from plugrl.core.errors import ConfigError
from plugrl.core.text.dialogue.environment import DialogueEnvironment
from plugrl.core.text.dialogue.harness import Harness
from plugrl.trainers.harness import HarnessTrainer

#: The tester says its whole probe, so that no dialogue ends early.
FULL = {**SECTION, "tester": {"max_new_tokens": 4, "min_new_tokens": 4}}


def full_environment(counted=None, **more):
    section = {**FULL, **({"baseline": "baseline"} if "baseline" in more else {})}
    models = {"baseline": more.pop("baseline")} if "baseline" in more else {}
    system = make_system(section=section, **models)
    if counted is not None:
        for name, model in system.models.items():
            counted[name] = 0
            model.inference.generate = counting(counted, name, model.inference.generate)
    own = {key: value for key, value in section.items() if key == "baseline"}
    return make_environment(system, **{**FULL, **own, **more})


def counting(counted, name, generate):
    def counted_generate(requests):
        counted[name] += 1
        return generate(requests)

    return counted_generate


def said(tree):
    return [(n.context.prompt, n.turn, n.probe, n.response, n.reward) for n in tree.nodes()]


@pytest.mark.parametrize(("width", "depth"), [(1, 1), (1, 3), (2, 3), (3, 2), (4, 1)])
def test_a_tree_has_as_many_exchanges_as_its_width_and_depth_say(width, depth):
    environment = full_environment(tree_width=width, tree_depth=depth)
    tree = environment.rollout(7)
    assert [len(level) for level in tree.levels()] == [width**d for d in range(1, depth + 1)]
    assert len(list(tree.nodes())) == sum(width**d for d in range(1, depth + 1))
    for node in tree.nodes():
        for child in node.children:
            assert child.context == environment.advance(node.context, node.probe, node.response)
            assert child.context == node.dialogue
            assert child.turn == node.turn + 1
    assert all(len(path) == depth for path in tree.paths())


@pytest.mark.parametrize(("width", "trees"), [(1, 1), (2, 1), (2, 8), (4, 3)])
def test_models_are_asked_once_a_turn_whatever_the_width_and_the_number_of_trees(width, trees):
    depth, counted = 3, {}
    environment = full_environment(counted, baseline=TINY, tree_width=width, tree_depth=depth)
    environment.rollouts(range(trees))
    assert counted == {"tester": depth, "target": depth, "baseline": 1}
    counted.update(dict.fromkeys(counted, 0))
    environment.eval_rollouts(PROMPTS, range(len(PROMPTS)))
    assert counted == {"tester": depth, "target": depth, "baseline": 1}


def test_a_seed_gives_one_tree_zero_included_and_another_seed_another():
    environment, again = full_environment(), full_environment()
    for seed in (0, 1, 5):
        assert said(environment.rollout(seed)) == said(environment.rollout(seed))
        assert said(environment.rollout(seed)) == said(again.rollout(seed))
    # Equal prompts, since there are five of them.
    assert said(environment.rollout(0)) != said(environment.rollout(5))
    assert said(environment.rollout()) != said(environment.rollout())


def test_siblings_are_sampled_apart():
    tree = full_environment(tree_width=4, tree_depth=1).rollout(0)
    assert len({node.probe for node in tree.nodes()}) == 4


def test_no_two_exchanges_of_a_tree_share_their_random_numbers():
    """Branches would repeat each other if exchanges were told apart by their way alone."""
    environment = full_environment(tree_width=2, tree_depth=3)
    system, seen = environment.system, {"probes": [], "responses": []}

    def recorded(name, ask):
        def asked(dialogues, streams):
            seen[name] += streams
            return ask(dialogues, streams)

        return asked

    for name in seen:
        setattr(system, name, recorded(name, getattr(system, name)))
    environment.rollouts([3, 4])
    streams = seen["probes"] + seen["responses"]
    assert len(seen["probes"]) == 2 * (2 + 4 + 8)
    assert len(set(streams)) == len(streams)
    assert {stream[0] for stream in streams} == {3, 4}


def test_branches_with_one_history_go_on_in_different_ways():
    class Same(DialogueEnvironment):
        def advance(self, context, probe, response):
            return super().advance(context, "a", "b")

    system = make_system(section=FULL)
    environment = make_environment(system, cls=Same, **{**FULL, "tree_width": 3, "tree_depth": 2})
    tree = environment.rollout(0)
    below = [tuple(n.probe for n in node.children) for node in tree.children]
    assert len(set(below)) == len(below) == 3


def test_trees_that_grow_together_are_those_that_grow_alone():
    environment = full_environment()
    together = [said(tree) for tree in environment.rollouts([3, 0, 9])]
    assert together == [said(environment.rollout(seed)) for seed in (3, 0, 9)]


def test_an_experience_is_about_different_prompts_as_long_as_there_are_enough():
    environment = full_environment()
    for number in (0, 3):
        harness = Harness(environment, PolicyGradient(), num_episodes_per_experience=5)
        list(harness.experience(seed=number))
        assert sorted(tree.context.prompt for tree in harness.trees) == sorted(PROMPTS)
    harness = Harness(environment, PolicyGradient(), num_episodes_per_experience=8)
    list(harness.experience())
    prompts = [tree.context.prompt for tree in harness.trees]
    assert {prompts.count(prompt) for prompt in PROMPTS} == {1, 2}
    assert len({tuple(said(tree)) for tree in harness.trees}) == 8


def test_experiences_of_one_seed_are_equal_and_of_another_are_not():
    environment = full_environment()

    def trees(seed):
        harness = Harness(environment, PolicyGradient(), num_episodes_per_experience=3, seed=seed)
        for _ in range(2):
            harness.experience()
        return [said(tree) for tree in harness.trees]

    assert trees(0) == trees(0)
    assert trees(0) != trees(1)


def test_a_negative_seed_and_missing_prompts_are_refused():
    with pytest.raises(ConfigError, match="seed -1 is negative"):
        full_environment().rollout(-1)
    with pytest.raises(ConfigError, match="has no prompts; give it at least one"):
        full_environment(prompts=[]).rollout(0)


class Greeting(DialogueEnvironment):
    def advance(self, context, probe, response):
        return super().advance(context, f"{probe} {probe}", response)


class Punctual(DialogueEnvironment):
    def reward(self, nodes):
        return [{"turn": float(node.turn)} for node in nodes]


class Lenient(DialogueEnvironment):
    def score(self, nodes):
        for node in nodes:
            node.score.value = 0.125


class Narrow(DialogueEnvironment):
    def expand(self, leaves, width):
        return [nodes[:1] for nodes in super().expand(leaves, width)]


@pytest.mark.parametrize(
    ("cls", "holds"),
    [
        (
            Greeting,
            lambda nodes: (
                nodes[0].children[0].context.probe == f"{nodes[0].probe} {nodes[0].probe}"
            ),
        ),
        (Punctual, lambda nodes: all(n.reward == n.turn for n in nodes)),
        (Lenient, lambda nodes: all(n.reward == 0.125 for n in nodes)),
        (Narrow, lambda nodes: [n.turn for n in nodes] == [1, 2]),
    ],
)
def test_overriding_one_hook_takes_effect_in_training(cls, holds):
    def nodes_of(cls):
        system = make_system(section=FULL)
        environment = make_environment(system, cls=cls, **FULL)
        trainer = HarnessTrainer(
            TrainingConfiguration(training_steps=1, num_episodes_per_experience=1),
            environment,
            PolicyGradient(),
        )
        trainer.train()
        return list(trainer.harness.trees[0].nodes())

    assert holds(nodes_of(cls))
    assert not holds(nodes_of(DialogueEnvironment))


def test_the_oldest_turns_are_left_out_and_the_continuation_is_kept():
    config = {**CONFIG, "max_position_embeddings": 16}
    narrow = {"source": {**TINY["source"], "config": config}}
    system = make_system(tester=narrow, target=narrow, section=FULL)
    environment = make_environment(system, tree_depth=6, tree_width=1, **FULL)
    tree = environment.rollout(0)
    nodes = list(tree.nodes())
    assert len(nodes) == 6
    tokenizer = system.models["tester"].inference.tokenizer
    for node in nodes:
        assert len(node.prompt_tokens) <= 12
        assert tokenizer.decode(node.probe_tokens) == node.probe
        assert len(node.probe_tokens) == 4
        # What was said last is what is still there.
        shown = tokenizer.decode(node.prompt_tokens)
        assert shown.endswith(node.context.response)
    assert len(nodes[-1].context.text()) > 16
