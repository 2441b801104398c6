"""The simulated device: a vLLM platform plug-in that lets a stock CUDA wheel run where there is no GPU.

Every part of vLLM is real but the network: the worker computes no attention and no matrix product. Its logits are a pure
function of a request's token history, and vLLM's own sampler, logits processors and grammar masks do the rest.

Standard library only here: vLLM calls :func:`register` in every process, long before the platform is needed.
"""

import os
from typing import Optional

DEVICE_VARIABLE = "VLLM_REGRESS_DEVICE"
DEVICE_NAME = "simulated device (pytest-vllm-regress): tokens are drawn, no model is run"
PLATFORM = "vllm_regress_target.sim.platform.SimPlatform"


def register() -> Optional[str]:
    """Entry point of the group ``vllm.platform_plugins``: the platform's qualified name, or None to leave vLLM as it is."""
    if os.environ.get(DEVICE_VARIABLE) != "sim":
        return None
    os.environ.setdefault(
        "TORCHDYNAMO_DISABLE", "1"
    )  # torch.compile wants a C++ compiler on a CPU, and there is nothing to compile
    return PLATFORM


def warm() -> None:
    """Import, in a process that will fork engines, what each engine's processes would otherwise import anew (about 0.4 s each).

    Call it after vLLM was imported under this device; nothing is started.
    """
    import contextlib
    import importlib

    for name in (".worker_v1", ".worker_v0", "vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor", "xgrammar"):
        with contextlib.suppress(
            Exception
        ):  # not every vLLM has both engines; what fails here fails again, in full, where it matters
            importlib.import_module(name, __name__)
