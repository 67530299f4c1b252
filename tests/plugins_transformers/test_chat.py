"""Chat templates of tokenizers: as transformers writes them, and for single prompts of messages."""

import pickle

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.chat import ChatTokenizer, chat_tokenizer, encode_prompt
from plugrl.core.text.inference.services import ModelSpec
from plugrl.plugins.transformers.loading import load_tokenizer
from plugrl.plugins.transformers.tokenizer import CharacterTokenizer, HubTokenizer

CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
# Features that templates of published models use: loops with breaks, JSON, whitespace control.
RICH = """\
{%- if tools %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
    {%- set shown = message.content | trim %}
    {{- '<|' + message.role + '|>' + shown + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""
MESSAGES = [
    {"role": "system", "content": " Be <b>brief</b> & 'good' "},
    {"role": "user", "content": "a\nb"},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "never"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<&>", "parameters": {}}}]


def byte_level():
    """A tokenizer of ``transformers`` with bytes as tokens and two special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate([*alphabet, "<|end|>", "<|pad|>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>"
    )


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("generation", [True, False])
def test_characters_are_written_as_transformers_writes_them(tools, generation):
    tokenizer = CharacterTokenizer(CHARACTERS, RICH)
    expected = tokenizer.wrapped.apply_chat_template(
        MESSAGES, tools=tools, add_generation_prompt=generation, tokenize=False
    )
    special = {"\U000f0000": "<pad>", "\U000f0001": "<eos>"}
    written = tokenizer.render_chat(MESSAGES, tools, generation)
    assert "".join(special.get(c, c) for c in written) == expected
    tokens = tokenizer.apply_chat_template(MESSAGES, tools, generation)
    assert tokens.count(tokenizer.eos_token_id) == 3
    assert tokenizer.decode(tokens) == expected.replace("<eos>", "")


@pytest.mark.parametrize("generation", [True, False])
def test_a_tokenizer_of_transformers_writes_its_own_tokens(generation):
    wrapped = byte_level()
    tokenizer = HubTokenizer(wrapped, RICH)
    expected = wrapped.apply_chat_template(MESSAGES, add_generation_prompt=generation)["input_ids"]
    assert tokenizer.apply_chat_template(MESSAGES, None, generation) == expected
    assert expected.count(tokenizer.eos_token_id) == 3
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.apply_chat_template(MESSAGES, None, generation) == expected


def test_the_default_of_characters_ends_every_message():
    tokenizer = CharacterTokenizer("ab")
    assert tokenizer.apply_chat_template(MESSAGES[1:1]) == []
    messages = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.apply_chat_template(messages) == [2, 3, 1, 3, 1]


def test_text_of_users_is_never_an_end_token():
    tokenizer = CharacterTokenizer(CHARACTERS)
    (end,) = [
        i
        for i, token in enumerate(
            tokenizer.apply_chat_template([{"role": "user", "content": "<eos>x"}])
        )
        if token == tokenizer.eos_token_id
    ]
    assert end == len("<eos>x")
    assert tokenizer.writable("a\U000f0001ü") == "a"


def test_a_template_travels_to_other_processes():
    tokenizer = pickle.loads(pickle.dumps(CharacterTokenizer("ab", "{{ messages[0].content }}b")))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}]) == [2, 3]


def spec(tokenizer):
    source = {"path": None, "config": {"model_type": "qwen3"}, "tokenizer": tokenizer}
    return ModelSpec("policy", ConfigView(source, checked=True), 0, "cpu")


def test_the_template_of_the_source_is_used():
    loaded = load_tokenizer(spec({"characters": "ab", "chat_template": "b"}))
    assert loaded.apply_chat_template([{"role": "user", "content": "a"}]) == [3]


def test_what_has_no_template_says_so():
    class Plain:
        pad_token_id, eos_token_id = 0, 1

        def encode(self, text, /):
            return [2] * len(text)

        def decode(self, tokens, /):
            return ""

    assert not isinstance(Plain(), ChatTokenizer)
    assert encode_prompt(Plain(), "abc") == [2, 2, 2]
    with pytest.raises(ConfigError, match=r"tokenizer of model 'policy' \(Plain\) has no chat"):
        chat_tokenizer(Plain(), "policy")
    with pytest.raises(ConfigError, match="set source.tokenizer.chat_template of the model"):
        HubTokenizer(byte_level()).render_chat(MESSAGES)


@pytest.mark.parametrize(
    "make", [lambda t: CharacterTokenizer("ab", t), lambda t: HubTokenizer(byte_level(), t)]
)
def test_a_template_that_refuses_names_its_reason(make):
    tokenizer = make("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ConfigError, match="cannot write the messages: .*roles must alternate"):
        tokenizer.render_chat(MESSAGES)
