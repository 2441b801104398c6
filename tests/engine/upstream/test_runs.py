"""A run of upstream's tests with a server that never comes up: it ends at its deadline with a
dossier, the rest runs, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.repositories import RepositoryBuilder
from tests.helpers.shared_memory import leaked_since, unmapped_files

pytestmark = [pytest.mark.engine, pytest.mark.slow]
DEADLINE_S = 20
HEAD = """
import os
import pytest
from ..utils import RemoteOpenAIServer

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
"""
FILES = {
    "pyproject.toml": "[tool.pytest.ini_options]\n",
    "tests/__init__.py": "",
    "tests/conftest.py": "",
    "tests/utils.py": "class RemoteOpenAIServer:\n    pass\n",
    "tests/area/__init__.py": "",
    "tests/area/test_1_never.py": f"""{HEAD}
@pytest.fixture(scope="module")
def server(tmp_path_factory):
    template = tmp_path_factory.mktemp("templates") / "template.jinja"
    os.mkfifo(template)  # nobody writes to it: the server waits forever for its chat template
    with RemoteOpenAIServer(MODEL, ["--chat-template", str(template)], max_wait_seconds={DEADLINE_S}) as server:
        yield server


def test_never(server): pass
def test_never_again(server): pass
""",
    "tests/area/test_2_leaves.py": f"""{HEAD}
import subprocess, sys, tempfile
from multiprocessing import shared_memory

def test_leaves_things_behind():
    RemoteOpenAIServer(MODEL, ["--enforce-eager"])  # without an end
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    tempfile.mkdtemp()
    segment = shared_memory.SharedMemory(create=True, size=64)
    assert segment.name

def test_dies(): os._exit(3)
""",
    "tests/area/test_3_works.py": f"""{HEAD}
def test_works():
    with RemoteOpenAIServer(MODEL, ["--enforce-eager"]) as server, server.get_client() as client:
        assert client.completions.create(model=MODEL, prompt="Hello", max_tokens=3).usage.completion_tokens == 3
""",
}


@pytest.fixture
def temporary() -> Iterator[Path]:
    """An empty folder for everything temporary of a run.

    Its path is short, as those of sockets below it must be.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def processes_below(folder: Path) -> list[str]:
    """Return the command lines of the processes whose variables name ``folder``."""
    own, needle = str(os.getpid()), os.fsencode(folder)
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if pid != own and needle in Path("/proc", pid, "environ").read_bytes():
                lines.append(
                    Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
        except OSError:
            continue
    return lines


def test_a_server_that_never_comes_up_ends_at_its_deadline_with_a_dossier_and_nothing_is_left(
    tmp_path: Path, temporary: Path
) -> None:
    builder = RepositoryBuilder(tmp_path / "clone")
    builder.commit("tests", FILES)
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "pytest_vllm_regress",
        "survey",
        "upstream",
        "--source",
        str(builder.place),
        "--ref",
        "main",
    ]
    command += ["--env", "vllm-0.8.5", "--out", str(out), "tests/area"]
    segments = unmapped_files()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    results = {
        result["test"].partition("::")[2]: result
        for result in json.loads((out / "results.json").read_text())["results"]
    }
    assert {test: result["outcome"] for test, result in results.items()} == {
        **dict.fromkeys(("test_never", "test_never_again", "test_dies"), "failed"),
        **dict.fromkeys(("test_leaves_things_behind", "test_works"), "passed"),
    }

    why = f"Server failed to start in time: server 1 (serve) missed its deadline: the server was not ready within {DEADLINE_S} s"
    assert why in results["test_never"]["reason"]
    (dossier,) = (out / "dossiers").iterdir()
    assert f"dossiers of servers that did not start: {dossier}" in done.stdout
    assert "test_1_never.py-test_never-" in dossier.name
    text = dossier.read_text()
    assert "load_chat_template" in text  # where the server stands
    assert "-- log " in text
    assert "vllm 0.8.5" in text

    assert processes_below(temporary) == []
    assert list(temporary.iterdir()) == []
    assert leaked_since(segments) == set()
