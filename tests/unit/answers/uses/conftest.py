"""A history of two made-up releases: in the second one everything is gone, renamed or changed."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.answers.api_history.store import History
from tests.unit.answers.api_history.releases import history_of

FIRST = {
    "__init__.py": "from vllm.llm import LLM\nfrom vllm.params import Params\n__version__ = '1'",
    "llm.py": """
        class Engine:
            executor = 1
        class LLM:
            def __init__(self, model, old_option=None, seed=0):
                self.engine: Engine = Engine()
            def generate(self, prompts, params=None, use_tqdm=True): ...
        """,
    "params.py": "@dataclass\nclass Params:\n    n: int = 1\n    guided: str = ''\n    top_p: float = 1.0",
    "utils.py": "def get_port(): ...",
    "worker.py": "class Worker:\n    def load(self, path): ...\n    def start(self): ...",
    "engine/arg_utils.py": """
        parser.add_argument("--old-flag")
        parser.add_argument("--kept")
        parser.add_argument("--tool-call-parser")
        parser.add_argument("--mode", choices=["a", "b"])
        """,
    "envs.py": "environment_variables = {'VLLM_OLD': lambda: os.getenv('VLLM_OLD', '1'), 'VLLM_KEPT': lambda: 1}",
    "entrypoints/api.py": "@router.post('/v1/old')\ndef a(): ...\n@router.post('/wake_old')\ndef c(): ...\n@router.post('/v1/kept')\ndef b(): ...",
    "v1/metrics/loggers.py": "Gauge(name='vllm:old')\nGauge(name='vllm:kept')",
    "tool_parsers/h.py": "@M.register_module('hermes')\nclass H: ...",
}
SECOND = {
    "__init__.py": "from vllm.llm import LLM\nfrom vllm.params import Params\n__version__ = '2'",
    "llm.py": """
        class Engine:
            runner = 1
        class LLM:
            def __init__(self, model, seed=0):
                self.engine: Engine = Engine()
            def generate(self, prompts, *, params=None, use_tqdm=True, required): ...
        """,
    "params.py": "@dataclass\nclass Params:\n    n: int = 1\n    structured: str = ''\n    top_p: float = 1.0",
    "utils/__init__.py": "",
    "utils/network.py": "def get_port(): ...",
    "worker.py": "class Worker:\n    def load(self, path, device): ...",
    "engine/arg_utils.py": """
        _M = "--kept is deprecated and will be removed in v3. Use --better instead."
        parser.add_argument("--kept")
        parser.add_argument("--tool-call-parser")
        parser.add_argument("--better")
        parser.add_argument("--mode", choices=["b"])
        """,
    "envs.py": "environment_variables = {'VLLM_KEPT': lambda: 1}",
    "entrypoints/api.py": "@router.post('/v1/kept')\ndef b(): ...",
    "v1/metrics/loggers.py": "Gauge(name='vllm:kept')",
    "tool_parsers/h.py": "",
}


@pytest.fixture(scope="session")
def two_releases() -> History:
    return history_of({"1.0": FIRST, "2.0": SECOND})
