"""Claims about sums: labels, workings and splits, against sums made here."""

import pytest

from plugrl.core.errors import ConfigError
from plugrl.scenarios.arithmetic_claims.scenario import ArithmeticClaimsScenario


@pytest.fixture(scope="module")
def splits():
    return ArithmeticClaimsScenario({"digits": 2, "demonstrations": 100}).build(0).datasets


def parts(item):
    terms, claimed = item["prompt"].split("=")
    return (*map(int, terms.split("+")), int(claimed))


def test_labels_say_which_claims_are_right_and_half_are(splits):
    for items in splits.values():
        for item in items:
            a, b, claimed = parts(item)
            assert item["label"] == (a + b == claimed)
            assert int(item["sum"]) == a + b
            assert item["verdict"] == ("Y" if a + b == claimed else "N")
        assert 2 * sum(item["label"] for item in items) == len(items)


def test_wrong_claims_differ_in_a_single_place(splits):
    changes = {abs(a + b - c) for a, b, c in map(parts, splits["validation"])}
    assert changes <= {0, 1, 10, 100}


def test_workings_are_sums_that_hold_and_give_the_sum(splits):
    for item in splits["validation"]:
        steps = item["working"].split(";")
        total = 0
        for place, step in enumerate(steps):
            terms, said = step.split("=")
            assert sum(map(int, terms.split("+"))) == int(said)
            last = place == len(steps) - 1
            total += (int(said) if last else int(said) % 10) * 10**place
        assert total == int(item["sum"])


def test_no_held_out_pair_is_trained_on(splits):
    def pairs(*names):
        return {frozenset(parts(item)[:2]) for name in names for item in splits[name]}

    assert not pairs("validation", "development") & pairs("train", "demonstrations")
    assert len(splits["validation"]) == 256


def test_pairs_is_refused():
    with pytest.raises(ConfigError, match="pairs"):
        ArithmeticClaimsScenario({"pairs": True})
