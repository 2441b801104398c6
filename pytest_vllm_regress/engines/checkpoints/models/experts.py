"""A mixture-of-experts model in the file layout of Qwen1.5-MoE: each token uses two of four
experts, and a shared one."""

from __future__ import annotations

from typing import Any

from ..shapes import Shape, Tokenizer, Weights
from . import qwen

_EXPERTS = 4


def config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    return {
        **qwen.text_config(tokenizer, shape),
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": shape.intermediate // 2,
        "norm_topk_prob": False,
        "num_experts": _EXPERTS,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": shape.intermediate,
    }


def weights(vocabulary_size: int, s: Shape) -> Weights:
    for name, rows in qwen.text_weights(vocabulary_size, s):
        if ".mlp." not in name:
            yield name, rows
    for layer in range(s.layers):
        at = f"model.layers.{layer}.mlp."
        yield f"{at}gate.weight", (_EXPERTS, s.hidden)
        yield f"{at}shared_expert_gate.weight", (1, s.hidden)
        yield from _expert(f"{at}shared_expert", s.intermediate, s.hidden)
        for number in range(_EXPERTS):
            yield from _expert(f"{at}experts.{number}", s.intermediate // 2, s.hidden)


def _expert(at: str, wide: int, hidden: int) -> Weights:
    yield f"{at}.gate_proj.weight", (wide, hidden)
    yield f"{at}.up_proj.weight", (wide, hidden)
    yield f"{at}.down_proj.weight", (hidden, wide)
