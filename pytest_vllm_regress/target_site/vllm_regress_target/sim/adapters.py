"""LoRA adapters, read by vLLM's own loader: what it refuses is refused here in the same words. Nothing is computed with them."""

from types import SimpleNamespace
from typing import Any

# The modules of a decoder layer, as vLLM's models name and pack them.
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
MODULES = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


def load_adapter(vllm_config: Any, lora_request: Any) -> Any:
    """The adapter, as ``WorkerLoRAManager`` of this vLLM loads it from disk. Raises what that raises."""
    from vllm.lora import worker_manager

    model = SimpleNamespace(supported_lora_modules=MODULES, packed_modules_mapping=PACKED)
    manager = SimpleNamespace(
        model=model,
        supported_lora_modules=MODULES,
        packed_modules_mapping=PACKED,
        moe_ep_load_spec=None,
        _validate_moe_lora_format=lambda lora: None,
        _validate_classification_head_lora=lambda lora: None,
    )
    owner = SimpleNamespace(
        _adapter_manager=manager,
        _lora_model_cls=worker_manager.LoRAModel,
        lora_config=vllm_config.lora_config,
        max_position_embeddings=getattr(vllm_config.model_config.hf_config, "max_position_embeddings", None),
        vocab_size=vllm_config.model_config.get_vocab_size(),
        embedding_modules={},
        embedding_padding_modules=[],
    )
    return worker_manager.WorkerLoRAManager._load_adapter(owner, lora_request)
