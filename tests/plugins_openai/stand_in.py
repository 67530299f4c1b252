"""A process in the place of ``vllm serve`` or SGLang: their documented interface on a port.

``python stand_in.py KIND PORT [SOURCE]``, with a model's source as JSON in a file. It also starts a
process, as theirs do, and tells its number at ``/child``.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path

import documented_server
from documented_server import SOURCE, DocumentedServer


def main():
    kind, port, *source = sys.argv[1:]
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    source = json.loads(Path(source[0]).read_text(encoding="utf-8")) if source else SOURCE
    DocumentedServer(source, kind, port=int(port))
    routes = documented_server.Handler.routes
    documented_server.Handler.routes = lambda own: {
        **routes(own),
        "/child": lambda body: {"pid": child.pid},
    }
    threading.Event().wait()


if __name__ == "__main__":
    main()
