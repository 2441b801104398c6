"""The simulated device: a vLLM platform plug-in that lets a stock CUDA wheel run where there is no GPU.

Every part of vLLM is real but the network: the worker computes no attention and no matrix product. Its logits are a pure
function of a request's token history, and vLLM's own sampler, logits processors and grammar masks do the rest.

Standard library only here: vLLM calls :func:`register` in every process, long before the platform is needed.
"""

import logging
import os
import threading
import time
from typing import Callable, Optional, Union

from ..dialect import ray_ports

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
    os.sched_yield = Rest()
    ray_ports.watch()
    return PLATFORM


class Rest(threading.local):
    """Stands for ``os.sched_yield``, in which vLLM's processes wait for one another: who has waited for 2 ms sleeps an eighth of what it waits
    beyond, at most 5 ms.

    Workers that have nothing to do would keep a core busy each, for as long as their engine is kept; and there are kernels (Linux 6.18 is one) on
    which a process that only yields takes the processor from all others for many seconds.
    """

    _AWAKE_S, _PART, _MOST_S = 2e-3, 1 / 8, 5e-3
    _WORKED_S = 1e-4
    """Processor time between two calls from which on they are two waits."""

    def __init__(self, plain: Callable[[], None] = os.sched_yield) -> None:
        self._plain = plain
        self._since = self._cpu = 0.0

    def __call__(self) -> None:
        """Wait a moment."""
        now, cpu = time.monotonic(), time.thread_time()
        if cpu - self._cpu > self._WORKED_S:
            self._since = now
        waited = now - self._since
        if waited < self._AWAKE_S:
            self._plain()
        else:
            time.sleep(min((waited - self._AWAKE_S) * self._PART, self._MOST_S))
        self._cpu = time.thread_time()


def warm() -> None:
    """Import, in a process that will fork engines, what each engine's processes would otherwise import anew (about 0.4 s each).

    Call it after vLLM was imported under this device; nothing is started.
    """
    import contextlib
    import importlib

    _set_only_levels_that_change()
    for name in (
        ".worker_v1",
        ".worker_v0",
        "..hosts.engine",
        "vllm.v1.engine.core",
        "vllm.v1.executor.multiproc_executor",
        "vllm.v1.core.sched.async_scheduler",
        "vllm.model_executor.models.config",
        "vllm.kernels",
        "setproctitle",
        "xgrammar",
    ):
        with contextlib.suppress(
            Exception
        ):  # not every vLLM has both engines; what fails here fails again, in full, where it matters
            importlib.import_module(name, __name__)


def _set_only_levels_that_change() -> None:
    """A level that is set again clears the caches of all loggers; vLLM's configuration, new in each process, does it to its two hundred loggers."""
    plain = logging.Logger.setLevel

    def set_level(self: logging.Logger, level: Union[int, str]) -> None:
        if level not in (self.level, logging.getLevelName(self.level)):
            plain(self, level)

    logging.Logger.setLevel = set_level  # type: ignore[method-assign]
