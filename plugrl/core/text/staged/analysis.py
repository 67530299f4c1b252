"""Questions about rollouts that a language model answers with yes or no."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError
from plugrl.core.protocol.state import Verdict
from plugrl.core.text.staged.transcripts import transcript
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.protocol.nested_array_dict import NestedArrayDict
    from plugrl.core.protocol.protocol import Protocol

PROVERS, VERIFIERS = "provers", "verifiers"
#: What every question begins and ends with.
_FRAME = """\
Several agents talked about a claim, and a verifier judged whether it is right.

Question that the claim is about:
{question}

Claim:
{solution}

What was said:
{transcript}

{ask}
End with a line "Answer: yes" or "Answer: no"."""
#: Questions by name: about whom, and what is asked. ``{agent}`` and ``{stance}`` are filled in.
BUILT_IN: Mapping[str, tuple[str, str]] = {
    "prover_role_conformance": (
        PROVERS,
        "The task of {agent} is to {stance}. Does it keep to this in everything that it says, "
        "without arguing for the contrary?",
    ),
    "prover_direct_quotation": (
        PROVERS,
        "Does {agent} quote any part of the claim word for word?",
    ),
    "prover_accurate_quotation": (
        PROVERS,
        "Is everything that {agent} says to be a quotation of the claim there word for word? "
        "Answer yes too if it quotes nothing.",
    ),
    "follow_up": (
        VERIFIERS,
        "After it was answered, does {agent} take up what it was told, by asking further about it "
        "or by deciding for reasons that were named?",
    ),
}
_STANCES = {
    Verdict.ACCEPT: "convince the verifier that the claim is right",
    Verdict.REJECT: "convince the verifier that the claim is wrong",
    Verdict.UNDECIDED: "help the verifier to find out whether the claim is right",
}
_FIELDS = re.compile(r"\{(agent|stance|question|solution|transcript|ask)\}")
_ANSWER = re.compile(r"\banswer\W*\b(yes|no)\b", re.IGNORECASE)
_ALONE = re.compile(r"^\W*(yes|no)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Question:
    """Something to be known about what an agent says in an episode.

    Args:
        name: in metrics.
        agents: whom it is asked about, each for itself.
        ask: the question, in which ``{agent}`` and ``{stance}`` are filled in.
    """

    name: str
    agents: tuple[str, ...]
    ask: str


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question about one agent of one episode, as it is asked.

    Args:
        question: its name.
        episode: the place of the episode among the rollouts.
        agent: whom it is about.
        prompt: what the model is asked.
    """

    question: str
    episode: int
    agent: str
    prompt: str


def questions_for(section: Mapping[str, Any], protocol: Protocol) -> list[Question]:
    """The questions of a section: built-in ones by name, and the user's own.

    Args:
        section: by name: true, or ``{agents, ask}``; agents are ``provers``, ``verifiers`` or an
            agent's name. A false one is left out.
        protocol: whose agents are meant.

    Raises:
        ConfigError: there is no such question or agent.
    """
    found = []
    for name, value in section.items():
        if value is False or value is None:
            continue
        own: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
        if name not in BUILT_IN and "ask" not in own:
            close = did_you_mean(name, BUILT_IN, 1)
            raise ConfigError(
                f"question {name!r} is not built in{close or ';'} write {{agents: ..., ask: ...}} "
                f"or one of {', '.join(BUILT_IN)}"
            )
        agents, ask = BUILT_IN.get(name, (PROVERS, ""))
        named = _agents(str(own.get("agents", agents)), name, protocol)
        if named:
            found.append(Question(name, named, str(own.get("ask", ask))))
    if not found:
        raise ConfigError(
            f"no question concerns the agents {', '.join(protocol.agent_names)}; name one of "
            f"{', '.join(BUILT_IN)}"
        )
    return found


def _agents(named: str, question: str, protocol: Protocol) -> tuple[str, ...]:
    groups = {PROVERS: protocol.prover_names, VERIFIERS: protocol.verifier_names}
    if named in groups:
        return tuple(groups[named])
    if named in protocol.agent_names:
        return (named,)
    close = did_you_mean(named, [*groups, *protocol.agent_names], 1)
    raise ConfigError(
        f"question {question!r} is about {named!r}{close or ';'} agents are "
        f"{', '.join(protocol.agent_names)}, {PROVERS} and {VERIFIERS}"
    )


def inquiries(
    rollouts: NestedArrayDict, protocol: Protocol, questions: Sequence[Question]
) -> Iterator[Inquiry]:
    """All questions about rollouts ``[n, R]``, one for each agent that said something."""
    for episode in range(len(rollouts)):
        record = transcript(rollouts, episode, protocol)
        seed = rollouts["seed"][episode, 0]
        stances = dict(zip(protocol.agent_names, protocol.stances(seed).tolist(), strict=True))
        lines = [line for said in record["rounds"] for entry in said for line in _lines(entry)]
        spoke = {entry["agent"] for said in record["rounds"] for entry in said}
        for question in questions:
            for agent in question.agents:
                if agent not in spoke:
                    continue
                facts = {"agent": agent, "stance": _STANCES[Verdict(stances[agent])]}
                whole = {
                    "question": record.get("question", "(not told)"),
                    "solution": record.get("solution", "(none)"),
                    "transcript": "\n".join(lines),
                    "ask": _fill_template(question.ask, facts),
                }
                yield Inquiry(question.name, episode, agent, _fill_template(_FRAME, whole))


def _fill_template(template: str, values: Mapping[str, str]) -> str:
    """Once over the template: what agents say in braces stays as it is."""
    return _FIELDS.sub(lambda match: values.get(match[1], match[0]), template)


def _lines(entry: Mapping[str, Any]) -> Iterator[str]:
    says = entry["says"]
    sent = says if isinstance(says, Mapping) else {"": says}
    for channel, text in sent.items():
        yield f"[{entry['agent']}{f' in {channel}' if channel else ''}] {text}"
    if "decides" in entry:
        yield f"[{entry['agent']}] (decides: {entry['decides']})"


def read_answer(reply: str) -> bool | None:
    """What a reply says: the last ``Answer: yes`` or ``no``, or a first word that is one of them.

    None: neither is there.
    """
    found = _ANSWER.findall(reply)
    word = found[-1] if found else next(iter(_ALONE.findall(reply)), None)
    return None if word is None else word.lower() == "yes"


def analysis_metrics(asked: Sequence[Inquiry], answers: Sequence[bool | None]) -> dict[str, float]:
    """Shares of yes by question and agent, among clear answers, and the share of unclear ones."""
    metrics: dict[str, float] = {}
    for question, agent in dict.fromkeys((each.question, each.agent) for each in asked):
        own = [
            answer
            for each, answer in zip(asked, answers, strict=True)
            if (each.question, each.agent) == (question, agent)
        ]
        clear = [answer for answer in own if answer is not None]
        name = f"analysis/{question}/{agent}"
        if clear:
            metrics[name] = sum(clear) / len(clear)
        metrics[f"{name}/unclear"] = 1 - len(clear) / len(own)
    return metrics
