"""Prefill and decode in two engines: the decode engine loads the blocks that the other one has
saved, also late, or computes what was lost."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TESTS = """
    import json
    import time
    from collections import Counter

    import pytest

    PROMPT = "A prompt of several blocks. " * 4 + "!"  # 113 tokens: the decode engine computes only the last one
    MODULE = "vllm_regress_target.sim.connectors.shared"

    def connector(role, folder, **settings):
        config = {"kv_connector": "SharedConnector", "kv_connector_module_path": MODULE, "kv_role": role}
        return {**config, "kv_connector_extra_config": {"folder": str(folder), **settings}}

    @pytest.mark.parametrize(
        ("settings", "policy", "options", "failed", "kept"),
        [
            ({}, {}, {}, 0, 7),
            ({}, {}, {}, 0, 3),
            ({"delay_s": 0.3}, {}, {}, 0, 7),
            ({"lost": [2]}, {"kv_load_failure_policy": "recompute"}, {"async_scheduling": False}, 1, 7),
        ],
        ids=["whole", "partial", "late", "lost"],
    )
    def test_decode_loads_what_prefill_saved(vllm_engines, tmp_path, settings, policy, options, failed, kept):
        consumer = {**connector("kv_consumer", tmp_path, **settings), **policy}
        prefill, decode = (
            vllm_engines(front="serve", generation="V1", extra={"kv_transfer_config": config, **options})
            for config in (connector("kv_producer", tmp_path), consumer)
        )
        try:
            body = {"model": decode.model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
            alone = decode.post("/v1/completions", {**body, "cache_salt": "alone"}).json()["choices"][0]["text"]
            assert not (tmp_path / "events.jsonl").exists()
            first = prefill.post(
                "/v1/completions", {**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
            ).json()
            log = tmp_path / "events.jsonl"
            saved = [json.loads(line)["block"] for line in log.read_text().splitlines()]
            for block in saved[kept:]:
                (tmp_path / block).unlink()
            begun = time.monotonic()
            answer = decode.post("/v1/completions", {**body, "kv_transfer_params": first["kv_transfer_params"]}).json()
            assert time.monotonic() - begun >= settings.get("delay_s", 0)
            events = [json.loads(line) for line in log.read_text().splitlines()[len(saved):]]
            assert len(saved) == 7
            assert [event["block"] for event in events] == saved[:kept]
            assert Counter(event["event"] for event in events) == Counter(loaded=kept - failed, failed=failed)
            assert answer["choices"][0]["text"] == alone
            decode.check()
        finally:
            vllm_engines.discard(prefill)
            vllm_engines.discard(decode)
"""


def test_blocks_are_transferred(pytester: pytest.Pytester, user_caches: None) -> None:
    pytester.makepyfile(test_prefill_decode=TESTS)
    result = pytester.runpytest_subprocess(
        "--vllm-env", "vllm-0.33.0", "--vllm-leftovers=fail", "--vllm-limit=engines=2"
    )
    result.assert_outcomes(passed=4)
