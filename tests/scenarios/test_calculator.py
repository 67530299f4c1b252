"""The calculator: problems, written conversations, and the recipe that learns to use the tool."""

import statistics
from pathlib import Path

import pytest

import plugrl
from plugrl.core.config.sources.lookup import RECIPES
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.text.agents.agent_config import load_agent
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import InferenceService
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.plugins.transformers.tokenizer import CharacterTokenizer
from plugrl.scenarios.calculator.scenario import CalculatorScenario
from plugrl.scenarios.rollout_workers.agent_demonstration import AgentDemonstrationRolloutWorker

AGENT = str(RECIPES / "calculator_agent" / "agent_config.yaml")


def test_splits_share_no_problem_and_held_out_ones_do_not_depend_on_the_seed():
    first, second = (CalculatorScenario({}).build(seed).datasets for seed in (0, 1))
    prompts = [item["prompt"] for items in first.values() for item in items]
    # Both numbers are from 32 to 99.
    assert len(prompts) == len(set(prompts)) == 68 * 68
    assert {split: len(items) for split, items in first.items()} == {
        "validation": 256, "development": 128, "demonstrations": 500, "train": 68 * 68 - 884
    }  # fmt: skip
    assert first["validation"] == second["validation"]
    assert first["development"] == second["development"]
    assert first["train"] != second["train"]


# There are half a million products of three digits.
@pytest.mark.parametrize(
    ("digits", "length"), [(2, 4), pytest.param(3, 6, marks=pytest.mark.integration)]
)
def test_answers_are_products_of_one_length(digits, length):
    items = CalculatorScenario({"digits": digits}).build(0).datasets["validation"]
    for item in items:
        a, b = map(int, item["prompt"].rstrip("=").split("*"))
        assert item["answer"] == str(a * b)
        assert len(item["answer"]) == length
        assert item["demonstration"] == [f"[{a}*{b}]", str(a * b)]


def test_more_problems_than_there_are():
    with pytest.raises(ConfigError, match="5000 problems are asked for .* there are 4624 products"):
        CalculatorScenario({"validation": 5000, "development": 0, "demonstrations": 0}).build(0)
    with pytest.raises(ConfigError, match="digits: must be at least 2"):
        CalculatorScenario({"digits": 1})


def test_the_tool_multiplies_and_evaluates_nothing_else():
    (tool,) = load_agent(AGENT).tools
    assert tool.function("47*83") == "3901"
    assert tool.function("2*3*4") == "24"
    for text in (
        "",
        "4",
        "4*",
        "__import__('os')",
        "9**9",
        "1+1",
        "1*" * 99 + "1 ",
        "9" * 50 + "*1",
    ):
        with pytest.raises(ValueError, match="is no product"):
            tool.function(text)


class NoModel(InferenceService):
    """Demonstrations ask nobody."""

    tokenizer = CharacterTokenizer("0123456789*=[]?")
    vocabulary_size = 17
    max_sequence_length = 48

    def load(self, spec):
        raise AssertionError("it has no weights")

    update_weights = generate = load


def demonstrate(demonstration, **options):
    section = {
        "agent_config": AGENT,
        "tool_parser": "brackets",
        "max_prompt_length": 7,
        "max_response_length": 24,
        **options,
    }
    worker = AgentDemonstrationRolloutWorker(section)
    problem = {"prompt": "47*83=", "answer": "3901", "demonstration": demonstration}
    rollouts = LockstepRollouts(worker, {"policy": NoModel()}, seed=0)
    return rollouts.collect([Prompt(problem, 0, 0, "0/0", 0)], 0, SamplingParams())


def test_a_demonstration_is_written_replies_and_the_results_of_the_tool():
    (trajectory,) = demonstrate(["[47*83]", "3901"])
    spelled = "".join(
        "." if token == 1 else NoModel.tokenizer.decode([token]) for token in trajectory.tokens
    )
    assert spelled == "47*83=.[47*83].3901.3901."
    assert "".join(map(str, trajectory.loss_mask)) == "0000000111111110000011111"
    assert trajectory.finish_reason == "demonstration"
    assert trajectory.logprobs is None
    assert trajectory.metrics["tool_calls"] == 1


@pytest.mark.parametrize(
    ("written", "options", "message"),
    [
        ("3901", {}, r"'demonstration' holds '3901'; a list of the agent's replies is expected"),
        (["[47*83]"], {}, "its demonstration ends with a call, not an answer"),
        (["[4*8]", "[4*8]", "32"], {}, "its demonstration passes max_turns or"),
        (["[47*83]", "3901"], {"max_response_length": 16}, "has 5 tokens, and 3 are left of"),
        (
            ["[47*83]", "3901"],
            {"max_response_length": 13},
            "passes max_turns or rollout_worker.max",
        ),
        (["x"], {}, "no character 'x'"),
    ],
)
def test_demonstrations_that_lead_nowhere(written, options, message):
    with pytest.raises(ConfigError, match=message):
        demonstrate(written, **options)


def test_the_recipe_finds_its_agent_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = prepare("calculator_agent").validated.tree
    assert Path(tree["rollout_worker"]["agent_config"]) == Path(AGENT)


def learnt(tmp_path, overrides):
    overrides = [f"settings.runs_folder={tmp_path}", *overrides]
    run = plugrl.train("calculator_agent", overrides)
    key = "validation/exact_match"
    return [line[key] for line in run.metrics if line.get("phase") == 2 and key in line]


@pytest.mark.integration
def test_two_steps_of_each_phase(tmp_path):
    short = [f"trainer.phases.{i}.trainer.total_train_steps=2" for i in (0, 1)]
    assert len(learnt(tmp_path, short)) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_recipe_learns_to_use_its_tool(tmp_path):
    curves = [learnt(tmp_path / str(seed), [f"seed={seed}"]) for seed in range(3)]
    assert statistics.mean(curve[0] for curve in curves) < 0.5
    assert min(curve[-1] for curve in curves) >= 0.9
