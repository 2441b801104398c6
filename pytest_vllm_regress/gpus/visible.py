"""Which GPUs this process may use: NVML's list, cut down as CUDA cuts it by CUDA_VISIBLE_DEVICES.

NVML ignores that variable, and the order that CUDA counts in. The rules are those of CUDA's programming guide and of PyTorch, which follows them in
``torch.cuda._parse_visible_devices``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from ..errors import UsageError
from .nvml import Gpu, Machine, Version, look

VISIBLE, ORDER, PCI = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_CONTAINER = "NVIDIA_VISIBLE_DEVICES"
_ASKED = "--vllm-gpu (device gpu) was asked for and no usable GPU was found."
_NO_GPU = "Run without --vllm-gpu to use the simulated device or CPU kernels."


_HIDING = ("", "-1", "NoDevFiles", "none", "void")
"""Values of CUDA_VISIBLE_DEVICES that mean no GPU; batch systems write the third."""


@dataclasses.dataclass(frozen=True)
class CudaDevice:
    """What CUDA sees as one device: a whole GPU, or (``part``) a MIG device of it. ``index`` is the GPU's, as NVML counts; memory in bytes."""

    index: int
    name: str
    memory: int
    uuid: str
    capability: Version | None = None
    compute_mode: str = "default"
    part: bool = False

    @property
    def selector(self) -> str:
        """What names it in CUDA_VISIBLE_DEVICES. Numbers for whole GPUs: vLLM up to 0.20.1 takes nothing else there."""
        return self.uuid if self.part else str(self.index)

    def describe(self) -> str:
        """Number and kind."""
        return f"{self.index} ({self.name})"


@dataclasses.dataclass(frozen=True)
class Visible:
    """The devices that may be used, in CUDA's order, and in words what cannot be used. ``driver`` and ``cuda`` as in ``Machine``."""

    devices: tuple[CudaDevice, ...]
    notes: tuple[str, ...]
    driver: str
    cuda: Version


def usable(environ: Mapping[str, str] | None = None) -> Visible:
    """What may be used here. Raises ``UsageError`` where that is nothing, or where the setting cannot be followed; it says what was looked for."""
    environ = os.environ if environ is None else environ
    machine = look()
    if isinstance(machine, str):
        raise UsageError(f"{_ASKED} Looked for: {'; '.join([*_hints(environ), machine])}. {_NO_GPU}")
    found, notes = cut(machine, environ.get(VISIBLE), environ.get(ORDER))
    devices = tuple(each for each in found if each.compute_mode != "prohibited")
    notes += [f"GPU {each.describe()} is in compute mode prohibited" for each in found if each not in devices]
    notes += machine.broken
    if not devices:
        listed = f"NVML: {len(machine.gpus)} GPUs" + "".join(f", {gpu.index} ({gpu.name})" for gpu in machine.gpus)
        raise UsageError(f"{_ASKED} Looked for: {'; '.join([*_hints(environ), listed, *notes])}. {_NO_GPU}")
    return Visible(devices, tuple(notes), machine.driver, machine.cuda)


def cut(machine: Machine, setting: str | None, order: str | None) -> tuple[list[CudaDevice], list[str]]:
    """The devices that ``setting``, a value of CUDA_VISIBLE_DEVICES, leaves, and remarks on what it names in vain. None: all of them."""
    if setting is None:
        return [device for gpu in machine.gpus for device in _devices(gpu)], _without_slices(machine.gpus)
    if setting.strip() in _HIDING:
        return [], []
    words = [word.strip() for word in setting.split(",")]
    if words[0].startswith(("GPU-", "MIG-")):
        return _by_uuid(machine.gpus, words)
    return _by_number(machine, words, order)


def _by_number(machine: Machine, words: Sequence[str], order: str | None) -> tuple[list[CudaDevice], list[str]]:
    found: list[CudaDevice] = []
    taken: set[int] = set()
    for word in words:
        number = re.match(r"\+?\d+", word)
        index = int(number.group()) if number else -1
        if index in taken:
            return [], [f"{VISIBLE}={','.join(words)}: {index} stands there twice, and CUDA then shows no GPU"]
        gpu = next((gpu for gpu in machine.gpus if gpu.index == index), None)
        if gpu is None:
            return found, [f"{VISIBLE}={','.join(words)}: CUDA stops at {word!r}, which names no GPU of this machine"]
        taken.add(index)
        found += _devices(gpu)[:1]  # of a GPU in MIG mode CUDA takes the first slice
    if len({gpu.name for gpu in machine.gpus}) > 1 and order != PCI:
        raise UsageError(
            f"{VISIBLE}={','.join(words)} may mean other GPUs than it seems to: those of this machine differ "
            f"({', '.join(f'{gpu.index} {gpu.name}' for gpu in machine.gpus)}), and CUDA counts the fastest first unless {ORDER}={PCI}. "
            f"Set {ORDER}={PCI} to count as nvidia-smi does, or name GPUs by UUID"
        )
    return found, _without_slices(gpu for gpu in machine.gpus if gpu.index in taken)


def _by_uuid(gpus: Sequence[Gpu], words: Sequence[str]) -> tuple[list[CudaDevice], list[str]]:
    all_devices = [device for gpu in gpus for device in _devices(gpu)]
    found: list[CudaDevice] = []
    for word in words:
        fits = [device for device in all_devices if _is_named(device, word)]
        if len(fits) > 1 or (fits and fits[0] in found):
            what = "fits several GPUs" if len(fits) > 1 else "stands there twice"
            return [], [f"{VISIBLE}={','.join(words)}: {word} {what}, and CUDA then shows no GPU"]
        if not fits:
            return found, [f"{VISIBLE}={','.join(words)}: CUDA stops at {word!r}, which names no GPU of this machine"]
        found += fits
    return found, []


def _is_named(device: CudaDevice, word: str) -> bool:
    """A UUID may be cut short as long as it fits one device; the old form of MIG is MIG-GPU-uuid/instance/instance, and NVML says it whole."""
    return len(word) > len("GPU-") and device.uuid.startswith(word)


def _devices(gpu: Gpu) -> list[CudaDevice]:
    if not gpu.mig:
        return [CudaDevice(gpu.index, gpu.name, gpu.memory, gpu.uuid, gpu.capability, gpu.compute_mode)]
    return [
        CudaDevice(gpu.index, part.name, part.memory, part.uuid, gpu.capability, gpu.compute_mode, part=True)
        for part in gpu.slices
    ]


def _without_slices(gpus: Iterable[Gpu]) -> list[str]:
    return [
        f"GPU {gpu.index} ({gpu.name}) is in MIG mode and has no slice" for gpu in gpus if gpu.mig and not gpu.slices
    ]


def _hints(environ: Mapping[str, str]) -> list[str]:
    """What the surroundings say that explains a missing GPU."""
    found = []
    setting = environ.get(VISIBLE)
    if setting is not None and setting.strip() in _HIDING:
        found.append(f"{VISIBLE}={setting!r} hides every GPU")
    elif setting is not None:
        found.append(f"{VISIBLE}={setting}")
    given = environ.get(_CONTAINER)
    if given is not None and given.strip() in ("", "void", "none"):
        found.append(f"{_CONTAINER}={given!r}: this container was started without GPUs (`--gpus all` gives them)")
    return found
