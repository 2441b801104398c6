"""The control route of ``vllm-regress serve``: scripts and faults for tests in other languages.

It listens on the loopback interface alone, apart from the clients' address, and asks for the
server's key.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ...errors import RegressError, ScriptError, UsageError
from ..inputs.script_rules import answers_from
from ..ports import HOST
from .transport import Transport

_MAX_BODY = 64 * 1024 * 1024


class ControlRoute(AbstractContextManager["ControlRoute"]):
    """Takes orders for one server at ``url``, within a ``with`` block.

    ``say`` gets each problem of a script once.
    """

    def __init__(self, server: Transport, say: Callable[[str], None]) -> None:
        self._server = server
        self._say = say
        self._problems: list[str] = []
        self._lock = threading.Lock()
        self._listener = ThreadingHTTPServer((HOST, 0), self._handler())
        self._listener.daemon_threads = True
        self.url = f"http://{HOST}:{self._listener.server_port}"

    def __enter__(self) -> ControlRoute:
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown()
        self._listener.server_close()

    def check_scripts(self) -> None:
        """Look for scripts that could not be followed."""
        with self._lock:
            try:
                self._server.scripts.check()
            except ScriptError as error:
                self._say(str(error))
                self._problems.append(str(error))

    def answer(self, order: str, document: Any) -> Any:
        """Obey an order and return the answer, a JSON value. Raises ``RegressError``."""
        if order == "POST /script":
            self._server.script(answers_from(document))
        elif order == "POST /fail":
            if not isinstance(document, dict):
                raise UsageError('fail: the body is an object such as {"status": 429}')
            self._server.fail(**document)
        elif order == "POST /clear":
            self._server.forget_scripts()
        elif order == "GET /problems":
            self.check_scripts()
            with self._lock:
                problems, self._problems = self._problems, []
            return {"problems": problems}
        else:
            raise UsageError(
                f"{order}: there are POST /script, POST /fail, POST /clear and GET /problems"
            )
        return {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        route, key = self, f"Bearer {self._server.api_key}"

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = self.headers.get("Authorization", "")
                if not hmac.compare_digest(given.encode(), key.encode()):
                    self._reply(401, {"error": "the server's key is needed"})
                    return
                length = int(self.headers.get("Content-Length") or 0)
                try:
                    if length > _MAX_BODY:
                        raise UsageError(f"the body has more than {_MAX_BODY} bytes")
                    document = json.loads(self.rfile.read(length) or b"null")
                    self._reply(200, route.answer(f"{self.command} {self.path}", document))
                except (RegressError, ValueError) as error:
                    self._reply(400, {"error": str(error)})

            do_POST = do_GET

            def log_message(self, *arguments: Any) -> None:
                """Say nothing."""

            def _reply(self, status: int, value: Any) -> None:
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler
