"""The directory of a new case, created from the address of a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases.new.scaffold import Draft, Upstream, create_case
from pytest_vllm_regress.errors import CaseFileError, UsageError

VLLM = "vllm-project/vllm"


@pytest.mark.parametrize(
    ("text", "repository", "number", "slug"),
    [
        ("17173", VLLM, 17173, "vllm-17173"),
        ("#17173", VLLM, 17173, "vllm-17173"),
        ("noamgat/lm-format-enforcer#124", "noamgat/lm-format-enforcer", 124, "lmfe-124"),
        (f"https://github.com/{VLLM}/pull/7?diff=split#a", VLLM, 7, "vllm-7"),
        ("Some-Org/X.y_z#7", "Some-Org/X.y_z", 7, "x-y-z-7"),
        (f"a/{'b' * 100}#1", f"a/{'b' * 100}", 1, "b" * 62 + "-1"),
    ],
)
def test_forms_of_a_report(text: str, repository: str, number: int, slug: str) -> None:
    upstream = Upstream.parse(text)
    assert (upstream.repository, upstream.number, upstream.slug) == (repository, number, slug)
    assert upstream.url == f"https://github.com/{repository}/issues/{number}"


@pytest.mark.parametrize(
    "text", ["", "x", "17173x", "a/b", "http://github.com/a/b/issues/1", "https://example.org/1", "1" * 10]
)
def test_invalid_reports_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match=r"upstream .*: allowed are a number"):
        Upstream.parse(text)


def test_the_directory_is_complete(tmp_path: Path) -> None:
    draft = Draft(title='"quoted" \\ \x7f'[:-1], front="probe", files={"data.json": "{}"})
    case = create_case(tmp_path / "cases", Upstream.parse("17173"), draft)
    names = sorted(path.name for path in case.directory.iterdir())
    assert names == ["README.md", "case.toml", "data.json", "probe.py", "test_vllm_17173.py"]
    assert case.title == '"quoted" \\ '
    assert case.directory.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in case.directory.parent.iterdir()] == ["vllm-17173"]


def test_an_invalid_field_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CaseFileError) as caught:
        create_case(tmp_path, Upstream.parse("1"), Draft(affected="=>1"))
    assert str(caught.value).startswith(f"{tmp_path / 'vllm-1' / 'case.toml'}: affected.vllm = '=>1'")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_directory_is_kept(tmp_path: Path) -> None:
    (tmp_path / "vllm-1").symlink_to("nowhere")
    with pytest.raises(UsageError, match="exists already"):
        create_case(tmp_path, Upstream.parse("1"), Draft())
    assert [path.name for path in tmp_path.iterdir()] == ["vllm-1"]


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError, match=r"cannot be written: Not a directory\. Give another directory with --cases DIR"
    ):
        create_case(tmp_path / "file" / "cases", Upstream.parse("1"), Draft())
