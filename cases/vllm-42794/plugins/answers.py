"""A middleware, for --middleware: it logs what the server answers, also when nobody reads it any more."""

import sys


class Answers:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["path"] != "/v1/completions":
            await self.app(scope, receive, send)
            return
        status, body = None, b""

        async def log_and_send(message):
            nonlocal status, body
            status = message.get("status", status)
            body += message.get("body", b"")
            await send(message)

        await self.app(scope, receive, log_and_send)
        print(f"answered {status} with {body!r}", file=sys.stderr, flush=True)
