"""Trainers whose algorithm is a component: its keys stay its own, in every layer."""

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.testing import tiny
from plugrl.trainers.kit import RED_TEAM


@pytest.fixture
def algorithm(tmp_path):
    """The section of the algorithm that layers make; ``trainer`` is over that of the kit."""

    def make(written=None, overrides=(), **root):
        tree = tiny.config("harness", tmp_path, RED_TEAM)
        frozen = {"source": tree["models"]["target"]["source"]}
        tree = tiny.merged(
            tree, {"models": {"baseline": frozen}, "red_team": {"baseline": "baseline"}}
        )
        if written is None:
            del tree["trainer"]["algorithm"]
        else:
            tree["trainer"]["algorithm"] = written
        return prepare({**tree, **root}, overrides).validated.tree["trainer"]["algorithm"]

    return make


@pytest.mark.parametrize("name", ["dpo", "ipo", "ppo", "grpo"])
def test_a_mapping_is_the_same_as_a_name_and_is_read_again(algorithm, name, tmp_path):
    section = algorithm(name)
    assert section["type"] == name
    assert algorithm({"type": name}) == section
    # So it stands in the configuration of a run that is resumed.
    assert algorithm(section) == section
    assert name == "ppo" or "advantage" not in section


def test_keys_that_others_call_otherwise(algorithm):
    keys = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3}
    section = algorithm({"type": "grpo", **keys})
    assert {key: section[key] for key in keys} == keys
    section = algorithm("grpo", ["trainer.algorithm.clip_ratio_low=0.1"])
    assert (section["type"], section["clip_ratio_low"], section["clip_ratio_high"]) == (
        "grpo",
        0.1,
        0.2,
    )


@pytest.mark.parametrize(
    ("written", "overrides", "name"),
    [
        ("grpo", ["trainer.algorithm.type=ppo"], "ppo"),
        ("grpo", ["trainer.algorithm=ppo"], "ppo"),
        ({"type": "grpo"}, ["trainer.algorithm=ppo"], "ppo"),
        ({"type": "grpo"}, ["trainer.algorithm.type=ppo", "trainer.algorithm=ipo"], "ipo"),
        ({"type": "grpo"}, ["trainer.algorithm=ipo", "trainer.algorithm.type=ppo"], "ppo"),
        ({"type": "grpo"}, ["algorithm.type=ppo"], "ppo"),
        (None, [], "dpo"),
        (None, ["trainer.algorithm.beta=0.5"], "dpo"),
        (None, ["trainer.algorithm={type: ipo, beta: 0.5}"], "ipo"),
    ],
)
def test_the_later_layer_says_which_one(algorithm, written, overrides, name):
    section = algorithm(written, overrides)
    assert section["type"] == name
    if "beta" in str(overrides):
        assert section["beta"] == 0.5


def test_the_section_may_stand_at_the_root(algorithm):
    assert algorithm(None, algorithm={"type": "grpo", "clip_ratio_low": 0.1}) == algorithm(
        {"type": "grpo", "clip_ratio_low": 0.1}
    )


HERE = ("", "trainer.phases.0.", "trainer.phases[0].")


@pytest.mark.parametrize("where", HERE)
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["trainer.algorithm.type=grpo"], "grpo"),
        (["trainer.algorithm=", "trainer.algorithm=dpo"], "dpo"),
        (["trainer.algorithm=", "trainer.algorithm={type: dpo}"], "dpo"),
        (["trainer.algorithm=", "trainer.algorithm.type=dpo"], "dpo"),
    ],
)
def test_an_override_names_another_one_in_phases_too(harness, where, outside, overrides, name):
    overrides = [f"{where}{text}" for text in overrides]
    tree = harness if where == "" else in_phase(harness, outside)
    made = prepare(tree, overrides).validated.tree["trainer"]
    own = made if where == "" else made["phases"][0]["trainer"]
    assert own["algorithm"]["type"] == name


@pytest.mark.parametrize("where", HERE)
@pytest.mark.parametrize("written", ["dpo", "{type: dpo}"])
def test_keys_left_from_another_type_come_with_the_remedy(harness, where, written):
    tree = harness if where == "" else in_phase(harness, False)
    remedy = r"clip_ratio_low.*unknown key; keys: beta.*put an override SECTION= first"
    with pytest.raises(ConfigError, match=remedy):
        prepare(tree, [f"{where}trainer.algorithm={written}"])


@pytest.fixture
def harness(tmp_path):
    """A whole configuration that learns by ``grpo``, with a key that others lack."""
    tree = tiny.config("harness", tmp_path, RED_TEAM)
    frozen = {"source": tree["models"]["target"]["source"]}
    tree = tiny.merged(tree, {"models": {"baseline": frozen}, "red_team": {"baseline": "baseline"}})
    tree["trainer"]["algorithm"] = {"type": "grpo", "clip_ratio_low": 0.1}
    return tree


def in_phase(tree, outside):
    """The same as the only phase of a sequence; ``outside``: but for the section red_team."""
    inside = ("trainer",) if outside else ("trainer", "red_team")
    phase = {"name": "only", **{key: tree[key] for key in inside}}
    rest = {key: value for key, value in tree.items() if key not in inside}
    return {**rest, "trainer": {"type": "sequence", "phases": [phase]}}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"type": "gropo"}, r"trainer\.algorithm\.type.*'gropo'; did you mean grpo"),
        ({"type": "dpo", "clip_ratio_low": 0.1}, r"trainer\.algorithm.*unknown key"),
        ({"type": "grpo", "advantage": "rloo"}, r"trainer\.algorithm"),
        ({"type": "grpo", "clip_ratio_low": "x"}, r"trainer\.algorithm\.clip_ratio_low"),
    ],
)
def test_faults_are_told_by_the_key_that_was_written(algorithm, written, says):
    with pytest.raises(ConfigError, match=says):
        algorithm(written)


def test_what_other_trainers_would_need_is_not_said_of_it(algorithm):
    with pytest.raises(ConfigError, match="kl.*unknown key; keys: beta") as caught:
        algorithm({"type": "ipo", "kl": {"coefficient": 0.1}})
    assert "named loss" not in str(caught.value)


def test_other_trainers_keep_their_second_spellings(tmp_path):
    tree = tiny.config("self_hosted_grpo", tmp_path)
    tree["trainer"]["algorithm"] = {"type": "rloo", "clip_ratio_low": 0.1}
    section = prepare(tree).validated.tree["trainer"]["algorithm"]
    assert section["advantage"]["type"] == "rloo"
    assert section["loss"]["clip_ratio_low"] == 0.1
    assert "type" not in section
