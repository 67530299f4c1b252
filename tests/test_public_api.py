"""The public names are frozen: adding one is a decision, removing one breaks users."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plugrl
from plugrl.commands._scaffold import files
from plugrl.commands._templates import TEMPLATES

ROOT = Path(__file__).parents[1]

PUBLIC = """
AdamParams Agent AgentEvaluationTarget AgentRolloutWorker AgentRolloutWorkerConfig AgentSpaces
AgentStep AlgorithmConfig BaseEvaluationTarget BaseTrainService Batch Body Capabilities Completion
Component ConfigError ConfigView ContractError Conversation DPO DQN DataSetName Datum Dialogue
DialogueConfig DialogueEnvironment Environment EvaluationRunResult Evaluator Executor ExecutorConfig
ExperimentSettings
FineTuneConfig FineTuneService ForwardBackward GRPO GeneralisedAdvantage GenerationRequest
HFASTConfiguration HFASTTrainer HOOK_API Harness HarnessAlgorithm HarnessTrainer Hub HyperParameters
InMemoryTracer InferenceService IterationContext JobContext JobStatus Labelled LanguageModelSystem
LaunchJob LaunchStatus Launcher Layout LocalSandbox MessageSpace ModelSpec NAMED_LOSSES NamedLoss
NestedArrayDict NoConfig OptimizerConfig PPO ParsedReply Parser PluginError PlugrlDeprecationWarning
PlugrlError Policy PreferenceExample Preflight ProgramJob ProgramLimits ProgramOutcome Protocol
ProtocolConfig ProtocolEnvironment ProtocolOutcome ProtocolRoundsConfig ProtocolSignals
ProtocolState PureTextRlTrainer Registry RemoteAlgorithmConfig RemoteApiTrainer
RemoteApiTrainerConfig RemoteLossConfig RemoteTrainService RolloutNode RolloutTask RolloutTree
RolloutWorker RolloutWorkerConfig Run RunError RunResult SAC SFT SamplingParams Sandbox Scenario
ScenarioInstance Score Scorer ScorerConfig Searcher SelfHostedTrainer SelfHostedTrainerConfig
SharedModelGroup Snapshot StopRun SupervisedExample System TD3 Tally TensorDictRlTrainer
TensorDictTrainer TensorDictTrainerConfig TensorEnvironment Tokenizer ToolCall TrackedRun Tracker
TrainService Trainer TrainerContext TrainingConfiguration TrainingResult Trajectory
TrajectoryTrainer TrajectoryTrainerConfig Trial UsageError VectorEnvironment Verdict WeightedLoss
WorkerHandle
__version__ attach_progress_bar component compute_grpo_advantage_for_trajectories
compute_position_id_with_mask described evaluate_red_team group_numbers hookimpl load_run
log_grpo_metrics log_rollout_metrics make_protocol make_scorer masked_sum padding_data
register_advantage register_body register_data_map register_dialogue_environment
register_environment register_evaluator register_executor register_fine_tune_service
register_harness_algorithm
register_hub register_inference_service register_launcher register_loss register_parser
register_protocol register_rollout_worker register_sandbox register_scenario register_scorer
register_searcher
register_tracker register_train_service register_trainer resume supervised_examples train
trajectory_of
"""


def test_names_are_frozen():
    assert sorted(plugrl.__all__) == PUBLIC.split()
    assert set(plugrl.__all__) <= set(dir(plugrl))


def test_every_name_can_be_imported():
    for name in plugrl.__all__:
        assert getattr(plugrl, name) is not None


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match=r"^module 'plugrl' has no attribute 'trian'$"):
        getattr(plugrl, "trian")  # noqa: B009 - the name is the point


def test_importing_plugrl_and_its_light_names_loads_no_large_package():
    script = (
        "import sys, plugrl; plugrl.Registry, plugrl.register_trainer, plugrl.ConfigError; "
        "large = {'torch', 'omegaconf', 'transformers', 'pluggy', 'numpy', 'rich', 'typer'}; "
        "print(sorted(large & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def written_for_authors():
    """The Python that plugin authors are shown, by where it stands."""
    for kind in TEMPLATES:
        for name, text in files(f"plugrl-shown-{kind.replace('_', '-')}", kind).items():
            if name.endswith(".py"):
                yield f"{kind}: {name}", text
    for path in (ROOT / "examples").rglob("*.py"):
        yield str(path.relative_to(ROOT)), path.read_text("utf-8")
    spec = importlib.util.spec_from_file_location("_blocks", ROOT / "tests" / "docs" / "blocks.py")
    blocks = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = blocks
    spec.loader.exec_module(blocks)
    for page in blocks.PAGES:
        for block in blocks.blocks_of(page.read_text("utf-8")):
            if block.language == "python":
                yield f"{page.relative_to(ROOT)}:{block.line}", block.text


def private_imports(text):
    """What a text imports or reads from plugrl besides the public names and the kit."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("plugrl.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "plugrl":
            public = node.module == "plugrl"
            found += [
                f"{node.module}.{a.name}"
                for a in node.names
                if not (public and a.name in plugrl.__all__)
            ]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "plugrl":
            found += [f"plugrl.{node.attr}"] if node.attr not in plugrl.__all__ else []
    return [name for name in found if not name.startswith("plugrl.testing")]


def test_authors_are_shown_public_names_only():
    shown = dict(written_for_authors())
    pages = {where.partition(":")[0] for where in shown}
    assert {f"docs/{name}.md" for name in ("rollouts", "plugins", "tutorial")} <= pages
    assert len([text for text in shown.values() if "plugrl" in text]) > 10
    assert {where: found for where, text in shown.items() if (found := private_imports(text))} == {}


def test_pages_name_no_private_module():
    folders = (ROOT / "docs", ROOT / "examples")
    pages = [ROOT / "README.md", *(page for folder in folders for page in folder.rglob("*.md"))]
    named = {
        str(page.relative_to(ROOT)): found
        for page in pages
        if (found := re.findall(r"plugrl\.core\.\w+", page.read_text("utf-8")))
    }
    assert len(pages) > 10
    assert named == {}


def test_a_private_name_is_noticed():
    text = "import plugrl.core.plugins.hooks\nfrom plugrl import train, trian\nplugrl.core\n"
    text += "from plugrl.core.text import batch\nfrom plugrl.testing.suite import test_trainer\n"
    assert sorted(private_imports(text)) == [
        "plugrl.core",
        "plugrl.core.plugins.hooks",
        "plugrl.core.text.batch",
        "plugrl.trian",
    ]
