"""Upstream's tests of the modules that a patch changes: which files, and what breaks in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.environments.git import Repository
from pytest_vllm_regress.surveys.upstream import both_sides
from pytest_vllm_regress.surveys.upstream.both_sides import files_about
from pytest_vllm_regress.surveys.upstream.tests import (
    UpstreamOutcome,
    UpstreamRequest,
    UpstreamResult,
    UpstreamRun,
)
from pytest_vllm_regress.surveys.upstream.tree import write_tree
from tests.helpers.repositories import RepositoryBuilder
from tests.integration.bisection.test_patch import builder, index, ran

__all__ = ["builder", "index", "ran"]

FILES = {
    "tests/test_engine.py": "from vllm.engine import run\n",
    "tests/test_beside.py": "",
    "tests/test_once.py": "",
    "tests/test_engines.py": "from vllm.engines import run\n",
    "tests/test_formatted.py": "",
}


def add_tests(builder: RepositoryBuilder) -> None:
    builder.commit("tests", FILES)
    for text in ("a = 1", "a = 2"):
        builder.commit(text, {"vllm/engine.py": text, "tests/test_beside.py": text})
        many = {f"vllm/file_{number}.py": text for number in range(40)}
        also = {"vllm/engine.py": f"{text}#", "tests/test_formatted.py": text}
        builder.commit("format", many | also)
    builder.commit("once", {"vllm/engine.py": "a = 3", "tests/test_once.py": "1"})


def test_the_files_import_a_changed_module_or_were_changed_with_it(
    builder: RepositoryBuilder, tmp_path: Path
) -> None:
    add_tests(builder)
    repository = Repository.at(builder.place)
    (tmp_path / "written").mkdir()
    tests = write_tree(repository, "HEAD", tmp_path / "written")
    changed = frozenset({"vllm/engine.py", "csrc/a.cu"})
    files = files_about(changed, tests, repository.commits_touching(sorted(changed)))
    assert files == ("tests/test_engine.py", "tests/test_beside.py", "tests/test_once.py")
    assert files_about(frozenset({"vllm/__init__.py"}), tests, []) == ()


def test_a_test_that_passes_on_the_base_and_fails_with_the_patch_is_broken(
    builder: RepositoryBuilder,
    tmp_path: Path,
    ran: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add_tests(builder)
    (builder.place / "vllm/engine.py").write_text("def run(): pass")
    sides: list[str] = []

    def run_tests(request: UpstreamRequest, *_: object, **__: object) -> UpstreamRun:
        sides.append(str(request.target))
        patched = sides[-1].endswith(str(builder.place))
        failed = {"breaks", "always"} if patched else {"always", "fixed"}
        results = tuple(
            UpstreamResult(
                f"tests/test_engine.py::{name}",
                UpstreamOutcome.FAILED if name in failed else UpstreamOutcome.PASSED,
                "assert 1 == 2",
            )
            for name in ("breaks", "always", "fixed", "works")
        )
        return UpstreamRun(results, request.files, (), 1.0)

    @contextlib.contextmanager
    def session(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(target=lambda name: name)

    monkeypatch.setattr(both_sides, "run_tests", run_tests)
    monkeypatch.setattr(both_sides, "bare_session", session)
    monkeypatch.setattr(both_sides, "lock_id", lambda name: name)
    command = ["--cases", str(tmp_path / "cases"), "try", str(builder.place), "stays", "--upstream"]
    assert cli.main([*command, "--format", "markdown"]) == 1
    output = capsys.readouterr().out
    assert "breaks 1 of 2 in tests/test_engine.py" in output
    assert "tests/test_engine.py::breaks: assert 1 == 2" in output
    assert "breaks none of 0 in tests/test_beside.py" in output
    assert "1 of 1 changed functions are not exercised by the 1 cases that were run and" in output
    assert len(sides) == 2
    assert cli.main(command) == 1
    assert len(sides) == 3  # the base is known
    assert cli.main([*command, "--base-again"]) == 1
    assert len(sides) == 5
