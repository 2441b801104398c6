"""Tensors for torch, read back by Python's own unpickler with stand-ins for torch's names."""

from __future__ import annotations

import array
import base64
import io
import pickle
import zipfile
from collections import OrderedDict
from typing import Any

import pytest

from pytest_vllm_regress import tensor_base64
from pytest_vllm_regress.engines.inputs.media import noise


class Reader(pickle.Unpickler):
    """Resolves the three names of the format and no others."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            "torch._utils._rebuild_tensor_v2": lambda *given: given,
            "torch.FloatStorage": "float32",
            "collections.OrderedDict": OrderedDict,
        }
        return known[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> Any:
        return pid


def parts(text: str) -> tuple[Any, list[float], set[str]]:
    """Return the pickled call, the numbers, and the other files of the archive."""
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(text))) as archive:
        assert archive.testzip() is None and all(
            entry.compress_type == 0 for entry in archive.infolist()
        )
        files = {entry.split("/", 1)[1]: archive.read(entry) for entry in archive.namelist()}
    values = array.array("f", files.pop("data/0"))
    return Reader(io.BytesIO(files.pop("data.pkl"))).load(), list(values), set(files)


@pytest.mark.parametrize("rows", [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[0.5]], [[-1.0] * 300] * 2])
def test_rows_are_stored_one_after_the_other(rows: list[list[float]]) -> None:
    length, width = len(rows), len(rows[0])
    pickled, values, files = parts(tensor_base64(rows))
    storage = ("storage", "float32", "0", "cpu", length * width)
    assert pickled == (storage, 0, (length, width), (width, 1), False, OrderedDict())
    assert values == [value for row in rows for value in row] and files == {"byteorder", "version"}


def test_rows_of_different_length_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"these have \[1, 2\]"):
        tensor_base64([[1.0], [1.0, 2.0]])


def test_noise_depends_on_the_seed_only() -> None:
    assert noise(3, 4, seed=7) == noise(3, 4, seed=7) != noise(3, 4, seed=8)
    many = [value for row in noise(50, 40) for value in row]
    assert len(many) == 2000 and abs(sum(many) / 2000) < 0.1
