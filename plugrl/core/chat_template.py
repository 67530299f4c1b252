"""Chat templates: messages to text.

A template is Jinja with what ``transformers`` gives it: ``messages``, ``tools``,
``add_generation_prompt``, ``eos_token``, ``raise_exception``, ``strftime_now`` and ``tojson``.
``{% generation %}`` and ``{% endgeneration %}`` enclose what the assistant writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import one_line

if TYPE_CHECKING:
    from jinja2 import Template

#: One message: ``role``, ``content`` and what else a template reads.
Message = dict[str, Any]
_MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


def has_marks(template: str) -> bool:
    """Whether a template marks what the assistant writes."""
    return _MARK.search(template) is not None


class ChatTemplate:
    """A compiled template.

    Raises:
        ConfigError: the text is no Jinja template.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._template = _compiled(text)

    def __call__(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text of ``messages``; further ``variables`` are special tokens such as ``eos_token``.

        Raises:
            ConfigError: the template refuses the messages, or fails over them.
        """
        return self.marked(messages, tools, add_generation_prompt, **variables)[0]

    def marked(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text of ``messages``, and where in it each marked part begins and ends.

        Raises:
            ConfigError: the template refuses the messages, or fails over them.
        """
        blocks: list[str] = []
        spans: list[tuple[int, int]] = []
        try:
            for block in self._template.generate(
                messages=list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                **{_WRITTEN: blocks, _SPANS: spans},
                **variables,
            ):
                blocks.append(block)
        except Exception as error:
            raise template_error(error) from error
        return "".join(blocks), spans


@lru_cache(maxsize=64)
def template_variables(text: str) -> frozenset[str]:
    """The variables that a template reads and does not set itself.

    Raises:
        ConfigError: the text is no Jinja template.
    """
    from jinja2 import meta

    environment = _compiled(text).environment
    return frozenset(meta.find_undeclared_variables(environment.parse(text)))


def template_error(error: Exception) -> ConfigError:
    """What is said when a template fails over messages."""
    return ConfigError(
        f"the chat template cannot write the messages: {one_line(error)}; change the messages, or "
        "source.tokenizer.chat_template of the model"
    )


#: Names in a rendering under which marks find what is written so far, and say where they are.
_WRITTEN, _SPANS = "plugrl_written", "plugrl_spans"


@lru_cache(maxsize=64)
def _compiled(text: str) -> Template:
    from jinja2 import TemplateSyntaxError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The marks, as ``transformers`` reads them: blocks that note where they stand."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_note", [nodes.ContextReference()])
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _note(self, context: Any, caller: Any) -> str:
            written: str = caller()
            start = sum(map(len, context[_WRITTEN]))
            context[_SPANS].append((start, start + len(written)))
            return written

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except TemplateSyntaxError as error:
        raise ConfigError(f"is no Jinja template: line {error.lineno}: {error.message}") from None


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """JSON as ``transformers`` writes it: no escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> None:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)
