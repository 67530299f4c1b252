"""Which tokens of a written conversation are the assistant's: marks, and templates without."""

import random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.chat import encode_conversation, encode_prompt, encode_text
from plugrl.plugins.transformers.tokenizer import CharacterTokenizer, HubTokenizer

CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
#: As templates of the field mark it: around what is said with its end, in a loop, with whitespace
#: control, and only for the roles that generate.
CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}"
    "{{- '\\n' }}{% else %}{{- m.content + eos_token + '\\n' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"
)
#: Lines of their own, as trim_blocks and lstrip_blocks remove them; the mark leaves the end out.
LINES = """\
{% for m in messages %}
    {% if m.role == "assistant" %}
        {%- generation -%}
        [A] {{ m.content | trim }}
        {%- endgeneration -%}
        {{ eos_token }}
    {% else %}
[{{ m.role }}] {{ m.content | trim }}{{ eos_token }}
    {% endif %}
{% endfor %}
"""
UNMARKED = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
#: Thoughts of the last reply alone are written, as Qwen3 does.
THINKING = UNMARKED.replace(
    "{%- if m.role == 'assistant' %}{{",
    "{%- if m.role == 'assistant' %}{%- if loop.last %}{{- '<think></think>' }}{% endif %}{{",
)
#: A turn ends where the next begins, and the conversation with the end token.
BARE = (
    "{%- for m in messages %}{{- m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{- 'assistant: ' }}{% else %}{{- eos_token }}{% endif %}"
)


def words(rng, alphabet):
    return "".join(rng.choices(alphabet, k=rng.randint(1, 12)))


def conversations(alphabet, count=60):
    rng = random.Random(7)
    for _ in range(count):
        found = [{"role": "system", "content": words(rng, alphabet)}] if rng.random() < 0.5 else []
        for _ in range(rng.randint(1, 4)):
            found.append({"role": "user", "content": words(rng, alphabet)})
            found.append({"role": "assistant", "content": words(rng, alphabet)})
        yield found


def merged_tokens(template):
    """A tokenizer of several bytes a token, some of which reach over the ends of messages."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("a", "b"), ("ab", "c"), ("\u0120", "a"), ("a", "s"), ("as", "s"), ("]", "\u0120")]
    made = [left + right for left, right in pairs]
    special = ["<|im_start|>", "<|end|>", "<|pad|>"]
    vocabulary = {letter: i for i, letter in enumerate([*alphabet, *made, *special])}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>"
    )
    wrapped.chat_template = template
    return HubTokenizer(wrapped)


TOKENIZERS = {
    "characters": lambda template: CharacterTokenizer(CHARACTERS, template),
    "bytes": merged_tokens,
}
ALPHABETS = {"characters": "abc as.<|{\n ", "bytes": "abc as.é🙂\n "}


@pytest.mark.parametrize("template", [CHATML, LINES], ids=["chatml", "lines"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_tokens_are_exactly_those_of_the_marks(kind, template):
    tokenizer = TOKENIZERS[kind](template)
    for messages in conversations(ALPHABETS[kind]):
        said = encode_conversation(tokenizer, messages, "policy")
        expected = tokenizer.wrapped.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        length = len(said.tokens)
        assert said.tokens == expected["input_ids"][:length]
        assert said.mask == expected["assistant_masks"][:length]
        assert not any(expected["assistant_masks"][length:])
        assert any(said.mask)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_of_a_prompt_no_token_is_the_assistants(kind):
    tokenizer = TOKENIZERS[kind](CHATML)
    for messages in conversations(ALPHABETS[kind], 20):
        whole = encode_conversation(tokenizer, messages, "policy")
        said = encode_conversation(tokenizer, messages, "policy", prompt=len(messages) - 1)
        asked = tokenizer.apply_chat_template(messages[:-1])
        assert said.prompt == len(asked)
        assert said.tokens == whole.tokens
        assert said.tokens[: said.prompt] == asked
        assert said.mask == [0] * len(asked) + whole.mask[len(asked) :]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_without_marks_replies_begin_at_the_generation_prompt_and_end_with_their_end(kind):
    marked, tokenizer = TOKENIZERS[kind](CHATML), TOKENIZERS[kind](UNMARKED)
    for messages in conversations(ALPHABETS[kind], 30):
        expected = encode_conversation(marked, messages, "policy")
        assert encode_conversation(tokenizer, messages, "policy") == expected


def test_thoughts_of_the_last_reply_alone_are_no_obstacle():
    tokenizer = CharacterTokenizer(CHARACTERS, THINKING)
    for messages in conversations("abc ", 20):
        said = encode_conversation(tokenizer, messages, "policy")
        learned = tokenizer.decode([t for t, m in zip(said.tokens, said.mask, strict=True) if m])
        replies = [m["content"] for m in messages if m["role"] == "assistant"]
        assert learned == "".join([*replies[:-1], "<think></think>", replies[-1]])


def test_turns_without_an_end_of_their_own_end_where_the_next_begins():
    tokenizer = CharacterTokenizer(CHARACTERS, BARE)
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    said = encode_conversation(tokenizer, messages, "policy")
    learned = [t for t, m in zip(said.tokens, said.mask, strict=True) if m]
    assert learned == [*tokenizer.encode("b\nd\n"), tokenizer.eos_token_id]


def test_a_template_that_rewrites_what_came_before_needs_marks():
    reversing = "{% for m in messages | reverse %}{{ m.content }}{{ eos_token }}{% endfor %}"
    tokenizer = CharacterTokenizer(CHARACTERS, reversing)
    messages = next(conversations("abc"))
    with pytest.raises(ConfigError, match="{% generation %} and {% endgeneration %}") as caught:
        encode_conversation(tokenizer, messages, "policy")
    assert "\n" not in str(caught.value)


def test_marks_without_an_end_are_no_template():
    tokenizer = CharacterTokenizer(CHARACTERS, "{% generation %}a")
    with pytest.raises(ConfigError, match="is no Jinja template: line 1"):
        tokenizer.encode_marked([{"role": "user", "content": "a"}])


def test_a_begun_reply_is_gone_on_with():
    tokenizer = merged_tokens(CHATML)
    for said in ("abc", " abc ", "a. ", "assistant"):
        messages = [{"role": "user", "content": "as"}, {"role": "assistant", "content": said}]
        expected = tokenizer.wrapped.apply_chat_template(
            messages, continue_final_message=True, tokenize=False
        )
        assert encode_prompt(tokenizer, messages) == tokenizer.encode_chat(expected)


def test_whole_texts_end_once():
    tokenizer = merged_tokens(CHATML)
    expected = [*tokenizer.encode("abc"), tokenizer.eos_token_id]
    assert encode_text(tokenizer, "abc") == expected
    assert encode_text(tokenizer, "abc<|end|>") == expected
