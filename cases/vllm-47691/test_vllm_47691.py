"""vllm-project/vllm#47691: --data-parallel-start-rank 0 is treated as if it were not given"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

pytestmark = pytest.mark.vllm_case("vllm-47691")


def test_first_node_balances_its_own_load(vllm_probe: Probe, vllm_model_path: str, vllm_at_work: AtWork) -> None:
    """The node with rank 0 gets the mode of the node with the next ranks, not that of a node without a start rank."""
    modes = {
        start: vllm_probe("hybrid_load_balancing", model=vllm_model_path, start_rank=start) for start in (None, 0, 2)
    }
    vllm_at_work("a start rank of 2 turns hybrid load balancing on", modes[2] is True)
    vllm_at_work("no start rank leaves it off", modes[None] is False)
    assert modes[0] is True, f"hybrid load balancing of the node that starts at rank 0: {modes[0]}"
