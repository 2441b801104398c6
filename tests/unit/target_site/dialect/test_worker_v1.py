"""What V1's scheduler and sampler send in the form of each vLLM."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_vllm_regress.target_site.vllm_regress_target.dialect import worker_v1
from pytest_vllm_regress.target_site.vllm_regress_target.dialect.worker_v1 import CachedRequest

RUNNING = SimpleNamespace(req_id="1", num_computed_tokens=5, new_token_ids=[7])
RESUMED = SimpleNamespace(req_id="2", num_computed_tokens=0)


@dataclasses.dataclass
class OneTokenOutput:
    """The output of a model runner up to 0.7.2."""

    req_ids: list[str]
    sampled_token_ids: list[int]
    logprobs_cpu: Any


@dataclasses.dataclass
class ManyTokensOutput:
    """The output of a model runner from 0.7.3 on."""

    req_ids: list[str]
    sampled_token_ids: list[list[int]]


def install(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> None:
    """Make a module of vLLM with these attributes importable."""
    module = ModuleType(name)
    module.__dict__.update(attributes)
    for parent in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("scheduled", "tokens"),
    [
        (SimpleNamespace(scheduled_cached_reqs=[RUNNING]), [[7]]),
        (SimpleNamespace(scheduled_cached_reqs=[RESUMED]), [[]]),  # up to 0.7.2 without tokens
        (
            SimpleNamespace(scheduled_resumed_reqs=[RESUMED], scheduled_running_reqs=[RUNNING]),
            [[], [7]],
        ),
    ],
)
def test_known_requests_are_one_list_or_two(
    scheduled: SimpleNamespace, tokens: list[list[int]]
) -> None:
    requests = list(worker_v1.cached_requests(scheduled))
    assert [request.tokens for request in requests] == tokens
    assert CachedRequest("1", 5, [7], 6, None) in requests or tokens == [[]]


@pytest.mark.parametrize("sampled", [np.array([3, 4]), np.array([[3], [4]])])
def test_a_sampler_returns_one_token_or_a_row(sampled: Any) -> None:
    assert worker_v1.sampled_tokens(SimpleNamespace(sampled_token_ids=sampled)) == [[3], [4]]


@pytest.mark.parametrize(
    ("output_class", "sampled"), [(OneTokenOutput, [3, 0]), (ManyTokensOutput, [[3], []])]
)
def test_a_row_that_sampled_nothing_has_a_place(
    output_class: type, sampled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "vllm.v1.outputs", ModelRunnerOutput=output_class)
    output = worker_v1.model_runner_output({"req_ids": ["1", "2"], "sampled_token_ids": [[3], []]})
    assert output.sampled_token_ids == sampled


def test_empty_rows_of_the_batch_are_no_requests() -> None:
    assert worker_v1.row_ids(SimpleNamespace(req_ids=["1", "2", None, None], num_reqs=2)) == [
        "1",
        "2",
    ]


def test_metadata_is_made_or_refreshed() -> None:
    requests = {"1": SimpleNamespace(output_token_ids=[3])}
    old = SimpleNamespace(make_sampling_metadata=lambda tokens: tokens)
    new = SimpleNamespace(sampling_metadata="metadata", refresh_metadata=lambda: None)
    assert worker_v1.sampling_metadata(old, requests) == {"1": [3]}
    assert worker_v1.sampling_metadata(new, requests) == "metadata"


def test_workers_have_a_base_without_one_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "vllm.v1.outputs")
    config = SimpleNamespace(
        model_config="model", cache_config="cache", parallel_config=SimpleNamespace()
    )
    worker = worker_v1.worker_base()(config, 1, 3, "tcp://x", is_driver_worker=False)
    assert (worker.local_rank, worker.rank, worker.parallel_config.rank) == (1, 3, 3)
    assert worker_v1.compilation_times() is None
    assert not worker_v1.samples_separately()
    assert not worker_v1.logprobs_by_request()


def test_workers_derive_from_the_base_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    class WorkerBase:
        def sample_tokens(self) -> None: ...

        def compile_or_warm_up_model(self) -> float:
            return 1.0

    install(monkeypatch, "vllm.v1.worker.worker_base", WorkerBase=WorkerBase)
    assert worker_v1.worker_base() is WorkerBase
    assert worker_v1.samples_separately()
