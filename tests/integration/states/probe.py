"""A server in two processes that misbehaves: the front process answers HTTP, and a second one
stands for the engine core."""

import os
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler

TOKEN = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'


def serve(port, honest, shares_port):
    """Serve on ``port`` from now on. ``honest``: /health fails once the core is dead.

    ``shares_port``: the core keeps the socket open, too.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            dead = self.path == "/health" and honest and not os.path.exists(f"/proc/{core}/fd/0")
            self.answer(503 if dead else 404 if self.path == "/ping" else 200)

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if not os.path.exists(f"/proc/{core}/fd/0"):
                return self.answer(500) if honest else time.sleep(600)
            if b'"stream"' not in body:
                return self.answer(200)
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(TOKEN)
                time.sleep(0.01)

        def answer(self, status):
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
        allow_reuse_address = daemon_threads = True

    server = Server(("127.0.0.1", port), Handler)
    core = os.fork()
    if core == 0:
        if not shares_port:
            server.socket.close()
        while True:
            time.sleep(600)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return core
