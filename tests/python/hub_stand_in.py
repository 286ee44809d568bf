"""A stand-in of the Hugging Face Hub: as much of its HTTP interface as huggingface_hub needs to fetch and to upload."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

LFS_BYTES = 1000  # files that are not shorter are uploaded as LFS's


@dataclass
class Repo:
    """A repository: its files, and who may read it."""

    files: dict[str, bytes] = field(default_factory=dict)
    gated: bool = False
    token: str = ""  # that it takes to read; empty: none
    private: bool = False
    branches: set[str] = field(default_factory=lambda: {"main"})

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


class Hub:
    """The repositories, "models/org/name" and "datasets/org/name", and what was asked."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.lfs: dict[str, bytes] = {}
        self.asked: list[str] = []  # "GET /…"
        self.away = False  # answers 503
        self.url = ""

    def fetched(self) -> list[str]:
        """The files that were fetched, in order of their names."""
        found = (re.fullmatch(r"GET /\S+/resolve/\w+/(\S+)", each) for each in self.asked)
        return sorted(each[1] for each in found if each)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: object, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, b"{}", X_Error_Code=code, X_Error_Message=code)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urllib.parse.unquote(self.path.partition("?")[0])
        self.hub.asked.append(f"{self.command} {path}")
        if self.hub.away:
            return self._answer(503)
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if found := re.fullmatch(r"/lfs/(\w+)", path):
            self.hub.lfs[found[1]] = body
            return self._answer(200)
        if found := re.fullmatch(r"/([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", path):
            return self._json({"transfer": "basic", "objects": [self._upload(each) for each in json.loads(body)["objects"]]})
        if found := re.fullmatch(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/([\w.-]+)/(.+)", path):
            return self._file(f"{found[1] or 'models/'}{found[2]}", found[3], found[4])
        if found := re.fullmatch(r"/api/((?:models|datasets)/[\w.-]+/[\w.-]+)(?:/(\w+)/([\w.-]+))?", path):
            return self._api(found[1], found[2] or "revision", found[3] or "main", body)
        return self._fail(404, "EntryNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def _repo(self, name: str, revision: str) -> Repo | None:
        """The repository, or None if the request was answered already."""
        repo = self.hub.repos.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if repo is None or repo.private and token != repo.token:
            return self._fail(401, "RepoNotFound")
        if repo.gated and token != repo.token:
            return self._fail(403 if token else 401, "GatedRepo")
        if revision not in {*repo.branches, repo.sha}:
            return self._fail(404, "RevisionNotFound")
        return repo

    def _api(self, name: str, verb: str, revision: str, body: bytes) -> None:
        if verb == "branch":
            self.hub.repos[name].branches.add(revision)
            return self._answer(200)
        repo = self._repo(name, revision)
        if repo is None:
            return None
        if verb == "preupload":
            modes = [
                {"path": each["path"], "uploadMode": "lfs" if each["size"] >= LFS_BYTES else "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return self._json({"files": modes})
        if verb == "commit":
            return self._commit(name, repo, body)
        if verb == "tree":
            return self._json([
                {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for path, data in sorted(repo.files.items())
            ])  # fmt: skip
        kind, _, short = name.partition("/")
        siblings = [{"rfilename": path} for path in sorted(repo.files)]
        return self._json({"id": short, "_id": "1", "sha": repo.sha, "private": repo.private, "siblings": siblings,
                           "tags": [], "downloads": 0, "likes": 0, "gated": repo.gated})  # fmt: skip

    def _file(self, name: str, revision: str, path: str) -> None:
        repo = self._repo(name, revision)
        if repo is None:
            return None
        if path not in repo.files:
            return self._fail(404, "EntryNotFound")
        data = repo.files[path]
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X_Repo_Commit": repo.sha}
        if self.command == "HEAD":
            return self._answer(200, Content_Length=str(len(data)), **headers)
        return self._answer(200, data, **headers)

    def _create(self, wanted: dict[str, str]) -> None:
        if self.headers.get("Authorization") != "Bearer writer":
            return self._answer(401, b"{}", X_Error_Message="Invalid credentials in Authorization header")
        name = f"{wanted['organization'] or 'me'}/{wanted['name']}"
        status = 409 if f"models/{name}" in self.hub.repos else 200
        private = wanted.get("visibility") == "private"
        self.hub.repos.setdefault(f"models/{name}", Repo(private=private, token="writer"))
        return self._json({"url": f"{self.hub.url}/{name}", "name": name}, status)

    def _upload(self, wanted: dict[str, object]) -> dict[str, object]:
        return {**wanted, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{wanted['oid']}"}}}

    def _commit(self, name: str, repo: Repo, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                repo.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                repo.files[line["value"]["path"]] = self.hub.lfs[line["value"]["oid"]]
        url = f"{self.hub.url}/{name.partition('/')[2]}/commit/{repo.sha}"
        return self._json({"commitUrl": url, "commitOid": repo.sha, "success": True})


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub at its `url` until the block ends."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
