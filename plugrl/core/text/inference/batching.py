"""Asynchronous requests over a thread of their own: what waits is served together."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future

from plugrl.core.errors import RunError
from plugrl.core.text.inference import completions
from plugrl.core.text.inference.requests import Completion, GenerationRequest

#: Seconds without a request after which the thread ends; the next request starts another.
LINGER = 2.0
#: Seconds that closing waits for an engine that is computing, before it leaves it behind.
PATIENCE = 5.0


class Ticket:
    """A request on its way, and the future that its answer is given to."""

    __slots__ = ("answer", "request")

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.answer: Future[Completion] = Future()

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled, so that its answer has no reader."""
        return self.answer.cancelled()

    def give(self, completion: Completion) -> None:
        """Answer the request, unless it has ended meanwhile."""
        if not self.answer.done() and self.answer.set_running_or_notify_cancel():
            self.answer.set_result(completion)

    def fail(self, error: BaseException) -> None:
        """End the request with an error, unless it has ended."""
        if not self.answer.done() and self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)


class RequestThread(ABC):
    """Takes requests from any thread and serves them in a daemon thread of its own.

    The thread starts with the first request and ends when nothing has come for a while. An error
    while serving reaches every request that is open; later requests are served again.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._arrived: list[Ticket] = []
        self._open: list[Ticket] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    @abstractmethod
    def serve(self, arrived: Sequence[Ticket]) -> bool:
        """Take what has arrived and do one piece of work; True asks to be called again.

        An error ends all requests that are open: forget them before it leaves.
        """

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. Cancelling the future cancels the request.

        Raises:
            RunError: the thread was closed.
        """
        ticket = Ticket(request)
        with self._changed:
            if self._closed:
                raise RunError(f"{self._name} is closed; no request can be sent")
            self._arrived.append(ticket)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        return ticket.answer

    def close(self) -> None:
        """End the thread and every request that is open; returns within a bounded time."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE)
        self._fail_all(RunError(f"{self._name} was closed before it answered"))

    def _run(self) -> None:
        busy = False
        while True:
            with self._changed:
                if not (busy or self._arrived or self._closed):
                    self._changed.wait(LINGER)
                if self._closed or not (busy or self._arrived):
                    self._thread = None
                    return
                arrived, self._arrived = self._arrived, []
                self._open = [t for t in self._open if not t.answer.done()] + arrived
            try:
                busy = self.serve([ticket for ticket in arrived if not ticket.cancelled])
            except BaseException as error:
                busy = False
                self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        with self._changed:
            tickets, self._open = self._open, []
            if self._closed:
                tickets, self._arrived = tickets + self._arrived, []
        for ticket in tickets:
            ticket.fail(error)


class RequestBatcher(RequestThread):
    """The asynchronous form of an engine that has the lockstep form alone.

    All requests that wait are served by one call of ``generate``. Those cancelled before are not
    asked; those cancelled during the call are abandoned.
    """

    def __init__(self, service: completions.Engine) -> None:
        super().__init__(f"the request queue of {type(service).__name__}")
        self._service = service

    def serve(self, arrived: Sequence[Ticket]) -> bool:
        """Ask the engine for all of ``arrived`` at once."""
        if arrived:
            requests = [ticket.request for ticket in arrived]
            answers = completions.complete_requests(
                type(self._service).__name__, self._service, requests
            )
            for ticket, answer in zip(arrived, answers, strict=True):
                if isinstance(answer, Exception):
                    ticket.fail(answer)
                else:
                    ticket.give(answer)
        return False
