"""Engine specs: values, checks, axes and test ids."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.engines.spec import (
    SHORT,
    EngineSpec,
    combination_id,
    combinations,
    parse_axes,
)
from pytest_vllm_regress.errors import UsageError


def test_specs_with_equal_values_are_equal_keys() -> None:
    spec = EngineSpec.create(
        env={"B": 1, "A": "x"},
        extra={"b": [1], "a": None},
        tokenizer_pool_extra_config={"z": 1, "y": {}},
    )
    other = EngineSpec.create(
        extra={"a": None, "b": [1]},
        env={"A": "x", "B": "1"},
        tokenizer_pool_extra_config={"y": {}, "z": 1},
    )
    assert spec == other
    assert {spec: 1}[other] == 1
    assert EngineSpec.create(extra={"a": "1"}) != EngineSpec.create(extra={"a": 1})
    assert EngineSpec(extra={"a": True}) != EngineSpec(extra={"a": 1})


def test_a_spec_does_not_change_with_the_values_it_was_made_from() -> None:
    sizes, request = [1, 2], {"a": {"b": 1}}
    spec = EngineSpec(extra={"sizes": sizes}, server_options=request)
    sizes.append(3)
    request["a"]["b"] = 2
    assert spec.extra == {"sizes": [1, 2]} and spec.server_options["a"] == {"b": 1}
    engine_request = spec.as_request(model_path="/m", device="sim")
    engine_request["extra"]["sizes"].append(3)
    assert spec == EngineSpec(extra={"sizes": [1, 2]}, server_options={"a": {"b": 1}})


def test_merged_mappings_keep_what_is_not_changed() -> None:
    spec = EngineSpec(env={"A": "1", "B": "2"}, seed=3).merged_with({"env": {"B": 3}, "seed": 4})
    assert spec == EngineSpec(env={"A": "1", "B": "3"}, seed=4)


def test_the_tokenizer_pool_s_configuration_may_be_json_text() -> None:
    assert EngineSpec(tokenizer_pool_extra_config='{"z": 1}') == EngineSpec(  # type: ignore[arg-type]
        tokenizer_pool_extra_config={"z": 1}
    )


def test_the_spec_overrides_default_arguments() -> None:
    spec = EngineSpec(extra={"tokenizer_mode": "auto"})
    defaults = {"tokenizer_mode": "mistral", "load_format": "dummy"}
    request = spec.as_request(
        model_path="/m", device="gpu", default_arguments=defaults, gpu={"tiny": True}
    )
    assert request["extra"] == {"tokenizer_mode": "auto", "load_format": "dummy"}
    assert request["gpu"] == {"tiny": True}


@pytest.mark.parametrize(
    "extra", [{}, {"speculative_config": {"method": "ngram"}}, {"speculative_config": None}]
)
def test_specs_without_a_draft_model(extra: dict[str, Any]) -> None:
    assert EngineSpec.create(extra=extra).draft is None


def test_the_request_has_the_path_of_the_draft_model() -> None:
    spec = EngineSpec.create(
        extra={"speculative_config": {"model": "draft", "num_speculative_tokens": 3}}
    )
    assert spec.draft == "draft"
    request = spec.as_request(model_path="/m", device="cpu", draft_path="/d")
    assert request["extra"] == {"speculative_config": {"model": "/d", "num_speculative_tokens": 3}}
    assert (
        spec.as_request(model_path="/m", device="cpu")["extra"]["speculative_config"]["model"]
        == "draft"
    )


def test_a_request_has_plain_values() -> None:
    spec = EngineSpec.create(
        env={"A": 1},
        extra={"b": [1, None]},
        server_options={"o": True},
        tokenizer_pool_extra_config={"z": {"y": 1}},
        tensor_parallel_size=2,
    )
    request = spec.as_request(model_path="/m", device="sim")
    assert request["env"] == {"A": "1"}
    assert request["extra"] == {"b": [1, None]} and request["server_options"] == {"o": True}
    assert request["tokenizer_pool_extra_config"] == {"z": {"y": 1}}
    assert (request["model_path"], request["device"], request["tensor_parallel_size"]) == (
        "/m",
        "sim",
        2,
    )
    assert set(request) == {field.name for field in dataclasses.fields(EngineSpec)} | {
        "model_path",
        "device",
    }


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_gpus_are_the_product(tp: int, pp: int, dp: int) -> None:
    assert (
        EngineSpec.create(
            tensor_parallel_size=tp, pipeline_parallel_size=pp, data_parallel_size=dp
        ).gpus
        == tp * pp * dp
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0 is not a whole number of at least 1"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size=True is not a whole number"),
        ({"max_model_len": "512"}, "max_model_len='512' is not"),
        ({"tokenizer_pool_size": -1}, "tokenizer_pool_size=-1 is not a whole number of at least 0"),
        ({"executor": "gpu"}, "executor='gpu' is not one of auto, uni, mp, ray"),
        ({"generation": "V2"}, "generation='V2' is not one of auto, V0, V1"),
        (
            {"env": {"PYTHONPATH": "plugins"}},
            'name the folders in import_path instead, for example import_path=["plugins"]',
        ),
        ({"import_path": "plugins"}, "import_path='plugins' is not a list of folders"),
        ({"env": "A=1"}, "env must be a mapping, not str"),
        ({"env": {"": "x"}}, "env: '' cannot be set"),
        ({"env": {"A=B": "x"}}, "env: 'A=B' cannot be set"),
        ({"env": {"A": "x\0y"}}, "env: 'A' cannot be set"),
        ({"env": {1: "x"}}, "env: 1 cannot be set"),
        ({"extra": {"a": {1, 2}}}, "extra must hold JSON values only"),
        ({"tokenizer_pool_extra_config": "{"}, "tokenizer_pool_extra_config='{' is not JSON"),
        (
            {"tensor_paralel_size": 1},
            "unknown argument 'tensor_paralel_size'. Did you mean tensor_parallel_size?",
        ),
    ],
)
def test_errors_for_bad_values_say_what_is_allowed(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        EngineSpec.create(**values)
    assert words in str(caught.value)


def test_replace_checks_values() -> None:
    spec = EngineSpec.create(seed=3)
    assert EngineSpec.create(tp=2, pp=3) == EngineSpec.create(
        tensor_parallel_size=2, pipeline_parallel_size=3
    )
    assert spec.replace(pipeline_parallel_size=2) == EngineSpec.create(
        seed=3, pipeline_parallel_size=2
    )
    with pytest.raises(UsageError):
        spec.replace(generation="V9")


def test_axes_and_fixed_fields() -> None:
    fixed, axes = parse_axes({"tp": [1, 2], "model": "vision", "pool": [0], "seed": 7})
    assert fixed == {"model": "vision", "seed": 7}
    assert [(axis.name, axis.values) for axis in axes] == [
        ("tensor_parallel_size", (1, 2)),
        ("tokenizer_pool_size", (0,)),
    ]
    rows = combinations(axes)
    assert [combination_id(row) for row in rows] == ["tp1-pool0", "tp2-pool0"]
    assert combinations(()) == [{}]


def test_folders_to_import_from_are_relative_to_the_test_file_and_no_axis(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    fixed, axes = parse_axes({"import_path": ["plugins"]})
    assert axes == ()
    spec = EngineSpec.create(**fixed).relative_to(tmp_path)
    assert spec.import_path == (str(tmp_path / "plugins"),)
    assert spec.relative_to(Path("/elsewhere")) == spec
    assert spec.merged_with({"import_path": []}) == EngineSpec()
    with pytest.raises(UsageError, match=r"there is no folder /elsewhere/plugins"):
        EngineSpec.create(**fixed).relative_to(Path("/elsewhere"))


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"tp": []}, "at least one value"),
        ({"tpp": 1}, "Did you mean tp"),
        ({"tp": [1, 0]}, "at least 1"),
    ],
)
def test_bad_axes_are_usage_errors(axes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_axes(axes)


def test_ids_show_the_names_of_variables_but_not_their_values() -> None:
    assert (
        combination_id({"env": {"HF_TOKEN": "hf_secret"}, "generation": "V1"}) == "envHF_TOKEN-V1"
    )
    assert combination_id({"extra": {}}) == "extranone"


def test_short_names_mean_fields() -> None:
    assert set(SHORT.values()) <= {field.name for field in dataclasses.fields(EngineSpec)}


def test_a_command_line_is_a_list_of_texts_and_part_of_the_key() -> None:
    spec = EngineSpec(command_line=["--dtype", "float16"])
    assert spec == EngineSpec(command_line=("--dtype", "float16")) != EngineSpec(command_line=[])
    assert spec.as_request(model_path="/m", device="sim")["command_line"] == ["--dtype", "float16"]
    for wrong in ("--dtype float16", [1], {"--dtype": "float16"}):
        with pytest.raises(UsageError, match="command_line"):
            EngineSpec(command_line=wrong)  # type: ignore[arg-type]
