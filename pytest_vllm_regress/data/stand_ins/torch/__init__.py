"""Stands in for torch in environments of xgrammar alone. A torch takes gigabytes, and xgrammar only
allocates its bitmasks with it.

The masks are numpy arrays: xgrammar fills them through DLPack, before 0.1.25 through a pointer.
Everything else that torch has is absent.
"""

from types import SimpleNamespace
from typing import Any

import numpy


class Tensor:
    """Name for annotations.

    Masks are not instances of it: apache-tvm-ffi would convert those with torch's own functions.
    """


FloatTensor = LongTensor = Tensor
cuda = SimpleNamespace(is_available=lambda: False)
dtype = numpy.dtype
bool = numpy.dtype("bool")
uint8 = numpy.dtype("uint8")
int8 = numpy.dtype("int8")
int16 = short = numpy.dtype("int16")
int32 = int = numpy.dtype("int32")
int64 = long = numpy.dtype("int64")
float16 = half = numpy.dtype("float16")
float32 = float = numpy.dtype("float32")
float64 = double = numpy.dtype("float64")
bfloat16 = numpy.dtype("V2")  # only for apache-tvm-ffi's table of names


class _Mask(numpy.ndarray[Any, Any]):
    device: Any = SimpleNamespace(type="cpu")  # read before 0.1.25, like data_ptr

    def data_ptr(self) -> Any:
        return self.ctypes.data

    def fill_(self, value: Any) -> "_Mask":
        self.fill(value)
        return self


def tensor(data: Any, dtype: Any = None) -> _Mask:
    """Return ``data`` as an array."""
    return numpy.array(data, dtype=dtype).view(_Mask)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> _Mask:
    """Return an array with the same value everywhere."""
    return numpy.full(shape, fill_value, dtype=dtype).view(_Mask)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"this environment has only a stand-in for torch, without {name!r}. Add a real one to the environment's name: xgrammar-VERSION+torch==VERSION"
    )
