"""Fake interpreters and lists.

Nothing is installed, and the only process is an interpreter's path query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pytest_vllm_regress.environments.installed import Interpreter

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """``install(site, "vllm", "0.8.4", requires=(...))`` writes a distribution's metadata into
    tmp_path/site."""

    def write(
        site: str,
        name: str,
        version: str,
        *,
        requires: tuple[str, ...] = (),
        files: Mapping[str, str] | None = None,
        entry_points: str = "",
    ) -> Path:
        folder = tmp_path / site
        place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        place.mkdir(parents=True)
        licence = "License: first line\n        \n        second line\n"  # as vllm's: a line of blanks inside a field
        lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        (place / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{licence}{lines}\nRequires-Dist: not a header\n"
        )
        if entry_points:
            (place / "entry_points.txt").write_text(entry_points)
        for path, text in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return write


@pytest.fixture
def ray(install: Install) -> Callable[[str, str], Path]:
    """``ray(site, version)`` installs a fake Ray with that version."""

    def write(site: str, version: str) -> Path:
        return install(
            site,
            "ray",
            version,
            files={
                "ray/__init__.py": "",
                "ray/_version.py": f'commit = "x"\nversion = "{version}"\n',
            },
        )

    return write


def interpreter(*path: Path, version: str = "3.11.7") -> Interpreter:
    return Interpreter(Path("/none/python"), version, "x86_64", "cpython", path)
