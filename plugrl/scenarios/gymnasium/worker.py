"""A process that holds one copy of an environment and does what its parent sends.

It ends with its parent, whatever its environment is busy with.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.tensordict.environment.copies import Crashes
from plugrl.core.tensordict.environment.state import Unsavable
from plugrl.scenarios.gymnasium.local_copy import LocalCopy
from plugrl.scenarios.gymnasium.recipe import import_registered

#: Seconds between two looks at whether the parent still lives.
_LOOK = 1.0


def _serve(connection: Connection) -> None:
    told: list[str] = []
    copy: LocalCopy | None = None
    try:
        # Classes of a user's file are found after that is imported.
        import_registered(connection.recv())
        recipe, index, allowed = pickle.loads(connection.recv_bytes())
        copy = LocalCopy(recipe, index, Crashes(recipe.id, allowed, told.append))
        answer: tuple[bool, Any, list[str]] = (True, None, [])
    except Exception as error:
        answer = (False, str(error), [])
    connection.send(answer)
    while copy is not None:
        name, *arguments = connection.recv()
        try:
            answer = (True, getattr(copy, name)(*arguments), told)
            data = pickle.dumps(answer)
        except Unsavable as error:
            data = pickle.dumps((True, error, told))
        except Exception as error:
            data = pickle.dumps((False, str(error) or one_line(error), told))
        connection.send_bytes(data)
        told.clear()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)


def main() -> None:
    """Run the process; descriptor of the connection and number of the parent are arguments."""
    descriptor, parent = map(int, sys.argv[1:3])
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    try:
        _serve(Connection(descriptor))
    except (EOFError, OSError):
        os._exit(0)
