"""Pairs of graphs: whether they are what they are called, and what can be said about them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import forking
import networkx
import numpy as np
import pytest

import plugrl
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import load_run
from plugrl.core.tensordict.environment.labelled_dataset import Labelled
from plugrl.scenarios.graph_isomorphism.hand_made import checking_verifier, matching_prover
from plugrl.scenarios.graph_isomorphism.pairs import Recipe, make_pairs
from plugrl.scenarios.graph_isomorphism.scenario import (
    GROUPS,
    GraphIsomorphismScenario,
    ceiling,
    counts_of,
)

NIP = {"type": "nip", "max_message_rounds": 3, "min_message_rounds": 3}


def labelled(split: Any = "train", seed: int = 0, **options: Any) -> Labelled:
    options = {"train_size": 400, "test_size": 200, **options}
    return GraphIsomorphismScenario(options).build(seed).labelled(split)


def graphs_of(data: Labelled, item: int) -> list[networkx.Graph]:
    pair = zip(data.arrays["adjacency"][item], data.arrays["node_mask"][item], strict=True)
    return [networkx.from_numpy_array(a[m][:, m].astype(int)) for a, m in pair]


def views(graph: networkx.Graph, rounds: int) -> list[Any]:
    """The colours of a graph before and after each round, as nested tuples and counted."""
    colours: dict[Any, Any] = dict.fromkeys(graph, ())
    seen = [Counter(colours.values())]
    for _ in range(rounds):
        colours = {v: (colours[v], tuple(sorted(colours[u] for u in graph[v]))) for v in graph}
        seen.append(Counter(colours.values()))
    return seen


# Pairs that no number of rounds tells apart are rare, so that looking for them takes a second.
@pytest.mark.parametrize(
    ("deep", "equal"), [(35, 0), pytest.param(30, 5, marks=pytest.mark.integration)]
)
def test_pairs_are_what_their_labels_and_groups_say(deep: int, equal: int) -> None:
    data = labelled(depth_shares=[0.1, 0.2, deep / 50], train_size=100, test_size=20)
    counted = Counter(np.array(GROUPS)[data.groups].tolist())
    assert counted == {
        "isomorphic": 50,
        "depth_1": 5,
        "depth_2": 10,
        "depth_3_or_more": deep,
        **({"wl_equal": equal} if equal else {}),
    }
    for item in range(100):
        first, second = graphs_of(data, item)
        assert len(first) == len(second)
        assert first.number_of_edges() == second.number_of_edges()
        same = networkx.is_isomorphic(first, second)
        assert same == data.labels[item] == (data.groups[item] == 0)
        apart = [a != b for a, b in zip(views(first, 4), views(second, 4), strict=True)]
        group = GROUPS[data.groups[item]]
        if group in ("isomorphic", "wl_equal"):
            assert not any(apart)
        elif group == "depth_3_or_more":
            assert not any(apart[:3])
        else:
            assert apart.index(True) == int(group[-1])


def test_nothing_seen_in_two_rounds_tells_more_than_the_ceiling_says() -> None:
    data = labelled("test", train_size=20, test_size=200)
    shows = []
    for item in range(200):
        first, second = (views(graph, 2)[-1] for graph in graphs_of(data, item))
        shows.append(frozenset([frozenset(first.items()), frozenset(second.items())]))
    # Whoever knows the labels of all pairs that look alike can only take the more frequent one.
    by_look: dict[Any, Counter[int]] = {}
    for look, label in zip(shows, data.labels.tolist(), strict=True):
        by_look.setdefault(look, Counter())[label] += 1
    best = sum(max(counts.values()) for counts in by_look.values()) / 200
    depth = np.where(data.groups == 4, -1, data.groups)
    assert best == pytest.approx(0.64) == ceiling(depth, 2)
    assert ceiling(depth, 1) == pytest.approx(0.54)


def test_sizes_and_shares_are_as_asked_for() -> None:
    data = labelled(min_nodes=5, max_nodes=8, train_size=60, depth_shares=[0.5, 0.5, 0.0])
    assert data.arrays["adjacency"].shape == (60, 2, 8, 8)
    sizes = data.arrays["node_mask"].sum(-1)
    assert (sizes[:, 0] == sizes[:, 1]).all()
    assert set(np.unique(sizes)) <= set(range(5, 9))
    assert len(np.unique(sizes)) > 1
    assert np.bincount(data.groups, minlength=5).tolist() == [30, 15, 15, 0, 0]
    assert counts_of(500, [0.08, 0.2, 0.72]) == (40, 100, 360, 0)


def test_graphs_to_test_with_look_like_none_that_is_trained_on() -> None:
    def looks(data: Labelled) -> set[Any]:
        return {
            frozenset(views(graph, 2)[-1].items())
            for item in range(len(data))
            for graph in graphs_of(data, item)
        }

    few = {"train_size": 100, "test_size": 60}
    assert not looks(labelled("train", 0, **few)) & looks(labelled("test", 1, **few))


def test_the_seed_decides_the_pairs() -> None:
    few = {"train_size": 60, "test_size": 20}
    first, other = (labelled(seed=seed, **few) for seed in (3, 4))
    make_pairs.cache_clear()
    again = labelled(seed=3, **few)
    assert np.array_equal(first.arrays["adjacency"], again.arrays["adjacency"])
    assert np.array_equal(first.labels, again.labels)
    assert not np.array_equal(first.arrays["adjacency"], other.arrays["adjacency"])
    fixed = [labelled(seed=seed, data_seed=9, **few).arrays["adjacency"] for seed in (3, 4)]
    assert np.array_equal(*fixed)


def test_equal_pairs_are_made_once_and_cannot_be_changed() -> None:
    recipe = Recipe((5, 5, 0, 0), 5, 6, (0.5,), test=False)
    pairs = make_pairs(recipe, 0)
    assert make_pairs(Recipe(*recipe), 0) is pairs
    for array in pairs:
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_pairs_that_are_nowhere_to_be_found_are_told() -> None:
    # Of up to 3 nodes, the number of edges tells all graphs apart.
    with pytest.raises(RunError, match="missing that are told apart 5 by one round, 5 by two"):
        make_pairs(Recipe((5, 5, 0, 0), 2, 3, (0.5,), test=False), 0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"train_size": 11}, "even number"),
        ({"min_nodes": 9, "max_nodes": 8}, "max_nodes.*must be at least min_nodes"),
        ({"edge_probabilities": [0.0]}, r"edge_probabilities\[0\].*must be above 0"),
        ({"depth_shares": [0.6, 0.6, 0.0]}, "at most 1 together"),
    ],
)
def test_options_that_fit_nothing_are_refused(
    option: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tree = {
        "trainer": "solo_agent",
        "scenario": {"type": "graph_isomorphism", **option},
        "settings": {"runs_folder": str(tmp_path / "runs")},
    }
    with pytest.raises(ConfigError, match=message):
        plugrl.train(tree)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_ten_thousand_pairs_take_seconds() -> None:
    begun = time.process_time()
    assert len(labelled(train_size=10_000)) == 10_000
    assert time.process_time() - begun < 20


# What is said


def played(protocol: dict[str, Any], scripts: dict[str, Any], **options: Any) -> Any:
    """Metrics of all test pairs, and what every agent saw and did in each round."""
    section = {"train_size": 2, "test_size": 200, "num_envs": 200, **options}
    environment = (
        GraphIsomorphismScenario({**section, "protocol": protocol}).build(0).environment("test")
    )
    seen, rng, log = environment.reset(0), np.random.default_rng(0), []
    for _ in range(protocol.get("max_message_rounds", 1)):
        actions = {a: scripts[a](environment.spaces[a], seen[a], rng) for a in seen}
        log.append((seen, actions))
        seen = {a: step.observation for a, step in environment.step(actions).items()}
    return environment, environment.take_metrics(200), log


def test_a_verifier_alone_is_at_its_ceiling_and_a_prover_takes_it_beyond() -> None:
    _, alone, _ = played({"type": "solo_verifier"}, {"verifier": checking_verifier})
    assert alone["accuracy"] == pytest.approx(0.64)
    assert alone["accuracy/depth_3_or_more"] == 0
    scripts = {"prover": matching_prover, "verifier": checking_verifier}
    _, together, _ = played(NIP, scripts)
    assert together["accuracy"] > 0.88
    assert together["accuracy/isomorphic"] == 1
    assert together["undecided"] == 0


def test_provers_name_nodes_of_the_other_graph_and_nobody_one_that_is_not_there() -> None:
    scripts = {"prover": matching_prover, "verifier": checking_verifier}
    environment, _, log = played(NIP, scripts)
    (_, asked), (seen, answered), _ = log
    layout = environment.spaces["prover"].layout
    there = layout.view(seen["prover"], "node_mask").reshape(200, -1) > 0.5
    rows, nodes = np.arange(200), there.shape[1] // 2
    question, answer = asked["verifier"][:, 0], answered["prover"][:, 0]
    assert there[rows, question].all()
    assert there[rows, answer].all()
    assert (question // nodes != answer // nodes).all()
    mask = layout.view(seen["prover"], "action_mask") > 0.5
    other = np.arange(2 * nodes) // nodes != (question // nodes)[:, None]
    assert np.array_equal(mask, there & other)


def test_simulators_may_name_any_node_as_the_adversary_may() -> None:
    protocol = {"type": "zero_knowledge", "base": NIP}
    section = {"train_size": 2, "test_size": 20, "protocol": protocol}
    data = labelled("test", test_size=20)
    messages = GraphIsomorphismScenario(section).messages(data)
    history = np.zeros((20, 3, 1), np.int64)
    items = {"node_mask": data.arrays["node_mask"]}
    there = data.arrays["node_mask"].reshape(20, 1, -1)
    for agent in ("verifier", "adversarial_verifier", "simulator"):
        assert np.array_equal(messages.allowed(agent, items, history), there)
    bound = messages.allowed("prover", items, history)
    assert not bound[..., : there.shape[-1] // 2].any()


@pytest.mark.slow
def test_a_verifier_that_may_ask_passes_its_ceiling(tmp_path: Path) -> None:
    short = ["trainer.phases.1.rl.num_iterations=25", "trainer.phases.1.validate.every=25"]
    done = forking.run(["-m", "plugrl", "train", "graph_isomorphism_nip", *short], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    (folder,) = tmp_path.glob("runs/graph_isomorphism_nip/*")
    metrics = load_run(folder).metrics
    (alone,) = [m["test/verifier/accuracy"] for m in metrics if "test/verifier/accuracy" in m]
    assert 0.62 <= alone <= 0.64
    assert metrics[-1]["validation/undecided"] < 0.01
    # With rewards of the prover that are for acceptance alone.
    assert metrics[-1]["validation/accuracy"] > 0.64 + 0.1
