"""Case files in the format before 1, taken from the history: they are read as they are, and
rewritten."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.loading import load_case, load_valid_cases
from pytest_vllm_regress.cases.migrate import migrate, with_fixed_evidence, with_range
from pytest_vllm_regress.cases.model import Range
from pytest_vllm_regress.errors import CaseFileError
from tests.helpers.cases import CaseFile

OLDER = {path.stem: path for path in sorted(Path(__file__).with_name("format_0").glob("*.toml"))}


def place(root: Path, name: str, text: str | None = None) -> Path:
    path = root / "cases" / name / "case.toml"
    path.parent.mkdir(parents=True)
    path.write_text(OLDER[name].read_text() if text is None else text)
    return path


@pytest.mark.parametrize("name", OLDER)
def test_an_older_file_means_the_same_before_and_after_migration(tmp_path: Path, name: str) -> None:
    path = place(tmp_path, name)
    before = load_case(path)
    migration = migrate(path)
    assert path.read_text() == OLDER[name].read_text()
    migration.write()
    assert path.read_text() == migration.text
    assert load_case(path) == before
    assert migrate(path).changes == ()


@pytest.mark.parametrize("name", OLDER)
def test_unaffected_lines_stay(tmp_path: Path, name: str) -> None:
    path = place(tmp_path, name)
    after = migrate(path).text.splitlines()
    assert after[0] == "format = 1"
    unchanged = [
        line for line in OLDER[name].read_text().splitlines() if not line.startswith("reason = ")
    ]
    assert [line for line in after[1:] if line in unchanged] == [
        line for line in OLDER[name].read_text().splitlines() if line in unchanged
    ]


def test_control_reason_is_renamed_in_place(tmp_path: Path) -> None:
    text = (
        CaseFile(kind="hang", omits="the pool", control="tokenizer_pool_size = 0")
        .text()
        .replace("format = 1\n", "")
    )
    text = text.replace(
        'omits = "the pool"', '# why\nreason = "the pool\\n is left out"  # one line'
    )
    path = place(tmp_path, "demo", text)
    migration = migrate(path)
    assert migration.changes == ("added format = 1", "control.reason is called omits")
    assert (
        '[control]\n# why\nomits = "the pool is left out"  # one line\ntokenizer_pool_size = 0\n'
        in migration.text
    )
    (advice,) = migration.manual
    assert "symptom.where" in advice


def test_missing_omits_is_derived_from_the_fields(tmp_path: Path) -> None:
    text = (
        CaseFile(kind="hang", omits="x", control="tokenizer_pool_size = 0")
        .text()
        .replace("format = 1\n", "")
    )
    path = place(tmp_path, "demo", text.replace('omits = "x"\n', ""))
    migrate(path).write()
    assert load_case(path).control.omits == "tokenizer_pool_size other than 0"


def test_invisible_characters_are_removed(tmp_path: Path) -> None:
    path = place(
        tmp_path, "demo", CaseFile(title="one\u200b result").text().replace("format = 1\n", "")
    )
    assert load_case(path).title == "one result"
    assert migrate(path).changes == ("added format = 1", "removed invisible characters from title")


def test_a_long_reason_is_truncated_and_an_inline_table_stays_inline(tmp_path: Path) -> None:
    text = (
        CaseFile(kind="hang")
        .text()
        .replace("format = 1\n", f'control = {{ reason = "{"why " * 100}" }}\n')
    )
    migration = migrate(place(tmp_path, "demo", text))
    omits = tomllib.loads(migration.text)["control"]["omits"]
    assert len(omits) == 200
    assert omits.endswith(" ...")
    assert "\ncontrol = {" in migration.text


def test_manual_changes_are_listed(tmp_path: Path) -> None:
    text = CaseFile(omits="x", control='reason = "y"').text().replace("format = 1\n", "")
    path = place(tmp_path, "demo", text)
    (path.parent / "probe.py").write_text("from vllm_regress_target.grammars import takes\n")
    both, old = migrate(path).manual
    assert "keep one of them" in both
    assert "probe.py:1: takes is called accepts" in old
    with pytest.raises(CaseFileError, match="vllm-regress migrate"):
        load_case(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format = 2\n", "format = 2: this version reads format 1. Upgrade"),
        ("format = '1'\n", "Write format = 1"),
        ("id = [\n", "not valid TOML"),
    ],
)
def test_unreadable_formats_are_rejected(tmp_path: Path, text: str, words: str) -> None:
    path = place(tmp_path, "demo", text)
    for read in (load_case, migrate):
        with pytest.raises(CaseFileError, match=words):
            read(path)


def test_an_invalid_file_does_not_hide_the_others(tmp_path: Path) -> None:
    CaseFile(id="a").write(tmp_path)
    CaseFile(id="b").write(tmp_path)
    (tmp_path / "b" / "case.toml").write_text("id = [")
    loaded = load_valid_cases(tmp_path)
    assert [case.id for case in loaded.cases] == ["a"]
    (problem,) = loaded.problems
    assert problem.startswith(str(tmp_path / "b" / "case.toml"))


TEXT = """# a case
[affected]
"vllm" = ">=0.7" # from the start
LM_format.enforcer = '<0.11'

[evidence]
affected = ["vllm-0.33.0"]
fixed = [] # not yet
"""


def test_only_the_specifier_changes() -> None:
    changed = with_range(TEXT, Range("vllm", ">=0.7,<0.34"))
    assert changed == TEXT.replace('">=0.7"', '">=0.7,<0.34"')


def test_a_package_is_found_under_any_spelling_of_its_name() -> None:
    text = TEXT.replace("LM_format.enforcer", '"LM_format.enforcer"')
    assert with_range(text, Range("lm-format-enforcer", "<0.12")) == text.replace(
        "'<0.11'", '"<0.12"'
    )


def test_only_the_list_of_environments_changes() -> None:
    assert with_fixed_evidence(TEXT, "vllm-0.34.0") == TEXT.replace(
        "fixed = []", 'fixed = ["vllm-0.34.0"]'
    )
