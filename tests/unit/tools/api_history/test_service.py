"""Options, environment variables, routes, metrics, parsers, plug-in groups and requirements."""

from __future__ import annotations

import ast
import textwrap

from pytest_vllm_regress.answers.api_history.definitions import Option
from tests.unit.answers.api_history.releases import wheel
from tools.api_history import service
from tools.api_history.snapshot import read_snapshot


def trees(**sources: str) -> dict[str, ast.Module]:
    """Return parsed modules; ``__`` in a name stands for a slash."""
    return {
        f"vllm/{name.replace('__', '/')}.py": ast.parse(textwrap.dedent(text))
        for name, text in sources.items()
    }


def options(**sources: str) -> dict[str, Option]:
    return {name: Option.of(text) for name, text in service.options(trees(**sources)).items()}


def test_options_that_are_written_out() -> None:
    names = options(
        engine__arg_utils="""
        class EngineArgs:
            seed: int = 7
        parser.add_argument("--seed", default=EngineArgs.seed)
        parser.add_argument("--mode", "-m", choices=["a", "b"], default="a")
        parser.add_argument("--fast", action="store_true")
        """,
        other="parser.add_argument('--not-ours')",
    )
    assert names == {
        "--seed": Option("7"),
        "--mode": Option("'a'", ("a", "b"), ("-m",)),
        "--fast": Option("False"),
    }


def test_options_from_fields_of_configurations() -> None:
    names = options(
        config__model="""
        DType = Literal["auto", "half"]
        class Base:
            seed: int = 0
        class ModelConfig(Base):
            dtype: DType | None = "auto"
        """,
        engine__arg_utils="""
        class EngineArgs:
            dtype: DType = ModelConfig.dtype
        model_kwargs = get_kwargs(ModelConfig)
        group.add_argument("--dtype", **model_kwargs["dtype"])
        group.add_argument("--seed", **model_kwargs["seed"])
        """,
        entrypoints__openai__cli_args="class FrontendArgs:\n    api_key: str | None = None",
    )
    assert names == {
        "--api-key": Option("None"),
        "--dtype": Option("'auto'", ("auto", "half")),
        "--seed": Option("0"),
    }


def test_options_that_a_loop_adds() -> None:
    names = options(
        engine__arg_utils="""
        for flag, kind in [("--old-backend", str), ("--old-mode", bool)]:
            group.add_argument(flag, type=kind)
        for name in ("--not-an-option",):
            print(name)
        """
    )
    assert names.keys() == {"--old-backend", "--old-mode"}


def test_inverse_options_that_the_parser_adds_to_boolean_ones() -> None:
    arguments = """
        class Config:
            enable_logs: bool | None = None
            enable_mode: str = "x"
        kwargs = get_kwargs(Config)
        group.add_argument("--enable-logs", **kwargs["enable_logs"])
        group.add_argument("--enable-mode", **kwargs["enable_mode"])
        group.add_argument("--disable-stats", action=argparse.BooleanOptionalAction)
        """
    assert options(engine__arg_utils=arguments).keys() == {
        "--enable-logs",
        "--enable-mode",
        "--disable-stats",
    }
    parser = (
        "class A:\n    _inverse_prefixes = {'--enable-': '--disable-', '--disable-': '--enable-'}"
    )
    names = options(engine__arg_utils=arguments, utils__argparse_utils=parser)
    assert names.keys() == {
        "--enable-logs",
        "--enable-mode",
        "--disable-stats",
        "--disable-logs",
        "--enable-stats",
    }


def test_environment_variables_with_defaults() -> None:
    names = service.environment_variables(
        trees(
            envs="""
            environment_variables = {
                "VLLM_A": lambda: int(os.getenv("VLLM_A", "3")),
                "VLLM_B": env_with_choices("VLLM_B", None, ["x"]),
                "VLLM_C": lambda: os.environ.get("VLLM_C"),
            }
            """
        )
    )
    assert names == {"VLLM_A": "'3'", "VLLM_B": "None", "VLLM_C": ""}


def test_routes_metrics_parsers_and_groups() -> None:
    sources = trees(
        entrypoints__api="""
        @router.post("/v1/score")
        async def a(): ...
        @app.get("/health")
        async def b(): ...
        app.add_api_route("/generate", a, methods=["POST"])
        client.get("/not/a/route")
        """,
        v1__metrics__loggers="Gauge(name='vllm:num_requests_running')\nlog('vllm: not one')",
        tool_parsers__hermes="@ToolParserManager.register_module(['hermes', 'pro'])\nclass Hermes: ...",
        reasoning="",
        reasoning____init__="_REASONING_PARSERS_TO_REGISTER = {'r1': ('file', 'R1')}",
        model_executor__models__registry="""
        _TEXT_GENERATION_MODELS = {"ZebraForCausalLM": ("zebra", "Zebra"), **others}
        _PREVIOUSLY_SUPPORTED_MODELS = {"GnuForCausalLM": "0.9"}
        """,
        plugins____init__="GROUP = 'vllm.general_plugins'",
    )
    assert service.routes(sources) == {"/generate": "", "/health": "GET", "/v1/score": "POST"}
    assert list(service.metrics(sources)) == ["vllm:num_requests_running"]
    assert service.parsers(sources) == {
        "reasoning:r1": "R1",
        "tool:hermes": "Hermes",
        "tool:pro": "Hermes",
    }
    assert list(service.plugin_groups(sources)) == ["vllm.general_plugins"]
    assert list(service.architectures(sources)) == ["ZebraForCausalLM"]


def test_requirements() -> None:
    metadata = b"Requires-Python: >=3.9\nRequires-Dist: torch==2.6.0\nRequires-Dist: ray>=2; extra == 'x'\nRequires-Dist: py_cpu\n\n"
    assert service.requirements(metadata) == {"python": ">=3.9", "torch": "==2.6.0", "py-cpu": ""}


def test_metrics_that_a_server_shows_only_on_demand_are_left_out() -> None:
    sources = trees(
        v1__metrics__loggers="if self.show_hidden_metrics:\n    Gauge(name='vllm:hidden')\nelse:\n    Gauge(name='vllm:shown')",
    )
    assert list(service.metrics(sources)) == ["vllm:shown"]


def test_metrics_are_read_wherever_they_are_defined() -> None:
    source = {
        "__init__.py": "",
        "connectors/store.py": "class Names:\n    SIZE = 'vllm:store_size'\nf('vllm::op', 'not vllm:one')",
    }
    snapshot = read_snapshot(wheel(source))
    assert list(snapshot.tables["metrics"]) == ["vllm:store_size"]
