"""The stand-in for torch in environments of xgrammar alone: bitmasks that xgrammar can fill, and
nothing else."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from pytest_vllm_regress.environments.recipes import STAND_INS

numpy = pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "stand_in_for_torch", STAND_INS / "torch" / "__init__.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_mask_can_be_filled_through_dlpack_and_through_its_pointer(torch: ModuleType) -> None:
    mask = torch.full((1, 2), torch.tensor(-1, dtype=torch.int32), dtype=torch.int32)
    assert mask.tolist() == [[-1, -1]]
    numpy.from_dlpack(mask)[0, 1] = 5
    assert mask[0].tolist() == [-1, 5]
    assert mask.data_ptr() == mask.__array_interface__["data"][0]
    assert (mask.device.type, mask.dtype == torch.int32, mask.dtype == torch.int64) == (
        "cpu",
        True,
        False,
    )
    assert mask.fill_(torch.tensor(-1, dtype=torch.int32)).tolist() == [[-1, -1]]


def test_what_is_absent_names_the_environment_that_has_it(torch: ModuleType) -> None:
    advice = r"stand-in for torch, without 'softmax'.*xgrammar-VERSION\+torch==VERSION"
    with pytest.raises(AttributeError, match=advice):
        torch.softmax([1.0])
    assert not torch.cuda.is_available()
