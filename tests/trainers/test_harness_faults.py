"""What the trainer ``harness`` refuses or survives, and how it says so."""

import math
import os

import pytest
import torch
from testers import PROMPTS, SECTION, TINY, PolicyGradient, make_environment, make_system, weights

from plugrl import TrainingConfiguration
from plugrl.core.errors import ConfigError, ContractError, NonFiniteError, RunError
from plugrl.core.text.dialogue.environment import DialogueEnvironment
from plugrl.core.text.dialogue.language_models import LanguageModelSystem
from plugrl.core.text.dialogue.scorer import Score, Scorer
from plugrl.core.text.dialogue.system import Utterance
from plugrl.trainers.harness import HarnessTrainer


def configured(**changes):
    base = {"lr": 3e-3, "training_steps": 2, "num_episodes_per_experience": 2, "batch_size": 4}
    return TrainingConfiguration(**{**base, **changes})


def trainer_of(environment, algorithm=None, **changes):
    return HarnessTrainer(configured(**changes), environment, algorithm or PolicyGradient())


class Comparing(PolicyGradient):
    least_width = 2
    least_width_reason = "it compares ways to go on"


def test_trees_too_narrow_for_the_algorithm_are_refused_when_the_trainer_is_made():
    environment = make_environment(make_system(), tree_width=1)
    with pytest.raises(ConfigError, match="tree_width is 1.*Comparing needs at least 2, because"):
        trainer_of(environment, Comparing())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimiser": "adam"}, "no field 'optimiser'; .*did you mean optimizer?"),
        ({"optimizer": "adamm"}, "optimizer 'adamm' is unknown.*adam"),
        ({"lr": 0}, "lr is 0; it must be above 0"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0"),
        ({"training_steps": -1}, "training_steps is -1"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(arguments, message):
    with pytest.raises(ConfigError, match=message):
        TrainingConfiguration(**arguments)


def test_no_training_steps_change_nothing():
    system = make_system()
    before = weights(system)
    assert trainer_of(make_environment(system), training_steps=0).train().steps == 0
    assert all(torch.equal(before[k], v) for k, v in weights(system).items())


class Choosy(PolicyGradient):
    """Learns from nothing, as preferences do when all rewards are equal."""

    def flatten(self, tree):
        return []


def test_experiences_that_teach_nothing_warn_once_and_end_the_run_with_the_cause(caplog):
    environment = make_environment(make_system(), scorer=lambda dialogue: 0.25)
    trainer = trainer_of(environment, Choosy(), training_steps=100)
    with pytest.raises(RunError, match=r"all \d+ rewards are 0.25, 20 times in a row"):
        trainer.train()
    assert [r.levelname for r in caplog.records].count("WARNING") == 1
    assert trainer.harness.experiences == 20


class WrongLength(Scorer):
    def score(self, dialogues):
        return [0.5] * (len(dialogues) + 1)


def test_a_scorer_that_gives_another_number_of_scores_is_named_with_its_line():
    environment = make_environment(make_system(), scorer=WrongLength())
    with pytest.raises(
        ContractError, match=r"WrongLength.score.*test_harness_faults.py.*returned 13 .* 12"
    ):
        trainer_of(environment).train()


@pytest.mark.parametrize(
    ("score", "failure"),
    [
        (math.nan, "returned value nan; a finite number is expected"),
        (Score(failure="busy"), "busy"),
        ("high", "returned 'high'; a number or Score is expected"),
    ],
)
def test_what_is_no_score_is_a_failed_exchange_and_no_reward(score, failure):
    class Odd(Scorer):
        def score(self, dialogues):
            return [score if d.turns == 1 else 1.0 for d in dialogues]

    environment = make_environment(make_system(), scorer=Odd())
    trees = environment.rollouts([1, 2])
    for tree in trees:
        first, second = tree.levels()
        assert all(failure in node.failure and not node.valid for node in first)
        assert all(node.valid and node.reward == 1.0 for node in second)
    trainer_of(environment).train()


def test_a_scorer_that_raises_once_costs_one_exchange():
    class Raising(Scorer):
        def score(self, dialogues):
            if any(d.probe == probe for d in dialogues):
                raise ValueError("not today")
            return [1.0] * len(dialogues)

    probe = next(make_environment(make_system()).rollouts([1])[0].nodes()).probe
    nodes = list(make_environment(make_system(), scorer=Raising()).rollouts([1])[0].nodes())
    failed = [node for node in nodes if node.failure]
    assert failed
    assert all(node.probe == probe for node in failed)
    assert all("Raising raised ValueError: not today" in node.failure for node in failed)


class Silenced:
    """A target that does not answer some probes."""

    def __init__(self, system, silent):
        self._system, self._silent = system, silent

    def __getattr__(self, name):
        return getattr(self._system, name)

    def responses(self, dialogues, streams):
        answers = self._system.responses(dialogues, streams)
        failed = Utterance("", [], [], [], failure="the endpoint gave 503")
        return [
            failed if self._silent(d) else answer
            for d, answer in zip(dialogues, answers, strict=True)
        ]


def test_a_target_that_does_not_answer_is_a_failed_exchange_that_nothing_follows():
    scored = []

    def score(dialogue):
        scored.append(dialogue)
        return 1.0

    # Nothing is empty, which would be no question.
    section = {**SECTION, "tester": {"max_new_tokens": 4, "min_new_tokens": 4}}
    system = Silenced(make_system(section=section), lambda dialogue: dialogue.turns == 2)
    environment = make_environment(system, scorer=score, tree_depth=3)
    (tree,) = environment.rollouts([3])
    first, second = tree.levels()
    assert all(node.valid for node in first)
    assert [node.failure for node in second] == ["the endpoint gave 503"] * 4
    assert not any(node.children for node in second)
    assert len(scored) == 2
    trainer = trainer_of(environment, training_steps=1)
    trainer.train()
    assert trainer.harness.metrics["rollout/failed"] == pytest.approx(4 / 6)
    assert trainer.harness.metrics["rollout/reward"] == 1.0


def test_a_target_that_never_answers_ends_the_run_with_its_words():
    environment = make_environment(Silenced(make_system(), lambda dialogue: True))
    with pytest.raises(RunError, match="all 4 exchanges .* failed.*endpoint gave 503"):
        trainer_of(environment).train()


class NoLoss(PolicyGradient):
    def step(self, batch):
        return torch.zeros(()), {}


class Alone(PolicyGradient):
    def step(self, batch):
        return super().step(batch)[0]


class NotANumber(PolicyGradient):
    def step(self, batch):
        loss, logs = super().step(batch)
        return loss * math.nan, logs


@pytest.mark.parametrize(
    ("algorithm", "error", "message"),
    [
        (NoLoss, ContractError, "NoLoss.step returned a loss that is no scalar tensor with a grad"),
        (Alone, ContractError, r"Alone.step returned Tensor; \(loss, logs\) is expected"),
        (NotANumber, NonFiniteError, "loss is not finite in step 1"),
    ],
)
def test_a_loss_that_nothing_can_be_learned_from_is_refused(algorithm, error, message):
    system = make_system()
    before = weights(system)
    with pytest.raises(error, match=message):
        trainer_of(make_environment(system), algorithm()).train()
    assert all(torch.equal(before[k], v) for k, v in weights(system).items())


class LongSteps(DialogueEnvironment):
    def reward(self, nodes):
        return [{"score": 1.0}] * (len(nodes) - 1)


def test_rewards_of_another_number_are_refused_by_name():
    environment = make_environment(make_system(), cls=LongSteps)
    with pytest.raises(
        ContractError, match=r"LongSteps.reward \(.*\) returned 3 rewards for 4 exchanges"
    ):
        trainer_of(environment).train()


class MyConfig(TrainingConfiguration):
    def __init__(self):
        super().__init__(
            lr=1e-3,
            batch_size=4,
            optimizer="adamw",
            gradient_accumulation_steps=1,
            training_steps=3,
            num_episodes_per_experience=2,
        )
        self.eval_every = 2
        self.ckpt_dir = "checkpoints"


class MyTrainer(HarnessTrainer):
    def __init__(self, config: MyConfig, environment, algorithm, dev_prompts=None):
        super().__init__(config, environment, algorithm)
        self.dev_prompts = dev_prompts or []
        os.makedirs(self.config.ckpt_dir, exist_ok=True)
        self.evaluated = []

    def _save_hf(self, step):
        folder = os.path.join(self.config.ckpt_dir, f"step-{step}")
        self.environment.system.attacker.save_pretrained(folder)

    @torch.no_grad()
    def _eval_dev(self, step, tag="dev"):
        trees = self.environment.eval_rollouts(self.dev_prompts, range(len(self.dev_prompts)))
        self.evaluated.append((step, tag, len(trees)))

    def train(self):
        for step in range(1, self.config.training_steps + 1):
            for batch in self.harness.experience():
                loss, _ = self.harness.step(batch)
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            if step % self.config.eval_every == 0:
                self._eval_dev(step)
                self._save_hf(step)


def test_a_trainer_with_a_loop_and_a_configuration_of_its_own_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    system = make_system()
    before, config = weights(system), MyConfig()
    trainer = MyTrainer(config, make_environment(system), PolicyGradient(), dev_prompts=PROMPTS)
    assert trainer.config is config
    trainer.train()
    assert trainer.evaluated == [(2, "dev", len(PROMPTS))]
    assert (tmp_path / "checkpoints/step-2/model.safetensors").is_file()
    assert any(not torch.equal(before[k], v) for k, v in weights(system).items())
    # Its own steps of the optimizer reach what is sampled from.
    system.sync_weights()
    (node,) = system.probes([environment_context(trainer)], [(0, 0, 0, 0, 0)])
    assert node.version == system.models["tester"].train.version > 0


def environment_context(trainer):
    return trainer.environment.contexts(["abc"])[0]


@pytest.mark.parametrize(
    ("models", "section", "message"),
    [
        ({"target": {**TINY, "train": "local"}}, {}, "target 'target' is trained; name a frozen"),
        (
            {"baseline": {**TINY, "train": "local"}},
            {"baseline": "baseline"},
            "baseline 'baseline' is trained; name a frozen",
        ),
        ({"tester": TINY}, {}, "model 'tester' is frozen; give models.tester.train"),
        ({}, {"target": {"model": "tagret"}}, "no model 'tagret' in models; it has: target, test"),
    ],
)
def test_models_in_the_wrong_place_are_refused(models, section, message):
    whole = {"tester": {**TINY, "train": "local"}, "target": TINY, **models}
    with pytest.raises(ConfigError, match=message):
        LanguageModelSystem.load(whole, {**SECTION, **section})
