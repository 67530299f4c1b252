"""Testers are trained against targets behind an API, which give no log-probabilities."""

import pytest
from jobs_server import JobsServer
from testers import PolicyGradient, make_environment, make_system, weights

from plugrl import TrainingConfiguration
from plugrl.core.errors import ConfigError, RunError
from plugrl.trainers.harness import HarnessTrainer

CONFIG = TrainingConfiguration(training_steps=2, num_episodes_per_experience=2, batch_size=4)
SECTION = {"tester": {"max_new_tokens": 4, "min_new_tokens": 1}, "target": {"max_new_tokens": 4}}


class SaysBed(dict):
    """What a model of the server answers, whatever it is asked."""

    def get(self, asked, otherwise=None):
        return "bed"


LETTERS = {"tokenizer": {"characters": "abcdefgh "}}


@pytest.fixture
def environment(monkeypatch):
    """Dialogues with a target behind a server that gives text alone, and the server."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    made = []

    def make(**settings):
        there = JobsServer()
        there.models["base"] = SaysBed()
        inference = {
            "type": "openai",
            "base_url": there.base_url,
            "engine": "generic",
            "model": "base",
            "max_context": 64,
            "patience": 0.5,
            **settings,
        }
        system = make_system(target={"source": LETTERS, "inference": inference}, section=SECTION)
        made.append((there, system))
        return make_environment(system, **SECTION), there

    yield make
    for there, system in made:
        system.close()
        there.close()


def fail(there, fault, times):
    there.faults += [("POST /completions", fault)] * times


def test_a_target_behind_an_api_is_tested(environment):
    own, there = environment()
    before = weights(own.system)
    trainer = HarnessTrainer(CONFIG, own, PolicyGradient())
    trainer.train()
    nodes = [node for tree in trainer.harness.trees for node in tree.nodes()]
    assert all(node.valid for node in nodes)
    assert {node.response for node in nodes if node.probe} == {"bed"}
    assert there.count("POST /completions") > 0
    after = weights(own.system)
    assert any((before[name] != after[name]).any() for name in after)


def test_what_the_api_refuses_is_one_failed_exchange_and_not_a_score(environment):
    own, there = environment()
    fail(there, (400, {}), 1)
    trees = own.rollouts([0, 1])
    nodes = [node for tree in trees for node in tree.nodes()]
    failed = [node for node in nodes if not node.valid]
    (only,) = failed
    assert "model 'target': " in only.failure
    assert f"{there.base_url}/completions" in only.failure
    assert "400" in only.failure
    assert not only.children
    assert [n.valid for n in nodes].count(True) == len(nodes) - 1
    own.rollouts([0, 1])


@pytest.mark.parametrize("fault", [(429, {"Retry-After": "0"}), (503, {}), "drop", "drop after"])
def test_a_request_that_failed_for_now_is_made_again(environment, fault):
    own, there = environment(patience=20.0)
    fail(there, fault, 2)
    trees = own.rollouts([0, 1])
    assert all(node.valid for tree in trees for node in tree.nodes())
    assert not there.faults


def test_an_api_that_hangs_ends_the_run(environment):
    own, there = environment(timeout=0.5)
    fail(there, "hang", 1000)
    with pytest.raises(RunError, match=rf"all 4 exchanges .* failed.*{there.base_url}"):
        HarnessTrainer(CONFIG, own, PolicyGradient()).train()


@pytest.mark.parametrize("fault", ["drop", (429, {}), (500, {})])
def test_an_api_that_is_down_ends_the_run_with_its_words(environment, fault):
    own, there = environment()
    fail(there, fault, 1000)
    with pytest.raises(RunError, match=rf"all 4 exchanges .* failed.*{there.base_url}"):
        HarnessTrainer(CONFIG, own, PolicyGradient()).train()


def test_a_key_that_is_refused_ends_the_run_at_once(environment):
    own, there = environment()
    fail(there, (401, {}), 1)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        HarnessTrainer(CONFIG, own, PolicyGradient()).train()
