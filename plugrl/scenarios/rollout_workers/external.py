"""Any program that speaks OpenAI's interface makes the attempts, and what it asks is recorded."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import location_suffix
from plugrl.core.text.agents.parsing import make_parser
from plugrl.core.text.agents.tools import bind
from plugrl.core.text.agents.worker import AgentEvaluationTarget
from plugrl.core.text.endpoint.clients.attempts import SESSIONS, Address
from plugrl.core.text.endpoint.clients.callables import accepted_arguments, call
from plugrl.core.text.endpoint.clients.outcomes import (
    AttemptOutcome,
    OutcomeError,
    of_output,
    of_value,
)
from plugrl.core.text.endpoint.clients.programs import ProgramError, run_program
from plugrl.core.text.endpoint.clients.slots import IdleWatch, Slots
from plugrl.core.text.endpoint.server import MISSING, is_installed
from plugrl.core.text.endpoint.session import Offer, Session
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.rollout.time_limits import PATIENCE, capture_exception
from plugrl.core.text.rollout.worker import RolloutWorker, RolloutWorkerConfig
from plugrl.core.text.trajectory import Trajectory

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

#: Bytes that a variable may have; Linux refuses more than 128 KiB.
_LONGEST_VARIABLE = 100_000
#: What only a shell understands, as a word that is not quoted.
_OPERATORS = frozenset(("|", "||", "&&", ";", "&", ">", ">>", "<", "2>", "2>>", "2>&1", "&>"))
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
#: The session of the attempt that the code which runs belongs to.
_SESSION: ContextVar[Session | None] = ContextVar("plugrl_session", default=None)


@dataclass
class ExternalRolloutWorkerConfig(RolloutWorkerConfig):
    """The program, and how its requests are answered."""

    command: list[str] | str = described([], "a program and its arguments, run without a shell")
    function: str | None = described(
        None, "module:name of a function of base_url, api_key and problem, instead of a command"
    )
    workspace: str | None = described(
        None,
        "folder in which the command runs and the function's module is looked for; null: the "
        "working directory",
        file="folder",
    )
    reward: Literal["evaluator", "program"] | None = described(
        None, "who rewards; null: the evaluator if there is one"
    )
    tool_parser: Any = component("parser", "hermes", help="reads the calls, if there are tools")
    reasoning_parser: Any = component("parser", help="reads the reasoning; absent: all is content")
    model_names: dict[str, str] = described(
        {}, "other names of models, such as gpt-4o: policy", names="model"
    )
    at_once: int = described(
        32, "attempts that run at once, in each process", at_least=1, at_most=10**5
    )
    max_requests: int = described(100, "requests of one attempt", at_least=1, at_most=10**6)
    patience: float = described(
        30.0,
        "seconds for which the others wait for an attempt that asks nothing",
        above=0,
        at_most=1e8,
    )
    timeout: float | None = described(
        600.0,
        "seconds that one attempt may take, waiting for models left out; null: any",
        above=0,
        at_most=1e8,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.command) == bool(self.function):
            raise ConfigError("name either command or function, one of them")
        if self.command and not _words(self.command):
            raise ConfigError("command is blank; name a program")


class ExternalRolloutWorker(RolloutWorker):
    """Starts a program, or calls a function, which asks models through an endpoint of its own.

    The endpoint records the tokens of every answer. Requests that continue one another become one
    trajectory, others become further ones; all of an attempt share its reward.
    """

    Config: ClassVar[type] = ExternalRolloutWorkerConfig
    gives: ClassVar[Collection[str]] = ()
    asks_now: ClassVar[bool] = False

    def __init__(self, config: Any = None, evaluator: Any = None) -> None:
        super().__init__(config, evaluator)
        options = self.config
        self._words = _words(options.command)
        self._slots = Slots(options.at_once)
        self._call_parsers = [make_parser(options.tool_parser)] if options.tool_parser else []
        self._parsers = [make_parser(options.reasoning_parser)] if options.reasoning_parser else []
        self._function: Callable[..., Any] | None = None
        self._taken: tuple[str, ...] = ()
        if options.function:
            self._function, self._taken = _function(options.function, options.workspace)

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """The extra, the program or function, the models, and who rewards."""
        section, path = check.section, check.path
        if not is_installed():
            yield path, MISSING
        if section.get("reward") == "evaluator" and section.get("evaluator") is None:
            yield f"{path}.evaluator", "is missing, and reward is evaluator; name one"
        if section.workspace is not None and not os.path.isdir(section.workspace):
            yield f"{path}.workspace", "is no folder"
        elif section.function:
            try:
                _function(section.function, section.workspace)
            except ConfigError as error:
                yield f"{path}.function", str(error)
        elif not _startable(_words(section.command), section.workspace):
            yield f"{path}.command", "there is no such program; write its path, or install it"

    async def rollout(self, task: RolloutTask) -> list[Trajectory]:
        """Attempt ``task`` by running the program once.

        Raises:
            PlugrlError: what it asked for showed a fault that must end the run.
            Exception: the program or function failed; the attempt is invalid.
        """
        release = await self._slots.take(task)
        try:
            with SESSIONS.open_session(task, self._offer(task)) as (session, address):
                _SESSION.set(session)
                outcome = await self._outcome(task, session, address)
        finally:
            release()
        trajectories = session.recording.trajectories(
            group_id=task.group_id, run_id=task.run_id, is_val=task.is_val
        )
        own = [t for t in trajectories if t.model == self.config.model]
        if not own:
            raise ProgramError(
                f"it asked nothing of model {self.config.model!r}{_session_faults(session)}"
            )
        task.logged.update(outcome.metrics)
        task.logged.setdefault("turns", float(len(session.recording.turns)))
        task.logged.setdefault("trajectories", float(len(trajectories)))
        task.logged.setdefault("unenforced", float(session.unenforced))
        await self._reward(task, own[-1], session, outcome)
        for trajectory in trajectories:
            trajectory.reward = own[-1].reward
            trajectory.valid, trajectory.failure = own[-1].valid, own[-1].failure
        return trajectories

    def _offer(self, task: RolloutTask) -> Offer:
        return Offer(
            tokenizers=task.tokenizers,
            limits=task.limits,
            sampling=task.sampling,
            names=self.config.model_names,
            longest_prompt=self.config.max_prompt_length,
            parsers=self._parsers,
            call_parsers=self._call_parsers,
            most_requests=self.config.max_requests,
        )

    async def _outcome(
        self, task: RolloutTask, session: Session, address: Address
    ) -> AttemptOutcome:
        """What came of the program, unless a fault that must end the run came first."""
        # As a value: some exceptions would end the event loop.
        running = asyncio.ensure_future(capture_exception(self._run(task, address)))
        fatal = asyncio.ensure_future(session.fatal.wait())
        patience = IdleWatch(task, session, self.config.patience)
        watching = asyncio.ensure_future(patience.watch())
        try:
            await asyncio.wait({running, fatal}, return_when=asyncio.FIRST_COMPLETED)
            if session.fault is not None:
                raise session.fault
            outcome, error = running.result()
            if error is not None:
                raise error
            assert outcome is not None
            return outcome
        except (ProgramError, OutcomeError) as error:
            raise type(error)(f"{error}{_session_faults(session)}") from None
        finally:
            for each in (watching, fatal, running):
                each.cancel()
            # Its program must have ended before another one gets its place.
            await asyncio.wait({running}, timeout=PATIENCE)

    async def _run(self, task: RolloutTask, address: Address) -> AttemptOutcome:
        if self._function is not None:
            values = {
                "base_url": address.base_url,
                "api_key": address.api_key,
                "session": address.session,
                "problem": dict(task.data),
                "model": self.config.model,
                "is_val": task.is_val,
            }
            arguments = {name: values[name] for name in self._taken}
            result = await call(self._function, arguments)
            try:
                return of_value(result)
            except OutcomeError as error:
                raise OutcomeError(
                    f"in what it returned, {error}{location_suffix(self._function)}"
                ) from None
        problem = json.dumps(dict(task.data), default=str)
        ended = await run_program(
            self._words,
            variables=_variables(task, address, self.config.model, problem),
            given=problem.encode(),
            folder=self.config.workspace,
            session=address.session,
        )
        ended.check()
        return of_output(ended.out)

    async def _reward(
        self, task: RolloutTask, trajectory: Trajectory, session: Session, outcome: AttemptOutcome
    ) -> None:
        said = [turn for turn in session.recording.turns if turn.prompt.model == trajectory.model]
        answer = said[-1].shown if outcome.answer is None else outcome.answer
        own = self.config.reward or ("program" if self.evaluator is None else "evaluator")
        if own == "evaluator":
            await self.judged(task, trajectory, answer)
        elif outcome.reward is None:
            raise OutcomeError('it gave no reward; let its last line be {"reward": NUMBER}')
        else:
            trajectory.reward = outcome.reward

    def target(self, trajectory: Trajectory, final_answer: str) -> BaseEvaluationTarget:
        """The answer with all messages of the attempt."""
        session = _SESSION.get()
        ends = session.recording.ends() if session is not None else []
        messages = [dict(message) for turn in ends for message in turn.messages]
        return AgentEvaluationTarget(
            final_answer, trajectory.finish_reason == "length", observation=messages
        )


def _variables(task: RolloutTask, address: Address, model: str, problem: str) -> dict[str, str]:
    variables = {
        "OPENAI_BASE_URL": address.base_url,
        "OPENAI_API_KEY": address.api_key,
        "PLUGRL_SESSION": address.session,
        "PLUGRL_MODEL": model,
        "PLUGRL_VALIDATION": str(int(task.is_val)),
        # Programs of the same machine are not asked through a proxy.
        "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1"))),
    }
    if len(problem.encode()) <= _LONGEST_VARIABLE:
        variables["PLUGRL_PROBLEM"] = problem
    return variables


def _session_faults(session: Session) -> str:
    """What failed while the program asked, for a message."""
    return f"; it was told: {session.faults[-1]}" if session.faults else ""


def _function(name: str, workspace: str | None) -> tuple[Callable[..., Any], tuple[str, ...]]:
    function = bind(name, Path(workspace) if workspace else Path.cwd())
    return function, accepted_arguments(function, name)


def _words(command: list[str] | str) -> list[str]:
    """A command as a list.

    Raises:
        ConfigError: its quotes do not match, or it has operators of a shell.
    """
    if not isinstance(command, str):
        return list(command)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"command cannot be split: {error}") from None
    operator = next((w for w in _QUOTED.sub("q", command).split() if w in _OPERATORS), None)
    if operator is not None:
        raise ConfigError(
            f"command is read by no shell, which {operator} is meant for; write "
            f"[bash, -c, {json.dumps(command)}], or quote {operator}"
        )
    return words


def _startable(words: list[str], workspace: str | None) -> bool:
    if os.sep in words[0]:
        program = Path(workspace or ".", words[0])
        return program.is_file() and os.access(program, os.X_OK)
    return words[0].startswith("python") or shutil.which(words[0]) is not None
