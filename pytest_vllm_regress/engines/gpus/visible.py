"""Determine the GPUs that this process may use: NVML's list, filtered by CUDA_VISIBLE_DEVICES as
CUDA does it.

NVML ignores that variable and CUDA's device order. The rules are from CUDA's programming guide and
from ``torch.cuda._parse_visible_devices``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...errors import UsageError
from .nvml import Gpu, Machine, query_machine

VISIBLE, ORDER, PCI = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_CONTAINER = "NVIDIA_VISIBLE_DEVICES"
_ASKED = "--vllm-gpu (device gpu) was asked for and no usable GPU was found."
_NO_GPU = "Run without --vllm-gpu to use the simulated device or CPU kernels."


_HIDING = ("", "-1", "NoDevFiles", "none", "void")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs. Batch systems set the third."""


def usable(environ: Mapping[str, str] | None = None) -> Machine:
    """Return the machine with only the usable devices, in CUDA's order; ``broken`` describes what
    cannot be used.

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
    return replace(machine, gpus=devices, broken=tuple(notes))


def select_devices(
    machine: Machine, setting: str | None, order: str | None
) -> tuple[list[Gpu], list[str]]:
    """Return the devices selected by ``setting``, a value of CUDA_VISIBLE_DEVICES or None, and
    notes about entries without effect."""
    if setting is None:
        return [device for gpu in machine.gpus for device in gpu.devices], _without_slices(
            machine.gpus
        )
    if setting.strip() in _HIDING:
        return [], []
    words = [word.strip() for word in setting.split(",")]
    by_uuid = words[0].startswith(("GPU-", "MIG-"))
    chosen: list[Gpu] = []
    for word in words:
        matches = _with_uuid(machine, word) if by_uuid else _with_number(machine, word)
        if len(matches) > 1 or (matches and matches[0] in chosen):
            problem = "matches several GPUs" if len(matches) > 1 else "is listed twice"
            return [], [
                f"{VISIBLE}={','.join(words)}: {word} {problem}, and CUDA then shows no GPU"
            ]
        if not matches:
            return _first_devices(chosen), [
                f"{VISIBLE}={','.join(words)}: CUDA stops at {word!r}, which names no GPU of this machine"
            ]
        chosen += matches
    if not by_uuid and len({gpu.name for gpu in machine.gpus}) > 1 and order != PCI:
        raise UsageError(
            f"{VISIBLE}={','.join(words)} is ambiguous: the GPUs of this machine differ "
            f"({', '.join(f'{gpu.index} {gpu.name}' for gpu in machine.gpus)}), and CUDA counts the fastest first unless {ORDER}={PCI}. "
            f"Set {ORDER}={PCI} to count as nvidia-smi does, or name GPUs by UUID"
        )
    return _first_devices(chosen), _without_slices(chosen)


def _first_devices(chosen: Iterable[Gpu]) -> list[Gpu]:
    """Return the devices of the chosen GPUs: CUDA uses the first slice of one in MIG mode."""
    return [device for gpu in chosen for device in gpu.devices[:1]]


def _with_number(machine: Machine, word: str) -> list[Gpu]:
    number = re.match(r"\+?\d+", word)
    return [gpu for gpu in machine.gpus if number and gpu.index == int(number.group())]


def _with_uuid(machine: Machine, word: str) -> list[Gpu]:
    """Return the devices of which ``word`` is the UUID or a prefix of it.

    NVML reports the old MIG form (MIG-GPU-uuid/instance/instance) in full.
    """
    devices = (device for gpu in machine.gpus for device in gpu.devices)
    return [d for d in devices if len(word) > len("GPU-") and d.uuid.startswith(word)]


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
