"""SIGTERM and SIGKILL of every command that starts something in a target, or that installs one:
nothing of it lives on, whatever it did to its session, its parent and its environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.output.export.standalone import MODULES
from pytest_vllm_regress.util.paths import PACKAGE
from tests.conftest import MakeTarget
from tests.helpers.cases import CaseFile
from tests.helpers.repositories import RepositoryBuilder

STARTS_A_DAEMON = """
import os, pathlib, subprocess, sys, time
__version__ = "0.8.4"
if not sys.flags.isolated:
    # As vLLM's engine core: a session of its own, an environment without our tag, and no parent.
    sleep = f"import time; {marker!r}; time.sleep(600)"
    start = f"import os, sys; os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, '-c', {{sleep!r}}], {{{{}}}})"
    subprocess.run([sys.executable, "-c", start], env={{}}, start_new_session=True)
    pathlib.Path({marker!r}).touch()
    time.sleep(600)
"""
MAIN = "import sys; from pytest_vllm_regress.cli import main; sys.exit(main(sys.argv[1:]))"
UPSTREAM = f"""
from pathlib import Path
from pytest_vllm_regress.surveys.upstream import tests
tests._ensure_beside = lambda *arguments: Path({{beside!r}})
{MAIN}
"""
SERVER = PACKAGE / "output" / "export" / "data" / "server.py.txt"
TARGET_COMMANDS = {
    "run": "--cases cases run demo --env {python}",
    "matrix": "--cases cases matrix demo --env {python}",
    "ask": "ask --env {python} -- true",
    "uses": "uses project --env {python}",
    "survey states": "survey states --env {python}",
    "survey conformance": "survey conformance --env {python}",
    "survey upstream": "survey upstream tests/test_one.py --source clone --ref main --env {python}",
    "fuzz api": "fuzz api --env {python}",
    "fuzz engines": "fuzz engines --env {python}",
    "fuzz lifecycle": "fuzz lifecycle --env {python}",
    "fuzz parsers": "fuzz parsers --env {python}",
    "fuzz schemas": "fuzz schemas --env {python}",
}
INDEX_COMMANDS = {
    "env build": "env build vllm-0.8.4",
    "env lock": "env lock vllm-0.8.4",
    "survey drift": "survey drift --releases 0.8.4",
    "bisect": "--cases cases bisect demo --releases >=0.8",
    "validate": "--cases cases validate demo",
    "compare": "--cases cases compare vllm-0.8.4 vllm-0.8.5 --run",
    "try": "--cases cases try tree demo",
    "watch": "--cases cases watch demo",
}


class Place:
    """A folder in which commands run, with a cache of its own, and the marker by which a process of
    a command can be known."""

    def __init__(self, root: Path) -> None:
        self.root, self.marker = root, root / "reached"
        self.pids: set[int] = set()
        """Of the command that was killed, and of all that was below it."""
        (root / "tmp").mkdir()

    @contextlib.contextmanager
    def started(self, words: str, code: str = MAIN, **variables: str) -> Iterator[psutil.Popen]:
        """Run a command, whose output is in the file ``output``."""
        own = {"VLLM_REGRESS_CACHE": str(self.root / "cache"), "TMPDIR": str(self.root / "tmp")}
        with (self.root / "output").open("wb") as output:
            process = psutil.Popen(
                [sys.executable, "-c", code, *words.split()],
                cwd=self.root,
                env={**os.environ, **own, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            for left in (process, *self.marked()):
                with contextlib.suppress(psutil.Error):
                    left.kill()
            process.wait()

    def wait(self, process: psutil.Popen, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not reached():
            text = (self.root / "output").read_text()
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    def marked(self) -> list[psutil.Process]:
        """The processes whose command line has the marker."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(str(self.marker) in word for word in process.cmdline()):
                    found.append(process)
        return found

    def kill(self, process: psutil.Process, number: signal.Signals) -> list[psutil.Process]:
        """Kill a command, and return what is left of it."""
        below = [*process.children(recursive=True), *self.marked()]
        assert below
        self.pids = {process.pid, *(one.pid for one in below)}
        process.send_signal(number)
        process.wait(60)
        _, alive = psutil.wait_procs(below, 30)
        return [one for one in (*alive, *self.marked()) if one.is_running()]

    def left_behind(self) -> list[str]:
        """Which processes `doctor` says that the command has left, other tests run beside this."""
        with self.started("doctor --format json") as process:
            process.wait()
        entries = json.loads((self.root / "output").read_text())
        owners = {f"process {pid}, which is gone" for pid in self.pids}
        return [e["name"] for e in entries if e["what"] == "process" and e["owner"] in owners]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    case = CaseFile("demo", old=("vllm-0.8.4",), new=("vllm-0.8.5",)).write(tmp_path / "cases")
    (case.directory / "test_demo.py").write_text(
        "import pytest\n@pytest.mark.vllm_case('demo')\ndef test_it(vllm_engine):\n    pass\n"
    )
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "app.py").write_text("from vllm import LLM, SamplingParams\n")
    return place


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
@pytest.mark.parametrize("name", TARGET_COMMANDS)
def test_nothing_in_a_target_survives_a_command(
    place: Place, make_target: MakeTarget, name: str, number: signal.Signals
) -> None:
    python = make_target(vllm="0.8.4", xgrammar="0.1")
    daemon = STARTS_A_DAEMON.format(marker=str(place.marker))
    code = MAIN
    for module in python.parents[1].glob("lib/python3.*/site-packages/*.py"):
        module.write_text(daemon)
    if name == "survey upstream":
        files = {"tests/test_one.py": "import vllm\n"}
        RepositoryBuilder(place.root / "clone").commit("tests", files)
        beside = place.root / "beside"
        (beside / "pytest_asyncio").mkdir(parents=True)
        (beside / "pytest_asyncio" / "plugin.py").touch()
        (beside / "more.py").touch()
        for entry in Path(pytest.__file__).parents[1].iterdir():
            if not entry.name.startswith("pytest_vllm_regress"):
                (beside / entry.name).symlink_to(entry)
        code = UPSTREAM.format(beside=str(beside))
    with place.started(TARGET_COMMANDS[name].format(python=python), code) as process:
        place.wait(process, place.marker.exists)
        assert place.kill(process, number) == []
    assert place.left_behind() == []


def test_doctor_sees_what_has_no_tag_below_a_nanny_that_cannot_work(
    place: Place, make_target: MakeTarget
) -> None:
    python = make_target(vllm="0.8.4")
    (module,) = python.parents[1].glob("lib/python3.*/site-packages/vllm.py")
    module.write_text(STARTS_A_DAEMON.format(marker=str(place.marker)))
    words = TARGET_COMMANDS["ask"].format(python=python)
    with place.started(words) as process:
        place.wait(process, place.marker.exists)
        (nanny,) = process.children()
        nanny.suspend()
        (daemon,) = place.marked()
        process.kill()
        process.wait()
        place.pids = {process.pid}
        listed = any(name.startswith(f"{daemon.pid} ") for name in place.left_behind())
        assert listed or not daemon.is_running()  # or another run has cleaned up meanwhile
        with place.started("doctor --remove") as removing:
            removing.wait()
        psutil.wait_procs([nanny, daemon], 30)
        assert place.marked() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
def test_the_server_of_an_exported_script_ends_with_it(
    place: Place, make_target: MakeTarget, number: signal.Signals
) -> None:
    python = make_target()
    server = f"import pathlib, time; pathlib.Path({str(place.marker)!r}).touch(); time.sleep(600)"
    (python.parent / "vllm").write_text(server)
    code = "".join(f"import {module}\n" for module in MODULES)
    code += f"sys.executable = {str(python)!r}\n"
    code += f"model_path, SERVE_ARGUMENTS = (lambda: 'm'), [{str(place.marker)!r}]\n"
    code += SERVER.read_text() + "with Server():\n    pass\n"
    with place.started("", code) as process:
        place.wait(process, place.marker.exists)
        assert place.kill(process, number) == []


@pytest.fixture
def silent_index() -> Iterator[tuple[str, threading.Event]]:
    """The address of an index that never answers, and what is set when somebody asks it."""
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(server.accept())
                    asked.set()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple", asked
        for connection, _ in kept:
            connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
@pytest.mark.parametrize("name", INDEX_COMMANDS)
def test_no_installation_survives_a_command(
    place: Place, silent_index: tuple[str, threading.Event], name: str, number: signal.Signals
) -> None:
    address, asked = silent_index
    uses = {"UV_DEFAULT_INDEX": address, "UV_INDEX_URL": address}
    uses |= {"UV_CACHE_DIR": str(place.root / "uv"), "NO_PROXY": "127.0.0.1"}
    if name == "try":
        tree = RepositoryBuilder(place.root / "tree")
        tree.commit("first", {"vllm/__init__.py": ""})
        (tree.place / "vllm" / "__init__.py").write_text("# a patch\n")
    if name == "watch":  # which asks pip
        uses["PIP_INDEX_URL"] = address
    with place.started(INDEX_COMMANDS[name], **uses) as process:
        place.wait(process, asked.is_set)
        assert place.kill(process, number) == []
    assert place.left_behind() == []
