"""A project with one case, whose probe does what a test wants it to; the target is a real interpreter with an empty "vllm"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

CASE = """
id = "demo-1"
title = "a demonstration"
family = "crash"
upstream = ["https://example.org/issues/1"]
devices = {devices}
[affected]
vllm = "{affected}"
[variants.other]
affected = false
[symptom]
kind = "{kind}"
phase = "probe"
pattern = '{pattern}'
{more}
[control]
omits = "the trigger"
{controls}
[evidence]
affected = ["vllm-0.8.4"]
fixed = ["vllm-0.8.5"]
"""

PROBE = """
import os, time
from vllm_regress_target import Unsupported

def fine(): return 8
def one(): return 1
def raises(): raise ValueError("the documented words")
def raises_other(): raise KeyError("something else")
def hangs(): print("waiting for the documented words", flush=True); time.sleep(600)
def crashes(): print("the documented words", flush=True); os._exit(7)
def says(words): print(words, flush=True)
def gives(value): return value
def cannot_say(): raise Unsupported("not here")
def cannot(): raise Unsupported("this version has no such thing", since="0.9")
"""

TEST = """
import pytest

@pytest.mark.vllm_case("demo-1"{arguments})
def test_demo(vllm_probe, vllm_leg):
    value = vllm_probe({function!r} if vllm_leg == "subject" else {control!r}, timeout=1)
    assert value == 8, "the documented words: " + str(value)
"""

Demo = Callable[..., Path]


@pytest.fixture
def demo(pytester: pytest.Pytester) -> Demo:
    """Writes the case: ``demo("raises", kind="exception")``; ``test`` replaces the test file."""

    def write(
        function: str = "fine",
        *,
        control: str = "fine",
        kind: str = "exception",
        affected: str = "<0.8.5",
        pattern: str = "the documented words",
        devices: str = '["sim", "cpu", "gpu"]',
        arguments: str = "",
        more: str = "",
        controls: str = "",
        test: str = TEST,
    ) -> Path:
        fields = {"kind": kind, "affected": affected, "pattern": pattern, "devices": devices}
        pytester.makefile(".toml", case=CASE.format(**fields, more=more, controls=controls))
        pytester.makepyfile(probe=PROBE, test_demo=test.format(function=function, control=control, arguments=arguments))
        return pytester.path

    return write
