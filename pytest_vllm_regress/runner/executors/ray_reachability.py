"""Check that something at a cluster's address answers, before Ray tries for minutes without a word."""

from __future__ import annotations

import os
import socket
import threading
import urllib.parse

from ...errors import UsageError

ANSWER_S = 8.0
"""Seconds in which a cluster must answer."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client opens an HTTP/2 connection (RFC 9113, section 3.4): gRPC, which Ray speaks, is
HTTP/2. The server sends its settings, too."""
_HEADER = 9
_SETTINGS_TYPE = 4


def check_reachable(address: str, where: str) -> None:
    """Raise ``UsageError`` if no gRPC server answers at ``where``, HOST:PORT with or without
    ray://. ``address`` is the value of --on.

    Anything without a host and a port is left to Ray. With Ray's TLS (RAY_USE_TLS) only the
    connection is tried.
    """
    endpoint = _endpoint(where)
    if endpoint is None:
        return
    problems: list[str] = [f"no answer within {ANSWER_S:g} s"]

    def try_to_reach() -> None:
        problems[:] = _problems(*endpoint)

    attempt = threading.Thread(
        target=try_to_reach, daemon=True
    )  # looking a name up has no timeout of its own
    attempt.start()
    attempt.join(ANSWER_S)
    if problems:
        raise UsageError(
            f"--on {address}: no cluster answers at {where}: {problems[0]}. "
            "Start one (`ray start --head`), or name one by RAY_ADDRESS or --on ray://HOST"
        )


def _endpoint(where: str) -> tuple[str, int] | None:
    scheme, separator, rest = where.rpartition("://")
    if separator and scheme != "ray":
        return None
    try:
        parts = urllib.parse.urlsplit(f"//{rest}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None


def _problems(host: str, port: int) -> list[str]:
    """Return why nothing that may be Ray answers there; empty if something does."""
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return []
            connection.sendall(_HELLO)
            header = b""
            while len(header) < _HEADER and (more := connection.recv(_HEADER - len(header))):
                header += more
    except TimeoutError:
        return [f"no answer within {ANSWER_S:g} s"]
    except OSError as error:
        return [error.strerror or str(error)]
    is_grpc = len(header) == _HEADER and header[3] == _SETTINGS_TYPE
    return [] if is_grpc else ["something else than Ray listens there"]
