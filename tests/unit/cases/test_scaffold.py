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
    page = "pull" if "/pull/" in text else "issues"
    assert upstream.url == f"https://github.com/{repository}/{page}/{number}"


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


@pytest.mark.parametrize(
    ("environment", "module"),
    [
        ("xgrammar-0.1.18", "xgrammar"),
        ("llguidance-1.7.6", "llguidance"),
        ("outlines-core-0.2.11", "outlines_core"),
        ("lm-format-enforcer-0.10.6", "lmformatenforcer"),
    ],
)
def test_an_environment_without_vllm_makes_a_probe_of_its_package(
    tmp_path: Path, environment: str, module: str
) -> None:
    case = create_case(tmp_path, Upstream("o/r", 1), Draft(affected_env=(environment,)))
    (affected,) = case.affected
    assert environment.startswith(affected.package)
    assert (case.devices, case.family) == (("none", "sim", "cpu", "gpu"), "dependency")
    probe = (case.directory / "probe.py").read_text()
    compile(probe, "probe.py", "exec")
    assert f"    import {module}  # noqa: F401\n" in probe
    assert f'importlib.metadata.version("{affected.package}")' in probe
    assert "vllm_probe" in (case.directory / "test_r_1.py").read_text()


def test_the_package_of_the_repository_counts_without_environments(tmp_path: Path) -> None:
    case = create_case(tmp_path, Upstream("mlc-ai/xgrammar", 1), Draft())
    assert "none" in case.devices
    assert "import xgrammar" in (case.directory / "probe.py").read_text()
    of_vllm = create_case(tmp_path, Upstream(VLLM, 2), Draft(front="probe", affected_env=("vllm-0.8.4",)))
    assert of_vllm.devices == ("sim", "cpu", "gpu")
    assert "return vllm.__version__" in (of_vllm.directory / "probe.py").read_text()


def test_an_engine_needs_vllm(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--front serve: xgrammar-0\.1\.18 has no vLLM.*Use --front probe"):
        create_case(tmp_path, Upstream("o/r", 1), Draft(front="serve", fixed_env=("xgrammar-0.1.18",)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["wrong-result", "exception", "hang", "crash", "engine-death"])
def test_the_family_follows_the_kind(tmp_path: Path, kind: str) -> None:
    assert create_case(tmp_path, Upstream("o/r", 1), Draft(kind=kind)).family == kind
    assert create_case(tmp_path, Upstream("o/r", 2), Draft(kind=kind, family="leak")).family == "leak"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("16863", "o/r/pull/16863"),
        ("a/b#7", "a/b/pull/7"),
        ("0e42544920", "o/r/commit/0e42544920"),
        ("a/b@0e42544920", "a/b/commit/0e42544920"),
        ("https://github.com/o/r/releases/tag/v1", "o/r/releases/tag/v1"),
    ],
)
def test_forms_of_a_fix(tmp_path: Path, text: str, path: str) -> None:
    case = create_case(tmp_path, Upstream("o/r", 1), Draft(fixed_by=(text,)))
    assert case.fixed_by == (f"https://github.com/{path}",)


def test_an_invalid_fix_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--fixed-by 'main': allowed are a pull request"):
        create_case(tmp_path, Upstream("o/r", 1), Draft(fixed_by=("main",)))
