"""Every remedy that messages of the built-in plugins recommend is tried, and helps."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from remedies import Row, row, tiered, tried, untried
from testers import CONFIG, TINY, make_system
from transformers import AutoConfig, AutoTokenizer
from trials import Read, Trial, refused, section, tiered_trials

from plugrl.core.config.check import configure
from plugrl.core.experiment import prepare, start
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.plugins.bubblewrap.sandbox import BubblewrapSandbox
from plugrl.plugins.jsonl.tracker import JsonlTracker
from plugrl.plugins.mlflow.tracker import MlflowTracker
from plugrl.plugins.openai import handshake, wire
from plugrl.plugins.openai.inference_service import OpenAiInferenceService
from plugrl.plugins.openai.transport import Transport
from plugrl.plugins.openai.weights import WeightFolder
from plugrl.plugins.tinker.inference_service import TinkerInferenceService
from plugrl.plugins.tinker.train_service import TinkerTrainService
from plugrl.plugins.tinker.wire import as_sampling
from plugrl.plugins.trackio.tracker import TrackioTracker
from plugrl.plugins.transformers import classifier
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.quantization import QuantizedLinear
from plugrl.plugins.transformers.reward_model import _run_fault
from plugrl.plugins.transformers.scorers.classifier import ClassifierScorer, _Labels
from plugrl.plugins.transformers.scorers.guard import GuardScorer
from plugrl.plugins.transformers.tokenizer import HubTokenizer, character_tokenizer
from plugrl.plugins.wandb.tracker import WandbTracker
from plugrl.scenarios.evaluators.code import CodeEvaluator
from plugrl.testing import tiny
from plugrl.testing.models import SOURCE, spec_of
from plugrl.trainers.reward_model import RewardModelTrainer

_ASK, _JOBS = "models.policy.inference", "arithmetic_claims_ei"
_TUNE = "trainer.phases.1.models.policy.fine_tune"
_PHASES, _SCORER = "red_team_quickstart_grpo", "trainer.phases.2.red_team.scorer"
#: A server that is not asked before the run, and one of the Tinker API.
_VLLM = f"{_ASK}={{type: openai, base_url: 'http://127.0.0.1:1/v1', engine: vllm, model: x}}"
_TINKER = "{type: tinker, base_model: x, base_url: 'http://127.0.0.1:1'}"
_OWN = "models.reference.inference"


def quantised_gpt2(kind):
    # Its matrices are of another class.
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32}
    source = {**SOURCE, "config": {"model_type": "gpt2", **sizes}, "quantization": kind}
    TransformersInferenceService({}).load(spec_of(source))


ROWS: list[Row] = [
    row(
        "models.policy.source.quantization=int8",
        "quantised weights are not trained; give the model an adapter",
        "models.policy.adapter={}",
    ),
    row(
        f"models.policy.source.quantization=int8 models.policy.adapter={{}} {_VLLM}",
        "is for {}; set that, or leave quantization out",
        "-models.policy.inference",
    ),
    row(
        "models.policy.train={type: fsdp, workers: 9} settings.cluster.cpus=2 settings.device=cpu",
        "this machine has {} {}; take fewer workers",
        "models.policy.train.workers=2",
    ),
    row(
        "models.policy.train={type: fsdp, optimizer: muon}",
        "is for the service local; take adamw",
        "models.policy.train.optimizer=adamw",
    ),
    *(
        row(
            "models.policy.source.dtype=float16",
            "and losses are not scaled here; set bfloat16, or float32",
            f"models.policy.source.dtype={dtype}",
        )
        for dtype in ("bfloat16", "float32")
    ),
    row(
        "models.policy.source.config.head_dims=8",
        "{} has no such key; did you mean {}?",
        "-models.policy.source.config.head_dims models.policy.source.config.head_dim=8",
    ),
    row(
        "models.policy.source.config.model_type=t5",
        "has no causal language model of the type {}; take another type, such as qwen3",
        "models.policy.source.config.model_type=qwen3",
    ),
    row(
        "models.policy.source.config.attn_implementation=flash_attention_0",
        "cannot be used here ({}); leave it out",
        "-models.policy.source.config.attn_implementation",
    ),
    *(
        row(
            f"{_VLLM} {_ASK}.engine=generic",
            "and model {} is trained; use vllm or sglang, or the inference service transformers",
            edit,
        )
        for edit in (
            f"{_ASK}.engine=vllm",
            f"{_ASK}.engine=sglang",
            f"-{_ASK} -{_ASK}.engine {_ASK}=transformers",
        )
    ),
    row(
        f"{_ASK}={{type: openai, engine: vllm, model: x}}",
        "is needed, such as http://127.0.0.1:8000/v1",
        f"{_ASK}.base_url=http://127.0.0.1:8000/v1",
    ),
    row(
        f"{_VLLM} {_ASK}.weights_folder=setup.cfg",
        "is no folder and cannot become one; name a folder",
        f"{_ASK}.weights_folder=tests",
    ),
    *(
        row(f"{_VLLM} {_ASK}.api_key=NO_SUCH_KEY", "is not set{}; set it, or name another", edit)
        for edit in ("environment.variables.NO_SUCH_KEY=x", f"{_ASK}.api_key=HOME")
    ),
    *(
        row(
            f"{_VLLM} rollout_worker.temperature=0.5",
            "write 1, or start it so and write models.{}.inference.logprobs_mode: processed",
            edit,
        )
        for edit in ("rollout_worker.temperature=1", f"{_ASK}.logprobs_mode=processed")
    ),
    *(
        row(
            f"{_VLLM} {_ASK}.logprobs_mode=processed rollout_worker.top_p=0.5",
            "log-probabilities are of the tokens that {} keeps; write {}, or logprobs_mode: raw",
            edit,
        )
        for edit in ("rollout_worker.top_p=1", f"{_ASK}.logprobs_mode=raw")
    ),
    *(
        row(
            f"{_OWN}={{type: openai, base_url: 'http://127.0.0.1:1/v1', engine: generic, model: x}}"
            " rollout_worker.model=reference rollout_worker.stop_token_ids=[3]",
            "cannot be asked of a server of engine {}, which serves model {}; write the text",
            edit,
            base="frozen",
        )
        for edit in (
            "-rollout_worker.stop_token_ids rollout_worker.stop=['1']",
            f"{_OWN}.engine=vllm",
            f"{_OWN}.engine=sglang",
            f"{_OWN}.engine=plugrl",
        )
    ),
    row(
        f"{_TUNE}= {_TUNE}={{type: openai, base_url: 'http://far.example/v1', base_model: x,"
        " api_key: NO_SUCH_KEY}",
        "the environment variable {} is not set{}; set it, or name another",
        f"{_TUNE}.api_key=HOME",
        base=_JOBS,
        left="inference",
    ),
    row(
        f"models.policy.adapter={{r: 2}} models.policy.train={_TINKER} {_ASK}={_TINKER}",
        "trains an adapter of its own; write {}.lora_rank",
        "-models.policy.adapter models.policy.train.lora_rank=2",
        base="remote",
    ),
    *(
        row(
            f"{_ASK}={_TINKER}",
            "write type: {} here, or the inference service that belongs to it in {}",
            edit,
            base="remote",
        )
        for edit in (f"models.policy.train={_TINKER}", f"-{_ASK} {_ASK}=transformers")
    ),
    row(
        f"models.policy.train={_TINKER}",
        "cannot sample from weights that the service {} keeps; write type: {}, with the base_url",
        f"{_ASK}={_TINKER}",
        base="remote",
    ),
    row(
        f"{_SCORER}= {_SCORER}.type=classifier",
        "is missing; name the folder of a sequence classifier",
        f"{_SCORER}.path=tests",
        base=_PHASES,
        left="scorer",
    ),
    row(
        f"{_SCORER}= {_SCORER}.type=guard",
        "is missing; name the folder of a causal model",
        f"{_SCORER}.path=tests",
        base=_PHASES,
        left="scorer",
    ),
    row(
        "rollout_worker.evaluator={type: reward_model}",
        "give either path (a folder) or run (a trained reward model)",
        "rollout_worker.evaluator.path=tests",
        left="rollout_worker.evaluator",
    ),
]


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


FOLDER = str(Path(__file__).parent)
TEMPLATE = "{% for m in messages %}<{{m.role}}>{{m.content}}{% endfor %}"
LETTERS = character_tokenizer("abcdef", TEMPLATE)


def request(length=1, **sampling):
    own = {"max_new_tokens": 4, **sampling}
    return GenerationRequest((2,) * length, SamplingParams(**own), (0,) * 5)


def of_vllm(own):
    """A request to vLLM, which was started in one way or the other."""
    processed, sampling = own
    wire.Vllm("x", LETTERS, processed=processed).body(request(**sampling), 4)


def of_generic(own):
    kind, sampling = own
    {"generic": wire.Generic, "vllm": wire.Vllm}[kind]("x", LETTERS).body(request(**sampling), 4)


def scored(kind):
    asked = GenerationRequest((2, 3), SamplingParams(max_new_tokens=0), (0,) * 5, True)
    kinds = {"generic": wire.Generic, "vllm": wire.Vllm, "plugrl": wire.Plugrl}
    kinds[kind]("x", LETTERS).body(asked, 1)


def listed(own):
    """What a server's list of models says, for a section of a service."""
    names, keys = own
    cards = {"data": [{"id": name, "owned_by": "vllm"} for name in names]} if names else None
    keys = {"engine": "auto", "model": None, "base_url": "http://127.0.0.1:1/v1", **keys}
    handshake.look(cards, SimpleNamespace(**keys), keys["base_url"])


def in_context(service):
    """Fills the context of a service with a prompt."""

    def attempt(length):
        dialect = wire.Vllm("x", LETTERS)
        own = SimpleNamespace(_context=9, _vocabulary_size=20, _dialect=dialect, _tokenizer=LETTERS)
        service(own, request(length))

    return attempt


def lengths(length):
    own = SimpleNamespace(_context=9)
    TinkerTrainService._check_lengths(own, [SimpleNamespace(input_tokens=[2] * length)])


def accessed(key):
    address = SimpleNamespace(key_name="SERVICE_KEY", key=key)
    error = Transport._access_error(SimpleNamespace(address=address), "http://x/v1", 401)
    refused(str(error) if "is not set" in str(error) else None)


def written(parent):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_text("", "utf-8")
        parent = Path(folder, parent)
        WeightFolder(str(parent)).write({"a": torch.ones(1)}, 1)


def boxed(own):
    """Words within a sandbox that a section picks."""
    if isinstance(own, str):
        configure(CodeEvaluator, {"sandbox": own})
        return
    assert BubblewrapSandbox(own).command(["true"])[-1] == "true"


def hub_tokenizer(key):
    """A tokenizer of a folder in which nothing, or a key, says how texts end."""
    with tempfile.TemporaryDirectory() as folder:
        LETTERS.wrapped.save_pretrained(folder)
        path = Path(folder, "tokenizer_config.json")
        options = json.loads(path.read_text("utf-8"))
        end = options.pop("eos_token")
        (Path(folder) / "special_tokens_map.json").unlink(missing_ok=True)
        path.write_text(json.dumps(options | ({key: end} if key else {})), "utf-8")
        assert HubTokenizer(AutoTokenizer.from_pretrained(folder)).eos_token_id == 1


def chat(own):
    """A chat with a tokenizer of a folder, whose template comes from the configuration."""
    with tempfile.TemporaryDirectory() as folder:
        LETTERS.wrapped.save_pretrained(folder)
        wrapped = AutoTokenizer.from_pretrained(folder)
        wrapped.chat_template = None
        HubTokenizer(wrapped, **own).render_chat([{"role": "user", "content": "a"}])


def spelled(characters):
    character_tokenizer(characters).encode("az")


def trained_service(**keys):
    return make_system(**keys).models["tester"].train


def packed(how):
    other = {"model_type": "bloom", "hidden_size": 16, "n_layer": 1, "n_head": 2}
    other["max_position_embeddings"] = 64
    source = {"config": other, "tokenizer": TINY["source"]["tokenizer"]}
    trained_service(tester={"source": source}, train={"packing": how})


def adapted(keys):
    with tempfile.TemporaryDirectory() as folder:
        trained_service(tester=keys).save_adapter(Path(folder, "adapter"))


def layers(names):
    config = {**CONFIG, "tie_word_embeddings": True}
    source = {"config": config, "tokenizer": TINY["source"]["tokenizer"]}
    trained_service(tester={"source": source, "adapter": {"r": 2, "target_modules": names}})


def labelled(own):
    """The labels of a classifier of two, of one kind."""
    kind, keys = own
    header = SimpleNamespace(id2label={0: "good", 1: "bad"}, num_labels=2, problem_type=kind)
    _Labels(header, configure(ClassifierScorer, {"path": FOLDER, **keys}))


def as_classifier(architecture):
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 16}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    config = AutoConfig.for_model(architecture, **small, **heads)
    model = SimpleNamespace(config=config, dtype=torch.float32)
    classifier._empty(model, SimpleNamespace(pad_token_id=0, eos_token_id=1))


def reward_of(trainer):
    """The reward model of a run of a trainer; ``latest`` stands for the run that trains."""
    if trainer == "latest":
        refused(_run_fault(SimpleNamespace(run="latest", checkpoint="newest", model="policy")))
        return
    sections = RewardModelTrainer.conformance if trainer == "reward_model" else {}
    with tempfile.TemporaryDirectory() as folder:
        tree = tiny.config(trainer, Path(folder), sections)
        run = start(prepare(tree)).folder
        own = SimpleNamespace(run=str(run), checkpoint="newest", model="policy")
        refused(_run_fault(own))


TRIALS = [
    Trial(
        "has {} numbers, which is no multiple of {} as nf4 needs; set int8",
        partial(QuantizedLinear, torch.nn.Linear(20, 20)),
        "nf4",
        Read("set (int8)"),
    ),
    Trial(
        "a {} model has no linear layers to quantise; leave quantization out",
        quantised_gpt2,
        "int8",
        None,
    ),
    # Servers of OpenAI's interface.
    *(
        Trial(
            "start it so and write logprobs_mode: processed, or sample at temperature 1",
            of_vllm,
            (False, {"temperature": 0.5}),
            right,
        )
        for right in ((True, {"temperature": 0.5}), (False, {"temperature": 1.0}))
    ),
    *(
        Trial(
            "leave those at 0 and 1, or use logprobs_mode: raw",
            of_vllm,
            (True, {"top_p": 0.5}),
            right,
        )
        for right in ((True, {"top_p": 1.0}), (False, {"top_p": 0.5}))
    ),
    *(
        Trial(
            "{} cannot be asked of a server of engine {}; leave it out",
            of_generic,
            ("generic", {"top_k": 3}),
            right,
        )
        for right in (("generic", {}), ("vllm", {"top_k": 3}))
    ),
    *(
        Trial("gives no log-probabilities of prompts; use vLLM", scored, "generic", right)
        for right in ("vllm", "plugrl")
    ),
    Trial(
        "has several models; write the name of one: {}",
        listed,
        (["a", "b"], {}),
        Read(r"name of one: (\w+)", lambda name: (["a", "b"], {"model": name})),
    ),
    Trial(
        "write the name of the model into model",
        listed,
        ([], {"engine": "generic"}),
        ([], {"engine": "generic", "model": "a"}),
    ),
    Trial(
        "base_url probably has to end in /v1: write {}/v1",
        lambda url: refused(handshake.address_hint(url)),
        "http://localhost:8000",
        Read(r"write (\S+)$"),
    ),
    *(
        Trial("fills the model's context of {}; lower", in_context(service), 12, 4)
        for service in (
            OpenAiInferenceService._request_body,
            TinkerInferenceService._room,
            TransformersInferenceService._row,
        )
    ),
    Trial("lower rollout_worker.max_prompt_length or max_response_length", lengths, 12, 4),
    *(
        Trial("wants a key ({}), and the environment variable", accessed, "", right)
        for right in ["a key"]
    ),
    Trial("that can be written and that the server can", written, "file", "folder"),
    # Other services.
    Trial(
        "min_new_tokens: the Tinker API has no such parameter; write 0",
        lambda count: as_sampling(SamplingParams(max_new_tokens=4, min_new_tokens=count), 0, 4),
        2,
        Read(r"write (\d)$", int),
    ),
    # Models in this process.
    Trial("set eos_token in its", hub_tokenizer, None, Read(r"set (\w+) in its")),
    Trial(
        "set source.tokenizer.chat_template of the",
        chat,
        {},
        Read(r"set source\.tokenizer\.(\w+)", lambda name: {name: TEMPLATE}),
    ),
    Trial(
        "the tokenizer has no character {}; add it to",
        spelled,
        "abc",
        Read(r"no character '(.)'", "abc{}".format),
    ),
    *(
        Trial("cannot be packed; use auto or never", packed, "always", Read(rf"use .*({how})"))
        for how in ("auto", "never")
    ),
    Trial(
        "the model has no adapter; set models.<name>.adapter to train one",
        adapted,
        {},
        Read(r"set models\.<name>\.(\w+)", lambda name: {name: {"r": 2}}),
    ),
    Trial("is no linear layer; leave it out", layers, ["q_proj", "embed_tokens"], ["q_proj"]),
    Trial(
        "shares its weight with another layer; leave it out",
        layers,
        ["q_proj", "lm_head"],
        ["q_proj"],
    ),
    Trial(
        "was trained for regression, so that its numbers are no",
        labelled,
        ("regression", {}),
        Read(r"write activation: (\w+)", lambda name: ("regression", {"activation": name})),
    ),
    *(
        Trial("gives one of the labels {}; say which of them count", labelled, (None, {}), right)
        for right in (
            Read(r"labels: \[(\w+)\]", lambda name: (None, {"labels": [name]})),
            Read(r"activation: (\w+)", lambda name: (None, {"activation": name})),
        )
    ),
    Trial(
        "names one twice; name each once",
        section(ClassifierScorer, path=FOLDER),
        {"labels": ["bad", "bad"]},
        {"labels": ["bad"]},
    ),
    Trial(
        "is response, and a guard must see what was answered to; write exchange",
        section(GuardScorer, path=FOLDER),
        {"reads": "response"},
        Read(r"write (\w+)$", lambda name: {"reads": name}),
    ),
    *(
        Trial("transformers has no sequence classifier for a", as_classifier, "codegen", right)
        for right in (Read(r"such as (\w+)"), Read(r"or (\w+)$"))
    ),
    Trial(
        "has no value head; name a run of trainer",
        reward_of,
        "self_hosted_grpo",
        Read(r"trainer (\w+)$"),
    ),
    Trial("once it has begun; name that of the reward model", reward_of, "latest", "reward_model"),
    # Sandboxes.
    *(
        Trial(
            "install bubblewrap, name its program, or use sandbox=local",
            boxed,
            {"program": "no-such-program"},
            right,
        )
        for right in ({"program": "env"}, Read(r"sandbox=(\w+)$"))
    ),
]


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_what_code_recommends_helps(trial):
    trial.run()


@pytest.mark.parametrize("cls", [JsonlTracker, MlflowTracker, TrackioTracker, WandbTracker])
def test_options_that_a_tracker_recommends_are_there(cls):
    # What a tracker says when it cannot write is told by its server, or by its disk.
    known = {field.name for field in fields(cls.Config)}
    named = {word.partition(":")[0] for word in re.findall(r"`([a-z_]+(?:: \w+)?)`", cls.remedy)}
    assert named
    assert named <= known
    for name, value in re.findall(r"`([a-z_]+): (\w+)`", cls.remedy):
        configure(cls, {name: value})


_OF_RANKS = "of ranks and their devices: tests/plugins_distributed/test_faults.py"
#: Texts that name no key, value or command, or of servers that only a test of them has.
REASONS = {
    "plugins/kubernetes/": "of a cluster: tests/plugins_kubernetes has what is asked for",
    "plugins/slurm/": "of a cluster: tests/plugins_slurm",
    "plugins/ray/launcher": "of a cluster: tests/plugins_ray and tests/commands/test_launch.py",
    **dict.fromkeys(
        [f"plugins/ray/{name}" for name in ("cluster", "engines", "files", "replicas", "rollouts")],
        "of a cluster: tests/plugins_ray",
    ),
    "let the machines have one copy": "of several machines",
    "check its heads, layers and experts": "of sizes: tests/plugins_transformers/test_loading.py",
    "adamw_8bit is compiled": "of a compiler: tests/plugins_transformers/test_optimizers.py",
    "or micro_batch_size, set gradient_checkpointing: true, or take more workers": _OF_RANKS,
    "take more models.NAME.train.workers with shard: full, or a smaller model": _OF_RANKS,
    "are on one GPU; set models.NAME.train.gpus above 0.5": _OF_RANKS,
    "plugins/mlflow/tracker: mlflow: %s": "says what is done",
    "plugins/trackio/tracker: trackio: project": "says what is done",
    "plugins/jsonl/tracker: write a record": "says what failed",
    "plugins/openai/conversation: name its": "says what a server was asked to",
    "plugins/openai/fine_tuning: name": "says what a server was asked to",
    "plugins/openai/fine_tuning: make": "says what a server was asked to",
    "plugins/openai/fine_tuning: take": "says what a server was asked to",
    "plugins/tinker/connection: name its": "says what a service was asked to",
    "plugins/weaver/connection: name its": "says what a service was asked to",
    "plugins/tinker/train_service: take": "says what a service was asked to",
    "plugins/tinker/train_service: make": "says what a service was asked to",
    "plugins/weaver/train_service: take": "says what a service was asked to",
    "metrics.jsonl of the run folder is complete": "its options are looked at above",
    "plugins/jsonl/tracker: make room": "its options are looked at above",
    "use one folder, or another process": "of two runs in one process: tests/plugins_trackers",
    "plugins/huggingface/": "of a hub of models: tests/plugins_huggingface",
    "resume from a checkpoint before it": "of a server that lost a model: tests/plugins_openai",
    "use a vLLM that has return_token_ids": "of a server's version",
    "plugins/openai/server_process:": "of a program: tests/plugins_openai/test_started_servers.py",
    "close its quotes": "of a command: tests/plugins_openai/test_started_servers.py",
    "so that several servers fit on a machine": "of a command: test_started_servers.py",
    "is needed, such as vllm serve": "of a command: tests/plugins_openai/test_started_servers.py",
    "plugins/ray/room:": "of a cluster's machines: tests/plugins_ray/test_placement.py",
    "check that it is a server of OpenAI's interface": "of another server: tests/plugins_openai",
    "has no data; check base_url": "of another server: tests/plugins_openai",
    "says how long a sequence may be; set it": "tests/plugins_openai and tests/plugins_tinker",
    "which are needed here; use vLLM": "of a server's engine: tests/plugins_openai",
    "are needed; set rollout_worker.temperature=1": "of a server that scores: tests/plugins_openai",
    "GiB, more than {} has left; lower": "of a GPU's memory: tests/gpu/test_engine_on_cuda.py",
    "use a server that has several": "names no key, value or command",
    "takes no weights; use vLLM or SGLang": "tried before the run, in the rows",
    "or write engine: generic if nothing": "of a server's answers: tests/plugins_openai",
    "then start or resume the run": "of a server that is silent: tests/plugins_openai",
    "lower connections if it is overloaded": "of a server that is overloaded: tests/plugins_openai",
    "set that variable to a valid key": "of a server that refuses a key: tests/plugins_openai",
    "seconds; raise the timeout": "of a server that is slow: tests/plugins_openai",
    "VLLM_SERVER_DEV_MODE=1": "of how a server was started: tests/plugins_openai",
    "write freeze_for_weight_sync: false": "of a server's version: tests/plugins_openai",
    "set it to a key of that service": "of a service that refuses a key: tests/plugins_tinker",
    "restore it, or start a new run": "of a saved state: tests/plugins_tinker",
    "the Weaver API has no such parameter": "needs the service: tests/plugins_weaver",
    "has no model {}; it has": "names no key, value or command",
    "trains no model of language; name one": "of a run of small networks: tests/trainers",
    "is not set; set it, or name another in api_key": "tried in the rows, as said before a run",
}


def test_every_remedy_is_tried_or_names_nothing():
    # What a command installs is looked at in test_installs.py.
    says = {each.says for each in (*ROWS, *TRIALS)} | {"pip install"}
    assert untried("plugins", says, REASONS) == []
