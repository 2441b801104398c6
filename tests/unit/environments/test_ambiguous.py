"""Installations in which the metadata of two versions of a package lie beside each other."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_vllm_regress.engines import target
from pytest_vllm_regress.environments.installed import Installed, Interpreter
from pytest_vllm_regress.errors import UsageError


def interpreter(*sites: Path) -> Interpreter:
    return Interpreter(Path("python"), "3.12.0", "x86_64", "cpython", sites)


def add(site: Path, name: str, *versions: str) -> None:
    for version in versions:
        place = site / f"{name}-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def test_two_versions_in_one_folder_are_ambiguous(tmp_path: Path) -> None:
    add(tmp_path / "a", "lm_format_enforcer", "0.10.10", "0.10.11")
    add(tmp_path / "a", "vllm", "0.8.5")
    add(tmp_path / "b", "vllm", "0.8.4")  # the first folder on the path counts
    found = interpreter(tmp_path / "a", tmp_path / "b").ambiguous()
    assert {name: [one.version for one in places] for name, places in found.items()} == {
        "lm-format-enforcer": ["0.10.10", "0.10.11"]
    }


@pytest.mark.parametrize("name", ["vllm", "lm_format_enforcer", "six"])
def test_an_ambiguous_package_that_decides_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    add(tmp_path, name, "1.0", "1.1")
    found = interpreter(tmp_path).ambiguous()
    packages = MappingProxyType({"vllm": "0.8.5"})
    monkeypatch.setattr(
        target, "read_installed", lambda python: Installed("python", "3.12.0", packages, found)
    )
    if name == "six":
        assert target.inspect("env", tmp_path / "python", "sim").device == "sim"
        return
    with pytest.raises(UsageError, match=r"several versions \(1\.0, 1\.1\)"):
        target.inspect("env", tmp_path / "python", "sim")
