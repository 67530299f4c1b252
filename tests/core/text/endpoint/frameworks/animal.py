"""What the programs of this folder ask for, and how they end."""

import json
import os
import sys
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MODEL = os.environ.get("PLUGRL_MODEL", "policy")
QUESTION = "An animal?"


class Animal(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=99)


class Anything(BaseModel):
    """Any object, since a model with random weights knows no schema that is not enforced."""

    model_config = ConfigDict(extra="allow")


#: Where no schema is enforced, a model with random weights may go on to the longest answer.
CUT = "cut"


def attempt(ask):
    """Ask in each of the modes that are given, and say what came of the attempt.

    The reward is one in which attempts of a group differ.
    """
    said, cut = "", 0
    for mode in sys.argv[1:]:
        try:
            value = ask(mode)
        except Exception as error:
            raise SystemExit(f"{mode}: {type(error).__name__}: {error}") from error
        assert isinstance(value, (Animal, Anything, str)), (mode, value)
        cut += value == CUT
        said += value if isinstance(value, str) else value.model_dump_json()
    reward = float(sum(map(ord, said)) % 7)
    print(json.dumps({"answer": said, "reward": reward, "metrics": {"cut": cut}}))
