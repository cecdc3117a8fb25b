"""A small served model of ours behind a real socket, which misbehaves on order."""

import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answerer = Callable[[str, Mapping[str, Any]], Any]


class serving:
    """A server on the loopback that answers a path and a body as `answer` says; a pair is a status and a body."""

    def __init__(self, answer: Answerer) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._tell(answer(self.path, {}))

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._tell(answer(self.path, asked))

            def _tell(self, told: Any) -> None:
                status, body = told if isinstance(told, tuple) else (200, told)
                data = json.dumps(body).encode()  # writes -Infinity, as some servers do
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Words:
    """A served model whose tokens are words and single other characters. Every token of it has log-probability -0.5."""

    def __init__(self, pattern: str = r"\w+|.", tamper: Callable[[list[Any]], Any] = lambda scores: scores) -> None:
        self._pattern, self._tamper = re.compile(pattern, re.DOTALL), tamper
        self._known: list[str] = ["<prompt>"]
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, path: str, asked: Mapping[str, Any]) -> Any:
        self.asked.append((path, asked))
        if path == "/v1/models":
            return {"data": [{"id": "words"}]}
        if path == "/tokenize":
            return {"tokens": [0, 0] if "messages" in asked else self._ids(asked["prompt"])}
        if path == "/detokenize":
            if max(asked["tokens"]) >= len(self._known):
                return 400, {"error": {"message": "no such token"}}
            return {"prompt": "".join(self._known[token] for token in asked["tokens"])}
        assert path == "/v1/completions"
        scores = [None, *({str(token): {"logprob": -0.5}} for token in asked["prompt"][1:])]
        return {"choices": [{"text": "", "prompt_logprobs": self._tamper(scores)}]}

    def _ids(self, text: str) -> list[int]:
        words = self._pattern.findall(text)
        self._known += [word for word in dict.fromkeys(words) if word not in self._known]
        return [self._known.index(word) for word in words]
