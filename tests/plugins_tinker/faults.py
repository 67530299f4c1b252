"""A door in front of a server that misbehaves on request, and keeps what was asked."""

from __future__ import annotations

import http.client
import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Door:
    """Passes requests on to ``target``.

    Attributes:
        asked: (path, body) of every request.
        faults: what happens to the next requests of a path: a status, ``garbage`` or ``cut``.
    """

    def __init__(self, target: str | None = None) -> None:
        self.asked: list[tuple[str, dict]] = []
        self.faults: dict[str, deque] = {}
        self.always: int | None = None
        door, host = self, urlsplit(target).netloc if target else None

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def do_GET(self):
                self.answer()

            def do_POST(self):
                self.answer()

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.rpartition("/")[2]
                door.asked.append((path, json.loads(body) if body else {}))
                waiting = door.faults.get(path)
                fault = waiting.popleft() if waiting else door.always
                if fault == "cut":
                    self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"half')
                    self.close_connection = True
                elif fault == "garbage":
                    self.give(200, b"\x00\xff<html>")
                elif fault is not None:
                    self.give(fault, json.dumps({"detail": "made up"}).encode())
                else:
                    self.give(*self.passed_on(body))

            def passed_on(self, body):
                link = http.client.HTTPConnection(host, timeout=120)
                kept = {"Content-Type": self.headers.get("Content-Type", "application/json")}
                link.request(self.command, self.path, body, kept)
                answer = link.getresponse()
                return answer.status, answer.read()

            def give(self, status, data):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self._server.shutdown()
        self._server.server_close()

    def misbehave(self, path: str, *faults) -> None:
        """Let the next requests of a path go wrong, one after the other."""
        self.faults[path] = deque(faults)

    def requests(self, path: str) -> list[dict]:
        """The bodies of the requests of a path."""
        return [body for name, body in self.asked if name == path]
