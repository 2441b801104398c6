"""LoRA adapters, loaded and checked by vLLM's own loader. Nothing is computed with them.

An adapter's effect on the logits depends on the bytes of its weights. As on a real device, they are
read when vLLM passes the adapter and are kept under vLLM's number for it. Therefore an adapter that
was replaced on disk, or two adapters with the same number, have the same effect as on a real
device.
"""

import glob
import hashlib
import os
from types import SimpleNamespace
from typing import Any, Optional

# The modules of a decoder layer, as vLLM's models name and pack them.
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
MODULES = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


def load_adapter(vllm_config: Any, lora_request: Any) -> Any:
    """Load the adapter as ``WorkerLoRAManager`` of this vLLM does, with the same exceptions."""
    from vllm.lora import worker_manager

    loader = worker_manager.WorkerLoRAManager
    owner = SimpleNamespace(
        _adapter_manager=_manager(loader._manager_cls),
        _lora_model_cls=worker_manager.LoRAModel,
        lora_config=vllm_config.lora_config,
        max_position_embeddings=getattr(
            vllm_config.model_config.hf_config, "max_position_embeddings", None
        ),
        vocab_size=vllm_config.model_config.get_vocab_size(),
        embedding_modules={},
        embedding_padding_modules=[],
    )
    return loader._load_adapter(owner, lora_request)


def _manager(kind: type) -> Any:
    """Return an instance of vLLM's manager without a network, so that this version's checks of
    adapters run. Unknown attributes are None."""
    manager: Any = type(
        "Manager", (kind,), {"__init__": lambda self: None, "__getattr__": lambda self, name: None}
    )()
    manager.model = SimpleNamespace(supported_lora_modules=MODULES, packed_modules_mapping=PACKED)
    manager.supported_lora_modules, manager.packed_modules_mapping, manager.modules = (
        MODULES,
        PACKED,
        {},
    )
    return manager


class Adapters:
    """The LoRA adapters that one worker has loaded."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        self._digests: dict[int, bytes] = {}

    def add(self, request: Any) -> bool:
        """Load an adapter unless it is loaded already and need not be reloaded.

        Raises vLLM's exceptions.
        """
        if request.lora_int_id not in self._digests or getattr(request, "load_inplace", False):
            load_adapter(self._config, request)
            self._digests[request.lora_int_id] = _digest(request.lora_path)
        return True

    def fingerprint(self, request: Optional[Any]) -> bytes:
        """Return a digest of the request's adapter, loading it if necessary; empty without an
        adapter."""
        if request is None:
            return b""
        if request.lora_int_id not in self._digests:
            self.add(request)
        return self._digests[request.lora_int_id]

    def remove(self, number: int) -> bool:
        """Remove an adapter. Returns whether it was loaded."""
        return self._digests.pop(number, None) is not None

    def numbers(self) -> set[int]:
        """Return vLLM's numbers of the loaded adapters."""
        return set(self._digests)


def _digest(folder: str) -> bytes:
    state = hashlib.blake2b(folder.encode() if not os.path.isdir(folder) else b"", digest_size=16)
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "adapter_model.*"))):
        with open(path, "rb") as file:
            state.update(file.read())
    return state.digest()
