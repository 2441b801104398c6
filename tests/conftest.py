"""Fixtures of the project's own tests: small stand-in targets, so that most tests need no vLLM."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.output.pages.site import build_site
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir
from tests.helpers import FEWER_PLUGINS, ROOT, fake_gpus
from tests.helpers.cases import project_cases

pytest_plugins = ["pytester"]
TESTS = Path(__file__).parent
SLOW_FOLDERS = {TESTS / name for name in ("hostile", "cluster", "integration/browser")}
settings.register_profile(
    "project", deadline=None
)  # how long one example takes says how busy the machine is
settings.load_profile("project")

MakeTarget = Callable[..., Path]

# Some container images set this variable. The tests start hundreds of processes, and each would
# compile every module again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What tests start must be interruptible, also under a shell's & or nohup. A handler, unlike
# SIG_IGN, is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)


def pytest_unconfigure() -> None:
    fake_gpus.remove_built()  # not at the exit of the interpreter, which pytest-xdist's workers skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each worker of pytest-xdist import a part of the tests first. In a fresh clone all of
    them would compile all files at the same time."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or [Path(path).absolute() for path in session.config.args] != [TESTS]:
        return
    files = sorted([*TESTS.glob("unit/**/test_*.py"), *TESTS.glob("integration/**/test_*.py")])
    for file in files[int(worker["workerid"][2:]) :: worker["workercount"]]:
        if SLOW_FOLDERS.isdisjoint(file.parents):
            with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting reports it
                importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders of which ``-m`` selects nothing: each worker would import all of them."""
    if collection_path in SLOW_FOLDERS and "not slow" in config.option.markexpr:
        return True
    return None


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Mark the tests in some folders as slow."""
    module: pytest.Module = pytest.Module.from_parent(parent, path=module_path)
    if not SLOW_FOLDERS.isdisjoint(module_path.parents):
        module.add_marker("slow")
    return module


@pytest.fixture(autouse=True)
def few_plugins_in_pytester(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of pytester start faster, and without the warning that schemathesis's plugin adds to
    each error of collection."""
    if "pytester" in request.fixturenames:
        request.getfixturevalue("pytester")  # which removes PYTEST_ADDOPTS
        monkeypatch.setenv("PYTEST_ADDOPTS", FEWER_PLUGINS)


@pytest.fixture(scope="session")
def make_target(tmp_path_factory: pytest.TempPathFactory) -> MakeTarget:
    """Makes an interpreter that has the named distributions as empty packages:

    ``make_target(vllm="0.8.4")``.
    """

    def make(**versions: str) -> Path:
        root = tmp_path_factory.mktemp("target")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
        site = next((root / "lib").glob("python3.*/site-packages"))
        for package, version in versions.items():
            name = package.replace("-", "_")
            metadata = site / f"{name}-{version}.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: {version}\n"
            )
            (site / f"{name}.py").write_text(f"__version__ = {version!r}\n")
        return root / "bin" / "python"

    return make


@pytest.fixture(scope="session")
def affected_target(make_target: MakeTarget) -> Path:
    """An interpreter with "vllm 0.8.4"."""
    return make_target(vllm="0.8.4")


@pytest.fixture(scope="session")
def fixed_target(make_target: MakeTarget) -> Path:
    """An interpreter with "vllm 0.8.5"."""
    return make_target(vllm="0.8.5")


@pytest.fixture
def run_dir() -> Iterator[RunDir]:
    """A run directory, removed afterwards."""
    run = RunDir.create()
    yield run
    run.remove()


@pytest.fixture
def agent(run_dir: RunDir) -> Iterator[Agent]:
    """An agent on the tests' own interpreter."""
    started = Agent(Path(sys.executable), run_dir)
    started.start(Deadline.after("import", 60))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder for what all tests, also those of other workers of pytest-xdist, may read."""
    folder = tmp_path_factory.getbasetemp()
    return folder if worker_id == "master" else folder.parent


@pytest.fixture(scope="session")
def checkpoints(shared_folder: Path) -> Path:
    """Where tests forge checkpoints that they only read: each takes up to a second."""
    folder = shared_folder / "checkpoints"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def site(shared_folder: Path) -> Mapping[str, str | bytes]:
    """The files of the project's site.

    Building them takes several seconds, so one worker of pytest-xdist does it for all.
    """
    file = shared_folder / "site.pickle"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_bytes(
                pickle.dumps(build_site(project_cases(), ROOT / "locks", ROOT, now=0.0))
            )
    built: Mapping[str, str | bytes] = pickle.loads(file.read_bytes())
    return built
