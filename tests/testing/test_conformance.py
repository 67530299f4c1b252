"""Every built-in component of a kind that the kit covers passes the kit."""

import subprocess
import sys

import pytest

from plugrl.core.registry import default_registry
from plugrl.testing.plugin import KINDS
from plugrl.testing.suite.test_evaluator import EvaluatorContract
from plugrl.testing.suite.test_trainer import TrainerContract


class TestSelfHostedGrpo(TrainerContract):
    __test__ = True
    plugrl_trainer = "self_hosted_grpo"


class TestSelfHostedCrossEntropy(TrainerContract):
    __test__ = True
    plugrl_trainer = "self_hosted_cross_entropy"


class TestSelfHostedOpd(TrainerContract):
    __test__ = True
    plugrl_trainer = "self_hosted_opd"


class TestRemoteApiGrpo(TrainerContract):
    __test__ = True
    plugrl_trainer = "remote_api_grpo"


class TestRemoteApiCrossEntropy(TrainerContract):
    __test__ = True
    plugrl_trainer = "remote_api_cross_entropy"


class TestRemoteApiOpd(TrainerContract):
    __test__ = True
    plugrl_trainer = "remote_api_opd"


class TestSequence(TrainerContract):
    __test__ = True
    plugrl_trainer = "sequence"


class TestExactMatch(EvaluatorContract):
    __test__ = True
    plugrl_evaluator = "exact_match"


@pytest.mark.parametrize("kind", KINDS)
def test_every_built_in_has_a_row(kind):
    built_in = {r.name for r in default_registry().records(kind) if r.distribution == "plugrl"}
    contracts = [c for c in globals().values() if isinstance(c, type)]
    checked = {getattr(c, f"plugrl_{kind}", None) for c in contracts}
    assert built_in <= checked


def test_the_pytest_plugin_imports_pytest_alone():
    program = (
        "import sys, pytest; before = set(sys.modules); import plugrl.testing.plugin; "
        "print(*sorted(name.split('.')[0] for name in set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {"plugrl"}
