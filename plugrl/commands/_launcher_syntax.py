"""Command lines as launchers of clusters and Hydra spell them, brought to plugrl's own.

What names a configuration works: ``recipe=my_task/my_task``, ``--config-path`` and
``--config-name``. A line that begins with flags of a launcher is one of ``plugrl launch``; at
another command they are answered with the words that do the same here.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

from plugrl.core.errors import UsageError

#: Commands whose first argument is a configuration.
_COMMANDS = ("train", "validate", "launch")
#: Where recipes lie that are called ``task/name``, below the working directory.
_FOLDER = "recipe"
_SUFFIXES = ("", ".yaml", ".yml")
_PATHS = frozenset({"--config-path", "-cp", "--config-dir", "-cd"})
_NAMES = frozenset({"--config-name", "-cn"})
#: Flags of a launcher, each with the one name that it goes by here.
_LAUNCHER = {
    "-m": "--mode",
    "-c": "--train-config",
    "-r": "--run-nexrl",
    "-t": "--tag",
    **{flag: flag for flag in ("--mode", "--train-config", "--run-nexrl", "--tag")},
    "--inference-url": "--inference-url",
}
_BARE = "--run-nexrl"
#: Flags of Hydra that ask for another command.
_HYDRA = {
    "--multirun": "plugrl sweep FILE KEY=A,B",
    "--cfg": "plugrl config show FILE",
    "--info": "plugrl config show FILE --origin",
}


def command_at(words: Sequence[str]) -> int:
    """Where the command stands: the first word that is neither an option nor the value of one.

    Of the options before it, ``-p`` alone has a value of its own.
    """
    places = (i for i, w in enumerate(words) if w[:1] != "-" and (not i or words[i - 1] != "-p"))
    return next(places, len(words))


def translate_words(words: Sequence[str]) -> list[str]:
    """Translate a command line to plugrl's own syntax.

    Raises:
        UsageError: they do something that has another command here; the message has it.
    """
    words = list(words)
    at = command_at(words)
    if words and words[0].partition("=")[0] in _LAUNCHER:
        words, at = ["launch", *words], 0
    command, rest = "".join(words[at : at + 1]), words[at + 1 :]
    if command in _COMMANDS:
        if command != "launch":
            _refuse(command, rest)
        return [*words[: at + 1], *_configuration_first(command, rest)]
    return words


def _refuse(command: str, words: Sequence[str]) -> None:
    given: dict[str, str] = {}
    plain: list[str] = []
    pairs = _pairs(words)
    for flag, value in pairs:
        name = _LAUNCHER.get(flag)
        if flag in _HYDRA:
            raise UsageError(f"plugrl has no {flag}: write {_HYDRA[flag]}")
        if name is None:
            plain.append(flag)
        elif name == _BARE:
            given[name] = ""
        else:
            given[name] = next(pairs, ("", None))[0] if value is None else value
    if not given:
        return
    file = given.get("--train-config") or next((word for word in plain if "=" not in word), "FILE")
    answer = ["plugrl", command, file, *(word for word in plain if "=" in word and word[0] != "-")]
    if given.get("--tag"):
        answer.append(f"experiment_name={given['--tag']}")
    if given.get("--inference-url"):
        url = given["--inference-url"]
        url = url if "://" in url else f"http://{url}/v1"
        answer += [f"service.inference_service.{key}" for key in ("type=openai", f"base_url={url}")]
    flags = ", ".join(given)
    raise UsageError(
        f"plugrl {command} works on this machine and has no {flags}, which plugrl launch has: "
        f"write {shlex.join(answer)}"
    )


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each word, with its value where it is written ``--flag=value``."""
    for word in words:
        flag, equals, value = word.partition("=")
        yield (flag, value) if equals and word.startswith("-") else (word, None)


def _configuration_first(command: str, words: Sequence[str]) -> list[str]:
    """The words of a command with the configuration that they name as the first of them."""
    named: list[str] = []
    rest: list[str] = []
    pairs = _pairs(words)
    for word, value in pairs:
        if word in _PATHS | _NAMES:
            given = next(pairs, ("", None))[0] if value is None else value
            if not given:
                raise UsageError(f"{word} needs a value")
            if word in _NAMES:
                named.append(given)
            else:
                rest += ["--config-path", given]
        elif word.startswith("recipe="):
            named.append(_file_of(word.partition("=")[2]))
        else:
            rest.append(word if value is None else f"{word}={value}")
    if len(named) > 1:
        raise UsageError(
            f"two configurations are named, {' and '.join(named)}: write defaults: "
            f"[{named[0]}, _self_] in the second, then plugrl {command} {named[1]}"
        )
    return [*named, *rest]


def _file_of(name: str) -> str:
    if not name:
        raise UsageError("recipe= needs a value, such as recipe=my_task/my_task")
    places = [os.path.join(_FOLDER, name), name]
    found = (place + suffix for place in places for suffix in _SUFFIXES)
    return next((path for path in found if os.path.isfile(path)), name)
