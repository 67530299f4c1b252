"""Pictures with two labels: which ones there are, what is asked, and how agents see them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete

import plugrl
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.scenarios.bodies.image_latent import ImageLatentBody
from plugrl.scenarios.image_classification.images import Images, load_images
from plugrl.scenarios.image_classification.scenario import ImageClassificationScenario
from plugrl.scenarios.image_classification.two_labels import chosen_classes, kept_items, two_labels


def digits(train: bool) -> Images:
    return load_images("digits", train=train, folder="none", download=False)


def labelled(split: Any = "train", seed: int = 0, **options: Any) -> Any:
    return ImageClassificationScenario(options).build(seed).labelled(split)


def test_the_digits_are_those_of_the_public_set() -> None:
    train, test = digits(True), digits(False)
    assert train.pictures.shape == (1438, 1, 8, 8)
    assert test.pictures.shape == (359, 1, 8, 8)
    # How often each digit is in the set, as its description says: 1,797 in all.
    counts = np.bincount(train.classes) + np.bincount(test.classes)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # The sum of all pixels in sixteenths.
    total = train.pictures.astype(float).sum() + test.pictures.astype(float).sum()
    assert total * 16 == pytest.approx(561718)
    every = np.concatenate([train.pictures, test.pictures])
    first = [0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0]
    assert (every.reshape(-1, 64)[:, :16] * 16 == first).all(1).sum() == 1


def test_no_picture_to_test_with_is_trained_on_whatever_the_seed() -> None:
    train, test = digits(True), digits(False)
    seen = {p.tobytes() for p in train.pictures}
    assert not any(p.tobytes() in seen for p in test.pictures)
    for seed in (0, 1):
        held = labelled("test", seed, make_balanced=False).arrays["image"]
        assert {p.tobytes() for p in held} == {
            p.tobytes() for p in labelled("test", 2, make_balanced=False).arrays["image"]
        }


def test_sets_of_torchvision_are_read_from_their_files(tmp_path: Path) -> None:
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported: {error}")
    drawn = np.random.default_rng(0).integers(0, 256, (20, 28, 28)).astype(np.uint8)
    for name, array in (
        ("images-idx3", drawn),
        ("labels-idx1", np.arange(20, dtype=np.uint8) % 10),
    ):
        # The form of the files: 0, 0, 8 for bytes, the number of sides, and each in four bytes.
        head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
        file = tmp_path / "MNIST" / "raw" / f"train-{name}-ubyte"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(head + array.tobytes())
    images = load_images("mnist", train=True, folder=str(tmp_path), download=False)
    np.testing.assert_allclose(images.pictures, drawn[:, None] / 255, rtol=1e-6)
    assert images.classes.tolist() == [*range(10), *range(10)]
    with pytest.raises(ConfigError, match="has no kmnist; set scenario.download: true"):
        load_images("kmnist", train=True, folder=str(tmp_path), download=False)


def test_a_set_without_torchvision_says_how_to_get_it() -> None:
    if importlib.util.find_spec("torchvision") is not None:
        pytest.skip("torchvision is installed")
    with pytest.raises(ConfigError, match=r'scenario.dataset: svhn needs.*"plugrl\[images\]"'):
        load_images("svhn", train=True, folder="none", download=False)


IMAGES = Images(np.zeros((7, 1, 2, 2), np.float32), np.array([0, 1, 2, 3, 0, 1, 3]))


def test_merged_classes_ask_for_a_class_of_the_chosen_ones() -> None:
    places, labels = two_labels(IMAGES, "merge", [1, 3], 0, train=True)
    assert places.tolist() == [*range(7)]
    assert labels.tolist() == [0, 1, 0, 1, 0, 1, 1]


def test_two_selected_classes_ask_which() -> None:
    places, labels = two_labels(IMAGES, "select_two", [3, 0], 0, train=True)
    assert places.tolist() == [0, 3, 4, 6]
    assert labels.tolist() == [1, 0, 1, 0]


def test_coins_depend_on_seed_and_split_alone() -> None:
    many = Images(np.zeros((4000, 1, 2, 2), np.float32), np.repeat(np.arange(4), 1000))
    coins = {
        (seed, train): two_labels(many, "random", [], seed, train=train)[1]
        for seed in (0, 1)
        for train in (True, False)
    }
    assert np.array_equal(coins[0, True], two_labels(many, "random", [], 0, train=True)[1])
    pairs = [(a, b) for a in coins for b in coins if a < b]
    # Independent coins agree in half of 4,000 cases, give or take 32 (one deviation).
    assert all(abs((coins[a] == coins[b]).mean() - 0.5) < 0.04 for a, b in pairs)
    for number in range(4):
        assert abs(coins[0, True][many.classes == number].mean() - 0.5) < 0.08


def test_the_seed_draws_classes_that_nobody_names() -> None:
    drawn = [tuple(chosen_classes(10, "merge", None, seed)) for seed in range(5)]
    assert all(len(set(classes)) == 5 for classes in drawn)
    assert len(set(drawn)) > 1
    assert chosen_classes(10, "select_two", [7, 3], 0) == [7, 3]
    assert len(chosen_classes(100, "merge", None, 0)) == 50


@pytest.mark.parametrize(
    ("balance", "most", "counts"),
    [
        (True, None, [3, 3]),
        (False, None, [5, 3]),
        (True, 5, [2, 2]),
        (True, 100, [3, 3]),
        (False, 4, None),
    ],
)
def test_what_stays(balance: bool, most: int | None, counts: list[int] | None) -> None:
    labels = np.array([0, 0, 1, 0, 1, 0, 1, 0])
    places = kept_items(labels, 3, train=True, balance=balance, most=most)
    assert list(places) == sorted(set(places))
    assert len(places) == (4 if counts is None else sum(counts))
    if counts is not None:
        assert np.bincount(labels[places]).tolist() == counts


def test_pictures_are_standardised_by_those_to_train_on() -> None:
    raw = digits(True).pictures.astype(float)
    train = labelled(make_balanced=False).arrays["image"]
    np.testing.assert_allclose(train, (raw - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-5)
    test = labelled("test", make_balanced=False).arrays["image"]
    held = digits(False).pictures.astype(float)
    np.testing.assert_allclose(test, (held - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-5)


def test_labels_have_a_seed_of_their_own() -> None:
    def labels(seed: int, **options: Any) -> list[int]:
        return labelled(seed=seed, make_balanced=False, **options).labels.tolist()  # type: ignore[no-any-return]

    assert labels(0) != labels(1)
    assert labels(0, binarification_seed=5) == labels(1, binarification_seed=5) == labels(5)


def test_the_message_is_a_place() -> None:
    for groups, places in ((0, 64), (1, 16), (2, 4)):
        instance = ImageClassificationScenario({"num_block_groups": groups}).build(0)
        spaces = instance.test_environment.spaces
        # The provers of nip see one channel and do not decide.
        assert spaces["prover"].action.nvec.tolist() == [places]  # type: ignore[attr-defined]
        assert spaces["verifier"].action.nvec.tolist() == [places, 3]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_block_groups": 3}, "8 x 8 cannot be halved 3 times; take fewer"),
        ({"selected_classes": [1, 1]}, "must be different ones of 0 to 9"),
        ({"selected_classes": [10]}, "must be different ones of 0 to 9"),
        ({"selected_classes": [*range(10)]}, "must be some of the classes, and not all"),
        ({"dataset": "cifar100", "selected_classes": [100]}, "torchvision|has no cifar100"),
        ({"binarification_method": "select_two", "selected_classes": [1]}, "must be two"),
        ({"binarification_method": "random", "selected_classes": [1]}, "has no effect on random"),
        ({"max_train_size": 1}, "max_train_size.*must be at least 2"),
        ({"dataset": "imagenet"}, "dataset.*digits"),
    ],
)
def test_options_that_cannot_be_are_refused_before_a_run(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    tree = {
        "trainer": "solo_agent",
        "scenario": {"type": "image_classification", **options},
        "settings": {"runs_folder": str(tmp_path / "runs")},
    }
    with pytest.raises(ConfigError, match=said):
        plugrl.train(tree)
    assert not (tmp_path / "runs").exists()


LAYOUT = Layout(
    {
        "image": (1, 8, 8),
        "round": (3,),
        "messages": (3, 2, 16),
        "last_message": (2, 16),
        "speaks": (2,),
        "action_mask": (35,),
    }
)
SPACES = AgentSpaces(LAYOUT.space(), MultiDiscrete([16, 16, 3]), LAYOUT)


def features(body: Any, **parts: np.ndarray) -> torch.Tensor:
    """What is known of each place, ``[4, 4, channels]``, and the rest of the features."""
    whole = {name: np.zeros((1, *shape)) for name, shape in LAYOUT.fields.items()} | parts
    with torch.no_grad():
        found: torch.Tensor = body(torch.from_numpy(LAYOUT.pack(whole)))[0]
    return found


def test_a_message_is_read_where_it_points() -> None:
    torch.manual_seed(0)
    options = {"kernel_size": 1, "latent_channels": 5, "channels": 4, "activation": "tanh"}
    body, count = ImageLatentBody(options).build_for(SPACES, (LAYOUT.size,))
    # 16 places with 5 channels, three rounds, and two channels to speak in.
    assert count == 16 * 5 + 3 + 2
    silent = features(body)
    for part, shape in (("messages", (1, 3, 2, 16)), ("last_message", (1, 2, 16))):
        said = np.zeros(shape)
        said[..., 1, 6] = 1
        changed = (features(body, **{part: said}) - silent)[:80].reshape(5, 4, 4)
        # Message 6 of 4 x 4 places is the one in row 1 and column 2.
        assert changed.abs().sum(0).nonzero().tolist() == [[1, 2]]


def test_a_pixel_is_read_where_it_is() -> None:
    torch.manual_seed(0)
    body, _ = ImageLatentBody({"kernel_size": 1}).build_for(SPACES, (LAYOUT.size,))
    picture = np.zeros((1, 1, 8, 8))
    picture[..., 5, 0] = 3
    changed = (features(body, image=picture) - features(body))[: 16 * 16].reshape(16, 4, 4)
    # The sides are halved once: row 5 is in row 2, column 0 in column 0.
    assert changed.abs().sum(0).nonzero().tolist() == [[2, 0]]


def test_what_is_no_map_is_known_everywhere_and_the_mask_nowhere() -> None:
    torch.manual_seed(0)
    body, _ = ImageLatentBody({"kernel_size": 1}).build_for(SPACES, (LAYOUT.size,))
    silent = features(body)
    moved = features(body, speaks=np.ones((1, 2))) - silent
    assert (moved[: 16 * 16].reshape(16, 16).abs().sum(0) > 0).all()
    assert moved[16 * 16 :].tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(features(body, action_mask=np.ones((1, 35))), silent)


def test_any_number_of_leading_dimensions_will_do() -> None:
    body, count = ImageLatentBody({}).build_for(SPACES, (LAYOUT.size,))
    seen = torch.randn(3, 2, LAYOUT.size)
    found = body(seen)
    assert found.shape == (3, 2, count)
    torch.testing.assert_close(found[2, 1], body(seen[2, 1]))


def test_residual_blocks_add_what_went_in() -> None:
    options = {"kernel_size": 1, "latent_blocks": 2, "activation": "relu", "residual": True}
    body, _ = ImageLatentBody(options).build_for(SPACES, (LAYOUT.size,))
    last: Any = list(body.children())[-1][-1]
    torch.nn.init.zeros_(last.convolution.weight)
    torch.nn.init.zeros_(last.convolution.bias)
    picture = np.random.default_rng(0).normal(size=(1, 1, 8, 8))
    assert features(body, image=picture)[: 16 * 16].abs().sum() > 0


def test_the_body_refuses_what_is_no_picture() -> None:
    with pytest.raises(ConfigError, match=r"shape \[4\].*body: mlp"):
        ImageLatentBody({}).build((4,))
    odd = Layout({**LAYOUT.fields, "messages": (3, 2, 15), "last_message": (2, 15)})
    spaces = AgentSpaces(odd.space(), SPACES.action, odd)
    with pytest.raises(ConfigError, match="15 messages are none in a picture of 8 x 8"):
        ImageLatentBody({}).build_for(spaces, (odd.size,))
    section = {"_default": {"body": {"type": "image_latent"}}}
    plain = AgentSpaces(Box(-1, 1, (4,)), SPACES.action)
    with pytest.raises(ConfigError, match=r"agents\._default\.body.*not observations of shape"):
        build_agents({"agent": plain}, section)


@pytest.mark.parametrize("zero_knowledge", [False, True])
@pytest.mark.parametrize(
    "protocol",
    [
        {"type": "nip", "randomize_prover_stance": True},
        {"type": "debate"},
        {"type": "merlin_arthur"},
        {"type": "multi_channel"},
        {"type": "solo_verifier"},
    ],
    ids=lambda section: section["type"],
)
def test_the_body_fits_every_protocol(protocol: dict[str, Any], zero_knowledge: bool) -> None:
    section = {"type": "zero_knowledge", "base": protocol} if zero_knowledge else protocol
    instance = ImageClassificationScenario({"num_envs": 3, "protocol": section}).build(0)
    environment = instance.test_environment
    body = {"type": "image_latent", "channels": 2, "latent_channels": 2}
    built = build_agents(environment.spaces, {"_default": {"body": body}}, shared_body=True)
    for name, seen in environment.reset(0).items():
        logits, values = built.policies[name].policy_and_value(torch.from_numpy(seen))
        assert logits.shape == (3, environment.spaces[name].action.nvec.sum())  # type: ignore[attr-defined]
        assert values.shape == (3,)
        # Where nothing can be chosen, one choice is left, and it is certain.
        turn = environment.acting()[name]  # type: ignore[index]
        entropy = built.policies[name].distribution.entropy(logits)
        assert torch.equal(entropy > 0, torch.from_numpy(turn))
