"""Engines on GPUs: how much memory an engine requests, which GPUs it gets, what the agent and its
children see, and what results record."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from weakref import WeakKeyDictionary

from ..environments.installed import open_interpreter
from ..errors import UsageError
from ..util.deadline import Deadline
from ..util.files import peek
from ..util.sizes import GIB, MIB
from .gpus import compiled
from .gpus.fit import Incompatibility, compare, compare_any, cuda_of, modes, tools
from .gpus.leases import GpuLease, GpuLeases
from .gpus.nvml import Gpu, Machine, query_machine
from .gpus.visible import ORDER, PCI, VISIBLE, usable
from .processes.child import Child
from .processes.child_processes import Leftover
from .spec import EngineSpec
from .target import Target

_MAX_LOG = 4 * 1024 * 1024

KV_CACHE = 256 * MIB
"""Bytes of KV cache for a forged model, enough for hundreds of thousands of its tokens."""
OWN = 3 * GIB
"""Other bytes that an engine with a forged model needs: CUDA's context, kernels, workspaces, the
profiling run. An estimate, not measured on a
GPU."""
# vLLM logs the attention backend in platforms/cuda.py, before 0.6 in attention/selector.py. Other
# modules log other kinds of backends.
_BACKEND = re.compile(
    r"\b(?:cuda|selector)\.py:\d+\] Using (\S[^.\n]{0,40}?)(?: attention)? backend\b"
)


@dataclass(frozen=True)
class MemoryRequest:
    """The memory that an engine requests of each GPU: a ``share`` of the whole, or ``size`` bytes
    if that is None."""

    share: float | None
    size: int = KV_CACHE + OWN

    @classmethod
    def of(cls, spec: EngineSpec, *, forged: bool, share: float) -> MemoryRequest:
        """Return the request of ``spec``: the share that it names, otherwise a small size for a
        forged model, otherwise ``share``, vLLM's default."""
        extra = spec.extra
        requested_share = extra.get("gpu_memory_utilization")
        if isinstance(requested_share, (int, float)):
            return cls(float(requested_share))
        if forged:
            cache = extra.get("kv_cache_memory_bytes")
            return cls(None, OWN + (cache if isinstance(cache, int) else KV_CACHE))
        return cls(share)

    def needed(self, device: Gpu) -> int:
        """Return the bytes that must be free on ``device``. vLLM compares its share of the whole
        GPU with the free memory."""
        return self.size if self.share is None else int(self.share * device.memory)


PROBE = MemoryRequest(None)


class Placement:
    """The GPUs of one run.

    ``tell`` gets a line for each remark to the user; ``environ`` is the controller's environment;
    ``runs`` may use one GPU at the same time.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        environ: Mapping[str, str] | None = None,
        leases: GpuLeases | None = None,
        runs: int = 1,
    ) -> None:
        self._tell = tell
        self._environ = os.environ if environ is None else environ
        self.leases = leases or GpuLeases(report=tell, runs=runs)
        self._fitting: dict[str, tuple[Gpu, ...]] = {}
        self._facts: WeakKeyDictionary[Child, Mapping[str, str]] = WeakKeyDictionary()

    @cached_property
    def visible(self) -> Machine:
        """The GPUs that this run may use. Remarks on others are passed to ``tell`` once."""
        visible = usable(self._environ)
        for note in visible.broken:
            self._tell(f"note: {note}")
        return visible

    def devices(self, target: Target) -> tuple[Gpu, ...]:
        """Return the GPUs that ``target`` can use, by the checks of ``vllm-regress audit
        --preflight``.

        Raises ``UsageError`` if its torch does not fit the driver or any GPU.
        """
        if target.name not in self._fitting:
            self._fitting[target.name] = self._fit(target)
        return self._fitting[target.name]

    def check_unbuilt(self, name: str) -> None:
        """Raise ``UsageError`` if no vLLM can use any GPU, whatever the environment ``name`` will
        have. For environments that are not built."""
        self._select(name, compare_any)

    def agent_environment(self, target: Target) -> dict[str, str]:
        """Return the variables of the agent, which its children inherit.

        GPUs are given by number: with a UUID vLLM up to 0.20.1 cannot inspect models, and with the
        name of a MIG slice importing vLLM initializes CUDA.
        """
        numbers = dict.fromkeys(str(device.index) for device in self.devices(target))
        folder = kernels(target)
        caches = {
            name: str(folder / subfolder)
            for name, subfolder in compiled.CACHES.items()
            if name not in self._environ
        }
        return {
            ORDER: PCI,
            VISIBLE: ",".join(numbers),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch counts devices without initializing CUDA; some releases of vLLM set it too late
            "PATH": os.pathsep.join(
                [str(target.python.parent), self._environ.get("PATH", os.defpath)]
            ),  # ninja is there
            **caches,
        }

    def request(self, lease: GpuLease, memory_request: MemoryRequest) -> dict[str, object]:
        """Return the part of an engine's request that describes its GPUs to the dialect."""
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
        return {
            "devices": devices,
            "tiny": memory_request.share is None,
            "needed": memory_request.size,
            "cache": KV_CACHE,
        }

    def assign(self, lease: GpuLease, child: Child, until: Callable[[], Deadline]) -> None:
        """Let ``child`` have the GPUs until its end. Memory that is then still in use at the
        deadline ``until()`` counts as left behind."""
        child.at_end(
            lambda: tuple(Leftover("GPU memory", words) for words in lease.release(until()))
        )
        self._facts[child] = self._facts_of(lease, child)

    def has_started(self, target: Target, lease: GpuLease) -> bool:
        """Return whether an engine of ``target`` has ever started on such GPUs."""
        return _first_start(target, lease).exists()

    def note_started(self, target: Target, lease: GpuLease, child: Child) -> None:
        """Note that an engine has started: which processes hold the memory, and that its kernels
        are compiled."""
        lease.claim([process.pid for process in child.processes()])
        self._facts[child] = self._facts_of(lease, child)
        marker = _first_start(target, lease)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()

    def facts(self, child: Child) -> Mapping[str, str]:
        """Return what a record says of the GPUs that ``child`` has; empty on other devices."""
        return self._facts.get(child, {})

    def _facts_of(self, lease: GpuLease, child: Child) -> dict[str, str]:
        first = lease.devices[0]
        backend = _BACKEND.search(peek(child.log, _MAX_LOG))
        return {
            "gpu": ", ".join(f"{device.name} ({device.selector})" for device in lease.devices),
            "capability": ".".join(map(str, first.capability)) if first.capability else "unknown",
            "driver": self.visible.driver,
            "cuda": ".".join(map(str, self.visible.cuda)),
            "compute_mode": first.compute_mode,
            "mig": "yes" if first.part else "no",
            "attention_backend": backend[1] if backend else "not logged",
            "start_method": child.start_method,
        }

    def _fit(self, target: Target) -> tuple[Gpu, ...]:
        interpreter = open_interpreter(target.python, python_path="")
        torch = next(
            (package for package in interpreter.imported() if package.name == "torch"), None
        )

        def problems(machine: Machine) -> Iterable[Incompatibility]:
            if torch is None:
                return compare_any(machine)
            return compare(target.versions.get("vllm", "?"), torch.version, cuda_of(torch), machine)

        fitting, wrong = self._select(target.name, problems)
        machine = query_machine()
        # ``visible`` has already reported the GPUs that cannot be used at all.
        unusual = (
            [message for _, message, fatal in modes(machine) if not fatal]
            if isinstance(machine, Machine)
            else []
        )
        missing = [
            message for _, message, _ in tools(target.python, interpreter.version, self._environ)
        ]
        for message in dict.fromkeys([*wrong, *unusual, *missing]):
            self._tell(f"note: {message}")
        return fitting

    def _select(
        self, name: str, problems: Callable[[Machine], Iterable[Incompatibility]]
    ) -> tuple[tuple[Gpu, ...], list[str]]:
        """Return the devices without fatal problems, and the fatal problems of the others.

        Raises ``UsageError`` if no device is left.
        """
        wrong: list[str] = []
        fitting: list[Gpu] = []
        for device in self.visible.gpus:
            single = replace(self.visible, gpus=(device,))
            fatal = [message for _, message, is_fatal in problems(single) if is_fatal]
            wrong += fatal
            if not fatal:
                fitting.append(device)
        if not fitting:
            raise UsageError(
                f"--vllm-gpu (device gpu) was requested, and {name} cannot use it: {' '.join(dict.fromkeys(wrong))} "
                "`vllm-regress audit --preflight` says what helps"
            )
        return tuple(fitting), wrong


def kernels(target: Target) -> Path:
    """Return the folder in which compiled kernels of ``target`` are kept between runs."""
    return compiled.folder_for(target.versions.get("vllm", "none"))


def _first_start(target: Target, lease: GpuLease) -> Path:
    """Return the path of a file that exists once an engine of ``target`` has started on such GPUs.

    The first start compiles kernels.
    """
    capability = lease.devices[0].capability or (0, 0)
    return kernels(target) / f"started-{capability[0]}.{capability[1]}"
