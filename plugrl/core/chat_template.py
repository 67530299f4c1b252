"""Chat templates: messages to text.

A template is Jinja with what ``transformers`` gives it: ``messages``, ``tools``,
``add_generation_prompt``, ``eos_token``, ``raise_exception``, ``strftime_now`` and ``tojson``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import one_line

#: One message: ``role``, ``content`` and what else a template reads.
Message = dict[str, Any]


class ChatTemplate:
    """A compiled template.

    Raises:
        ConfigError: the text is no Jinja template.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._render = _compiled(text)

    def __call__(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **tokens: str,
    ) -> str:
        """The text of ``messages``; ``tokens`` are special ones such as ``eos_token``.

        Raises:
            ConfigError: the template refuses the messages, or fails over them.
        """
        try:
            return self._render(
                messages=list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                **tokens,
            )
        except Exception as error:
            raise template_error(error) from error


def template_error(error: Exception) -> ConfigError:
    """What is said when a template fails over messages."""
    return ConfigError(
        f"the chat template cannot write the messages: {one_line(error)}; change the messages, or "
        "source.tokenizer.chat_template of the model"
    )


@lru_cache(maxsize=64)
def _compiled(text: str) -> Callable[..., str]:
    from jinja2 import TemplateSyntaxError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(text).render
    except TemplateSyntaxError as error:
        raise ConfigError(f"is no Jinja template: line {error.lineno}: {error.message}") from None


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """JSON as ``transformers`` writes it: no escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> None:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)
