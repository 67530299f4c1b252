"""Runs one program in a box: takes away what it may not have, then becomes it.

Started as a script by :mod:`plugrl.core.sandbox.box`, without plugrl's package. The program runs in
this very process, so that nothing has to be started once processes are refused.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import resource
import signal
import sys
import types
from typing import Any

#: Events of the interpreter that a program does not need, for where the kernel refuses nothing.
_REFUSED = (
    "socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo", "os.fork",
    "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.startfile", "subprocess.Popen",
    "os.kill", "os.killpg", "pty.spawn", "ctypes.dlopen", "ctypes.dlsym", "os.chdir", "os.chown",
    "os.chmod", "os.link", "os.symlink", "os.truncate",
)  # fmt: skip
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir")
_LOOKS = ("os.listdir", "os.scandir")


def main() -> None:
    """Apply the limits of the specification in the first argument, then run the program."""
    spec = json.loads(sys.argv[1])
    with open(os.path.join(spec["box"], "program.py"), encoding="utf-8") as file:
        source = file.read()
    kernel = _restrict(spec)
    os.write(spec["status"], json.dumps(kernel).encode())
    os.close(spec["status"])
    sys.argv = ["program.py"]
    sys.path.insert(0, spec["box"])
    signal.setitimer(signal.ITIMER_PROF, spec["seconds"])
    code = compile(source, "program.py", "exec")
    if spec["mode"] == "script":
        # Classes of the program are looked up there by what copies them.
        program = types.ModuleType("__main__")
        sys.modules["__main__"] = program
        exec(code, program.__dict__)
        return
    _test(spec, code)


def _test(spec: dict[str, Any], code: Any) -> None:
    names: dict[str, Any] = {"__name__": "program"}
    exec(code, names)
    # What is asked, and the word that a passed test answers with, are read after the program ran.
    with os.fdopen(spec["job"], "rb") as file:
        job = json.load(file)
    answer = ""
    if spec["mode"] == "asserts":
        exec(compile(job["code"], "test.py", "exec"), names)
    else:
        function = names.get(job["name"])
        if function is None and "Solution" in names:
            function = getattr(names["Solution"](), job["name"], None)
        if not callable(function):
            raise NameError(f"the program has no function {job['name']!r}")
        answer = json.dumps(function(*job["arguments"]), default=_plain)
    sys.stdout.flush()
    os.write(spec["result"], (job["word"] + answer).encode())
    os._exit(0)


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result of type {type(value).__name__} cannot be compared")


def _restrict(spec: dict[str, Any]) -> list[str]:
    """Apply the limits; the names of what the kernel enforces."""
    megabyte, seconds = 1 << 20, math.ceil(spec["seconds"])
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": seconds + 1,
        "RLIMIT_FSIZE": spec["file_bytes"],
        "RLIMIT_NOFILE": 64,
        "RLIMIT_MEMLOCK": megabyte,
        "RLIMIT_AS": spec["memory_bytes"],
    }
    for name, value in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, ValueError, OSError):
            if name in ("RLIMIT_CPU", "RLIMIT_FSIZE"):
                raise
    done = _ask_kernel(spec) if spec["kernel"] else []
    if "calls" not in done:
        # It counts all processes of the user, so that not even a thread can be started.
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    if len(done) < 2:
        sys.addaudithook(_hook(spec))
    return done


def _ask_kernel(spec: dict[str, Any]) -> list[str]:
    done: list[str] = []
    try:
        kernel = _load("kernel", os.path.join(os.path.dirname(__file__), "kernel.py"))
        kernel.die_with_parent(signal.SIGKILL)
        kernel.drop_capabilities()
    except (OSError, KeyError, AttributeError):
        return done
    for name, work in (
        ("files", lambda: kernel.confine_files(spec["readable"], [spec["box"]])),
        ("calls", kernel.forbid_calls),
    ):
        try:
            work()
        except (OSError, KeyError):
            continue
        done.append(name)
    return done


def _load(name: str, path: str) -> Any:
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _hook(spec: dict[str, Any]) -> Any:
    """Refuses in the interpreter what the kernel does not; native code gets around it."""
    box, refused = os.path.realpath(spec["box"]), frozenset(_REFUSED)
    looks, touched = frozenset(_LOOKS), frozenset(_LOOKS + _CHANGES)
    readable = tuple(os.path.realpath(path) for path in spec["readable"])
    real, inside, writes = os.path.realpath, box, os.O_WRONLY | os.O_RDWR

    def below(path: Any, folders: tuple[str, ...]) -> bool:
        found = real(os.fsdecode(path))
        return any(found == f or found.startswith(f.rstrip("/") + "/") for f in folders)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in refused:
            raise PermissionError(f"{event} is not allowed in the box")
        if event == "open" and not isinstance(arguments[0], int):
            change = bool(arguments[2] & (writes | os.O_CREAT | os.O_TRUNC))
            if not below(arguments[0], (inside,) if change else (inside, *readable)):
                raise PermissionError(f"{arguments[0]!r} is outside of the box")
        elif event in touched:
            paths = [a for a in arguments[:2] if isinstance(a, (str, bytes, os.PathLike))]
            allowed = (inside, *readable) if event in looks else (inside,)
            if not all(below(path, allowed) for path in paths):
                raise PermissionError(f"{event} outside of the box is not allowed")

    return hook


if __name__ == "__main__":
    main()
