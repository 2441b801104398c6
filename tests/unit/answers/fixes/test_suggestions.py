from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.explain import log
from pytest_vllm_regress.answers.fixes.evidence import Evidence, VllmCall
from pytest_vllm_regress.answers.fixes.index import FILE, Fix, FixIndex, digest, fix_index
from pytest_vllm_regress.answers.fixes.suggestions import evidence_of, suggest
from pytest_vllm_regress.answers.fixes.words import words
from pytest_vllm_regress.errors import UsageError

LOG = """\
(EngineCore pid=7) ERROR 06-01 16:47:04 [core.py:11] Traceback (most recent call last):
(EngineCore pid=7) ERROR 06-01 16:47:04 [core.py:11]   File "/x/site-packages/vllm/v1/core/sched.py", line 4, in step
(EngineCore pid=7) ERROR 06-01 16:47:04 [core.py:11]     self.allocate(request)
(EngineCore pid=7) ERROR 06-01 16:47:04 [core.py:11]   File "/x/site-packages/vllm/v1/core/pool.py", line 9, in allocate
(EngineCore pid=7) ERROR 06-01 16:47:04 [core.py:11]     assert block.ref_count == 0
(EngineCore pid=7) ERROR 06-01 16:47:04 [core.py:11]            ^^^^^^^^^^^^^^^^^^^^
(EngineCore pid=7) ERROR 06-01 16:47:04 [core.py:11] ValueError: block of request is still referenced
Traceback (most recent call last):
  File "/x/site-packages/vllm/entrypoints/llm.py", line 2, in generate
    raise EngineDeadError
vllm.v1.EngineDeadError: EngineCore is dead. See stack trace for the root cause.
"""
CHAIN = """\
Traceback (most recent call last):
  File "/x/vllm/a.py", line 1, in inner
KeyError: 'w2'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/vllm/b.py", line 1, in outer
RuntimeError: no weights
"""


def fix(number: int, title: str, changed: dict[str, list[str]], first: int, **other: str) -> Fix:
    texts = {"commit": f"{number:09x}", "date": "2026-02-01", "terms": "", "removed": "", **other}
    return Fix(
        number,
        texts["commit"],
        texts["date"],
        title,
        changed,
        texts["terms"],
        texts["removed"],
        first,
    )


@pytest.fixture
def index() -> FixIndex:
    pool = {"v1/core/pool.py": ["allocate"]}
    others = [fix(n, f"Unrelated change {n}", {f"m{n}.py": ["f"]}, 1) for n in range(100, 4000)]
    return FixIndex(
        "abc",
        "2026-02-01",
        ["0.10.0", "0.11.0", "0.12.0"],
        ["2026-01-01", "2026-02-01", "2026-03-01"],
        [
            fix(1, "[Bugfix] Old fix of referenced block", pool, 0, date="2025-12-01"),
            *others,
            fix(2, "[Bugfix] Free a block that is still referenced", pool, 2, terms="ref_count"),
            fix(3, "Speed up sampling", {"v1/sample.py": ["sample"]}, 3),
            fix(4, 'Revert "[Bugfix] Faster" (#3)', {"v1/sample.py": ["sample"]}, 3),
        ],
    )


def read(text: str) -> Evidence | None:
    return evidence_of(log.explain(io.BytesIO(text.encode()), (), "log"), "")


def evidence() -> Evidence:
    failure = read(LOG)
    assert failure is not None
    return failure


def test_the_root_cause_is_read_with_its_calls_and_their_code() -> None:
    failure = evidence()
    assert failure.message == "ValueError: block of request is still referenced"
    assert failure.places == (
        VllmCall("v1/core/sched.py", "step", "self.allocate(request)"),
        VllmCall("v1/core/pool.py", "allocate", "assert block.ref_count == 0"),
    )


def test_the_calls_of_the_root_cause_are_the_innermost_of_its_chain() -> None:
    failure = read(CHAIN)
    assert failure is not None
    functions = [place.function for place in failure.places]
    messages = failure.message.splitlines()
    assert sorted(functions) == ["inner", "outer"] and len(messages) == 2
    assert ("KeyError" in messages[0]) == (functions[-1] == "inner")


def test_a_failure_outside_vllm_has_the_calls_of_the_one_beside_it() -> None:
    outside = (
        'Traceback (most recent call last):\n  File "/x/ray/a.py", line 1, in f\nKeyError: 1\n'
    )
    failure = read(
        outside + "INFO next\n" + CHAIN.partition("\n\n")[0].replace("KeyError", "ValueError")
    )
    assert failure is not None and failure.message.startswith("KeyError: 1\nValueError")
    assert [place.function for place in failure.places] == ["inner"]
    assert read(outside) is None


@pytest.mark.parametrize(
    ("text", "path", "function"),
    [
        ("/x/vllm/worker/run.py in go(self, x)\n--> 211   self.score()\n", "worker/run.py", "go"),
        ("At:\n  /x/vllm/v1/core.py(58): run\n", "v1/core.py", "run"),
        ("../vllm-fork/vllm/v1/core.py:558: AssertionError\n", "v1/core.py", ""),
        ('File \\"/x/vllm/models/qwen.py\\",\n  line ~17, in embed\n', "models/qwen.py", "embed"),
        ('ERROR   File "/x/vllm/models/qwen.py", l\nine 64, in load\n', "models/qwen.py", "load"),
        ('File "/home/vllm/me/vllm/vllm/v1/core.py", line 4, in run\n', "v1/core.py", "run"),
    ],
)
def test_calls_are_read_in_other_forms_than_python_s(text: str, path: str, function: str) -> None:
    failure = read(f"{text}ValueError: no block is left\n")
    assert failure is not None and failure.message.startswith("ValueError: no block")
    assert (failure.places[-1].path, failure.places[-1].function) == (path, function)


def test_prose_around_the_log_of_a_report_counts_and_other_lines_do_not() -> None:
    report = f"It began with flashinfer.\n```\n{LOG}stray\n```\nINFO 01-02 03:04:05 [x.py:1] no\n"
    failure = read(report)
    assert failure is not None and failure.prose == "It began with flashinfer."
    assert evidence().prose == ""


def test_models_parsers_and_architectures_that_the_log_names_count(index: FixIndex) -> None:
    text = (
        "vllm serve Qwen/Qwen3-VL-8B --tool-call-parser hermes\n"
        "INFO Resolved architecture: Qwen3VLForConditionalGeneration\n"
        "INFO non-default args: {'reasoning_parser': 'deepseek_r1', 'model': 'model_path'}\n"
    )
    failure = read(text + LOG)
    assert failure is not None
    assert failure.settings == "Qwen3-VL-8B hermes Qwen3VLForConditionalGeneration deepseek_r1"
    index.fixes.append(fix(8, "[Model] Qwen3-VL video", {"x.py": ["other"]}, 2))
    numbers = [s.fix.number for s in suggest(failure, "0.11.0", index)]
    assert 8 in numbers and 8 not in [s.fix.number for s in suggest(evidence(), "0.11.0", index)]


def test_support_for_the_model_that_fails_is_no_ordinary_large_change(index: FixIndex) -> None:
    files = {f"models/m{number}.py": ["f"] for number in range(9)}
    index.fixes += [fix(8, "Tidy Gemma3", files, 2), fix(9, "[Model] Support Gemma3", files, 2)]
    failure = Evidence("AttributeError: 'Gemma3Config' has no x", (VllmCall("z.py", "run"),))
    first, second, *_ = suggest(failure, "0.11.0", index)
    assert (first.fix.number, second.fix.number) == (9, 8)


def test_the_fix_that_the_version_lacks_is_suggested_first_and_as_likely(index: FixIndex) -> None:
    first, *others = suggest(evidence(), "0.11.0", index)
    assert (first.fix.number, first.release, first.is_likely) == (2, "0.12.0", True)
    assert "changes allocate" in first.why and "referenced" in first.why
    assert all(other.fix.number != 1 and not other.is_likely for other in others)


def test_nothing_is_suggested_for_a_version_that_has_the_fix(index: FixIndex) -> None:
    assert all(s.fix.number != 2 for s in suggest(evidence(), "0.12.0", index))


@pytest.mark.parametrize("version", [None, "0.1.dev5239", "nonsense", "0.9.2"])
def test_nothing_is_suggested_without_a_known_version(version: str | None, index: FixIndex) -> None:
    assert suggest(evidence(), version, index) == []


def test_nothing_is_suggested_without_a_call_in_vllm_or_for_a_follow_up(index: FixIndex) -> None:
    assert suggest(Evidence("ValueError: block is referenced", ()), "0.11.0", index) == []
    assert read("Traceback" + LOG.rpartition("Traceback")[2]) is None


def test_a_line_of_the_traceback_that_a_change_removed_counts(index: FixIndex) -> None:
    line = digest("  assert block.ref_count == 0")
    twin = fix(5, "Another", {"v1/core/pool.py": ["allocate"]}, 2, removed=line)
    twin_without = fix(6, "Another", {"v1/core/pool.py": ["allocate"]}, 2)
    index.fixes[-1:] = [twin_without, twin]
    suggestions = {s.fix.number: s for s in suggest(evidence(), "0.11.0", index)}
    assert list(suggestions).index(5) < list(suggestions).index(6)
    assert "removes a line" in suggestions[5].why


def test_what_a_later_release_changed_is_suggested_without_a_number_and_never_as_likely(
    index: FixIndex,
) -> None:
    changed = {"v1/core/pool.py": ["allocate"]}
    terms = "block request still referenced ref_count valueerror"
    index.differences.append(fix(0, "", changed, 2, terms=terms))
    index.fixes = [entry for entry in index.fixes if entry.number != 2]
    first = suggest(evidence(), "0.11.0", index)[0]
    assert first.fix.number == 0 and not first.is_likely
    assert first.text.startswith("changes in vllm/v1/core/pool.py (in 0.12.0; pull request not ")
    assert "changes allocate" in first.text and first.to_json()["fix"] is None
    assert suggest(evidence(), "0.12.0", index) == []


def test_a_fix_that_was_taken_back_is_not_likely(index: FixIndex) -> None:
    index.fixes.append(fix(7, 'Revert "Free a block" (#2)', {"x.py": ["y"]}, 3))
    first = suggest(evidence(), "0.11.0", index)[0]
    assert first.reverted_by == "vllm#7" and not first.is_likely


def test_words_about_a_failure_count(index: FixIndex) -> None:
    failure = Evidence("KeyError: 7", (VllmCall("v1/other.py", "run"),), about="sampling is slow")
    assert suggest(failure, "0.11.0", index)[0].fix.number == 3


def test_a_development_version_is_placed_by_its_commit_or_by_the_release_before(
    index: FixIndex,
) -> None:
    assert index.day_of("0.11.1.dev5") == "2026-02-01"
    position = index.position_of_commit("0.1.dev7+g000000002")
    assert position is not None and index.fixes[position].number == 2
    assert min(index.lacking("0.1.dev7+g000000002")) == position + 1


def test_a_fix_is_found_by_its_name_and_an_unknown_one_is_an_error(index: FixIndex) -> None:
    assert index.find("vllm#2").title.startswith("[Bugfix] Free")
    for name in ("vllm#99", "vllm-2"):
        with pytest.raises(UsageError, match="not among"):
            index.find(name)


def test_equal_indices_give_equal_files_that_can_be_loaded(index: FixIndex, tmp_path: Path) -> None:
    path = tmp_path / "fixes.zip"
    path.write_bytes(index.content())
    assert FixIndex.load(path) == index and path.read_bytes() == index.content()


def test_names_of_models_match_in_all_spellings() -> None:
    assert words("Qwen2.5-VL-7B-Instruct") & words("models/qwen2_5_vl.py") >= {"qwen25vl"}


def test_the_index_of_the_package_is_small_and_knows_documented_fixes() -> None:
    assert FILE.stat().st_size < 2_000_000
    assert zipfile.ZipFile(FILE).testzip() is None
    index = fix_index()
    assert index.first_release(index.find("vllm#16863")) == "0.8.5"
    assert index.first_release(index.find("vllm#44483")) == "0.24.0"  # picked, with other lines
