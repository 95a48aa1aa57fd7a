"""A server that answers streamed completions at once, for the tests of what scripts/bench makes of answers.

    python completions_server.py PORT [short|broken|refusing EVERY]

Every so many requests it stops too early, breaks off, or refuses. Prompts count with a token for each word.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count


class Completions(BaseHTTPRequestHandler):
    """One connection."""

    numbers = count(1)
    trouble = ""
    every = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        goes_wrong = self.every and next(self.numbers) % self.every == 0
        if goes_wrong and self.trouble == "refusing":
            self.send_error(503)
            return
        self.send_response(200)
        self.end_headers()
        num_tokens = body["max_tokens"] - 1 if goes_wrong else body["max_tokens"]
        for _ in range(num_tokens):
            self.event({"choices": [{"text": "a"}]})
        if not (goes_wrong and self.trouble == "broken"):
            usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": num_tokens}
            self.event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")

    def event(self, chunk: dict[str, object]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """For as many clients at once as a test likes."""

    request_queue_size = 64
    daemon_threads = True


if __name__ == "__main__":
    if len(sys.argv) > 2:
        Completions.trouble, Completions.every = sys.argv[2], int(sys.argv[3])
    Server(("127.0.0.1", int(sys.argv[1])), Completions).serve_forever()
