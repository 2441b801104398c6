"""An environment that no node has is built by the nodes' environment builders from the request."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from tests.cluster.conftest import Cluster
from tests.cluster.matrices import LEFT_S, page
from tests.helpers.waiting_cases import version_case

# A small one, of a few megabytes: a package of structured output alone. It has no engines, so no
# case is shown in it.
NAME = "llguidance-1.7.6"
pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.timeout(600)]


def test_an_environment_builder_builds_a_missing_environment(
    cluster: Cluster, tmp_path: Path
) -> None:
    version_case(tmp_path / "cases", "one")
    result = tmp_path / "r.json"
    command = cluster.command(tmp_path / "cases", "matrix", "--on", cluster.address, "--env", NAME)
    done = cluster.run([*command, "--out", str(result)])
    (cell,) = page(result)
    assert (cell["environment"], cell["verdict"]) == (NAME, "NOT_APPLICABLE"), (
        done.stdout + done.stderr
    )
    assert cell["node"]["node"]
    assert [environment.name for environment in EnvironmentCache().listing()] == [
        NAME
    ]  # the nodes' cache is this process's, too
    cluster.wait_until_clean(LEFT_S)
