"""Determine the GPUs that this process may use: NVML's list, filtered by CUDA_VISIBLE_DEVICES as
CUDA does it.

NVML ignores that variable and CUDA's device order. The rules are from CUDA's programming guide and
from ``torch.cuda._parse_visible_devices``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...errors import UsageError
from .nvml import Gpu, Machine, MigSlice, Version, query_machine

VISIBLE, ORDER, PCI = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_CONTAINER = "NVIDIA_VISIBLE_DEVICES"
_ASKED = "--vllm-gpu (device gpu) was asked for and no usable GPU was found."
_NO_GPU = "Run without --vllm-gpu to use the simulated device or CPU kernels."


_HIDING = ("", "-1", "NoDevFiles", "none", "void")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs. Batch systems set the third."""


@dataclass(frozen=True)
class CudaDevice(Gpu):
    """A CUDA device: a whole GPU, or a MIG device of it (``part``).

    ``index`` is the GPU's in NVML; memory is in bytes.
    """

    part: bool = False

    @property
    def selector(self) -> str:
        """Value for CUDA_VISIBLE_DEVICES: the index of a whole GPU, because vLLM up to 0.20.1
        accepts nothing else, or a MIG device's UUID."""
        return self.uuid if self.part else str(self.index)

    def describe(self) -> str:
        """Return index and name, and the UUID of a MIG device: those of one GPU may have the same
        name."""
        return (
            f"{self.index} ({self.name}, {self.uuid})"
            if self.part
            else f"{self.index} ({self.name})"
        )


@dataclass(frozen=True)
class Visible:
    """The usable devices, in CUDA's order.

    ``notes`` describe what cannot be used; ``driver`` and ``cuda`` are as in ``Machine``.
    """

    devices: tuple[CudaDevice, ...]
    notes: tuple[str, ...]
    driver: str
    cuda: Version


def usable(environ: Mapping[str, str] | None = None) -> Visible:
    """Return the usable devices.

    Raises ``UsageError``, which says what was searched, if there are none or the setting is
    ambiguous.
    """
    environ = os.environ if environ is None else environ
    machine = query_machine()
    if isinstance(machine, str):
        raise UsageError(
            f"{_ASKED} Looked for: {'; '.join([*_hints(environ), machine])}. {_NO_GPU}"
        )
    selected, notes = select_devices(machine, environ.get(VISIBLE), environ.get(ORDER))
    devices = tuple(device for device in selected if device.compute_mode != "prohibited")
    notes += [
        f"GPU {device.describe()} is in compute mode prohibited"
        for device in selected
        if device not in devices
    ]
    notes += machine.broken
    if not devices:
        listed = f"NVML: {len(machine.gpus)} GPUs" + "".join(
            f", {gpu.index} ({gpu.name})" for gpu in machine.gpus
        )
        raise UsageError(
            f"{_ASKED} Looked for: {'; '.join([*_hints(environ), listed, *notes])}. {_NO_GPU}"
        )
    return Visible(devices, tuple(notes), machine.driver, machine.cuda)


def select_devices(
    machine: Machine, setting: str | None, order: str | None
) -> tuple[list[CudaDevice], list[str]]:
    """Return the devices selected by ``setting``, a value of CUDA_VISIBLE_DEVICES or None, and
    notes about entries without effect."""
    if setting is None:
        return [device for gpu in machine.gpus for device in _devices(gpu)], _without_slices(
            machine.gpus
        )
    if setting.strip() in _HIDING:
        return [], []
    words = [word.strip() for word in setting.split(",")]
    if words[0].startswith(("GPU-", "MIG-")):
        return _by_uuid(machine.gpus, words)
    return _by_number(machine, words, order)


def _by_number(
    machine: Machine, words: Sequence[str], order: str | None
) -> tuple[list[CudaDevice], list[str]]:
    selected: list[CudaDevice] = []
    indices: set[int] = set()
    for word in words:
        number = re.match(r"\+?\d+", word)
        index = int(number.group()) if number else -1
        if index in indices:
            return [], [
                f"{VISIBLE}={','.join(words)}: {index} is listed twice, and CUDA then shows no GPU"
            ]
        gpu = next((gpu for gpu in machine.gpus if gpu.index == index), None)
        if gpu is None:
            return selected, [
                f"{VISIBLE}={','.join(words)}: CUDA stops at {word!r}, which names no GPU of this machine"
            ]
        indices.add(index)
        selected += _devices(gpu)[:1]  # CUDA uses the first slice of a GPU in MIG mode
    if len({gpu.name for gpu in machine.gpus}) > 1 and order != PCI:
        raise UsageError(
            f"{VISIBLE}={','.join(words)} is ambiguous: the GPUs of this machine differ "
            f"({', '.join(f'{gpu.index} {gpu.name}' for gpu in machine.gpus)}), and CUDA counts the fastest first unless {ORDER}={PCI}. "
            f"Set {ORDER}={PCI} to count as nvidia-smi does, or name GPUs by UUID"
        )
    return selected, _without_slices(gpu for gpu in machine.gpus if gpu.index in indices)


def _by_uuid(gpus: Sequence[Gpu], words: Sequence[str]) -> tuple[list[CudaDevice], list[str]]:
    all_devices = [device for gpu in gpus for device in _devices(gpu)]
    selected: list[CudaDevice] = []
    for word in words:
        matches = [device for device in all_devices if _is_named(device, word)]
        if len(matches) > 1 or (matches and matches[0] in selected):
            problem = "matches several GPUs" if len(matches) > 1 else "is listed twice"
            return [], [
                f"{VISIBLE}={','.join(words)}: {word} {problem}, and CUDA then shows no GPU"
            ]
        if not matches:
            return selected, [
                f"{VISIBLE}={','.join(words)}: CUDA stops at {word!r}, which names no GPU of this machine"
            ]
        selected += matches
    return selected, []


def _is_named(device: CudaDevice, word: str) -> bool:
    """Return whether ``word`` is the device's UUID or a prefix of it.

    NVML reports the old MIG form (MIG-GPU-uuid/instance/instance) in full.
    """
    return len(word) > len("GPU-") and device.uuid.startswith(word)


def _devices(gpu: Gpu) -> list[CudaDevice]:
    if not gpu.mig:
        return [_cuda_device(gpu, gpu)]
    return [_cuda_device(gpu, part, part=True) for part in gpu.slices]


def _cuda_device(gpu: Gpu, named: Gpu | MigSlice, *, part: bool = False) -> CudaDevice:
    return CudaDevice(
        gpu.index,
        named.name,
        named.memory,
        named.uuid,
        gpu.capability,
        gpu.compute_mode,
        part=part,
    )


def _without_slices(gpus: Iterable[Gpu]) -> list[str]:
    return [
        f"GPU {gpu.index} ({gpu.name}) is in MIG mode and has no slice"
        for gpu in gpus
        if gpu.mig and not gpu.slices
    ]


def _hints(environ: Mapping[str, str]) -> list[str]:
    """Return variables of the environment that may explain a missing GPU."""
    hints = []
    setting = environ.get(VISIBLE)
    if setting is not None and setting.strip() in _HIDING:
        hints.append(f"{VISIBLE}={setting!r} hides every GPU")
    elif setting is not None:
        hints.append(f"{VISIBLE}={setting}")
    container_setting = environ.get(_CONTAINER)
    if container_setting is not None and container_setting.strip() in ("", "void", "none"):
        hints.append(
            f"{_CONTAINER}={container_setting!r}: this container was started without GPUs (`--gpus all` gives them)"
        )
    return hints
