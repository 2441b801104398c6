"""Engines on GPUs: what an engine asks for and where it goes, what the agent and its children see, and what a record says of it."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from ..checkpoints.kinds import KINDS
from ..environments.installed import open_interpreter
from ..errors import UsageError
from ..gpus import compiled
from ..gpus.fit import compare, cuda_of, modes, tools
from ..gpus.leases import GpuLease, GpuLeases
from ..gpus.nvml import Gpu, Machine, look
from ..gpus.visible import ORDER, PCI, VISIBLE, CudaDevice, Visible, usable
from ..processes.child import Child
from ..util.deadline import Deadline
from ..util.files import peek
from ..util.sizes import GIB, MIB
from .spec import EngineSpec
from .target import Target

_MAX_LOG = 4 * 1024 * 1024

KV_CACHE = 256 * MIB
"""Bytes of KV cache for a forged model: hundreds of thousands of its tokens."""
OWN = 3 * GIB
"""Bytes for all else of an engine with a forged model: CUDA's context, kernels, workspaces, the profiling run. Reckoned; not measured on a GPU."""
# Where vLLM says it: in platforms/cuda.py, before 0.6 in attention/selector.py. Others log backends, too: of compilers, of experts, for images.
_BACKEND = re.compile(r"\b(?:cuda|selector)\.py:\d+\] Using (\S[^.\n]{0,40}?)(?: attention)? backend\b")


@dataclasses.dataclass(frozen=True)
class Asked:
    """What an engine asks each of its GPUs for: a ``share`` of the whole, or (None) ``size`` bytes."""

    share: float | None
    size: int = KV_CACHE + OWN

    @classmethod
    def of(cls, spec: EngineSpec, *, forged: bool, share: float) -> Asked:
        """By vLLM's rule: the share that is named, else for a forged model what we ask for, else ``share``, vLLM's default."""
        extra = spec.extra_arguments
        named = extra.get("gpu_memory_utilization")
        if isinstance(named, (int, float)):
            return cls(float(named))
        if forged:
            cache = extra.get("kv_cache_memory_bytes")
            return cls(None, OWN + (cache if isinstance(cache, int) else KV_CACHE))
        return cls(share)

    def needed(self, device: CudaDevice) -> int:
        """Bytes that must be free: vLLM compares its share of the whole with what is free."""
        return self.size if self.share is None else int(self.share * device.memory)


PROBE = Asked(None)


class Placement:
    """The GPUs of one run. ``tell`` gets a line for what the user should know; ``environ`` is the controller's."""

    def __init__(
        self, tell: Callable[[str], None], environ: Mapping[str, str] | None = None, leases: GpuLeases | None = None
    ) -> None:
        self._tell = tell
        self._environ = os.environ if environ is None else environ
        self.leases = leases or GpuLeases(tell=tell)
        self._fitting: dict[str, tuple[CudaDevice, ...]] = {}

    @cached_property
    def visible(self) -> Visible:
        """What this run may use; what it cannot use is told once."""
        found = usable(self._environ)
        for note in found.notes:
            self._tell(f"note: {note}")
        return found

    def devices(self, target: Target) -> tuple[CudaDevice, ...]:
        """The GPUs that ``target`` runs on. Raises ``UsageError`` where its torch fits neither driver nor any GPU, by the checks of
        ``vllm-regress audit --preflight``."""
        if target.name not in self._fitting:
            self._fitting[target.name] = self._fit(target)
        return self._fitting[target.name]

    def agent_environment(self, target: Target) -> dict[str, str]:
        """For the agent, and so for all its children. GPUs by number: with a UUID vLLM up to 0.20.1 learns nothing of its models,
        and with the name of a MIG slice importing vLLM initializes CUDA."""
        numbers = dict.fromkeys(str(device.index) for device in self.devices(target))
        place = kernels(target)
        caches = {name: str(place / folder) for name, folder in compiled.CACHES.items() if name not in self._environ}
        return {
            ORDER: PCI,
            VISIBLE: ",".join(numbers),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch counts devices without initializing CUDA; some releases of vLLM set it too late
            "PATH": os.pathsep.join(
                [str(target.python.parent), self._environ.get("PATH", os.defpath)]
            ),  # ninja is there
            **caches,
        }

    def lease(
        self, target: Target, count: int, asked: Asked, deadline: Deadline, make_room: Callable[[], bool]
    ) -> GpuLease:
        """As ``GpuLeases.lease``, of the target's GPUs."""
        return self.leases.lease(self.devices(target), count, asked.needed, deadline, make_room)

    def request(self, lease: GpuLease, asked: Asked) -> dict[str, object]:
        """The part of an engine's request that tells the dialect of its GPUs."""
        devices = [
            {
                "name": device.name,
                "memory": device.memory,
                "used": before.used,
                "capability": list(device.capability) if device.capability else None,
                "part": device.part,
            }
            for device, before in zip(lease.devices, lease.before, strict=True)
        ]
        return {"devices": devices, "tiny": asked.share is None, "needed": asked.size, "cache": KV_CACHE}

    def facts(self, lease: GpuLease, child: Child) -> dict[str, str]:
        """What a record says of an engine's GPUs."""
        first = lease.devices[0]
        seen = _BACKEND.search(peek(child.log, _MAX_LOG))
        return {
            "gpu": ", ".join(f"{device.name} ({device.selector})" for device in lease.devices),
            "capability": ".".join(map(str, first.capability)) if first.capability else "unknown",
            "driver": self.visible.driver,
            "cuda": ".".join(map(str, self.visible.cuda)),
            "compute_mode": first.compute_mode,
            "mig": "yes" if first.part else "no",
            "attention_backend": seen[1] if seen else "not logged",
            "start_method": child.start_method,
        }

    def _fit(self, target: Target) -> tuple[CudaDevice, ...]:
        interpreter = open_interpreter(target.python, python_path="")
        torch = next((each for each in interpreter.imported() if each.name == "torch"), None)
        wrong: list[str] = []
        fitting: list[CudaDevice] = []
        for device in self.visible.devices:
            one = Machine(self.visible.driver, self.visible.cuda, (_as_gpu(device),))
            found = list(compare(target.versions.get("vllm", "?"), torch.version, cuda_of(torch), one)) if torch else []
            wrong += [words for _, words, counts in found if counts]
            if not any(counts for _, _, counts in found):
                fitting.append(device)
        if not fitting:
            raise UsageError(
                f"--vllm-gpu (device gpu) was asked for, and {target.name} cannot use it: {' '.join(dict.fromkeys(wrong))} "
                "`vllm-regress audit --preflight` says what helps"
            )
        machine = look()
        # What keeps a GPU from being used at all, ``visible`` has told.
        odd = [words for _, words, counts in modes(machine) if not counts] if isinstance(machine, Machine) else []
        lacking = [words for _, words, _ in tools(target.python, interpreter.version, self._environ)]
        for words in dict.fromkeys([*wrong, *odd, *lacking]):
            self._tell(f"note: {words}")
        return tuple(fitting)


def is_forged(spec: EngineSpec, model: str | None) -> bool:
    """The engine's model is one of ours; ``model`` is what --vllm-model names."""
    return model is None and spec.model in KINDS


def kernels(target: Target) -> Path:
    """Where kernels that an engine of ``target`` compiles are kept from run to run."""
    return compiled.place(target.versions.get("vllm", "none"))


def first_start(target: Target, lease: GpuLease) -> Path:
    """A file that is there once an engine of ``target`` has started on such GPUs: until then a start compiles its kernels."""
    capability = lease.devices[0].capability or (0, 0)
    return kernels(target) / f"started-{capability[0]}.{capability[1]}"


def _as_gpu(device: CudaDevice) -> Gpu:
    return Gpu(device.index, device.name, device.memory, device.uuid, device.capability, device.compute_mode)
