"""A fake torch that can hold GPU memory.

The fake NVML counts this memory as long as the process lives.
"""

import os
from types import SimpleNamespace

uint8 = None
__version__ = "0"
version = SimpleNamespace(cuda="13.0")


class Tensor(list):
    def __mul__(self, factor):
        return Tensor(value * factor for value in self)

    def sum(self):
        return Tensor([sum(self)])

    def item(self):
        return self[0]


def ones(count, device):
    return Tensor([1.0] * count)


def empty(size, dtype, device):
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    with open(os.environ["FAKE_NVML"], "a") as answers:
        answers.write(f"gpu{number}.living {os.getpid()} {size}\n")
    return size


cuda = SimpleNamespace(
    synchronize=lambda: None,
    get_device_name=lambda number: "stand-in",
    _is_in_bad_fork=lambda: False,
)
