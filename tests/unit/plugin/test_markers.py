"""The markers of a test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.cases.collection import EngineMarker, engine_marker
from pytest_vllm_regress.errors import Cause, Unsupported
from pytest_vllm_regress.plugin.markers import check_requirements


def engine_markers(*nearest_first: dict[str, Any]) -> EngineMarker:
    marks = [pytest.mark.vllm_engine(**arguments).mark for arguments in nearest_first]
    node: Any = SimpleNamespace(stash=pytest.Stash(), iter_markers=lambda name: marks)
    return engine_marker(node)


def test_the_nearest_marker_wins_under_either_name_of_a_field() -> None:
    assert engine_markers({"tp": 2}, {"tensor_parallel_size": 4, "seed": 1}).fixed == {
        "tensor_parallel_size": 2,
        "seed": 1,
    }
    (axis,) = engine_markers({"tensor_parallel_size": [1, 2]}, {"tp": [4]}).axes
    assert (axis.name, axis.values) == ("tensor_parallel_size", (1, 2))


def test_a_marker_that_is_added_later_counts() -> None:
    marks = [pytest.mark.vllm_engine(seed=1).mark]
    node: Any = SimpleNamespace(stash=pytest.Stash(), iter_markers=lambda name: marks)
    assert engine_marker(node) is engine_marker(node)
    marks.append(pytest.mark.vllm_engine(tp=2).mark)
    assert engine_marker(node).fixed == {"seed": 1, "tensor_parallel_size": 2}


def check(versions: dict[str, str], failing: str = "vllm", **required: str) -> None:
    item: Any = SimpleNamespace(
        nodeid="test", iter_markers=lambda name: [getattr(pytest.mark, name)(**required).mark]
    )
    target: Any = SimpleNamespace(name="it", versions=versions)
    check_requirements(item, target, failing)


@pytest.mark.parametrize(
    ("installed", "required"),
    [
        ("0.8.5", ">=0.8"),
        ("0.8.5+cpu", "==0.8.5"),
        ("0.9.0rc1", "*"),
        ("0.34.0", ">=0.7,<0.8.5 || >=0.34"),
    ],
)
def test_requirements_that_are_met(installed: str, required: str) -> None:
    check({"vllm": installed}, vllm=required)


@pytest.mark.parametrize(
    ("package", "hint"),
    [
        ("vlm", " no vlm. Did you mean vllm?"),
        ("xgramar", " no xgramar. Did you mean xgrammar?"),
        ("torchaudio", " no torchaudio"),
        ("ray", " no ray"),
    ],
)
def test_a_package_that_is_close_to_a_known_one_gets_a_hint(package: str, hint: str) -> None:
    with pytest.raises(Unsupported) as caught:
        check({"vllm": "0.9.0", "torch": "2.7.0"}, **{package: ">=1"})
    assert str(caught.value) == f"it has{hint} (needs {package} >=1)"


@pytest.mark.parametrize(
    ("versions", "has"),
    [({"vllm": "0.9.0"}, "it has vllm 0.9.0"), ({"ray": "2.0"}, "it has no vllm")],
)
def test_requirements_that_are_not_met(versions: dict[str, str], has: str) -> None:
    with pytest.raises(Unsupported, match=has):
        check(versions, vllm=">=0.7,<0.8.5 || >=0.34")


@pytest.mark.parametrize(
    ("required", "cause"),
    [
        ({"vllm": ">=0.9"}, Cause.RELEASE),
        ({"ray": "*"}, Cause.PACKAGE),
        ({"vllm": ">=0.9", "cause": "failure"}, Cause.FAILURE),
        ({"vllm": ">=0.9", "cause": "harness"}, Cause.HARNESS),
    ],
)
def test_a_requirement_says_what_its_absence_means(required: dict[str, str], cause: Cause) -> None:
    with pytest.raises(Unsupported) as caught:
        check({"vllm": "0.8.5"}, **required)
    assert caught.value.cause is cause


@pytest.mark.parametrize(
    ("versions", "cause"),
    [({"xgrammar": "0.1.13"}, Cause.RELEASE), ({"vllm": "0.8.5"}, Cause.PACKAGE)],
)
def test_an_older_release_of_the_failing_package_lacks_the_feature(
    versions: dict[str, str], cause: Cause
) -> None:
    with pytest.raises(Unsupported) as caught:
        check(versions, failing="xgrammar", xgrammar=">=0.1.17")
    assert caught.value.cause is cause


def test_other_causes_are_refused() -> None:
    with pytest.raises(pytest.UsageError, match="only 'failure' and 'harness' are allowed"):
        check({"vllm": "0.8.5"}, vllm=">=0.9", cause="release")
