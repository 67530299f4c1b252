"""The forked processes of the tests behave as those that Python starts."""

import os
import signal
import subprocess
import sys
import time

import forking
import pytest
from waiting import DEADLINE

PROGRAM = """
import os, sys, atexit
atexit.register(print, "bye")
print(sys.argv[1:], os.getcwd(), os.environ.get("COLOUR"), __name__)
print("wrong", file=sys.stderr)
sys.exit({code})
"""


@pytest.mark.parametrize("code", ["0", "7", "None", "'no'"])
def test_it_is_what_a_new_process_is(tmp_path, code):
    # Where words of a command line are ASCII, Python itself passes no others.
    words = ["-c", PROGRAM.format(code=code), "a b", os.fsdecode("ä".encode())]
    settings = {"cwd": tmp_path, "env": {**os.environ, "COLOUR": "red"}}
    done = forking.run(words, **settings)
    new = subprocess.run([sys.executable, *words], capture_output=True, text=True, **settings)
    assert (done.returncode, done.stdout, done.stderr) == (new.returncode, new.stdout, new.stderr)


@pytest.mark.parametrize("words", [["-m", "own"], ["folder/own.py"]])
def test_modules_and_files_see_what_a_new_process_sees(tmp_path, monkeypatch, words):
    (tmp_path / "folder").mkdir()
    text = "import sys, helper\nprint(sys.argv, sys.path[0], helper.__file__, __name__)\n"
    for name in ("own.py", "folder/own.py"):
        (tmp_path / name).write_text(text)
    for name in ("helper.py", "folder/helper.py"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    new = subprocess.run([sys.executable, *words, "x"], capture_output=True, text=True)
    assert forking.run([*words, "x"]).stdout == new.stdout != ""


def test_folders_of_pythonpath_come_first(tmp_path):
    (tmp_path / "json.py").write_text("")
    (tmp_path / "of_pythonpath.py").write_text("print('found')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert forking.run(["-c", "import of_pythonpath"], env=env).stdout == "found\n"
    done = forking.run(["-c", "import of_pythonpath"])
    assert "No module named 'of_pythonpath'" in done.stderr
    assert done.returncode == 1


def test_nothing_of_plugrl_is_imported_yet():
    program = "import sys; print([name for name in sys.modules if name.startswith('plugrl')])"
    assert forking.run(["-c", program]).stdout == "[]\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_it(number):
    program = "import time; print('started', flush=True); time.sleep(60)"
    with open(os.devnull, encoding="utf-8") as nothing:
        process = forking.Process(["-c", program], stdout=subprocess.PIPE, stderr=nothing)
    assert process.stdout.readline() == "started\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(number)
    assert process.wait(DEADLINE) == -number
    process.send_signal(number)


def test_what_takes_too_long_is_killed():
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        forking.run(["-c", program], timeout=0.5)
    assert time.monotonic() - began < 20


def test_shells_find_it(tmp_path):
    (tmp_path / "bin").mkdir()
    env = {**os.environ, **forking.stand_ins(tmp_path / "bin")}
    script = """
        plugrl --version
        echo one | python -c 'print(input(), 2)'
        echo 'print(3)' | python
        plugrl nothing 2> /dev/null || echo $?
        python -c 'import time; time.sleep(60)' & kill $!; wait $! || echo $?
    """
    done = subprocess.run(["bash", "-euc", script], env=env, capture_output=True, text=True)
    version, *rest = done.stdout.splitlines()
    assert version.startswith("plugrl ")
    assert rest == ["one 2", "3", "2", "143"], done.stderr
