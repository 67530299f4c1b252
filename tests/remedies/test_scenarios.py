"""What scenarios, evaluators, scorers and rollout workers recommend is tried."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from remedies import Row, row, tiered, tried, untried
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, OneHot, Unbounded
from torchrl.envs import EnvBase, Transform, UnaryTransform
from trials import Read, Trial, refused, section, tiered_trials, trained

from plugrl.core.config.check import configure
from plugrl.core.protocol.protocol import ProtocolSignals, Verdict, make_protocol
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.scorer import make_scorer, score_dialogues
from plugrl.core.text.endpoint.clients.outcomes import of_output
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import InferenceService, TokenLimits
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.tokenizer import character_tokenizer
from plugrl.scenarios import films
from plugrl.scenarios.arithmetic_claims.scenario import ArithmeticClaimsScenario
from plugrl.scenarios.bodies.image_latent import ImageLatentBody
from plugrl.scenarios.bodies.mlp import MlpBody
from plugrl.scenarios.code_validation.examination import ExaminedProblem, Program
from plugrl.scenarios.code_validation.scenario import CodeValidationScenario
from plugrl.scenarios.evaluators.code import CodeEvaluator
from plugrl.scenarios.evaluators.code_tests import read_tests
from plugrl.scenarios.evaluators.regex import RegexEvaluator
from plugrl.scenarios.evaluators.weighted import WeightedEvaluator
from plugrl.scenarios.graph_isomorphism.scenario import GraphIsomorphismScenario
from plugrl.scenarios.gymnasium.recipe import Recipe, find_spec
from plugrl.scenarios.gymnasium.rendering import rendering_fault
from plugrl.scenarios.gymnasium.scenario import GymnasiumScenario
from plugrl.scenarios.image_classification.scenario import ImageClassificationScenario
from plugrl.scenarios.import_by_name import find
from plugrl.scenarios.parsers.pythonic import PythonicParser
from plugrl.scenarios.pettingzoo.environment import PettingZooEnvironment
from plugrl.scenarios.pettingzoo.maker import Maker
from plugrl.scenarios.pettingzoo.two_cartpoles import TwoCartPoles
from plugrl.scenarios.reasoning_gym.evaluator import ReasoningGymEvaluator
from plugrl.scenarios.reasoning_gym.scenario import ReasoningGymScenario
from plugrl.scenarios.red_team.scenario import RedTeamScenario
from plugrl.scenarios.rollout_workers.external import ExternalRolloutWorker
from plugrl.scenarios.rollout_workers.preference import PreferenceRolloutWorker, _explicit
from plugrl.scenarios.scorers.lexicon import LexiconScorer
from plugrl.scenarios.scorers.llm_judge import LlmJudgeScorer
from plugrl.scenarios.scorers.regex import RegexScorer
from plugrl.scenarios.scorers.weighted import WeightedScorer
from plugrl.scenarios.torchrl.environment import TorchrlEnvironment
from plugrl.scenarios.torchrl.maker import Maker as TorchrlMaker
from plugrl.scenarios.torchrl.scenario import TorchrlScenario

TESTS = Path(__file__).parents[1] / "scenarios"


# Files and data sets.


def red_team(own):
    """Goals of files that hold rows, by split, and other keys."""
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for split, rows in own.pop("rows").items():
            files[split] = str(Path(folder, f"{split}.jsonl"))
            Path(files[split]).write_text(
                "".join(json.dumps(each) + "\n" for each in rows), "utf-8"
            )
        return RedTeamScenario({"files": files, **own}).build(0)


def looked_at(own):
    """Looks at rows of APPS without running a program."""
    rows = [json.loads(line) for line in (TESTS / "apps" / "problems.jsonl").open()]
    rows[0].update(own.pop("first", {}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, own.pop("name", "rows.jsonl"))
        path.write_text("".join(json.dumps(each) + "\n" for each in rows), "utf-8")
        return CodeValidationScenario({"data_files": [str(path)], **own}).preview(0)


def examined(own):
    """The scenario ``code_validation`` of a file, whose programs are run."""
    rows = [json.loads(line) for line in (TESTS / "apps" / "problems.jsonl").open()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        path.write_text("".join(json.dumps(each) + "\n" for each in rows), "utf-8")
        keys = {"data_files": [str(path)], "max_tests": 1, "validation": 2}
        CodeValidationScenario({**keys, **own}).build(0)


def built_in(own):
    """Some problems whose programs were run before: none is run here."""
    problems = [
        ExaminedProblem(str(name), str(name), (Program("a = 1"),), (Program("a = 2"),))
        for name in range(own.pop("problems"))
    ]
    task = CodeValidationScenario(own)
    task._examined_problems = lambda: problems
    task.build(0)


# Environments.


def drawable(name):
    """Looks whether an environment can be drawn; ``none`` asks for no film."""
    if name != "none":
        refused(rendering_fault(Recipe(name, find_spec(name), render_mode="rgb_array")))


def filmed(own):
    """The finding about films of what ``make`` builds."""
    film, make = own
    check = SimpleNamespace(root={"validate": {"film": film}})
    for _, fault in films.film_faults(check, make):
        refused(fault)


def frames_of(frame):
    """What makes an environment that draws ``frame``, or raises it."""

    class Drawn:
        def reset(self, seed):
            return None

        def render(self):
            if isinstance(frame, Exception):
                raise frame
            return frame

        def close(self):
            return None

    return Drawn


class Silent(gymnasium.Env):
    """An environment that cannot be drawn, though it says so."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}
    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self):
        raise RuntimeError("there is no screen")


class Undrawn(Silent):
    """An environment that draws nothing."""

    metadata = {"render_modes": []}


for _environment in (Silent, Undrawn):
    if f"{_environment.__name__}-v0" not in gymnasium.registry:
        gymnasium.register(f"{_environment.__name__}-v0", _environment)


def vectorized(own):
    """Loads the state of copies that were stepped in one way into those of another."""
    saved, now = own
    section = {"id": "CartPole-v1", "num_envs": 2, "vectorization": saved}
    with closing(GymnasiumScenario(section).build(0).environment("train")) as environment:
        environment.reset(0)
        state = environment.state_dict()
    section["vectorization"] = now
    with closing(GymnasiumScenario(section).build(0).environment("train")) as environment:
        environment.reset(0)
        environment.load_state_dict(state)


def parallel(own):
    """Builds an environment of PettingZoo by name."""
    name, options = own if isinstance(own, tuple) else (own, {})
    with closing(PettingZooEnvironment(Maker(name, options), 1)):
        pass


class Wordy(TwoCartPoles):
    """Agents see a text, or a dictionary with one."""

    def __init__(self, seen="text"):
        super().__init__()
        self._seen = seen

    def observation_space(self, agent):
        own, text = super().observation_space(agent), spaces.Text(3)
        return {"text": text, "parts": spaces.Dict({"own": own, "word": text})}[self._seen]


def without_words(seen="text"):
    """A function that wraps an environment so that its spaces are ones that networks take."""
    from pettingzoo.utils import BaseParallelWrapper

    class Numbers(BaseParallelWrapper):
        def observation_space(self, agent):
            space = self.env.observation_space(agent)
            own = TwoCartPoles().observation_space(agent)
            return spaces.Dict({"own": own}) if isinstance(space, spaces.Dict) else own

    return Numbers(Wordy(seen))


def registered(name):
    """Asks a PettingZoo that has no registry for a name of one."""
    import pettingzoo

    with pytest.MonkeyPatch.context() as patch:
        if name.startswith("sisl/"):
            patch.delattr(pettingzoo, "make")
        Maker(name, {})


def moved(own):
    """A first move in a game whose agents take turns."""
    kind, moves, options = own
    maker = Maker(f"{TESTS / 'turn_environments.py'}:{kind}", {"moves": moves, **options})
    first_step(PettingZooEnvironment(maker, 1, max_restarts=9))


def stepped(own):
    """A first step of agents that act at once; ``own`` is what the script says."""
    kind, start, steps = own
    script = {"possible": ["a"], "start": start, "steps": steps}
    options = {} if kind == "NoAgents" else script
    maker = Maker(f"{TESTS / 'scripted_agents.py'}:{kind}", options)
    first_step(PettingZooEnvironment(maker, 1, max_restarts=9))


def first_step(environment):
    with closing(environment):
        environment.reset(1)
        for _ in range(2):
            environment.step({name: np.zeros(1, int) for name in environment.spaces})


class Grid(EnvBase):
    """Observes a one-hot matrix, which no network takes."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=OneHot(4, shape=(2, 4)))
        self.action_spec, self.reward_spec = OneHot(3), Unbounded((1,))

    def _seen(self, **more):
        seen = self.observation_spec["observation"].zero()
        return TensorDict({"observation": seen, "done": torch.zeros(1, dtype=torch.bool), **more})

    def _reset(self, tensordict=None, **options):
        return self._seen()

    def _step(self, tensordict):
        return self._seen(reward=torch.ones(1))

    def _set_seed(self, seed):
        return None


class Numbers(UnaryTransform):
    """A transform of ours that makes one vector of the matrix."""

    def __init__(self):
        super().__init__(["observation"], ["numbers"], fn=lambda seen: seen.flatten(-2).float())


class Halves(EnvBase):
    """Acts through two entries."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Composite(left=Bounded(-1, 1, (1,)), right=Bounded(-1, 1, (1,)))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict=None, **options):
        return TensorDict({"observation": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _step(self, tensordict):
        reward = tensordict["left"] - tensordict["right"]
        return self._reset().set("reward", reward)

    def _set_seed(self, seed):
        return None


class Joined(Transform):
    """A transform of ours that joins the two entries of an action."""

    def __init__(self):
        super().__init__(in_keys_inv=["left", "right"], out_keys_inv=["action"])

    def transform_input_spec(self, input_spec):
        joined = Composite(action=Bounded(-1, 1, (2,)))
        input_spec["full_action_spec"] = joined
        return input_spec

    def _inv_call(self, tensordict):
        both = tensordict["action"]
        return tensordict.exclude("action").update({"left": both[:1], "right": both[1:]})


def transformed(own):
    name, transforms, observation = own
    made = TorchrlMaker(f"{HERE}:{name}", {}, [(f"{HERE}:{each}", {}) for each in transforms])
    with closing(TorchrlEnvironment(made, 1, observation=observation)) as environment:
        environment.reset(1)
        spaces_of = environment.spaces["agent"]
        environment.step({"agent": np.stack([spaces_of.action.sample()])})


def tensordicts(own):
    """Builds an environment of TorchRL."""
    name, options, transforms = (own + ({}, ()))[:3]
    TorchrlEnvironment(TorchrlMaker(name, options, transforms), 1).close()


def observed(keys):
    """Builds one of several observations, which is named, or joined with a transform."""
    made = TorchrlMaker(f"{MOCKS}:StateLessCountingEnv", {}, keys.get("transforms", ()))
    TorchrlEnvironment(made, 1, observation=keys.get("observation")).close()


def grouped(own):
    """An environment whose agents are in one group, or each in one of its own."""
    if own == "together":
        TorchrlEnvironment(TorchrlMaker(f"{MOCKS}:HeterogeneousCountingEnv", {}), 1)
        return
    from torchrl.envs.utils import MarlGroupMapType

    assert getattr(MarlGroupMapType, own.rpartition(".")[2]) is MarlGroupMapType.ONE_GROUP_PER_AGENT
    name, options = str(TESTS / "torchrl_environments.py") + ":two_cartpoles", {"together": False}
    TorchrlEnvironment(TorchrlMaker(name, options), 1).close()


CARTPOLES = "plugrl.scenarios.pettingzoo.two_cartpoles:TwoCartPoles"
MOCKS = "torchrl.testing.mocking_classes"
HERE = str(Path(__file__))
_JOBS, _DPO = "arithmetic_claims_ei", "trainer.phases.1.rollout_worker"
_EXTERNAL = "trainer.phases.1.rollout_worker"
HALVED = {
    "image": (1, 8, 8),
    "round": (2,),
    "messages": (2, 1, 5),
    "last_message": (1, 5),
    "speaks": (1,),
    "may_decide": (1,),
    "action_mask": (8,),
}


BODIES = {"image_latent": ImageLatentBody, "mlp": MlpBody}


def body_of(name):
    """Builds a body over pictures and five messages, which are no places in them."""
    layout = Layout(HALVED)
    BODIES[name]({}).build_for(
        AgentSpaces(layout.space(), spaces.MultiDiscrete([5, 3]), layout), (82,)
    )


def halved(times):
    ImageClassificationScenario({"num_block_groups": times}).build(0).environment("train").close()


def alike(signals):
    """A step of ``zero_knowledge``, with the signals of its agents or without."""
    made = make_protocol("zero_knowledge")
    count, channels = len(made.agent_names), len(made.channels)
    own = ProtocolSignals(
        messages=np.ones((1, count, channels, 2)), decisions=np.ones((1, count, 3))
    )
    decisions = [[Verdict.UNDECIDED] * count]
    made.step(made.begin([0], [1]), decisions, own if signals else None)


# Evaluators, scorers and rollout workers.


def ended(line):
    """What a program's last line says of its reward."""
    worker = ExternalRolloutWorker({"command": "true", "reward": "program"})
    turn = SimpleNamespace(prompt=SimpleNamespace(model="policy"), shown="x")
    session = SimpleNamespace(recording=SimpleNamespace(turns=[turn]))
    trajectory = Trajectory([2, 3], [0, 1], model="policy")
    asyncio.run(worker._reward(None, trajectory, session, of_output(line)))
    assert trajectory.reward == 0.5


def filtered(own):
    """Trains on problems of one and of two letters; a worker takes prompts of one at most."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "some.jsonl")
        rows = [{"prompt": text, "answer": "a"} for text in ("a", "b", "ab", "a")]
        path.write_text("".join(json.dumps(each) + "\n" for each in rows), "utf-8")
        sections = {
            "rollout_worker": {"max_prompt_length": own.get("max_prompt_length", 1)},
            "data": {"data_files": [str(path)], "batch_size": 3, **own.get("data", {})},
            "validate": {"enabled": False},
        }
        trained("self_hosted_grpo", sections)


def trusting(own):
    """Reads the tests of a problem as an evaluator does that trusts their code or not."""
    CodeEvaluator({"assertions": own["assertions"]})._tests({"tests": own["tests"]})


def parsed(reply):
    for call in PythonicParser().parse(reply).calls:
        refused(call.error)


TALK = Dialogue("say red").with_message("tester", "hello").with_message("target", "red")


class Cut(InferenceService):
    """Replies a score, as much of it as there is room for."""

    vocabulary_size, max_sequence_length = 1000, 2000

    def __init__(self):
        super().__init__({})
        letters = "".join(map(chr, range(32, 127))) + "\n"
        template = "{% for m in messages %}<{{m.role}}>{{m.content}}{% endfor %}"
        self._tokenizer = character_tokenizer(letters, template)

    def load(self, spec):
        raise AssertionError("it is loaded")

    @property
    def tokenizer(self):
        return self._tokenizer

    def update_weights(self, weights, version):
        raise AssertionError("it is frozen")

    def generate(self, requests):
        answers = []
        for request in requests:
            tokens, room = self.tokenizer.encode("Score: 0.75"), request.sampling.max_new_tokens
            reason = "length" if room <= len(tokens) else "stop"
            own = tokens[:room]
            answers.append(Completion(own, [-0.5] * len(own), reason, 0))
        return answers


def judged(longest):
    scorer = LlmJudgeScorer({"max_response_length": longest})
    scorer.use({"judge": Cut()})
    score = score_dialogues(scorer, [TALK])[0]
    refused(score.failure)
    assert score.value == 0.75


def weighted(own):
    """Scores by a weighted scorer whose members were given or built."""
    scorer = own(PARTS)
    assert score_dialogues(scorer, [TALK])[0].value == 1.0


PARTS = {"parts": [{"scorer": {"type": "lexicon", "words": ["red"]}, "weight": 1.0}]}
RED = LexiconScorer({"words": ["red"]})
CHARACTERS = character_tokenizer("abcdef")


def a_task(data):
    limits = {"policy": TokenLimits(8, 100)}
    sampling = SamplingParams(max_new_tokens=4)
    return RolloutTask(
        data=data, item=0, run_id=0, group_id="g", is_val=False, sampling=sampling, ask=None,
        tokenizers={"policy": CHARACTERS}, limits=limits,
    )  # fmt: skip


def preferred(rows, **keys):
    worker = PreferenceRolloutWorker({"max_prompt_length": 8, "max_response_length": 4, **keys})
    for answers in rows:
        worker.rollout(a_task({"prompt": "a", **answers}))


def external(command):
    ExternalRolloutWorker({"command": command, "reward": "program"})


def as_shell(text):
    """The list that is written in a message, started: it prints what the shell was told."""
    words = yaml.safe_load(text)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "ONE\n"
    return words


def quoted(operator):
    return f"echo one '{operator}' tr"


KEYS = ("prompt", "chosen", "rejected")
GOALS = [{"prompt": "one"}, {"prompt": "two"}, {"prompt": "three"}]
WHOLE = {"rows": {"train": GOALS[:1], "test": GOALS[1:]}}
ON, LOST = (False, False), (True, False)
FREE = {"a": (0, *ON), "b": (0, *ON)}
STEP = {"agents": ["a"], "a": (1, 1, False, False)}
TRIALS = [
    Trial(
        "of the scenario arithmetic alone; leave it out",
        section(ArithmeticClaimsScenario),
        {"pairs": True},
        {},
    ),
    # Files and data sets.
    Trial(
        "is no list of programs; write a list of texts, or JSON of one",
        looked_at,
        {"first": {"solutions": "print(1)"}},
        {"first": {"solutions": ["print(1)"]}},
    ),
    Trial(
        "write a list of texts, or JSON of one",
        looked_at,
        {"first": {"solutions": [1]}},
        {"first": {"solutions": json.dumps(["print(1)"])}},
    ),
    *(
        Trial("name another file or difficulty", looked_at, {"difficulty": "hard"}, right)
        for right in ({}, {"difficulty": "interview"})
    ),
    Trial(
        "; write inputs and outputs",
        looked_at,
        {"first": {"input_output": "{}"}},
        {"first": {"input_output": {"inputs": ["1\n2\n"], "outputs": ["2\n"]}}},
    ),
    Trial(
        "problems have right and wrong programs; give it two or more",
        built_in,
        {"problems": 1, "validation": 2},
        {"problems": 2, "validation": 2},
    ),
    Trial(
        ["programs are more than the ", " of its problems"][0],
        built_in,
        {"problems": 3, "train": 12, "validation": 2},
        Read(
            r"the (\d+) of its", lambda most: {"problems": 3, "train": int(most), "validation": 2}
        ),
    ),
    Trial(
        "raise it, or lower max_problems, max_solutions",
        examined,
        {"truth_seconds": 1e-6},
        {"truth_seconds": 100.0},
    ),
    Trial(
        "holds no goals; give it at least one",
        red_team,
        {"rows": {"train": [], "test": GOALS[1:]}},
        {"rows": {"train": GOALS[:1], "test": GOALS[1:]}},
    ),
    Trial(
        "; set prompt_key",
        red_team,
        {"rows": {"train": [{"text": "one"}]}},
        Read(
            r"it has: (\w+)", lambda own: {"rows": {"train": [{"text": "one"}]}, "prompt_key": own}
        ),
    ),
    *(
        Trial(
            "write one of them",
            section(RedTeamScenario),
            {"file": HERE, "files": {"train": HERE}},
            right,
        )
        for right in ({"file": HERE}, {"files": {"train": HERE}})
    ),
    Trial(
        "leave it out of one, so that what is tested",
        red_team,
        {"rows": {"train": GOALS[:2], "test": GOALS[1:]}},
        {"rows": {"train": GOALS[:1], "test": GOALS[1:]}},
    ),
    *(
        Trial(
            "ask for fewer of them, or for other sizes or edge_probabilities",
            lambda keys: (
                GraphIsomorphismScenario({"train_size": 2, "test_size": 2, **keys})
                .build(0)
                .environment("train")
                .close()
            ),
            {"min_nodes": 3, "max_nodes": 3, "depth_shares": [0.0, 0.0, 1.0]},
            right,
        )
        for right in ({"depth_shares": [1.0, 0.0, 0.0]}, {"min_nodes": 8, "max_nodes": 9})
    ),
    # Environments.
    Trial("names no module; write package.module:name", find, ":sqrt", "math:sqrt"),
    Trial(
        "names no wrapper; write package.module:Class",
        lambda path: Recipe("CartPole-v1", find_spec("CartPole-v1"), wrappers=[(path, {})]).make(),
        "gymnasium.wrappers",
        Read(r"such as ([\w.:]+)$"),
    ),
    Trial("; write validate.film: none", drawable, "Undrawn-v0", Read(r"validate\.film: (\w+)$")),
    Trial(", or write validate.film: none", drawable, "Silent-v0", Read(r"validate\.film: (\w+)$")),
    *(
        Trial(
            says,
            filmed,
            ("gif", frames_of(frame)),
            Read(r"validate\.film: (\w+)$", lambda film: (film, None)),
        )
        for says, frame in (
            ("no frame can be drawn (", RuntimeError("there is no screen")),
            ("the environment draws no frames of colours", np.zeros((2, 2))),
        )
    ),
    *(
        Trial(
            "; set scenario.vectorization=",
            vectorized,
            (saved, now),
            Read(r"vectorization=(\w+)$", lambda kind, saved=saved: (saved, kind)),
        )
        for saved, now in (("sync", "native"), ("native", "sync"))
    ),
    Trial("or register it in a file given with -p", parallel, "mine/zzzzz-v0", CARTPOLES),
    Trial(
        "; name what builds the environment".lstrip("; "),
        parallel,
        "pettingzoo.classic",
        Read(r"environment: ([\w.:]+)"),
    ),
    Trial("; name a class or a function", parallel, f"{CARTPOLES.partition(':')[0]}:np", CARTPOLES),
    Trial(
        "has no registry; name the module that",
        registered,
        "sisl/pursuit-v5",
        CARTPOLES,
    ),
    Trial(
        "wraps the environment so that its spaces are Box",
        parallel,
        (f"{HERE}:Wordy", {"seen": "text"}),
        (f"{HERE}:without_words", {"seen": "text"}),
    ),
    Trial(
        "name a function of yours that wraps the environment so that the parts of",
        parallel,
        (f"{HERE}:Wordy", {"seen": "parts"}),
        (f"{HERE}:without_words", {"seen": "parts"}),
    ),
    Trial(
        "is a module; name a class in it, such as",
        tensordicts,
        ("torchrl.envs",),
        ("torchrl.envs:GymEnv", {"env_name": "CartPole-v1"}),
    ),
    Trial(
        "name a class or a function",
        tensordicts,
        ("torchrl.envs.libs.gym:ACCEPTED_TYPE_ERRORS",),
        ("torchrl.envs:GymEnv", {"env_name": "CartPole-v1"}),
    ),
    Trial(
        "names no transform; write module:Class",
        lambda path: tensordicts(
            ("torchrl.envs:GymEnv", {"env_name": "CartPole-v1"}, [(path, {})])
        ),
        "torchrl.envs:GymEnv",
        Read(r"such as ([\w.:]+)$"),
    ),
    *(
        Trial("which is no torchrl.envs.EnvBase", tensordicts, ("collections:OrderedDict",), right)
        for right in [("torchrl.envs:GymEnv", {"env_name": "CartPole-v1"})]
    ),
    Trial(
        "begins new episodes by itself and does not tell how",
        lambda keys: (
            TorchrlScenario(
                {
                    "environment": "torchrl.envs:GymEnv",
                    **keys,
                    "env_kwargs": {"env_name": "CartPole-v1", **keys.pop("env_kwargs", {})},
                }
            )
            .build(0)
            .environment("train")
            .close()
        ),
        {"env_kwargs": {"num_envs": 3}},
        Read(r"set scenario\.(\w+)$", lambda key: {key: 3}),
    ),
    *(
        Trial("has several observations (", observed, {}, right)
        for right in (
            Read(r"observations \((\w+)", lambda name: {"observation": name}),
            Read(
                r"join them with ([\w.:]+)$",
                lambda path: {
                    "transforms": [(path, {"in_keys": ["count", "max_count"], "out_key": "both"})],
                    "observation": "both",
                },
            ),
        )
    ),
    Trial(
        "give each a group of its own (group_map: MarlGroupMapType.ONE_GROUP_PER_AGENT)",
        grouped,
        "together",
        Read(r"group_map: ([\w.]+)\)"),
    ),
    Trial(
        "image_latent reads messages that are places",
        body_of,
        "image_latent",
        Read(r"body: (\w+)$"),
    ),
    Trial(
        "set base to another protocol",
        lambda base: make_protocol({"type": "zero_knowledge", "base": base}),
        "zero_knowledge",
        "adp",
    ),
    Trial("give step the signals of all agents", alike, False, True),
    Trial(
        "reset() leaves no agent in agents",
        stepped,
        ("Scripted", {}, [STEP]),
        ("Scripted", {"a": 0}, [STEP]),
    ),
    Trial(
        "reset() leaves no agent in agents",
        moved,
        ("Talks", [FREE], {"seats": []}),
        ("Talks", [FREE], {"seats": ["a"]}),
    ),
    Trial(
        "call self._was_dead_step(action) in step()",
        moved,
        ("Undead", [{"a": (0, *LOST)}], {}),
        ("Talks", [{"a": (0, *LOST)}], {}),
    ),
    Trial(
        "has no possible_agents; list there all",
        stepped,
        ("NoAgents", {}, []),
        ("Scripted", {"a": 0}, [STEP]),
    ),
    Trial(
        "that its possible_agents lack",
        moved,
        ("Talks", [{**FREE, "turn": "c"}], {"seats": ["a", "b"]}),
        ("Talks", [{**FREE, "turn": "c"}], {"seats": ["a", "b", "c"]}),
    ),
    Trial(
        "in its turn; allow it a move",
        moved,
        ("Talks", [FREE], {"mask": [0, 0, 0]}),
        ("Talks", [FREE], {"mask": [0, 1, 0]}),
    ),
    Trial(
        "is all 0; allow one a move, or end the episode",
        stepped,
        ("Masked", {"a": 10}, [{"agents": ["a"], "a": (-1, 1, False, False)}]),
        ("Masked", {"a": 10}, [{"agents": ["a"], "a": (11, 1, False, False)}]),
    ),
    Trial(
        "cannot take; convert it with a transform of yours",
        transformed,
        ("Grid", [], None),
        ("Grid", ["Numbers"], "numbers"),
    ),
    Trial(
        "join them with a transform of yours in",
        transformed,
        ("Halves", [], None),
        ("Halves", ["Joined"], None),
    ),
    Trial(
        "{} has no module {}; did you mean {}?",
        find,
        "gymnasium.wrapper",
        Read(r"did you mean (\w+)", "gymnasium.{}".format),
    ),
    Trial(
        "; did you mean {}?",
        find_spec,
        "CartPol-v1",
        Read(r"did you mean ([\w-]+)"),
    ),
    # Evaluators, scorers and rollout workers.
    Trial(
        "it gave no reward; let its last line be",
        ended,
        "done",
        Read(r"let its last line be (.*)$", lambda line: line.replace("NUMBER", "0.5")),
    ),
    *(
        Trial("raise it or set data.filter_prompts", filtered, {}, right)
        for right in (
            Read(r"prompt of (\d+) tokens", lambda n: {"max_prompt_length": int(n)}),
            Read(r"set data\.(\w+)", lambda key: {"data": {key: True}}),
        )
    ),
    Trial(
        ["", " is missing; name what ", ""][1],
        section(WeightedEvaluator),
        {"criteria": [{"weight": 1.0}]},
        {"criteria": [{"weight": 1.0, "evaluator": "exact_match"}]},
    ),
    *(
        Trial("goes away; write", section(CodeEvaluator), {"isolation": old}, right)
        for old, right in (
            ("any", Read(r"write (\w+: \w+)$", yaml.safe_load)),
            ("kernel", Read(r"write (nothing), it is the default", lambda _: {})),
        )
    ),
    *(
        Trial("; write input and output, assert, or function", read_tests, [{"result": 1}], right)
        for right in (
            [{"input": "1", "output": "2"}],
            [{"assert": "assert f(1) == 2"}],
            [{"function": "f", "arguments": [1], "expected": 2}],
        )
    ),
    Trial("and asserts nothing; write assert", read_tests, ["f(1) == 2"], ["assert f(1) == 2"]),
    *(
        Trial(
            "test functions, or set assertions=trusted",
            trusting,
            {"assertions": "separate", "tests": ["assert f(lambda x: x) == 2"]},
            right,
        )
        for right in (
            Read(
                r"set assertions=(\w+)",
                lambda how: {"assertions": how, "tests": ["assert f(lambda x: x) == 2"]},
            ),
            {
                "assertions": "separate",
                "tests": [{"function": "f", "arguments": [1], "expected": 2}],
            },
        )
    ),
    Trial(
        "tests have no output where null stands; write the text",
        read_tests,
        {"inputs": ["1"], "outputs": [None]},
        {"inputs": ["1"], "outputs": ["2"]},
    ),
    Trial(
        "repeats in all, which would not be compiled in time; lower them",
        section(RegexEvaluator),
        {"pattern": "((a{1000}){1000}){1000}"},
        {"pattern": "(a{1000})"},
    ),
    Trial(
        " is empty; name at least one ",
        section(WeightedEvaluator),
        {"criteria": []},
        {"criteria": [{"evaluator": "exact_match", "weight": 1.0}]},
    ),
    Trial(
        "; give one another name",
        section(WeightedEvaluator),
        {"criteria": [{"evaluator": "exact_match"}, {"evaluator": "exact_match"}]},
        {"criteria": [{"evaluator": "exact_match"}, {"evaluator": "exact_match", "name": "other"}]},
    ),
    Trial(
        "must be a word without slashes",
        section(WeightedEvaluator),
        {"criteria": [{"evaluator": "exact_match", "name": "a/b"}]},
        {"criteria": [{"evaluator": "exact_match", "name": "b"}]},
    ),
    Trial(
        "mixes named and unnamed arguments; name them all",
        parsed,
        "[add(1, b=2)]",
        "[add(a=1, b=2)]",
    ),
    Trial(
        " is empty; name at least one, such as [{name",
        lambda tasks: configure(ReasoningGymScenario, {"tasks": tasks}),
        [],
        Read(r"such as (\[.*\])$", yaml.safe_load),
    ),
    Trial(
        "must be a word such as answer",
        lambda tag: configure(ReasoningGymEvaluator, {"tag": tag}),
        "<answer>",
        Read(r"such as (\w+)$"),
    ),
    Trial(
        ", and each part reads for itself; set theirs",
        section(WeightedScorer),
        {**PARTS, "reads": "probe"},
        {"parts": [{"scorer": {"type": "lexicon", "words": ["red"], "reads": "probe"}}]},
    ),
    Trial(
        "every weight is 0, so that every score would be; raise one",
        section(WeightedScorer),
        {"parts": [{**PARTS["parts"][0], "weight": 0.0}]},
        PARTS,
    ),
    Trial(
        " parts; give one for each",
        weighted,
        lambda parts: WeightedScorer(parts, [RED, RED]),
        lambda parts: WeightedScorer(parts, [RED]),
    ),
    *(
        Trial("has no members yet; build it by make_scorer", weighted, WeightedScorer, right)
        for right in (
            lambda parts: make_scorer({"type": "weighted", **parts}),
            lambda parts: WeightedScorer(parts, members=[RED]),
        )
    ),
    Trial(
        "has a category without a name; give it one",
        section(LexiconScorer),
        {"categories": {"": ["a"]}},
        {"categories": {"b": ["a"]}},
    ),
    Trial(
        "is empty; give it something to look for",
        section(RegexScorer),
        {"categories": {"b": []}},
        {"categories": {"b": ["a"]}},
    ),
    *(
        Trial("are all empty; name what is looked for", section(LexiconScorer), {}, right)
        for right in ({"words": ["a"]}, {"categories": {"b": ["a"]}}, {"words_key": "word"})
    ),
    Trial(
        "is empty; write a word or a phrase",
        section(LexiconScorer),
        {"words": [" "]},
        {"words": ["a word"]},
    ),
    *(
        Trial("are both empty; name what is searched for", section(RegexScorer), {}, right)
        for right in ({"patterns": ["a"]}, {"categories": {"b": ["a"]}})
    ),
    Trial(
        "is empty and matches every text; write a pattern",
        section(RegexScorer),
        {"patterns": [""]},
        {"patterns": ["a"]},
    ),
    Trial("was cut off in its number; raise", judged, 9, 20),
    Trial(" is blank; name a program", external, " ", "true"),
    Trial(
        " is read by no shell, which",
        external,
        "echo one | tr a-z A-Z",
        Read(r"write (\[bash.*\]), or quote", as_shell),
    ),
    Trial(
        " is read by no shell, which",
        external,
        "echo one | tr",
        Read(r", or quote (\S+)$", quoted),
    ),
    *(
        Trial(
            "name either command or function, one of them",
            section(ExternalRolloutWorker),
            both,
            right,
        )
        for both in ({}, {"command": "true", "function": "a:b"})
        for right in ({"command": "true"}, {"function": "a:b"})
    ),
    Trial(
        "so none is preferred; leave the row out",
        preferred,
        [{"chosen": "b", "rejected": "c"}, {"chosen": "b", "rejected": "b"}],
        [{"chosen": "b", "rejected": "c"}],
    ),
    Trial(
        "an empty answer in column",
        preferred,
        [{"chosen": "b", "rejected": "c"}, {"chosen": "b", "rejected": ""}],
        [{"chosen": "b", "rejected": "c"}],
    ),
    Trial(
        "begin with nothing in common, so that there is no prompt; add a column",
        lambda own: _explicit({"chosen": "ab", "rejected": "cd", **own}, "row 1", KEYS),
        {},
        Read(r"add a column '(\w+)'", lambda name: {name: "ef"}),
    ),
    *(
        Trial(
            "raise it or leave the row out", lambda own: preferred(own[0], **own[1]), wrong, right
        )
        for wrong in [([{"chosen": "b", "rejected": "abcdef"}], {})]
        for right in (
            Read(
                r"answer of (\d+) tokens",
                lambda n, w=wrong: (w[0], {"max_response_length": int(n)}),
            ),
            ([], {}),
        )
    ),
]
ROWS: list[Row] = [
    *(
        row(
            "validate.film=gif",
            "conversations by a protocol have no frames; write validate.film: none",
            "validate.film=none",
            base=base,
        )
        for base in ("digits_nip", "graph_isomorphism_nip")
    ),
    row("scenario.id=''", "name an environment", "scenario.id=CartPole-v1", base="nets"),
    row(
        "scenario.vectorization=native scenario.wrappers=[gymnasium.wrappers:FlattenObservation]",
        "write scenario.vectorization: sync",
        base="nets",
    ),
    *(
        row(f"agents.agent.body={body}", says, "agents.agent.body=mlp", base="nets")
        for body, says in (
            ("graph_pair", "graph_pair reads pairs of graphs that agents of a protocol talk about"),
            ("image_latent", "image_latent reads pictures that agents of a protocol talk about"),
            ("nature_cnn", "nature_cnn reads images of at least"),
        )
    ),
    row(
        "agents.prover.body.type=graph_pair agents.verifier.body.type=mlp",
        "take scenario: graph_isomorphism",
        "scenario= scenario=graph_isomorphism",
        base="digits_nip",
    ),
    row(
        "scenario.binarification_method=random",
        "selected_classes has no effect on random labels; leave it out",
        "scenario.selected_classes=null",
        base="digits_nip",
    ),
    row(
        "scenario.dataset=mnist",
        "or set it to digits",
        "scenario.dataset=digits",
        base="digits_nip",
    ),
    row(
        "scenario.num_block_groups=9",
        "times; take fewer",
        "scenario.num_block_groups=2",
        base="digits_nip",
    ),
    row(
        "trainer.phases.0.rollout_worker.agents=null",
        "no agent has a script",
        "trainer.phases.0.rollout_worker.agents={verifier: {script: verdict}}",
        base=_JOBS,
    ),
    row(
        f"{_DPO}.layout=labels {_DPO}.margin_key=m",
        "is for layout pairs; leave it out",
        f"-{_DPO}.margin_key",
        base="dpo",
        left="rollout_worker",
    ),
    row(
        "scenario= scenario={type: reasoning_gym, tasks: [{weight: 1.0}]}",
        "name a task of reasoning-gym, such as chain_sum",
        "scenario= scenario={type: reasoning_gym, tasks: [{name: chain_sum}]}",
        base="reasoning_gym",
        left="trainer.phases",
    ),
    row(
        "scenario= scenario={type: reasoning_gym, tasks: [{name: chain_sums}]}",
        "reasoning-gym has no task",
        "scenario= scenario={type: reasoning_gym, tasks: [{name: chain_sum}]}",
        base="reasoning_gym",
        left="trainer.phases",
    ),
    row(
        "scenario= scenario.type=pettingzoo",
        "name a module such as mpe2.simple_spread_v3",
        "scenario= scenario={type: pettingzoo, environment: mpe2.simple_spread_v3}",
        base="nets",
    ),
    row(
        "scenario= scenario.type=torchrl",
        "name a class such as torchrl.envs:GymEnv",
        "scenario={type: torchrl, environment: 'torchrl.envs:GymEnv',"
        " env_kwargs: {env_name: CartPole-v1}}",
        base="nets",
    ),
    row(
        "scenario= scenario={type: tensor, num_envs: 4}",
        "is missing; name one, such as CartPole-v1",
        "scenario={type: tensor, environment: CartPole-v1, num_envs: 4}",
        base="nets",
    ),
    row(
        "scenario= scenario={type: tensor, environment: CartPole, num_envs: 4}",
        "or name one of yours as module:Class",
        "scenario={type: tensor, environment: CartPole-v1, num_envs: 4}",
        base="nets",
    ),
    row(
        "scenario= scenario={type: tensor, environment: 'torchrl.envs:GymEnv'}",
        "is no subclass of TensorEnvironment; write",
        "scenario={type: torchrl, environment: 'torchrl.envs:GymEnv',"
        " env_kwargs: {env_name: CartPole-v1}}",
        base="nets",
    ),
    row(
        "rollout_worker.evaluator=null",
        "name what rewards an answer, such as exact_match",
        "rollout_worker.evaluator=exact_match",
    ),
    row(
        f"{_EXTERNAL}.reward=evaluator {_EXTERNAL}.evaluator=null",
        "is missing, and reward is evaluator; name one",
        f"{_EXTERNAL}.evaluator=exact_match",
        base="external_agent",
    ),
    row(
        f"{_EXTERNAL}.function=null {_EXTERNAL}.command=[no-such-program]",
        "there is no such program; write its path",
        f"{_EXTERNAL}.command=[/bin/true]",
        base="external_agent",
    ),
]


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_what_code_recommends_helps(trial):
    trial.run()


#: Texts that name no key, value or command.
REASONS = {
    "is not set up; call super().__init__(num_envs)": "of the code of an environment",
    "; mend the environment": "names no key, value or command",
    "mend its spaces or wrap it": "names no key, value or command",
    "mend the space or wrap it": "names no key, value or command",
    "; mend one of them": "names no key, value or command",
    "and put your final answer within": "a prompt",
    "has nothing to learn: no reply of the assistant": "names no key, value or command",
    "has no reply of the assistant in column": "names no key, value or command",
    "text has no prompt to validate on": "names no key, value or command",
    "; correct the problem": "of the problems that ship with the package",
    "policies here do not know; let the environment take every": "names no key, value or command",
    "ask for fewer held-out ones or give the tasks wider": "names no key, value or command",
    "; install it with pip": "of a package that says its name itself",
    "install the package that has it": "names no package",
    "set scenario.download: true, or name the folder": "torchvision asks the network",
}


def test_every_remedy_is_tried_or_names_nothing():
    # What a command installs is looked at in test_installs.py.
    says = {each.says for each in (*ROWS, *TRIALS)} - {"; did you mean {}?"}
    says |= {"pip install", "scenarios/gymnasium/recipe: ; did you mean {}?"}
    assert untried("scenarios", says, REASONS) == []
