"""LoRA adapters, read by vLLM's own loader: what it refuses is refused here in the same words. Nothing is computed with them.

What an adapter changes is told by the bytes of its weights. They are read when vLLM hands the adapter over and kept under vLLM's own number for
it, as a real device keeps them; so an adapter that was exchanged on the disk, or two under one number, show here as they do there.
"""

import glob
import hashlib
import os
from types import SimpleNamespace
from typing import Any, Dict, Optional, Set

# The modules of a decoder layer, as vLLM's models name and pack them.
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
MODULES = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


def load_adapter(vllm_config: Any, lora_request: Any) -> Any:
    """The adapter, as ``WorkerLoRAManager`` of this vLLM loads it from disk. Raises what that raises."""
    from vllm.lora import worker_manager

    loader = worker_manager.WorkerLoRAManager
    owner = SimpleNamespace(
        _adapter_manager=_manager(loader._manager_cls),
        _lora_model_cls=worker_manager.LoRAModel,
        lora_config=vllm_config.lora_config,
        max_position_embeddings=getattr(vllm_config.model_config.hf_config, "max_position_embeddings", None),
        vocab_size=vllm_config.model_config.get_vocab_size(),
        embedding_modules={},
        embedding_padding_modules=[],
    )
    return loader._load_adapter(owner, lora_request)


def _manager(kind: type) -> Any:
    """A manager of vLLM's class that has no network, so that all that this version checks of an adapter is checked. What it does not know is None."""
    made: Any = type("Manager", (kind,), {"__init__": lambda self: None, "__getattr__": lambda self, name: None})()
    made.model = SimpleNamespace(supported_lora_modules=MODULES, packed_modules_mapping=PACKED)
    made.supported_lora_modules, made.packed_modules_mapping, made.modules = MODULES, PACKED, {}
    return made


class Adapters:
    """The adapters that one worker holds."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        self._held: Dict[int, bytes] = {}

    def add(self, request: Any) -> bool:
        """Load an adapter that is not held yet, or is to be loaded again. Raises what vLLM raises for one that it refuses."""
        if request.lora_int_id not in self._held or getattr(request, "load_inplace", False):
            load_adapter(self._config, request)
            self._held[request.lora_int_id] = _digest(request.lora_path)
        return True

    def mark(self, request: Optional[Any]) -> bytes:
        """What tells the adapter of a request from others; empty without one. It is loaded when it is not held yet."""
        if request is None:
            return b""
        if request.lora_int_id not in self._held:
            self.add(request)
        return self._held[request.lora_int_id]

    def remove(self, number: int) -> bool:
        """Whether it was held."""
        return self._held.pop(number, None) is not None

    def numbers(self) -> Set[int]:
        """vLLM's numbers of the adapters that are held."""
        return set(self._held)


class TakesAdapters:
    """What vLLM asks a worker about adapters, of every generation alike."""

    _adapters: Adapters

    def add_lora(self, lora_request: Any) -> bool:
        return self._adapters.add(lora_request)

    def remove_lora(self, lora_id: int) -> bool:
        return self._adapters.remove(lora_id)

    def pin_lora(self, lora_id: int) -> bool:
        return lora_id in self._adapters.numbers()

    def list_loras(self) -> Set[int]:
        return self._adapters.numbers()


def _digest(folder: str) -> bytes:
    state = hashlib.blake2b(folder.encode() if not os.path.isdir(folder) else b"", digest_size=16)
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "adapter_model.*"))):
        with open(path, "rb") as file:
            state.update(file.read())
    return state.digest()
