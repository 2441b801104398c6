"""The process that judges schemas for ``schema_judge.SchemaJudge``. Each request and each reply is
a line of JSON.

The kernel ends it with SIGPROF after its processor time for one request, even when nobody waits for
it any more.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from ...schemas import features, validator
from .schema_oracle import find_violation

MAX_MESSAGE = 2000
MAX_TEXTS = 10
_NOT_SUPPORTED = ("://", '"$id"', '"id"', '"$dynamicRef"', '"$anchor"')


def main(seconds: str, memory: str) -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the requester decides
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    for line in requests:
        signal.setitimer(signal.ITIMER_PROF, float(seconds))
        replies.write(json.dumps(_reply(line)).encode() + b"\n")
        replies.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


def _reply(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
        return {"result": _METHODS[request.pop("method")](**request)}
    except MemoryError:
        return {"error": "jsonschema needs too much memory"}
    except (
        Exception
    ) as error:  # of jsonschema, referencing, re and our own walk over what may be no schema
        return {"error": f"{type(error).__name__}: {error}"[:MAX_MESSAGE]}


def _violations(schema: dict[str, Any], texts: list[str]) -> list[tuple[str, str] | None]:
    checker = validator(schema)
    violations = (find_violation(checker, text) for text in texts)
    return [violation and (violation[0], violation[1][:MAX_MESSAGE]) for violation in violations]


def _usable(schema: Any, tests: Any) -> dict[str, Any] | None:
    """Return schema, valid and invalid texts and features of a group of the JSON Schema Test Suite;
    None if no backend accepts the schema."""
    try:
        text = json.dumps(schema)
        if not isinstance(schema, dict) or any(word in text for word in _NOT_SUPPORTED):
            return None
        bare = {key: value for key, value in schema.items() if key != "$schema"}
        checker = validator(bare)
        checker.check_schema(bare)
        # Keep tests on which jsonschema agrees with the suite; others were written for a different
        # draft.
        agreed = [test for test in tests if checker.is_valid(test["data"]) == test["valid"]]
        valid, invalid = (
            tuple(
                dict.fromkeys(
                    json.dumps(test["data"], ensure_ascii=False)
                    for test in agreed
                    if test["valid"] is is_valid
                )
            )
            for is_valid in (True, False)
        )
        if not valid and not invalid:
            return None
        return {
            "schema": bare,
            "valid": valid[:MAX_TEXTS],
            "invalid": invalid[:MAX_TEXTS],
            "features": sorted(features(bare)),
        }
    except MemoryError:
        raise
    except (
        Exception
    ):  # the "referencing" library has its own exceptions for references that it cannot resolve
        return None


_METHODS: dict[str, Callable[..., Any]] = {"violations": _violations, "usable": _usable}
