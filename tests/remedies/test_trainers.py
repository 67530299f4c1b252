"""Every remedy that messages of trainers recommend is tried, and helps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from remedies import Row, row, tiered, tried, untried
from testers import SECTION, TINY, PolicyGradient, make_environment, make_system
from trials import Read, Trial, tiered_trials, trained

from plugrl import Batch, HFASTConfiguration, TrainingConfiguration, Trajectory
from plugrl.core.config.check import configure
from plugrl.core.experiment import prepare, start
from plugrl.scenarios.red_team.scenario import RedTeamScenario
from plugrl.testing import tiny
from plugrl.trainers import harness as harness_trainer
from plugrl.trainers.advantages.gae import gae
from plugrl.trainers.ei_pure_text import ExpertIterationTrainer
from plugrl.trainers.grpo_pure_text import GrpoPureTextTrainer
from plugrl.trainers.harness import HarnessTrainer
from plugrl.trainers.hf_ast import HFASTTrainer
from plugrl.trainers.losses.kto import KtoConfig, kto
from plugrl.trainers.opponent_shaping import inverse_hessian
from plugrl.trainers.opponent_shaping.leader_order import sequence_of
from plugrl.trainers.preference import PreferenceTrainer
from plugrl.trainers.red_team.trees import reference_of
from plugrl.trainers.reward_model import RewardModelTrainer, bradley_terry
from plugrl.trainers.self_hosted_dpo import SelfHostedDpoTrainer, dpo
from plugrl.trainers.self_hosted_grpo import grpo

_OTHER = "{config: {model_type: qwen3, hidden_size: 8}, tokenizer: {characters: '0123456789+='}}"
_JOBS, _DPO = "arithmetic_claims_ei", "trainer.phases.1"
_REFERENCE = f"{_DPO}.models.reference.source"
#: A phase of the recipe, and what it has of the other trainer's section.
_MALT = "trainer.phases.1.trainer= trainer.phases.1.trainer.type=malt_pure_text"
_MASKED = (
    "rl=null scenario= scenario={type: pettingzoo,"
    " environment: tests/scenarios/scripted_agents.py:Masked, env_kwargs: {possible: [a],"
    " start: {a: 10}, steps: [{agents: [a], a: [11, 1, false, false]}]}}"
)
_GAME = "scenario= scenario={type: pettingzoo, environment: tictactoe_v3} rl=null"
ROWS: list[Row] = [
    row(
        "trainer.type=solo_agent rl=null",
        "take a scenario whose agents do",
        "scenario= scenario={type: image_classification}",
        base="nets",
    ),
    row("trainer.type=reinforce rl.clip_value=true", "leave it out", "-rl.clip_value", base="nets"),
    *(
        row(
            "trainer.type=dqn scenario.id=Pendulum-v1 rl=null",
            "dqn chooses one of several actions, and those of agent {} are {}; take {}",
            f"trainer.type={remedy}",
            base="nets",
        )
        for remedy in ("sac", "td3", "vanilla_ppo")
    ),
    *(
        row(
            f"trainer.type={section} rl=null",
            "{} chooses real numbers, and the actions of agent {} are {}; take",
            f"trainer.type={remedy}",
            base="nets",
        )
        for section in ("sac", "td3")
        for remedy in ("dqn", "vanilla_ppo")
    ),
    *(
        row(
            f"trainer.type=dqn {_MASKED}",
            "forbids; take vanilla_ppo, a2c or reinforce",
            f"trainer.type={remedy}",
            base="nets",
        )
        for remedy in ("vanilla_ppo", "a2c", "reinforce")
    ),
    row(
        f"{_GAME} ppo.implementation=torchrl",
        "takes each step for its own agent's; set ppo.implementation: plugrl",
        "ppo.implementation=plugrl",
        base="nets",
    ),
    row(
        "ppo.anneal_clip=true ppo.loss_type=kl_penalty",
        "anneal_clip has no effect on loss_type {}, which clips nothing; leave it out",
        "-ppo.anneal_clip",
        base="nets",
    ),
    row(
        "sac.auto_alpha=false sac.target_entropy=-1",
        "target_entropy has no effect without auto_alpha; leave it out",
        "-sac.target_entropy",
        base="pendulum_sac",
    ),
    *(
        row(
            "trainer.type=reinforce rl.lmbda=0.5",
            "set it to true, or remove this",
            edit,
            base="nets",
        )
        for edit in ("reinforce.use_advantage_and_critic=true", "-rl.lmbda")
    ),
    row("rl.compile=true", "has no effect on spg; remove it", "-rl.compile", base="dilemma_lola"),
    row(
        "spg.stackelberg_sequence=[[first],[],[second]]",
        "has an empty group; take it out",
        "spg.stackelberg_sequence=[[first],[second]]",
        base="dilemma_lola",
    ),
    row(
        "spg.stackelberg_sequence=[[leader],[second]]",
        "; take {}",
        "spg.stackelberg_sequence=[[first],[second]]",
        base="dilemma_lola",
    ),
    row(
        "spg.variant=spg",
        "give groups, such as [[leader], [follower]]",
        "spg.stackelberg_sequence=[[first],[second]]",
        base="dilemma_lola",
    ),
    row(
        "trainer.type=grpo_pure_text",
        "or the trainer self_hosted_grpo for a single agent",
        "trainer.type=self_hosted_grpo",
    ),
    row(
        "trainer.type=grpo_pure_text",
        "take the worker protocol",
        "rollout_worker= rollout_worker.type=protocol",
        left="label",
    ),
    row(
        f"{_MALT} trainer.phases.1.text_rl.verifier_guess_replacement_proportion=0.5",
        "malt_pure_text learns from comparisons; write 0",
        "trainer.phases.1.text_rl.verifier_guess_replacement_proportion=0",
        base=_JOBS,
    ),
    row(
        f"{_MALT} trainer.phases.1.trainer.num_responses_per_timestep=100",
        "are possible; lower it",
        "trainer.phases.1.trainer.num_responses_per_timestep=2",
        base=_JOBS,
    ),
    row(
        f"{_MALT} trainer.phases.1.trainer.num_responses_per_timestep=100"
        " trainer.phases.1.rollout_worker.protocol.type=nip",
        ", or rollout_worker.protocol.max_message_rounds",
        "trainer.phases.1.rollout_worker.protocol.max_message_rounds=1",
        base=_JOBS,
        left="protocol",
    ),
    row(
        "trainer.phases.1.rollout_worker.evaluator=exact_match",
        "a reward model gives no answers to be judged; leave it out",
        "-trainer.phases.1.rollout_worker.evaluator",
        base="reward_model",
    ),
    *(
        row(
            f"{_REFERENCE}= {_REFERENCE}={_OTHER}",
            "give both one configuration, or write source",
            edit,
            base="dpo",
        )
        for edit in (
            f"{_DPO}.trainer.algorithm.reference_weights=source",
            f"{_REFERENCE}= {_REFERENCE}=${{models.policy.source}}",
        )
    ),
]


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


PROMPTS = ["abc", "dd", "ef"]
#: Sections of trainers that read judged answers, as the conformance kit trains them.
JUDGED = SelfHostedDpoTrainer.conformance


def attempts(**fields):
    """Two attempts at a problem, and what else they say."""
    made = []
    for number, reward in enumerate((1.0, 0.0)):
        own = {name: values[number] for name, values in fields.items()}
        numbers = {"logprobs": [0.0, -1.0, -1.0], "reward": reward}
        made.append(
            Trajectory(
                [2, 3, 4], [0, 1, 1], group_id="g", run_id=number, extra_fields=own, **numbers
            )
        )
    return Batch.from_trajectories(made)


def advantage(name):
    """Advantages of a batch of rewards alone."""
    function = {"gae": gae, "grpo": grpo}[name]
    batch, two = attempts(), torch.arange(2)
    config = configured(function.Config)
    function(torch.tensor([1.0, 0.0]), two * 0, two, two >= 0, batch, config)


def prompts(scenario):
    """The prompts of a trainer that has a scenario, or none."""
    section = None if scenario is None else RedTeamScenario({}).build(0)
    assert harness_trainer._prompts_of(SimpleNamespace(scenario_instance=section), "train")


def by_agent(fields):
    GrpoPureTextTrainer({})._compute_advantage(attempts(**fields))


def preferences(fields):
    batch = attempts(**fields)
    batch.metadata["run_id"] *= 0
    PreferenceTrainer._prepare_batch(SelfHostedDpoTrainer({}), batch)


def single(loss):
    """Answers of which each has a label of its own, for a loss that compares or does not."""
    function = {"dpo": dpo, "kto": kto}[loss]
    trainer = SimpleNamespace(
        _compares=function.compares_pairs, _loss=SimpleNamespace(name=function.__name__)
    )
    PreferenceTrainer._check_layout(trainer, [Trajectory([2, 3], [0, 1], group_id="g")])


def desirable(point):
    """The loss kto in a trainer of one's own, or in that which sets its reference point."""
    if point == "self_hosted_dpo":
        trained(point, tiny.merged(JUDGED, {"trainer": {"algorithm": {"loss": "kto"}}}))
        return
    batch = attempts(preferred=(1.0, 0.0))
    batch.values["ref_log_probs"] = torch.zeros(2, 3)
    batch.metadata |= {} if point is None else {"kl_reference": torch.tensor(point)}
    kto(torch.zeros(2, 3), batch, configured(KtoConfig))


def configured(cls):
    return configure(SimpleNamespace(Config=cls, __name__="loss"), {})


def pairs(how):
    """The loss bradley_terry in a trainer of one's own, or in that which has values."""
    if how:
        trained("reward_model", RewardModelTrainer.conformance)
        assert RewardModelTrainer.conformance["models"]["policy"]["train"] == {how: True}
        return
    bradley_terry(torch.zeros(2, 3), attempts(preferred=(1.0, 0.0)), None)


def baseline(section):
    """What an algorithm that compares with a baseline reads of exchanges."""
    keys = {} if section is None else {section: "baseline"}
    system = make_system(section={**SECTION, **keys}, **({"baseline": TINY} if keys else {}))
    environment = make_environment(system, tree_width=1, **keys)
    for tree in environment.rollouts([0]):
        for node in tree.nodes():
            reference_of(node, "dpo")


def harness(algorithm):
    own = {"lr": 3e-3, "training_steps": 1, "num_episodes_per_experience": 1, "batch_size": 1}
    section = {**SECTION, "baseline": "baseline"}
    system = make_system(section=section, baseline=TINY)
    environment = make_environment(system, tree_width=4, baseline="baseline")
    HarnessTrainer(TrainingConfiguration(**own), environment, algorithm).train()


def hf(own):
    keys = {"lr": 1e-2, "training_steps": 1, "num_episodes_per_experience": 1, "batch_size": 2}
    options = {"dev_prompts": PROMPTS, "eval_every": 0, **own.get("arguments", {})}
    with tempfile.TemporaryDirectory() as folder:
        HFASTTrainer(
            HFASTConfiguration(**keys, **own.get("options", {})),
            make_environment(make_system()),
            PolicyGradient(),
            ckpt_dir=folder,
            **options,
        ).train()


def inverse(variant):
    """``H^-1 v`` for more parameters than ``exact`` takes, where H is the identity."""
    count = inverse_hessian.LARGEST_EXACT + 1
    arguments = {"exact": (), "nystrom": (2,), "conjugate_gradient": (2,), "neumann": (2,)}
    found = getattr(inverse_hessian, variant)(
        lambda vector: 0.5 * vector, torch.ones(count), 0.5, *arguments[variant]
    )
    assert found.shape == (count,)


def leaders(own):
    """The order of two agents; ``own`` is their groups and their policies."""
    groups, policies = own
    section = SimpleNamespace(stackelberg_sequence=groups, variant="spg")
    environment = SimpleNamespace(spaces={"first": None, "second": None})
    sequence_of(section, environment, policies, set(policies.values()))


def exported(adapter):
    """Exports a reward model that has an adapter."""
    service = SimpleNamespace(export_scorer=lambda folder, tokenizer: None)
    model = SimpleNamespace(trained=lambda: service, inference=SimpleNamespace(tokenizer=None))
    RewardModelTrainer.export(None, model, None, adapter=adapter)


def analysed(trainer, files=()):
    """An analysis of the rollouts of a run of ``trainer``, or of some of its files."""
    sections = {"ei_pure_text": ExpertIterationTrainer.conformance}.get(trainer, {})
    with tempfile.TemporaryDirectory() as folder:
        tree = tiny.config(trainer, Path(folder), sections)
        run = start(prepare(tree))
        analysis = {
            "trainer": {"type": "rollout_analysis", "rollouts": str(run.folder), "model": "policy"}
            | {"files": list(files)},
            "models": tree["models"],
            "settings": tree["settings"],
        }
        start(prepare(analysis))


SEPARATE = {"first": "one", "second": "other"}
TRIALS = [
    Trial("; give one, such as scenario: red_team", prompts, None, Read(r"scenario: (\w+)$")),
    Trial("; choose another trainer.algorithm.advantage", advantage, "gae", "grpo"),
    Trial(
        "take the rollout worker protocol, or set trajectory['agent']",
        by_agent,
        {},
        Read(r"set trajectory\['(\w+)'\]", lambda name: {name: ("prover", "prover")}),
    ),
    Trial(
        "take rollout_worker preference, or set the field",
        preferences,
        {},
        Read(r"field `(\w+)`, 1.0 or 0.0", lambda name: {name: (1.0, 0.0)}),
    ),
    *(
        Trial("loss kto needs batch.metadata['kl_reference']", desirable, None, right)
        for right in (Read(r"take trainer (\w+)"), 0.25)
    ),
    Trial(
        "loss bradley_terry needs batch.values['values']",
        pairs,
        None,
        Read(r"take trainer reward_model and models\.<name>\.train\.(\w+)=true"),
    ),
    Trial(
        "compares a chosen with a rejected one; write trainer.algorithm.loss=kto",
        single,
        "dpo",
        Read(r"trainer\.algorithm\.loss=(\w+)$"),
    ),
    Trial("without baseline_logprobs; name a", baseline, None, Read(r"in red_team\.(\w+)$")),
    *(
        Trial("write a name such as dpo, a section", harness, 3, right)
        for right in (Read(r"such as (\w+),"), {"type": "grpo"}, PolicyGradient())
    ),
    *(
        Trial(
            "whose half precision is slow and has no scaling of gradients",
            hf,
            {"options": {"mixed_precision": "fp16"}},
            Read(rf"write .*?({name})", lambda name: {"options": {"mixed_precision": name}}),
        )
        for name in ("bf16", "no")
    ),
    Trial(
        "is the text {}; give a list of them",
        hf,
        {"arguments": {"dev_prompts": "abc"}},
        {"arguments": {"dev_prompts": ["abc"]}},
    ),
    *(
        Trial(
            "is empty and eval_every is {}; give prompts",
            hf,
            {"arguments": {"dev_prompts": [], "eval_every": 1}},
            {"arguments": right},
        )
        for right in (
            {"dev_prompts": ["abc"], "eval_every": 1},
            {"dev_prompts": [], "eval_every": 0},
        )
    ),
    *(
        Trial("is for followers of at most", inverse, "exact", Read(rf"take .*?({name})"))
        for name in ("nystrom", "conjugate_gradient", "neumann")
    ),
    Trial(
        "which learns; add it to a group",
        leaders,
        ([["first"]], SEPARATE),
        ([["first"], ["second"]], SEPARATE),
    ),
    *(
        Trial(
            "in several groups; put them into one, or give them policies",
            leaders,
            ([["first"], ["second"]], dict.fromkeys(SEPARATE, "shared")),
            right,
        )
        for right in (
            ([["first", "second"]], dict.fromkeys(SEPARATE, "shared")),
            ([["first"], ["second"]], SEPARATE),
        )
    ),
    Trial("leave --adapter out, and it is merged", exported, True, False),
    Trial(
        "name a run of a trainer that saves them",
        analysed,
        "self_hosted_grpo",
        Read(r"such as (\w+)"),
    ),
    Trial(
        "has no rollouts {}; it has: {}; did you mean {}?",
        lambda name: analysed("ei_pure_text", [name]),
        "iteraton-1",
        Read(r"did you mean ([\w-]+)"),
    ),
]


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_what_code_recommends_helps(trial):
    trial.run()


#: Texts that name no key, value or command.
REASONS = {
    "write the {} tester of step {}": "says what failed",
    "name and sections of each phase": "describes an option",
    "trains nothing; choose another trainer.type": "every other trainer trains: tests/trainers",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {each.says for each in (*ROWS, *TRIALS)}
    assert untried("trainers", says, REASONS) == []
