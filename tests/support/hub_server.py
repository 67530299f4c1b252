"""A small server that speaks the protocol of the Hugging Face hub, for its own client.

Repositories are commits of files in memory. It has what models and data sets are read with (info,
tree, paths-info, ``resolve`` with its headers, redirects of large files, ranges), what they are
written with (create, branch, preupload, large files, commit), and the faults of a hub: gated and
private repositories, wrong tokens, answers of 5xx, connections that break off in a file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

#: Files from this size on, and of these endings, are large files (LFS).
LARGE = 5_000
LARGE_SUFFIXES = (".safetensors", ".parquet", ".arrow", ".bin")
TOKEN = "hf_" + "a" * 34


def is_large(path: str, content: bytes) -> bool:
    return len(content) >= LARGE or path.endswith(LARGE_SUFFIXES)


@dataclass
class Repo:
    """A repository; its revisions are names of commits."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = "main", **extra: Any) -> str:
        """Add files on a branch, and return the new commit."""
        held = dict(self.commits.get(self.refs.get(branch, ""), {}))
        held.update(files)
        digest = hashlib.sha1(repr((len(self.commits), branch, sorted(held))).encode())
        for path in sorted(held):
            digest.update(held[path])
        commit = digest.hexdigest()
        self.commits[commit] = held
        self.refs[branch] = commit
        return commit

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commit = self.refs.get(revision, revision)
        return (commit, self.commits[commit]) if commit in self.commits else None


@dataclass
class HubServer:
    """The state of the server, which tests read and change while it runs."""

    url: str = ""
    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    #: Every request: method and path.
    requests: list[tuple[str, str]] = field(default_factory=list)
    #: Bytes of bodies of files that were sent.
    sent: int = 0
    #: Paths that hold this text are answered with this status, while the count lasts.
    failing: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: The body of a file whose path ends so breaks off after so many bytes, so many times.
    cuts: dict[str, tuple[int, int]] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)

    def repo(self, kind: str, name: str) -> Repo:
        return self.repos.setdefault((kind, name), Repo())

    def model(self, name: str, files: Mapping[str, bytes] | Path, **flags: Any) -> str:
        return self._add("model", name, files, **flags)

    def data_set(self, name: str, files: Mapping[str, bytes] | Path, **flags: Any) -> str:
        return self._add("dataset", name, files, **flags)

    def _add(self, kind: str, name: str, files: Any, **flags: Any) -> str:
        if isinstance(files, Path):
            files = {
                str(path.relative_to(files)): path.read_bytes()
                for path in sorted(files.rglob("*"))
                if path.is_file()
            }
        repo = self.repo(kind, name)
        repo.gated = flags.pop("gated", repo.gated)
        repo.private = flags.pop("private", repo.private)
        commit = repo.commit({".gitattributes": b"", **files}, **flags)
        for content in repo.commits[commit].values():
            self.large[hashlib.sha256(content).hexdigest()] = content
        return commit

    def asked(self, text: str) -> list[tuple[str, str]]:
        """The requests whose path holds a text."""
        return [request for request in self.requests if text in request[1]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(
        self, status: int, body: Any = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _fault(self, status: int, code: str = "", message: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        if message:
            headers["X-Error-Message"] = message
        self._answer(status, {"error": message or code}, headers)

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        path, query = parts.path, parse_qs(parts.query)
        self.hub.requests.append((self.command, unquote(path)))
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        for text, (status, count) in list(self.hub.failing.items()):
            if text in path and count:
                self.hub.failing[text] = (status, count - 1)
                self._fault(status, message="a fault of this server")
                return
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        if token and token != TOKEN:
            self._fault(401, message="Invalid credentials in Authorization header")
            return
        words = [unquote(word) for word in path.strip("/").split("/")]
        route = self._route(words)
        if route is None:
            self._fault(404, "RepoNotFound", "no such page")
            return
        route(words, query, body, bool(token))

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle

    def _chunks(self) -> bytes:
        body = b""
        while True:
            size = int(self.rfile.readline().strip() or b"0", 16)
            body += self.rfile.read(size)
            self.rfile.readline()
            if not size:
                return body

    def _route(self, words: list[str]) -> Callable[..., None] | None:
        if words[0] == "large":
            return self._large
        if words[0] == "api" and words[1:3] == ["repos", "create"]:
            return self._create
        if words == ["api", "validate-yaml"]:
            return self._validate_card
        if words[0] == "api" and words[1] in ("models", "datasets"):
            return self._api
        if "resolve" in words:
            return self._resolve
        return self._batch if words[-1] == "batch" else None

    def _find(self, kind: str, name: str, revision: str, token: bool, read: bool = True) -> Any:
        """The commit and its files; None: a fault was sent."""
        repo = self.hub.repos.get((kind, name))
        if repo is None or (repo.private and not token):
            self._fault(401 if not token else 404, "RepoNotFound", "Repository not found")
            return None
        if repo.gated and read and not token:
            self._fault(401, "GatedRepo", "Access to this is restricted; log in")
            return None
        found = repo.at(revision)
        if found is None:
            self._fault(404, "RevisionNotFound", "Invalid rev id")
        return found

    def _api(self, words: list[str], query: Any, body: bytes, token: bool) -> None:
        kind, name, rest = words[1][:-1], "/".join(words[2:4]), words[4:]
        action, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        if action == "branch":
            self._branch(self.hub.repo(kind, name), revision, token)
            return
        if action == "preupload":
            self._preupload(body)
            return
        if action == "commit":
            self._commit(kind, name, revision, body, token)
            return
        # As of the hub, the info of a gated repository can be seen, its files cannot.
        found = self._find(kind, name, revision, token, read=action != "revision")
        if found is None:
            return
        commit, files = found
        if action == "revision":
            self._answer(
                200,
                {
                    "_id": "1", "id": name, "modelId": name, "sha": commit, "private": False,
                    "gated": False, "downloads": 0, "likes": 0, "tags": [], "disabled": False,
                    "lastModified": "2025-01-01T00:00:00.000Z",
                    "createdAt": "2025-01-01T00:00:00.000Z",
                    "siblings": [{"rfilename": path} for path in sorted(files)],
                },
            )  # fmt: skip
        elif action == "tree":
            self._answer(200, [_entry(path, files[path]) for path in sorted(files)])
        elif action == "paths-info":
            asked = parse_qs(body.decode()).get("paths", [])
            self._answer(200, [_entry(path, files[path]) for path in asked if path in files])
        else:
            self._fault(404, "EntryNotFound")

    def _resolve(self, words: list[str], query: Any, body: bytes, token: bool) -> None:
        kind = "dataset" if words[0] == "datasets" else "model"
        words = words[1:] if kind == "dataset" else words
        name, revision, path = "/".join(words[:2]), words[3], "/".join(words[4:])
        found = self._find(kind, name, revision, token)
        if found is None:
            return
        commit, files = found
        shown = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if path not in files:
            self._answer(
                404, {"error": "Entry not found"}, shown | {"X-Error-Code": "EntryNotFound"}
            )
            return
        content = files[path]
        if is_large(path, content):
            digest = hashlib.sha256(content).hexdigest()
            linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            # As on the hub, another host has the large files, and is not told the token.
            host = self.hub.url.replace("127.0.0.1", "localhost")
            location = {"Location": f"{host}/large/{digest}/{Path(path).name}"}
            self._answer(302, b"", shown | linked | location)
            return
        self._send_file(path, content, shown | {"ETag": f'"{hashlib.sha1(content).hexdigest()}"'})

    def _large(self, words: list[str], query: Any, body: bytes, token: bool) -> None:
        digest = words[1]
        if self.command == "PUT":
            if hashlib.sha256(body).hexdigest() != digest:
                self._fault(400, message="the content has another hash")
                return
            self.hub.large[digest] = body
            self._answer(200, b"", {"ETag": f'"{digest}"'})
        elif self.command == "POST":
            self._answer(200 if digest in self.hub.large else 404, {})
        else:
            self._send_file(words[-1], self.hub.large[digest], {"ETag": f'"{digest}"'})

    def _send_file(self, path: str, content: bytes, headers: dict[str, str]) -> None:
        start, status = 0, 200
        wanted = self.headers.get("Range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first or 0), int(last) + 1 if last else len(content)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
            content, status = content[start:stop], 206
        headers["Content-Length"] = str(len(content))
        for ending, (size, count) in list(self.hub.cuts.items()):
            if path.endswith(ending) and count and self.command == "GET":
                self.hub.cuts[ending] = (size, count - 1)
                self._answer(status, content[:size], headers)
                self.hub.sent += size
                self.close_connection = True
                self.connection.close()
                return
        if self.command == "GET":
            self.hub.sent += len(content)
        self._answer(status, content, headers)

    def _create(self, words: list[str], query: Any, body: bytes, token: bool) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        if not token:
            self._fault(401, message="Invalid username or password.")
            return
        key = (asked.get("type") or "model", name)
        if key in self.hub.repos:
            body = {"error": "You already created this repo", "url": f"{self.hub.url}/{name}"}
            self._answer(409, body, {"X-Error-Message": "You already created this repo"})
            return
        private = asked.get("private") or asked.get("visibility") == "private"
        self.hub.repos[key] = Repo(private=bool(private))
        self.hub.repos[key].commit({".gitattributes": b""})
        self._answer(200, {"url": f"{self.hub.url}/{name}"})

    def _validate_card(self, words: list[str], query: Any, body: bytes, token: bool) -> None:
        """Metadata of a card: that it is YAML, and of models a few of the hub's rules."""
        written = json.loads(body)["content"]
        errors = []
        try:
            card = yaml.safe_load(written.split("---")[1])
            for key in ("tags", "datasets"):
                if not isinstance(card.get(key, []), list):
                    errors.append({"message": f'"{key}" must be an array'})
        except (IndexError, yaml.YAMLError) as error:
            errors.append({"message": f"no metadata: {error}"})
        self._answer(400 if errors else 200, {"errors": errors, "warnings": []})

    def _branch(self, repo: Repo, branch: str, token: bool) -> None:
        if branch in repo.refs:
            self._fault(409, message="Reference already exists")
            return
        repo.refs[branch] = repo.refs["main"]
        self._answer(200, {})

    def _preupload(self, body: bytes) -> None:
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs"
                if file["size"] >= LARGE or file["path"].endswith(LARGE_SUFFIXES)
                else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self._answer(200, {"files": files})

    def _batch(self, words: list[str], query: Any, body: bytes, token: bool) -> None:
        objects = []
        for each in json.loads(body)["objects"]:
            href = f"{self.hub.url}/large/{each['oid']}"
            actions = {"upload": {"href": href}, "verify": {"href": href}}
            objects.append({**each, "authenticated": True, "actions": actions})
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _commit(self, kind: str, name: str, revision: str, body: bytes, token: bool) -> None:
        if not token:
            self._fault(401, message="Invalid username or password.")
            return
        repo, files, header = self.hub.repo(kind, name), {}, {}
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                header = value
            elif item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
        commit = repo.commit(files, revision)
        self.hub.commits.append({"name": name, "revision": revision, **header})
        url = f"{self.hub.url}/{name}/commit/{commit}"
        self._answer(200, {"commitUrl": url, "commitOid": commit, "pullRequestUrl": None})


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "file",
        "oid": hashlib.sha1(content).hexdigest(),
        "size": len(content),
        "path": path,
    }
    if is_large(path, content):
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
    return entry


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """A running server on a free port of this machine."""
    hub = HubServer()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
