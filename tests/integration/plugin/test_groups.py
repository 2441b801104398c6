"""The groups of pytest-xdist: tests that share an engine belong to one worker."""

from __future__ import annotations

import pytest

CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def server(vllm_engines):
    raise LookupError

@pytest.fixture(scope="session")
def client(server):
    return server

@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    for item in session.items:
        group = item.get_closest_marker("xdist_group")
        print(item.originalname, "group", group and group.args[0])
"""
TESTS = """
import pytest

@pytest.fixture(scope="module")
def other(vllm_engines): ...

def test_server(server): ...
def test_client(client): ...
def test_other(other): ...
def test_alone(): ...
@pytest.mark.xdist_group("mine")
def test_mine(server): ...
"""


def test_tests_of_one_fixture_that_takes_engines_share_a_worker(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    envs = ("--vllm-env=vllm-0.8.5", "--vllm-env=vllm-0.33.0")
    lines = pytester.runpytest(*envs, "--collect-only", "-q").outlines
    groups = [line.split(" group ") for line in lines if " group " in line]
    by_test: dict[str, set[str]] = {}
    for name, group in groups:
        by_test.setdefault(name, set()).add(group)
    assert by_test["test_server"] == by_test["test_client"]
    assert len(by_test["test_server"]) == len(by_test["test_other"]) == 2  # by environment
    assert by_test["test_other"].isdisjoint(by_test["test_server"])
    assert by_test["test_alone"] == {"None"} and by_test["test_mine"] == {"mine"}
