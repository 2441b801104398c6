"""Folders of pages that somebody else prepared, such as a branch of pages: nothing outside of them,
and nothing of others in them, is written or removed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.output.pages.rendering import LIST, write_folder
from pytest_vllm_regress.util import files
from tests.helpers.cases import CaseFile

PAGES: dict[str, str | bytes] = {
    "index.html": "ours",
    "cases/a.html": "ours",
    "docs/b/c.png": b"ours",
}
MINE = "mine, and known to nobody else"


def prepared(folder: Path, *names: str) -> Path:
    """Make a folder with a list that claims these files, with the hashes of what one may guess."""
    folder.mkdir(exist_ok=True)
    guesses = [hashlib.sha256(guess.encode()).hexdigest() for guess in ("", "ours", "guess")]
    (folder / LIST).write_text(json.dumps(dict.fromkeys(names, guesses)))
    return folder


@pytest.fixture(params=[True, False], ids=["descriptors", "paths"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written through descriptors of folders, or on Windows by path."""
    monkeypatch.setattr(files, "_HAS_DESCRIPTORS", request.param)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "b").mkdir(parents=True)
    for name in ("index.html", "a.html", "gone.html", "b/c.png"):
        (folder / name).write_text(MINE)
    return folder


def untouched(outside: Path) -> bool:
    contents = {path.read_text() for path in outside.rglob("*") if path.is_file()}
    return contents == {MINE} and len(list(outside.rglob("*"))) == 5


@pytest.mark.parametrize("name", ["cases", "docs", "docs/b"])
def test_a_link_in_place_of_a_folder_stops_before_anything_is_written(
    tmp_path: Path, outside: Path, name: str
) -> None:
    folder = prepared(tmp_path / "pages", *PAGES, f"{name}/gone.html", f"{name}/a.html")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(outside / "b" if name == "docs/b" else outside)
    with pytest.raises(UsageError, match="link"):
        write_folder(folder, PAGES)
    assert untouched(outside)
    assert not (folder / "index.html").exists()


def test_a_link_in_place_of_an_old_page_is_not_followed(tmp_path: Path, outside: Path) -> None:
    (outside / "gone.html").write_text("guess")
    folder = prepared(tmp_path / "pages", "gone/gone.html", "old.html")
    (folder / "gone").symlink_to(outside)
    (folder / "old.html").symlink_to(outside / "gone.html")
    with pytest.raises(UsageError, match="link"):
        write_folder(folder, PAGES)
    (folder / "gone").unlink()
    write_folder(folder, PAGES)
    assert (outside / "gone.html").read_text() == "guess"


@pytest.mark.parametrize("name", ["index.html", "cases/a.html"])
def test_a_link_in_place_of_a_page_is_not_followed(
    tmp_path: Path, outside: Path, name: str
) -> None:
    folder = prepared(tmp_path / "pages", *PAGES)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(outside / "index.html")
    with pytest.raises(UsageError, match="other files"):
        write_folder(folder, PAGES)
    assert untouched(outside)


def test_a_link_in_place_of_the_list_is_not_followed(tmp_path: Path, outside: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    (outside / "index.html").write_text('{"index.html": []}')
    (folder / LIST).symlink_to(outside / "index.html")
    with pytest.raises(UsageError, match="other files"):
        write_folder(folder, PAGES)
    assert (outside / "index.html").read_text() == '{"index.html": []}'


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "pages").symlink_to("elsewhere")
    with pytest.raises(UsageError, match="symbolic link"):
        write_folder(tmp_path / "pages", PAGES)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_list_does_not_make_files_of_others_ours(tmp_path: Path) -> None:
    """Neither those that would be overwritten nor those that would be removed."""
    for name in (*PAGES, "secret.txt"):
        folder = prepared(tmp_path / f"to {name.replace('/', ' ')}", *PAGES, "secret.txt")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(MINE)
        if name in PAGES:
            with pytest.raises(UsageError, match=f"other files \\({name}\\)"):
                write_folder(folder, PAGES)
        else:
            write_folder(folder, PAGES)
        assert (folder / name).read_text() == MINE


def test_an_interrupted_run_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "pages"
    write_folder(folder, {**PAGES, "old.html": "old"})

    def interrupted(folder: Path, path: str, content: bytes) -> None:
        files.replace_below(folder, path, content)
        if path == "index.html":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pytest_vllm_regress.output.pages.rendering.replace_below", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_folder(folder, {**PAGES, "index.html": "new", "cases/a.html": "new"})
    write_folder(folder, {**PAGES, "index.html": "newer"})
    assert (folder / "index.html").read_text() == "newer"
    assert not (folder / "old.html").exists()


def test_a_folder_replaced_by_a_link_meanwhile_is_not_followed(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pages"
    write_folder(folder, {"index.html": "ours", "cases/gone.html": "ours"})

    def replaced(place: Path, path: str, content: bytes) -> None:
        files.replace_below(place, path, content)
        if path == "index.html":
            (folder / "cases").rename(tmp_path / "moved")
            (folder / "cases").symlink_to(outside)

    monkeypatch.setattr("pytest_vllm_regress.output.pages.rendering.replace_below", replaced)
    with pytest.raises(UsageError, match="link"):
        write_folder(folder, {"index.html": "new"})
    assert untouched(outside)


def test_records_are_not_written_through_links(tmp_path: Path, outside: Path) -> None:
    from pytest_vllm_regress.cli import main

    CaseFile(id="demo").write(tmp_path / "cases")
    (tmp_path / "osv").mkdir()
    main(
        [
            "--cases",
            str(tmp_path / "cases"),
            "export",
            "--format",
            "osv",
            "--out",
            str(tmp_path / "first"),
        ]
    )
    names = [path.name for path in (tmp_path / "first").glob("*")]
    assert names
    for name in names:
        (tmp_path / "osv" / name).symlink_to(outside / "index.html")
    main(
        [
            "--cases",
            str(tmp_path / "cases"),
            "export",
            "--format",
            "osv",
            "--out",
            str(tmp_path / "osv"),
        ]
    )
    assert untouched(outside)
