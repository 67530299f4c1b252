"""What a model's folder says is followed as ``transformers`` follows it, and kept by exports."""

import json
import pickle
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers import AutoModelForSequenceClassification as Classifier

from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.dialogue.configuration import SpeakingConfig
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.prompts import DialoguePrompts
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget
from plugrl.core.text.inference.chat import (
    encode_continuation,
    encode_prompt,
    encode_reply,
    end_tokens,
)
from plugrl.core.text.inference.sampling import SamplingParams, ending
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.plugins.openai.wire import as_text
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.loading import load_tokenizer
from plugrl.plugins.transformers.reward_model import RewardModelEvaluator
from plugrl.plugins.transformers.tokenizer import HubTokenizer
from plugrl.scenarios.rollout_workers.demonstration import DemonstrationRolloutWorker
from plugrl.scenarios.rollout_workers.preference import PreferenceRolloutWorker
from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker

# As Gemma has it: a turn of the model ends with another token than a text.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<turn>{{ m.content }}</turn>{% endfor %}"
    "{% if add_generation_prompt %}<turn>{% endif %}"
)
SPECIAL = ["<pad>", "</s>", "<s>", "<unk>", "<turn>", "</turn>"]
END, BOS, TURN, TURN_END = 1, 2, 4, 5
DIGITS = {digit: 6 + i for i, digit in enumerate("0123456789+=")}
# "12+34=" by hand.
QUESTION = [7, 8, 16, 9, 10, 17]


def tokenizer_of(form="<s> $A", more=""):
    """One token a character; ``form`` is what the tokenizer makes of a text by default."""
    vocabulary = {**{token: i for i, token in enumerate(SPECIAL)}, **DIGITS}
    vocabulary |= {character: len(vocabulary) + i for i, character in enumerate(more)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if form is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=form, special_tokens=[(token, i) for i, token in enumerate(SPECIAL)]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<turn>", "</turn>"],
    )
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder in bfloat16 whose head shares the weight of the embedding."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=18, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32,
        bos_token_id=BOS, eos_token_id=END, pad_token_id=0, tie_word_embeddings=True,
        initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of it that may be changed."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("form", [None, "<s> $A", "<s> <turn> $A", "$A </s>", "<s> $A </s>"])
def test_a_text_begins_as_the_tokenizer_begins_it(form):
    wrapped = tokenizer_of(form)
    tokenizer = pickle.loads(pickle.dumps(HubTokenizer(wrapped)))
    default = wrapped("12+34=")["input_ids"]
    # An answer follows, so that an end behind the text is left out.
    expected = default[:-1] if default[-1] == END else default
    assert tokenizer.encode("12+34=") == encode_prompt(tokenizer, "12+34=") == expected
    assert encode_continuation(tokenizer, "12+34=") == QUESTION
    # A server gets text that it begins itself in the same way.
    assert as_text(tokenizer, expected) == "12+34="


def test_a_chat_prompt_begins_as_its_template_says():
    chat = [{"role": "user", "content": "12+34="}]
    tokenizer = HubTokenizer(tokenizer_of())
    assert encode_prompt(tokenizer, chat) == [BOS, TURN, *QUESTION, TURN_END, TURN]


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ([END, TURN_END], END, (END, TURN_END)),
        (TURN_END, END, (END, TURN_END)),
        (None, END, (END,)),
        # Without the file, transformers looks into the model's configuration.
        (..., [END, TURN_END], (END, TURN_END)),
        ("{oops", [TURN_END], (END, TURN_END)),
    ],
)
def test_the_end_tokens_are_those_of_generation(folder, spec, generation, config, expected):
    edit(folder / "config.json", eos_token_id=config)
    file = folder / "generation_config.json"
    if generation is ...:
        file.unlink()
    elif isinstance(generation, str):
        file.write_text(generation)
    else:
        edit(file, eos_token_id=generation)
    tokenizer = load_tokenizer(spec(path=str(folder), config={}))
    assert end_tokens(tokenizer) == expected
    assert end_tokens(pickle.loads(pickle.dumps(tokenizer))) == expected


def test_a_built_model_may_have_several_too(spec):
    assert end_tokens(load_tokenizer(spec(config={"model_type": "qwen3"}))) == (1,)
    several = spec(config={"model_type": "qwen3", "eos_token_id": [1, 4]})
    assert end_tokens(load_tokenizer(several)) == (1, 4)


def test_a_folder_of_a_tokenizer_alone_ends_at_its_own_end(folder, spec):
    for name in ("config.json", "generation_config.json"):
        (folder / name).unlink()
    assert end_tokens(load_tokenizer(spec(path=str(folder), config={}))) == (END,)


def attempted(folder, spec, prompt, **section):
    """The trajectory of one attempt, greedy."""
    service = TransformersInferenceService({})
    service.load(spec(path=str(folder), config={}))
    section = {"model": "policy", "max_prompt_length": 16, **section}
    worker = SingleTurnRolloutWorker(section)
    worker.judged = lambda task, trajectory, text: _later(trajectory)
    rollouts = LockstepRollouts(worker, {"policy": service}, seed=0)
    sampling = SamplingParams(temperature=0.0, max_new_tokens=8)
    return rollouts.collect([Prompt({"prompt": prompt}, 0, 0, "0", 0)], 0, sampling)[0]


async def _later(value):
    return value


@pytest.mark.parametrize("prompt", ["12+34=", [{"role": "user", "content": "12+34="}]])
def test_an_attempt_begins_and_ends_as_generate_of_transformers_does(folder, spec, prompt):
    own = load_tokenizer(spec(path=str(folder), config={}))
    begun = encode_prompt(own, prompt)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def generated():
        options = {"max_new_tokens": 8, "do_sample": False}
        return model.generate(torch.tensor([begun]), **options)[0].tolist()

    whole = generated()
    assert len(whole) == len(begun) + 8
    # The third token of the answer ends it from now on, or one before that is the same.
    edit(folder / "generation_config.json", eos_token_id=[END, whole[len(begun) + 2]])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    trajectory = attempted(folder, spec, prompt)
    assert trajectory.tokens == generated()
    assert len(trajectory.tokens) < len(whole)
    assert trajectory.finish_reason == "stop"


@pytest.mark.parametrize("several", [False, True])
def test_an_attempt_ends_at_the_stop_strings_of_the_folder(folder, spec, several):
    """As ``generate`` of ``transformers`` does, which keeps the token that completes one."""
    own = load_tokenizer(spec(path=str(folder), config={}))
    begun = encode_prompt(own, "12+34=")
    whole = attempted(folder, spec, "12+34=").tokens
    texts = ["".join(c for c, token in DIGITS.items() if token == t) for t in whole[len(begun) :]]
    stop = next(a + b for a, b in zip(texts, texts[1:], strict=False) if a and b)
    edit(folder / "generation_config.json", stop_strings=[stop, "never"] if several else stop)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # It looks for stop strings with a tokenizer that can write these letters.
    writer = tokenizer_of(more="abcdef")
    options = {"max_new_tokens": 8, "do_sample": False, "tokenizer": writer}
    expected = model.generate(torch.tensor([begun]), **options)[0].tolist()
    trajectory = attempted(folder, spec, "12+34=")
    assert trajectory.tokens == expected != whole
    assert trajectory.finish_reason == "stop"


def test_stop_strings_of_a_folder_end_answers_of_all_who_ask(folder, spec):
    edit(folder / "generation_config.json", stop_strings=["turn>", "=="])
    tokenizer = load_tokenizer(spec(path=str(folder), config={}))
    for each in (tokenizer, pickle.loads(pickle.dumps(tokenizer))):
        ended = ending(SamplingParams(stop=("+",), stop_token_ids=(9,)), each)
        assert ended.stop == ("+", "turn>", "==")
        # Answers are decoded without special tokens, so that no text shows these.
        assert ended.stop_token_ids == (9, END, TURN, TURN_END)


def test_a_reply_ends_as_the_template_ends_a_turn():
    tokenizer = HubTokenizer(tokenizer_of(), None, [END, TURN_END])
    assert encode_reply(tokenizer, "46", chat=True) == [10, 12, TURN_END]
    assert encode_reply(tokenizer, "46", chat=False) == [10, 12, END]
    # The model would not stop at the template's own token.
    assert encode_reply(HubTokenizer(tokenizer_of()), "46", chat=True) == [10, 12, END]


CHAT = [{"role": "user", "content": "12+34="}]
ASKED = {
    "text": ("12+34=", [BOS, *QUESTION], END),
    "chat": (CHAT, [BOS, TURN, *QUESTION, TURN_END, TURN], TURN_END),
}


@pytest.mark.parametrize("form", ASKED)
def test_demonstrations_and_preferences_are_whole_texts(form):
    prompt, begun, end = ASKED[form]
    tokenizer = HubTokenizer(tokenizer_of(), None, [END, TURN_END])
    engine = SimpleNamespace(
        tokenizer=tokenizer,
        vocabulary_size=18,
        max_sequence_length=32,
        sampling_options=frozenset(),
        together=True,
        version=0,
    )
    section = {"model": "policy", "max_prompt_length": 16, "max_response_length": 8}
    row = {"prompt": prompt, "answer": "46", "chosen": "46", "rejected": "7"}

    def made(worker):
        rollouts = LockstepRollouts(worker, {"policy": engine}, seed=0)
        found = rollouts.collect([Prompt(row, 0, 0, "0", 0)], 0, SamplingParams(), is_val=False)
        return [trajectory.tokens for trajectory in found]

    assert made(DemonstrationRolloutWorker(section)) == [[*begun, 10, 12, end]]
    pairs = {"layout": "pairs", "chosen_key": "chosen", "rejected_key": "rejected"}
    preference = PreferenceRolloutWorker({**section, **pairs, "margin_key": None})
    assert made(preference) == [[*begun, 10, 12, end], [*begun, 13, end]]


@pytest.mark.parametrize("form", ASKED)
def test_a_reward_model_is_shown_what_it_was_trained_on(form):
    prompt, begun, end = ASKED[form]
    judge = RewardModelEvaluator({"path": "anywhere"})
    judge.prompt_key = "prompt"
    tokenizer = HubTokenizer(tokenizer_of(), None, [END, TURN_END])
    judge.__dict__["_scorer"] = SimpleNamespace(tokenizer=tokenizer, limit=32)
    assert judge._tokens({"prompt": prompt}, BaseEvaluationTarget("46")) == [*begun, 10, 12, end]


def test_an_export_is_a_folder_like_its_source(folder, spec, train_service, tmp_path):
    # Names that transformers does not know, and values that it corrects when it writes.
    edit(folder / "generation_config.json", eos_token_id=[END, TURN_END], temperature=0.6, own=1)
    source = spec(path=str(folder), config={})
    service = train_service(source)
    assert service.module.dtype == torch.float32
    service.export(tmp_path / "out", load_tokenizer(source))
    same = ("generation_config.json", "chat_template.jinja")
    for name in same:
        assert (tmp_path / "out" / name).read_text() == (folder / name).read_text()
    before, after = (AutoModelForCausalLM.from_pretrained(f) for f in (folder, tmp_path / "out"))
    assert after.dtype == torch.bfloat16
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert all(torch.equal(v, after.state_dict()[k]) for k, v in before.state_dict().items())
    # The shared weight is there once.
    sizes = [(f / "model.safetensors").stat().st_size for f in (folder, tmp_path / "out")]
    assert sizes[0] == sizes[1]
    # A second export has the same form.
    service.export(tmp_path / "again", load_tokenizer(source))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "again").dtype == torch.bfloat16


def test_a_reward_model_is_exported_like_its_source_too(folder, spec, train_service, tmp_path):
    edit(folder / "generation_config.json", eos_token_id=[END, TURN_END])
    source = spec(path=str(folder), config={})
    train_service(source, value_head=True).export_scorer(tmp_path / "out", load_tokenizer(source))
    assert Classifier.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    judge = RewardModelEvaluator({"path": str(tmp_path / "out")})
    assert end_tokens(judge._scorer.tokenizer) == (END, TURN_END)


@pytest.mark.parametrize(
    ("longest", "shown"),
    [(None, [BOS, *QUESTION]), (4, [BOS, *QUESTION[-3:]]), (1, QUESTION[-1:])],
)
def test_a_dialogue_that_is_cut_still_begins_as_a_text(longest, shown):
    service = SimpleNamespace(tokenizer=HubTokenizer(tokenizer_of()), max_sequence_length=32)
    config = SpeakingConfig(form="plain", max_new_tokens=4, max_prompt_tokens=longest)
    tester = DialoguePrompts(SimpleNamespace(name="tester", inference=service), config, probes=True)
    assert tester.tokens(Dialogue("12+34=")) == shown
