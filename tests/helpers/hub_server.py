"""A small server with the part of the Hugging Face Hub's HTTP API that fetching a repository needs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "org/model"
PART = 10 << 20
"""Bytes that are sent in one go."""
PARTS_BEFORE_GATE = 3
LONGEST_WAIT = 30.0
"""Seconds, for a gate that nobody opens."""


class Handler(BaseHTTPRequestHandler):
    """Knows REPOSITORY at the revision "main"; "org/gated" is gated, everything else is not found."""

    files: dict[str, bytes]
    gate: threading.Event
    """Until it is set, no file is sent beyond its first PARTS_BEFORE_GATE parts."""
    protocol_version = "HTTP/1.0"  # no connection outlives its answer, nor the server

    def log_message(self, *_args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        if path.startswith((f"api/models/{REPOSITORY}/revision/main", f"api/models/{REPOSITORY}/revision/{COMMIT}")):
            self.answer_json(
                {"id": REPOSITORY, "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}
            )
        elif path.startswith(f"api/models/{REPOSITORY}/tree/{COMMIT}"):
            self.answer_json(
                [
                    {"type": "file", "path": name, "size": len(content), "oid": self.etag(content)}
                    for name, content in self.files.items()
                ]
            )
        elif path.startswith(f"{REPOSITORY}/resolve/{COMMIT}/"):
            self.answer_file(path.removeprefix(f"{REPOSITORY}/resolve/{COMMIT}/"))
        elif "org/gated" in path:
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif REPOSITORY in path:
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    @staticmethod
    def etag(content: bytes) -> str:
        return hashlib.sha1(content).hexdigest()

    def answer_json(self, value: object) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def answer_file(self, name: str) -> None:
        content = self.files[name]
        self.answer(200, content, {"ETag": f'"{self.etag(content)}"', "X-Repo-Commit": COMMIT})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                for start in range(0, len(body), PART):
                    if start == PARTS_BEFORE_GATE * PART:
                        self.gate.wait(LONGEST_WAIT)
                    self.wfile.write(body[start : start + PART])


@contextlib.contextmanager
def hub_server(files: dict[str, bytes], gate: threading.Event | None = None) -> Iterator[str]:
    """The server's address while the block runs. Without a gate of the caller's it stands open."""
    if gate is None:
        gate = threading.Event()
        gate.set()
    handler = type("FilledHandler", (Handler,), {"files": files, "gate": gate})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
