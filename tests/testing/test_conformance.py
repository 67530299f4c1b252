"""Every built-in trainer, evaluator, scorer and sandbox passes the kit.

All trainers train in the fast tier. That they stop, repeat and resume, which takes three more
trainings, is tried there with one of each family, and with the others in the integration tier.
"""

import copy
import shutil
import subprocess
import sys

import pytest

from plugrl.core.experiment import prepare, start
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.dialogue.scorer import make_scorer, score_dialogues
from plugrl.testing import tiny
from plugrl.testing.suite.test_evaluator import EvaluatorContract
from plugrl.testing.suite.test_sandbox import SandboxContract
from plugrl.testing.suite.test_scorer import ScorerContract
from plugrl.testing.suite.test_trainer import TrainerContract
from plugrl.trainers.kit import TALKING


class BuiltInTrainer(TrainerContract):
    """Passes the kit; a new process would import torch and torchrl for seconds."""

    @pytest.mark.integration
    def test_a_new_process_finds_the_same(self, record, cls, plugrl_new_process):
        super().test_a_new_process_finds_the_same(record, cls, plugrl_new_process)

    def test_its_last_step_is_known(self, plugrl_run, plugrl_recorder):
        """So a run that is asked to stop in that step is done; tests that follow are no step."""
        tests = plugrl_run.config.get("rl", {}).get("num_test_iterations", 0)
        assert plugrl_recorder.complete[-1] == (not tests)


class RelatedTrainer(BuiltInTrainer):
    """Shares how it stops, repeats and resumes with another trainer, which tries that."""

    @pytest.mark.integration
    def test_it_stops_when_asked(self, plugrl_trainer_config, trainer):
        super().test_it_stops_when_asked(plugrl_trainer_config, trainer)

    @pytest.mark.integration
    def test_equal_seeds_give_equal_numbers(self, plugrl_run, plugrl_trainer_config):
        super().test_equal_seeds_give_equal_numbers(plugrl_run, plugrl_trainer_config)

    @pytest.mark.integration
    def test_resumed_it_equals_the_uninterrupted_run(self, plugrl_run, trainer, tmp_path):
        super().test_resumed_it_equals_the_uninterrupted_run(plugrl_run, trainer, tmp_path)


@pytest.mark.integration
class TestSelfHostedGrpo(BuiltInTrainer):
    __test__ = True
    plugrl_trainer = "self_hosted_grpo"


@pytest.mark.integration
class TestSelfHostedCrossEntropy(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "self_hosted_cross_entropy"


@pytest.mark.integration
class TestSelfHostedOpd(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "self_hosted_opd"


@pytest.mark.integration
class TestRemoteApiGrpo(BuiltInTrainer):
    __test__ = True
    plugrl_trainer = "remote_api_grpo"


@pytest.mark.integration
class TestRemoteApiCrossEntropy(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "remote_api_cross_entropy"


@pytest.mark.integration
class TestRemoteApiOpd(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "remote_api_opd"


@pytest.mark.integration
class TestSelfHostedDpo(BuiltInTrainer):
    __test__ = True
    plugrl_trainer = "self_hosted_dpo"


@pytest.mark.integration
class TestRewardModel(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "reward_model"


@pytest.mark.integration
class TestSequence(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "sequence"


@pytest.mark.integration
class TestEvaluation(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "evaluation"


@pytest.mark.integration
class TestVanillaPpo(BuiltInTrainer):
    __test__ = True
    plugrl_trainer = "vanilla_ppo"


@pytest.mark.integration
class TestReinforce(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "reinforce"


@pytest.mark.integration
class TestA2c(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "a2c"


@pytest.mark.integration
class TestDqn(BuiltInTrainer):
    __test__ = True
    plugrl_trainer = "dqn"


@pytest.mark.integration
class TestSac(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "sac"


@pytest.mark.integration
class TestTd3(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "td3"


@pytest.mark.integration
class TestSpg(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "spg"


@pytest.mark.integration
class TestHarness(BuiltInTrainer):
    __test__ = True
    plugrl_trainer = "harness"


@pytest.mark.integration
class TestHfAst(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "hf_ast"


@pytest.mark.integration
class TestSoloAgent(BuiltInTrainer):
    __test__ = True
    plugrl_trainer = "solo_agent"


class StagedTrainer(RelatedTrainer):
    """Fine-tunes by jobs, of one pass over their examples here."""

    @pytest.fixture(scope="class")
    @classmethod
    def plugrl_trainer_config(cls, plugrl_trainer_config):
        one_pass = {"models": {"policy": {"fine_tune": {"epochs": 1}}}}
        return tiny.merged(plugrl_trainer_config, one_pass)


@pytest.mark.integration
class TestExpertIteration(StagedTrainer):
    __test__ = True
    plugrl_trainer = "ei_pure_text"


@pytest.mark.integration
class TestGrpoPureText(BuiltInTrainer):
    __test__ = True
    plugrl_trainer = "grpo_pure_text"


@pytest.mark.integration
class TestMalt(StagedTrainer):
    __test__ = True
    plugrl_trainer = "malt_pure_text"


@pytest.mark.integration
class TestRolloutAnalysis(RelatedTrainer):
    __test__ = True
    plugrl_trainer = "rollout_analysis"

    @pytest.fixture(scope="class")
    @classmethod
    def plugrl_trainer_config(cls, tmp_path_factory):
        """Questions about the rollouts of a run that another trainer of the kit made."""
        talk = tiny.config("ei_pure_text", tmp_path_factory.mktemp("talk"), TALKING)
        # So that there are two files.
        talked = start(prepare(tiny.merged(talk, {"text_rl": {"test_scheme": "none"}})))
        source = tiny.merged(
            talk["models"]["policy"]["source"], {"config": {"max_position_embeddings": 4096}}
        )
        removed = dict.fromkeys(("data", "rollout_worker", "validate"))
        trainer = {"total_train_steps": None, "rollouts": str(talked.folder), "model": "policy"}
        sections = {
            **removed,
            "models": {"policy": {"source": source, "train": None}},
            "trainer": {**trainer, "max_answer_length": 4},
        }
        return tiny.config("rollout_analysis", tmp_path_factory.mktemp("task"), sections)


@pytest.mark.integration
class TestExactMatch(EvaluatorContract):
    __test__ = True
    plugrl_evaluator = "exact_match"


@pytest.mark.integration
class TestRegex(EvaluatorContract):
    __test__ = True
    plugrl_evaluator = "regex"


@pytest.mark.integration
class TestMath(EvaluatorContract):
    __test__ = True
    plugrl_evaluator = "math"


@pytest.mark.integration
class TestWeighted(EvaluatorContract):
    __test__ = True
    plugrl_evaluator = "weighted"


@pytest.mark.integration
class TestLlmJudge(EvaluatorContract):
    __test__ = True
    plugrl_evaluator = "llm_judge"


@pytest.mark.integration
class TestCode(EvaluatorContract):
    __test__ = True
    plugrl_evaluator = "code"


@pytest.mark.integration
class TestReasoningGym(EvaluatorContract):
    __test__ = True
    plugrl_evaluator = "reasoning_gym"


@pytest.mark.integration
class TestRewardModelEvaluator(EvaluatorContract):
    __test__ = True
    plugrl_evaluator = "reward_model"

    @pytest.fixture(scope="class")
    @classmethod
    def written(cls, tmp_path_factory):
        return reward_model_folder(tmp_path_factory.mktemp("reward") / "model")

    @pytest.fixture
    def example(self, written):
        """A folder whose rewards are those of the task, as far as random weights go."""
        return {
            **EvaluatorContract.defaults,
            "config": {"path": written},
            "data": {"prompt": "1+1="},
            "right": "2",
            "wrong": "3",
            "refuses": "prompt and answer are longer than its context",
        }

    @pytest.mark.integration
    def test_a_new_process_finds_the_same(self, record, cls, plugrl_new_process):
        """It imports torch."""
        super().test_a_new_process_finds_the_same(record, cls, plugrl_new_process)


def reward_model_folder(folder):
    """Write a small classifier that gives the answer 2 a larger number than the answer 3."""
    import torch

    from plugrl.core.config.view import ConfigView
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.inference.services import ModelSpec
    from plugrl.core.text.trajectory import Trajectory
    from plugrl.plugins.transformers.loading import load_tokenizer
    from plugrl.plugins.transformers.train_service import LocalTrainService

    config = {
        "model_type": "gpt2",
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 64,
        "initializer_range": 0.5,
    }
    source = {"path": None, "config": config, "tokenizer": {"characters": "0123456789+="}}
    spec = ModelSpec("policy", ConfigView({**source, "dtype": "float32"}, checked=True), 0, "cpu")
    service, tokenizer = LocalTrainService({"value_head": True}), load_tokenizer(spec)
    service.load(spec)
    head = service._forward.value_head
    head.weight.data = torch.linspace(-1, 1, 16)[None]
    ends = [tokenizer.encode(f"1+1={answer}") + [tokenizer.eos_token_id] * 2 for answer in "23"]
    rows = [Trajectory(tokens, [0] * (len(tokens) - 1) + [1]) for tokens in ends]
    right, wrong = service.compute_values(Batch.from_trajectories(rows)).sum(1).tolist()
    head.weight.data *= 1.0 if right > wrong else -1.0
    service.export_scorer(folder, tokenizer)
    return str(folder)


@pytest.mark.integration
class TestLexiconScorer(ScorerContract):
    __test__ = True
    plugrl_scorer = "lexicon"


@pytest.mark.integration
class TestRegexScorer(ScorerContract):
    __test__ = True
    plugrl_scorer = "regex"


@pytest.mark.integration
class TestWeightedScorer(ScorerContract):
    __test__ = True
    plugrl_scorer = "weighted"


@pytest.mark.integration
class TestLlmJudgeScorer(ScorerContract):
    __test__ = True
    plugrl_scorer = "llm_judge"


class ModelScorerContract(ScorerContract):
    """Of scorers with random weights: of two answers, the one with the higher score is bad."""

    @classmethod
    def model(cls, folder):
        """Write the model; give the scorer's section."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def written(cls, tmp_path_factory):
        section = {**cls.model(tmp_path_factory.mktemp("scorer") / "model"), "device": "cpu"}
        example = {
            **ScorerContract.defaults,
            "config": section,
            "refuses": "a text without tokens, or too long",
        }
        answers = [example["bad"], example["good"]]
        dialogues = [cls().said(example, answer) for answer in answers]
        scorer = make_scorer({"type": cls.plugrl_scorer, **section}, None)
        values = [score.value for score in score_dialogues(scorer, dialogues)]
        example["good"], example["bad"] = sorted(answers, key=lambda a: values[answers.index(a)])
        return example

    @pytest.fixture
    def example(self, written):
        return copy.deepcopy(written)

    @pytest.mark.integration
    def test_a_new_process_finds_the_same(self, record, cls, plugrl_new_process):
        """It imports torch."""
        super().test_a_new_process_finds_the_same(record, cls, plugrl_new_process)


@pytest.mark.integration
class TestClassifierScorer(ModelScorerContract):
    __test__ = True
    plugrl_scorer = "classifier"

    @classmethod
    def model(cls, folder):
        from transformers import AutoModelForSequenceClassification

        random_model(folder, AutoModelForSequenceClassification, "bert", num_labels=2)
        return {"path": str(folder), "labels": ["LABEL_1"]}


@pytest.mark.integration
class TestGuardScorer(ModelScorerContract):
    __test__ = True
    plugrl_scorer = "guard"

    @classmethod
    def model(cls, folder):
        from transformers import AutoModelForCausalLM

        random_model(folder, AutoModelForCausalLM, "llama")
        return {"path": str(folder), "unsafe": "no", "safe": "yes"}


def random_model(folder, auto, kind, **options):
    """Write a small model whose tokens are letters."""
    import torch
    from transformers import AutoConfig

    from plugrl.plugins.transformers.tokenizer import character_tokenizer

    tokenizer = character_tokenizer("abcdefghijklmnopqrstuvwxyzHIMW .?")
    config = AutoConfig.for_model(
        kind,
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        **options,
    )
    torch.manual_seed(0)
    auto.from_config(config).save_pretrained(folder)
    tokenizer.wrapped.save_pretrained(folder)


@pytest.mark.integration
class TestLocal(SandboxContract):
    __test__ = True
    plugrl_sandbox = "local"


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
class TestBubblewrap(SandboxContract):
    __test__ = True
    plugrl_sandbox = "bubblewrap"


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["trainer", "evaluator", "scorer", "sandbox"])
def test_every_built_in_has_a_row(kind):
    built_in = {r.name for r in default_registry().records(kind) if r.distribution == "plugrl"}
    contracts = [c for c in globals().values() if isinstance(c, type)]
    checked = {getattr(c, f"plugrl_{kind}", None) for c in contracts}
    assert built_in <= checked


@pytest.mark.integration
def test_the_pytest_plugin_imports_pytest_alone():
    program = (
        "import sys, pytest; before = set(sys.modules); import plugrl.testing.plugin; "
        "print(*sorted(name.split('.')[0] for name in set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {"plugrl"}
