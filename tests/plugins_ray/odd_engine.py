"""An engine of a user's file: slow, hungry, or one of nonsense, in processes that notes name."""

import asyncio
import os
import time
from pathlib import Path

from plugrl.plugins.transformers.inference_service import TransformersInferenceService


def note(folder, what, process):
    """The file that has the engine of a process be ``slow``, ``hungry`` or full of ``nonsense``."""
    return Path(folder, f"{what}-{process}")


def nonsense(kind, answers):
    """What no engine may answer; the last kind cannot be sent either."""
    if kind == "nothing":
        return None
    if kind == "few":
        return answers[:-1]
    if kind == "numbers":
        return [1] * len(answers)
    answers[0].tokens.append(10**6)
    if kind == "iterator":
        return iter(answers)
    return answers


class OddEngine(TransformersInferenceService):
    def _note(self, what):
        return note(os.environ["AGENTS_NOTES"], what, os.getpid())

    def generate(self, requests):
        answers = super().generate(requests)
        while self._note("slow").exists():
            time.sleep(0.01)
        held = []
        while self._note("hungry").exists() and len(held) < 120:
            held.append(bytes([len(held)]) * 10**8)
        in_step = note(os.environ["AGENTS_NOTES"], "nonsense-in-step", requests[0].stream[1])
        for wrong in (self._note("nonsense"), in_step):
            if wrong.exists():
                return nonsense(wrong.read_text(), answers)
        return answers

    async def complete(self, request):
        answer = await super().complete(request)
        while self._note("slow").exists():
            await asyncio.sleep(0.01)
        wrong = self._note("nonsense")
        return nonsense(wrong.read_text(), [answer]) if wrong.exists() else answer
