"""Versions are read from metadata alone, as the interpreter itself would find them."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pytest_vllm_regress.audit.inventory import inventory_of, is_interpreter, metadata, open_interpreter, scan
from pytest_vllm_regress.errors import UsageError
from tests.unit.audit.conftest import Install


def test_scan_reads_names_and_versions(install: Install, tmp_path: Path) -> None:
    site = install("site", "lm-format-enforcer", "0.10.3")
    install("site", "torch", "2.13.0+cpu")
    (site / "broken-1.0.dist-info").mkdir()  # what a failed removal leaves
    (site / "ray-2.40.0-py3.11.egg-info").write_text("Name: ray\nVersion: 2.40.0\n")
    develop = site / "xgrammar.egg-info"
    develop.mkdir()
    (develop / "PKG-INFO").write_text("Name: xgrammar\nVersion: 0.1.18\n")
    found = {each.name: each.version for each in scan([site, tmp_path / "missing"])}
    assert found == {"lm-format-enforcer": "0.10.3", "torch": "2.13.0+cpu", "ray": "2.40.0", "xgrammar": "0.1.18"}


@pytest.mark.parametrize("name", ["a\x1b[31m-1.0", "vllm-1\n2", "-1.0", "vllm-" + "9" * 200])
def test_names_that_cannot_be_one_are_left_out(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.dist-info").mkdir()
    (tmp_path / f"{name}.dist-info" / "METADATA").write_text("")
    assert not list(scan([tmp_path]))


def test_metadata_ends_with_its_header(install: Install) -> None:
    site = install("site", "vllm", "0.8.4", requires=("torch==2.6.0",))
    assert [value for key, value in metadata(site / "vllm-0.8.4.dist-info") if key == "Requires-Dist"] == [
        "torch==2.6.0"
    ]


def test_what_is_no_interpreter(tmp_path: Path) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho no\n")
    assert not is_interpreter(program)
    program.chmod(0o700)
    assert is_interpreter(program)
    with pytest.raises(UsageError, match="is no Python interpreter"):
        open_interpreter(program)
    with pytest.raises(UsageError, match="cannot be started"):
        open_interpreter(tmp_path / "python4")


@pytest.mark.parametrize("system", [False, True])
def test_an_environment_is_seen_as_python_itself_sees_it(
    tmp_path: Path, system: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against importlib.metadata in that interpreter; what .pth files and sitecustomize would run is not run."""
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
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / "path.pth").write_text(f"{elsewhere}\n")
    ask = "import importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in {d.metadata['Name'] for d in m.distributions()}}))"
    for variable in (None, str(tmp_path / "extra")):
        if variable:
            monkeypatch.setenv("PYTHONPATH", variable)
        theirs = json.loads(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout)
        ours = {name: versions[0] for name, versions in inventory_of(python).versions.items()}
        assert ours["vllm"] == ("0.8.5" if variable else "0.8.4")
        assert ours["ray"] == "2.43.0"
        assert ours == {name.lower().replace("_", "-").replace(".", "-"): version for name, version in theirs.items()}
    monkeypatch.delenv("PYTHONPATH")
    (site / "run.pth").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    (site / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert inventory_of(home, "the environment").source == "the environment"
    assert not (tmp_path / "ran").exists()


def test_the_running_interpreter() -> None:
    assert "pytest" in inventory_of(Path(sys.executable)).versions
