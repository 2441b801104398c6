"""Every supported format of a list of packages."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.answers.audit.matching import notes
from pytest_vllm_regress.answers.audit.package_lists import parse_list, read_list
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.errors import UsageError
from tests.unit.answers.audit.test_matching import CASE

WHEEL = "https://example.org/vllm-0.8.4-cp38-abi3-manylinux1_x86_64.whl"
FREEZE = f"""# a comment
vllm[tensorizer]==0.8.4 \\
    --hash=sha256:{"0" * 64} \\
    --hash=sha256:{"1" * 64}
Ray[default] == 2.43.0  # why
colorama==0.4 ; sys_platform == "win32"
--extra-index-url https://example.org
lm_format_enforcer>=0.10
"""


@pytest.fixture
def cases(tmp_path: Path) -> tuple[Case, ...]:
    return load_all_cases(CASE.write(tmp_path / "cases").directory.parent)


def versions(text: str | bytes, path: Path | None = None) -> dict[str, tuple[str, ...]]:
    return parse_list(text.encode() if isinstance(text, str) else text, "list", path).versions


def as_json(document: Any) -> str:
    return json.dumps(document, indent=1)


BOTH = {"vllm": ("0.8.4",), "ray": ("2.43.0",)}
LISTS = {
    "freeze": FREEZE,
    "pip list": "Package    Version  Editable project location\n---------- ------- ---\nvllm       0.8.4\nray        2.43.0 /src\n",
    "conda list": "# packages in environment at /opt:\n#\n# Name Version Build Channel\nvllm 0.8.4 pypi_0 pypi\nray 2.43.0 h1 conda-forge\n",
    "wheels": f"vllm @ {WHEEL}#sha256=0\n./ray-2.43.0-cp311-cp311-manylinux2014_x86_64.whl\n",
    "pip list --format json": as_json([{"name": "vllm", "version": "0.8.4"}, {"name": "ray", "version": "2.43.0"}]),
    "pip inspect": as_json({"version": "1", "installed": [{"metadata": {"name": n, "version": v[0]}} for n, v in BOTH.items()]}),
    "pip report": as_json({"install": [{"metadata": {"name": n, "version": v[0]}} for n, v in BOTH.items()]}),
    "uv.lock": 'version = 1\n[[package]]\nname = "vllm"\nversion = "0.8.4"\n[[package]]\nname = "ray"\nversion = "2.43.0"\n[[package]]\nname = "x"\n',
    "pylock.toml": '''lock-version = "1.0"
[[packages]]
name = "vllm"
version = "0.8.4"
[[packages]]
name = "ray"
version = "2.43.0"
[[packages]]
name = "pywin32"
version = "1"
marker = "sys_platform == 'win32'"
''',
    "poetry.lock": '# Poetry\n[[package]]\nname = "vllm"\nversion = "0.8.4"\n[[package]]\nname = "ray"\nversion = "2.43.0"\n[metadata]\nx = 1\n',
    "pdm.lock": '[metadata]\nlock_version = "4.5.0"\n[[package]]\nname = "vllm"\nversion = "0.8.4"\n[[package]]\nname = "ray"\nversion = "2.43.0"\n',
    "editable": "# Editable install with no version control (vllm==0.8.4)\n-e /home/u/vllm\n# Editable Git install with no remote (ray==2.43.0)\n",
    "sources": "https://example.org/vllm-0.8.4.tar.gz ; python_version > '3'\nray-2.43.0.tar.gz\n",
    "Pipfile.lock": as_json({"_meta": {}, "default": {"vllm": {"version": "==0.8.4"}}, "develop": {"ray": {"version": "==2.43.0"}}}),
    "CycloneDX": as_json({"bomFormat": "CycloneDX", "components": [
        {"name": "image", "components": [{"name": "vllm", "version": "0.8.4", "purl": "pkg:pypi/vllm@0.8.4?x=1"}]},
        {"name": "ray", "version": "1.0", "purl": "pkg:deb/debian/ray@1.0"}, {"name": "ray", "version": "2.43.0", "purl": "pkg:pypi/ray@2.43.0"}]}),
    "SPDX 2": as_json({"spdxVersion": "SPDX-2.3", "packages": [
        {"name": "vllm", "versionInfo": "0.8.4", "externalRefs": [{"referenceType": "purl", "referenceLocator": "pkg:pypi/vllm@0.8.4"}]},
        {"name": "bash", "versionInfo": "5", "externalRefs": [{"referenceType": "purl", "referenceLocator": "pkg:deb/debian/bash@5"}]},
        {"name": "ray", "versionInfo": "2.43.0"}]}),
    "SPDX 3": as_json({"@graph": [{"type": "software_Package", "name": n, "software_packageVersion": v[0]} for n, v in BOTH.items()]}),
    "Syft": as_json({"artifacts": [{"name": n, "version": v[0], "type": "python", "purl": f"pkg:pypi/{n}@{v[0]}"} for n, v in BOTH.items()]}),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_every_list_format_is_read(name: str) -> None:
    assert versions(LISTS[name]) == BOTH


def test_a_byte_order_mark_and_windows_line_ends() -> None:
    assert versions(b"\xef\xbb\xbf" + FREEZE.replace("\n", "\r\n").encode()) == BOTH


def test_the_line_of_a_package_is_recorded(tmp_path: Path) -> None:
    for name in ("freeze", "uv.lock", "pip list"):
        path = tmp_path / name
        path.write_text(LISTS[name])
        for package in read_list(path).packages:
            line = LISTS[name].splitlines()[package.line - 1].lower()
            assert package.place == path
            assert package.name in line


def test_requirements_without_a_version_are_kept_as_unpinned() -> None:
    inventory = parse_list(FREEZE.encode(), "list")
    assert inventory.unpinned == {"lm-format-enforcer": "'lm_format_enforcer>=0.10'"}


@pytest.mark.parametrize(
    "line",
    [
        "vllm @ git+https://example.org/x",
        "-e git+https://example.org/x@0#egg=vllm",
        "git+https://github.com/vllm-project/vllm.git@v0.8.4#egg=vllm",
        "git+https://github.com/a/b#subdirectory=c&egg=vllm",
        "git+https://github.com/vllm-project/vllm.git@releases/v0.8.4",
        "git+ssh://git@github.com/vllm-project/vllm",
        "-e /home/u/vllm",
        "--editable=../vllm[audio]",
        "./vllm/",
    ],
)
def test_an_address_of_vllm_is_vllm_without_a_version(cases: tuple[Case, ...], line: str) -> None:
    inventory = parse_list(line.encode(), "list")
    assert inventory.unpinned == {"vllm": repr(line)}
    assert "has no version, so that nothing is known about vllm" in next(notes(inventory, cases))


@pytest.mark.parametrize(
    "line", ["--find-links /srv/vllm", "-e /srv/vllm-tools", "git+https://github.com/vllm/tools"]
)
def test_other_addresses_are_not_vllm(line: str) -> None:
    assert parse_list(f"ray==2.43.0\n{line}".encode(), "list").unpinned == {}


def test_an_address_counts_where_its_marker_may_hold() -> None:
    assert versions("ray==2.43.0\n./vllm-0.8.4.tar.gz ; python_version < '3'\n") == {
        "ray": ("2.43.0",)
    }


def test_markers_for_another_python_or_machine_count() -> None:
    assert versions(
        "vllm==0.8.4 ; python_version >= '3.13'\nvllm==0.7.3 ; python_version < '3.13'\n"
    ) == {"vllm": ("0.8.4", "0.7.3")}


def test_included_files_are_read_within_limits(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("vllm==0.8.4\n")
    top = tmp_path / "top.txt"
    top.write_text("-r base.txt\nray==2.43.0\n")
    assert read_list(top).versions == BOTH
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n-r {number}.txt\n")
    top.write_text("-r top.txt\n-r 0.txt\n")  # once each, itself included
    with pytest.raises(UsageError, match="includes more than 20 files"):
        read_list(top)
    with pytest.raises(UsageError, match="refers to a file that cannot be found"):
        versions("-r base.txt\n")
    top.write_text("--requirement=none.txt\n")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_list(top)


def test_constraints_give_versions_to_packages_that_the_list_names(
    cases: tuple[Case, ...], tmp_path: Path
) -> None:
    (tmp_path / "pins.txt").write_text(
        "vllm==0.8.4\nxgrammar==0.1\noutlines-core>=1\n-c more.txt\n"
    )
    (tmp_path / "more.txt").write_text("ray==2.43.0\n-c pins.txt\n")
    (tmp_path / "base.txt").write_text("ray\n")
    top = tmp_path / "top.txt"
    for option in ("-c ", "-c", "--constraint ", "--constraint="):
        top.write_text(f"{option}pins.txt\nvllm>=0.8\n-r base.txt\n")
        inventory = read_list(top)
        assert inventory.versions == BOTH
        assert "no version" not in "".join(notes(inventory, cases))
    top.write_text("-c base.txt\n-r base.txt\nvllm==0.8.4\n")  # as constraints and as a list
    assert read_list(top).unpinned == {"ray": "'ray'"}
    top.write_text("-c pins.txt\n")
    with pytest.raises(UsageError, match="names no package"):
        read_list(top)


@pytest.mark.parametrize(
    "constraints", ["https://example.org/pins.txt", "../pins.txt", "none.txt", ""]
)
def test_constraints_that_are_not_read_are_noted(
    cases: tuple[Case, ...], tmp_path: Path, constraints: str
) -> None:
    (tmp_path / "pins.txt").write_text("vllm==0.8.4\n")
    (tmp_path / "lists").mkdir()
    top = tmp_path / "lists" / "top.txt"
    top.write_text(f"-c {constraints}\nvllm\n")
    inventory = read_list(top)
    assert inventory.versions == {}
    assert next(notes(inventory, cases)).startswith("constraints were not read: ")
    assert next(notes(parse_list(b"-c pins.txt\nvllm", "standard input"), cases)).startswith(
        "constraints were not read: "
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "names no package"),
        (b"{}", "names no package"),
        (b"{", "not valid"),
        (b'[[package]]\nname="a', "not valid"),
        (b"[" * 100_000, "not requirements|not valid"),
        (b"\xff\xfe", "not text"),
        (b"hello there, this is prose\n", "1 of its lines are not requirements"),
        (b"\x1b[31mvllm\x1b[0m==0.8.4\n", "1 of its lines are not requirements"),
    ],
)
def test_a_file_that_is_not_a_list_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_list(content, "list")
    for name in ("pdm.lock", "poetry.lock", "uv.lock", "pylock.toml", "Pipfile.lock"):
        assert b"\x00" in content or name in str(caught.value)
    assert "\x1b" not in str(caught.value) and "prose" not in str(caught.value)


@pytest.mark.parametrize(
    "included",
    ["../secret.txt", "/etc/passwd", "/proc/self/environ", "link.txt", "sub/../../secret.txt"],
)
def test_included_files_must_be_below_the_list(tmp_path: Path, included: str) -> None:
    """Neither a path nor a link leads out of the folder, and no content from outside is shown."""
    (tmp_path / "secret.txt").write_text("vllm==0.8.4\nroot:x:0\n")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "link.txt").symlink_to("../secret.txt")
    top = tmp_path / "lists" / "top.txt"
    top.write_text(f"ray==2.43.0\n-r {included}\n")
    with pytest.raises(UsageError, match="leads outside") as caught:
        read_list(top)
    assert "root" not in str(caught.value).replace(str(tmp_path), "")


def test_only_regular_files_are_included(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "top.txt").write_text("ray==2.43.0\n-r pipe.txt\n")
    with pytest.raises(UsageError, match="not a regular file"):
        read_list(tmp_path / "top.txt")


def test_unreadable_lines_are_counted_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "top.txt").write_text("vllm==0.8.4\nroot:x:0:0:my password\nAPI=hunter2 and more\n")
    inventory = read_list(tmp_path / "top.txt")
    assert inventory.versions == {"vllm": ("0.8.4",)}
    note = next(notes(inventory, []))
    assert "2 lines are not requirements" in note and note.endswith("line 2")
    assert "hunter2" not in note and "password" not in note


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.txt: cannot be read"):
        read_list(tmp_path / "none.txt")
