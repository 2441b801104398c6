"""vllm-project/vllm#49103: the server cannot be imported with openai before 2.25"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

pytestmark = pytest.mark.vllm_case("vllm-49103")


def test_the_server_is_imported(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    vllm_at_work("openai can be imported", vllm_probe("openai_version"))
    assert vllm_probe("import_server") == "vllm.entrypoints.openai.api_server"
