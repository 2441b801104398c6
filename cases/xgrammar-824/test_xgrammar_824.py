"""mlc-ai/xgrammar#824: an array may end before the last item that prefixItems describes."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

pytestmark = pytest.mark.vllm_case("xgrammar-824")
SCHEMA: dict[str, Any] = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}


@pytest.mark.parametrize(("least", "text"), [(0, "[]"), (0, '["a"]'), (1, '["a"]')], ids=["empty", "one", "least-one"])
def test_short_array(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, least: int, text: str) -> None:
    options: dict[str, Any] = {"backend": "xgrammar", "tokenizer": vllm_model_path}
    options["schema"] = {**SCHEMA, "minItems": least}
    complete = vllm_probe("grammars:accepts", text='["a", 1]', **options)
    exchanged = vllm_probe("grammars:accepts", text='[1, "a"]', **options)
    vllm_at_work("prefixItems is heeded: types in their order, and no others", complete and not exchanged)
    assert vllm_probe("grammars:accepts", text=text, **options), f"xgrammar rejects {text} although minItems is {least}"
