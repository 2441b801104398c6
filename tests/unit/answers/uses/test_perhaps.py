"""Uses that releases lack where the code around them may handle that: listed, but not counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.presentation import report, to_json, to_sarif
from pytest_vllm_regress.util.report import to_terminal
from tests.unit.answers.uses.projects import answer_for, missing

OLD = "from vllm.utils import get_port"
GONE = "the module vllm.utils has no get_port"


@pytest.mark.parametrize(
    "source",
    [
        # Tests of the version.
        f"import vllm\nif matches(vllm.__version__, KNOWN):\n    {OLD}",
        f"import vllm\nif vllm.__version__ in known:\n    ...\nelse:\n    {OLD}",
        f"if supported_vllm_version():\n    {OLD}",
        f"from own import is_vllm_equal\nif is_vllm_equal(known):\n    {OLD}",
        f"from own import VLLM_LEGACY\nif x and not VLLM_LEGACY:\n    {OLD}",
        f"def f():\n    if has_old_vllm():\n        return new()\n    {OLD}",
        # Tests of an object that may be vLLM's.
        f"def f(engine):\n    if hasattr(engine, 'ports'):\n        {OLD}",
        f"def f(engine):\n    run = getattr(engine, 'run_all', None)\n    if run is not None:\n        return run()\n    {OLD}",
        f"def f(run):\n    if 'port' in inspect.signature(run).parameters:\n        {OLD}",
        # What only such a test leads to.
        f"def old():\n    {OLD}\nif has_old_vllm():\n    old()",
        f"def run():\n    def old():\n        {OLD}\n    def new(): ...\n    return old if has_old_vllm() else new",
        f"import vllm\nx = vllm.utils.get_port if hasattr(y, 'ports') else None\nif a:\n    {OLD}",
    ],
)
def test_what_stands_behind_a_test_that_is_not_understood_does_not_count(
    tmp_path: Path, two_releases: History, source: str
) -> None:
    certain = "\nif a:\n" in source
    result = answer_for(tmp_path, two_releases, {"a.py": source})
    assert missing(result)["2.0"] == [GONE] * certain
    if not certain:
        assert [(p.text, p.releases) for p in result.perhaps] == [(GONE, ("2.0",))]
        assert "2.0" in result.complete


@pytest.mark.parametrize(
    "source",
    [
        f"import torch\nif hasattr(torch, 'compile'):\n    {OLD}",
        f"def f(x):\n    if hasattr(x, '__done__') or getattr(x, MARK, False):\n        return\n    {OLD}",
        f"def f(x):\n    name = (x.a if hasattr(x, 'a') else x.b).upper()\n    if name == 'A':\n        {OLD}",
        f"def f(config):\n    if getattr(config.text_config, 'experts', None) is None:\n        return\n    {OLD}",
        f"class A:\n    def f(self):\n        if getattr(self, 'x', None) is None:\n            {OLD}",
        f"def f(vllm_config):\n    if vllm_config.verbose:\n        {OLD}",
    ],
)
def test_other_tests_leave_no_doubt(tmp_path: Path, two_releases: History, source: str) -> None:
    result = answer_for(tmp_path, two_releases, {"a.py": source})
    assert missing(result)["2.0"] == [GONE]
    assert result.perhaps == ()


@pytest.mark.parametrize(
    ("files", "counted"),
    [
        ({"app.py": "if has_old_vllm():\n    import former"}, False),
        ({"app.py": "if has_old_vllm():\n    import former", "b.py": "import former, vllm"}, True),
        ({"app.py": "import vllm"}, True),
    ],
)
def test_a_module_that_only_such_a_test_loads_does_not_count(
    tmp_path: Path, two_releases: History, files: dict[str, str], counted: bool
) -> None:
    result = answer_for(tmp_path, two_releases, {**files, "former.py": OLD})
    assert missing(result)["2.0"] == [GONE] * counted
    assert bool(result.perhaps) is not counted


@pytest.mark.parametrize("name", ["patch_vllm085", "vllm_v08", "v0_8_5_patch", "run_vllm"])
def test_a_file_that_is_named_for_a_release_is_perhaps_for_that(
    tmp_path: Path, two_releases: History, name: str
) -> None:
    files = {f"{name}.py": OLD, "app.py": f"import vllm, {name}"}
    counted = missing(answer_for(tmp_path, two_releases, files))["2.0"]
    assert counted == [GONE] * (name == "run_vllm")


def test_what_is_perhaps_handled_is_shown(tmp_path: Path, two_releases: History) -> None:
    source = f"def f(engine):\n    if hasattr(engine, 'ports'):\n        {OLD}"
    result = answer_for(tmp_path, two_releases, {"a.py": source})
    text = to_terminal(report(result, "x"))
    assert "perhaps handled, so not counted" in text
    assert f"a.py:3: {GONE}: 2.0 (a test of what an object has)" in text
    (entry,) = to_json(result, "x")["perhaps"]
    assert (entry["missing"], entry["releases"], entry["line"]) == (GONE, ["2.0"], 3)
    (found,) = to_sarif(result, "x")["runs"][0]["results"]
    assert found["level"] == "note"
    assert "perhaps handled by a test" in found["message"]["text"]
