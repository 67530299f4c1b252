"""Which tokens a grammar allows, for tokenizers of the hub whose tokens are parts of words."""

import json
import random

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from plugrl.core.text.agents.parsing import parse_reply
from plugrl.core.text.endpoint.forms import AnswerForm, answer_grammar, json_grammar
from plugrl.plugins.transformers.engine.grammars import GrammarCompiler
from plugrl.plugins.transformers.tokenizer import HubTokenizer
from plugrl.scenarios.parsers.hermes import HermesParser

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["cat", "dog", "hérisson 🦔"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}
#: More logits than tokens, as models have whose vocabulary is padded.
LOGITS = 704


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level pairs, with two end tokens and tags of calls that are tokens of their own."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=["<eos>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ['{"name": "Tom", "kind": "cat", "age": 12}', '<tool_call>\n{"name": "buy"}'] * 20
    own.train_from_iterator(texts, trainer)
    own.add_tokens(["<tool_call>", "</tool_call>"])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<eos>")
    return HubTokenizer(wrapped, end_token_ids=(1,))


def written(tokenizer, grammar, seed):
    """Tokens of an answer, each drawn from those that are allowed."""
    matcher, draws = GrammarCompiler(tokenizer, LOGITS).matcher(grammar), random.Random(seed)
    tokens = []
    while not matcher.ended:
        assert not matcher.stuck
        assert len(tokens) < 2000
        allowed = np.flatnonzero(np.unpackbits(matcher.bits, bitorder="little"))
        assert allowed.max() < len(tokenizer.wrapped)
        tokens.append(int(draws.choice(allowed)))
        matcher.take(tokens[-1])
    return tokens


def test_json_of_a_schema_ends_with_any_of_the_end_tokens(tokenizer):
    ends = set()
    for seed in range(20):
        tokens = written(tokenizer, json_grammar(SCHEMA), seed)
        jsonschema.validate(json.loads(tokenizer.decode(tokens)), SCHEMA)
        ends.add(tokens[-1])
    assert ends == {0, 1}


def test_calls_whose_tags_are_tokens_are_read_by_the_parser(tokenizer):
    tools = [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
        for name in ("buy", "sell")
    ]
    parser = HermesParser()
    grammar, unenforced = answer_grammar(AnswerForm(choice="required"), tools, (), [parser], "")
    assert unenforced == []
    names = set()
    for seed in range(20):
        tokens = written(tokenizer, grammar, seed)
        reply = parse_reply([parser], tokenizer.decode(tokens))
        assert reply.content == ""
        for call in reply.calls:
            assert not call.error
            jsonschema.validate(call.arguments, SCHEMA)
            names.add(call.name)
    assert names == {"buy", "sell"}


def test_a_slow_tokenizer_has_no_grammars(tokenizer, monkeypatch):
    assert GrammarCompiler(tokenizer, LOGITS).usable
    monkeypatch.setattr(type(tokenizer.wrapped), "is_fast", False)
    assert not GrammarCompiler(tokenizer, LOGITS).usable


def test_text_is_free_until_it_calls_a_strict_tool(tokenizer):
    function = {"name": "buy", "parameters": SCHEMA, "strict": True}
    tools = [{"type": "function", "function": function}]
    grammar, _ = answer_grammar(AnswerForm(), tools, (), [HermesParser()], "")
    matcher = GrammarCompiler(tokenizer, LOGITS).matcher(grammar)
    for token in tokenizer.encode_continuation("Well, <b>"):
        matcher.take(token)
    assert not matcher.stuck
    free = np.flatnonzero(np.unpackbits(matcher.bits, bitorder="little"))
    assert {0, 1} < set(free.tolist())
    for token in tokenizer.encode_continuation("<tool_call>"):
        matcher.take(token)
    bound = np.flatnonzero(np.unpackbits(matcher.bits, bitorder="little"))
    texts = {tokenizer.decode([int(token)]) for token in bound}
    assert texts
    assert all(text.lstrip("\n").startswith("{") or text == "\n" for text in texts)
