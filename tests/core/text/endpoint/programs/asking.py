"""Asks a model with the standard library alone: fast, and with every thing a program can do."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor


def ask(messages, base_url=None, api_key=None, timeout=240, **more):
    base_url = base_url or os.environ["OPENAI_BASE_URL"]
    api_key = api_key or os.environ["OPENAI_API_KEY"]
    data = json.dumps({"model": "policy", "messages": messages, **more}).encode()
    headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", data, headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


def two_turns(problem, **where):
    messages = [user(problem["prompt"])]
    messages.append(ask(messages, **where))
    messages.append(user("b"))
    return ask(messages, **where)["content"]


# Functions.


def plain(base_url, api_key, problem):
    return two_turns(problem, base_url=base_url, api_key=api_key)


async def awaiting(base_url, api_key, problem, is_val):
    import asyncio

    text = await asyncio.to_thread(two_turns, problem, base_url=base_url, api_key=api_key)
    return {"answer": text, "metrics": {"val": is_val}}


def rewarding(base_url, api_key, problem, session, model):
    assert session in base_url
    two_turns(problem, base_url=base_url, api_key=api_key)
    return 0.25


def stopping(base_url, api_key, problem):
    next(iter(()))


LOCK = threading.Lock()


def sharing(base_url, api_key, problem):
    """Others cannot ask until this one has ended."""
    with LOCK:
        return two_turns(problem, base_url=base_url, api_key=api_key)


def exiting(base_url, api_key, problem):
    sys.exit(3)


def raising(base_url, api_key, problem):
    raise KeyError("lost")


def strange(base_url, api_key, problem):
    return {"reward": "high"}


def silent(base_url, api_key, problem):
    return 1.0


def hanging(base_url, api_key, problem):
    time.sleep(30)


def asks_after_its_end(base_url, api_key, problem):
    def later():
        time.sleep(problem["after"])
        try:
            ask([user("late")], base_url=base_url, api_key=api_key)
            said = "answered"
        except Exception as error:
            said = f"{getattr(error, 'code', error)}"
        with open(problem["note"], "w", encoding="utf-8") as file:
            file.write(said)

    threading.Thread(target=later, daemon=True).start()
    return two_turns(problem, base_url=base_url, api_key=api_key)


def wrong_parameters(url, key):
    return None


# Programs: the first argument says which.


def main(what):
    problem = json.load(sys.stdin)
    if what == "two_turns":
        print("some output\n{not json}")
        print(json.dumps({"answer": two_turns(problem)}))
        print('{"log": "an object of its own"}')
    elif what == "last":
        two_turns(problem)
    elif what == "rewards":
        two_turns(problem)
        print(json.dumps({"reward": 0.75, "metrics": {"steps": 2}}))
    elif what == "variables":
        assert json.loads(os.environ["PLUGRL_PROBLEM"]) == problem
        assert os.environ["PLUGRL_SESSION"] in os.environ["OPENAI_BASE_URL"]
        assert os.environ["PLUGRL_MODEL"] == "policy"
        two_turns(problem)
        print(json.dumps({"reward": float(os.environ["PLUGRL_VALIDATION"])}))
    elif what == "large":
        assert "PLUGRL_PROBLEM" not in os.environ
        two_turns(problem)
        print(json.dumps({"reward": len(problem["more"])}))
    elif what == "fails":
        two_turns(problem)
        print("first line", file=sys.stderr)
        sys.exit("it is\n  all over")
    elif what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "silent":
        print('{"reward": 1}')
    elif what == "no_reward":
        two_turns(problem)
    elif what == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        escaped(problem)
        time.sleep(60)
    elif what == "leaves_children":
        escaped(problem)
        print(json.dumps({"answer": two_turns(problem)}))
    elif what == "at_once":
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda n: (time.sleep(n / 50), ask([user("a")])), range(4)))
        print(json.dumps({"reward": 1}))
    elif what == "impatient":
        try:
            ask([user("a")], timeout=0.05)
        except OSError:
            time.sleep(0.2)
        print(json.dumps({"answer": two_turns(problem)}))
    elif what == "floods":
        refused = 0
        for _ in range(30):
            try:
                ask([user("a")])
            except OSError:
                refused += 1
        print(json.dumps({"reward": refused}))
    elif what == "noisy":
        for _ in range(3000):
            print("x" * 1000)
            print("y" * 1000, file=sys.stderr)
        print(json.dumps({"answer": two_turns(problem)}))


def escaped(problem):
    """Start children in this group and in another session, which hold the outputs open."""
    for session in (False, True):
        child = subprocess.Popen(["sleep", "61"], start_new_session=session)
        with open(problem["note"], "a", encoding="utf-8") as file:
            file.write(f"{child.pid}\n")


if __name__ == "__main__":
    main(sys.argv[1])
