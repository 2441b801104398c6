"""The built wheel, installed outside the checkout: what pytest and the command do there, and where
they write."""

from __future__ import annotations

import dataclasses
import os
import resource
import subprocess
import zipfile
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.results import read_results
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.util.paths import cache_root
from tests.conftest import MakeTarget
from tests.helpers import ROOT, interpreters
from tests.helpers.environments import require_environment
from tests.integration.plugin.conftest import DEMO, PROBE, TEST

pytestmark = pytest.mark.slow

NO_TESTS = 5
NEWEST = "vllm-0.33.0"
OPTIONS = ("--help", "--version", "--fixtures", "--markers", "--collect-only", "--setup-plan")
REPOSITORY = "https://example.org/owner/name"


@dataclasses.dataclass(frozen=True)
class Guest:
    """An installation of the wheel and an empty project.

    It may write only to ``home``, ``cache`` and ``temporary``.
    """

    bin: Path
    project: Path
    home: Path
    cache: Path
    temporary: Path

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST_", "XDG_"))
        }
        environment |= {
            "HOME": str(self.home),
            "VLLM_REGRESS_CACHE": str(self.cache),
            "TMPDIR": str(self.temporary),
        }
        program, *arguments = command
        return subprocess.run(
            [self.bin / str(program), *map(str, arguments)],
            cwd=self.project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as for publishing."""
    root = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_REGRESS_REPOSITORY", REPOSITORY)
        uv.run(["build", "--wheel", "--quiet", "--out-dir", root, ROOT], doing="building the wheel")
    (built,) = root.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=["3.11", "3.12", "3.13"])
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the folder ``bin`` of a virtual environment with the wheel and its dependencies."""
    python = interpreters.find_python(request.param)
    if python is None:
        pytest.skip(f"there is no Python {request.param} here")
    place = tmp_path_factory.mktemp("venv") / "venv"
    uv.run(["venv", "--quiet", "--python", python, place], doing="making an environment")
    uv.run(
        ["pip", "install", "--quiet", "--python", place / "bin" / "python", wheel],
        doing="installing the wheel",
    )
    return place / "bin"


@pytest.fixture
def guest(installed: Path, tmp_path: Path) -> Guest:
    guest = Guest(
        installed, *(tmp_path / name for name in ("project", "home", "cache", "temporary"))
    )
    for folder in (guest.project, guest.home, guest.temporary):
        folder.mkdir()
    return guest


def test_pytest_works_in_an_empty_project(guest: Guest) -> None:
    outputs = {}
    for option in OPTIONS:
        completed = guest.run("pytest", option, "-p", "no:cacheprovider")
        assert completed.returncode in (0, NO_TESTS), (
            f"{option}: {completed.stdout}{completed.stderr}"
        )
        assert not completed.stderr or option == "--version", f"{option}: {completed.stderr}"
        outputs[option] = " ".join(completed.stdout.split())
    assert "(default: 90 % of the machine's" in outputs["--help"]
    assert "vllm_engine" in outputs["--fixtures"]
    assert "vllm_case(id" in outputs["--markers"]


def test_an_audit_answers_within_three_seconds(guest: Guest) -> None:
    """Of processor time, and with the first run, which compiles the modules."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    audit = guest.run("vllm-regress", "audit", "vllm==0.8.4")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert audit.returncode == 1, audit.stderr
    assert "documented failures\n  what to do:  upgrade to" in audit.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3


def test_the_command_writes_only_below_the_cache(guest: Guest, make_target: MakeTarget) -> None:
    """Help, the shipped cases, an audit and one case, run in an empty folder."""
    assert "Exit codes" in guest.run("vllm-regress", "--help").stdout
    assert "vllm-17173" in guest.run("vllm-regress", "list").stdout
    affected = make_target(vllm="0.8.4")
    audit = guest.run("vllm-regress", "audit", "--env", affected)
    assert audit.returncode == 1, audit.stdout + audit.stderr
    assert "vllm-17173" in audit.stdout
    assert not any(guest.project.iterdir())
    case = guest.home.parent / "cases" / "demo"
    case.mkdir(parents=True)
    (case / "case.toml").write_text(DEMO.text())
    (case / "probe.py").write_text(PROBE)
    (case / "test_demo.py").write_text(TEST.format(function="raises", control="fine", arguments=""))
    before = set(case.rglob("*"))
    ran = guest.run("vllm-regress", "--cases", case.parent, "run", "--env", affected)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "REPRODUCED" in ran.stdout
    assert set(case.rglob("*")) == before
    assert [
        path
        for folder in (guest.project, guest.home, guest.temporary)
        for path in folder.rglob("*")
    ] == []


@pytest.mark.engine
@pytest.mark.parametrize("installed", ["3.12"], indirect=True)
def test_a_shipped_case_on_a_real_vllm(guest: Guest) -> None:
    """A parser case imports vLLM and starts no engine. Only the requested report is written."""
    require_environment(NEWEST)
    guest = dataclasses.replace(guest, cache=cache_root())
    out = guest.home.parent / "out.json"
    completed = guest.run("vllm-regress", "run", "--env", NEWEST, "vllm-47901", "--out", out)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (result,) = {
        (result.verdict.value, result.versions["vllm"]) for result in read_results(out).results
    }
    assert result == ("REPRODUCED", NEWEST.removeprefix("vllm-"))
    assert [
        path
        for folder in (guest.project, guest.home, guest.temporary)
        for path in folder.rglob("*")
    ] == []


def test_the_metadata_suits_an_index_page(wheel: Path) -> None:
    """It has project URLs, the tested Pythons, a README with absolute links only, and type
    information."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            name
            for name in archive.namelist()
            if name.endswith("dist-info/METADATA") and name.count("/") == 1
        )
        metadata = archive.read(name).decode()
        assert "pytest_vllm_regress/py.typed" in archive.namelist()
    assert f"Project-URL: Source, {REPOSITORY}\n" in metadata
    for minor in (11, 12, 13):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}\n" in metadata
    links = [part.partition(")")[0] for part in metadata.split("](")[1:]]
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert f"{REPOSITORY}/blob/main/docs/tutorials/red-and-green.md" in links
    assert f"{REPOSITORY}/raw/main/docs/page.png" in links


def test_the_extra_gpu_resolves_to_a_recent_vllm() -> None:
    """Without lower bounds, resolvers chose very old releases."""
    command = [
        "pip",
        "compile",
        "--quiet",
        "--no-annotate",
        "--no-header",
        "--python-version",
        "3.12",
        "--extra",
        "gpu",
    ]
    locked = uv.run([*command, ROOT / "pyproject.toml"], doing="resolving the extra")
    (vllm,) = (line for line in locked.splitlines() if line.startswith("vllm=="))
    assert int(vllm.partition("==")[2].split(".")[1]) >= 22
