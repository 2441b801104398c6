"""Uses in Python source: what breaks, and what is no breakage."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import History
from tests.unit.answers.api_history.releases import history_of
from tests.unit.answers.uses.projects import answer_for, missing

OLD, NEW = "from vllm.utils import get_port", "from vllm.utils.network import get_port"


def lacking(tmp_path: Path, history: History, source: str) -> list[str]:
    """Return what the second release lacks for this source; the first must have everything."""
    result = missing(answer_for(tmp_path, history, {"a.py": source}))
    assert result["1.0"] == []
    return result["2.0"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("from vllm.utils import get_port", "the module vllm.utils has no get_port"),
        ("import vllm.utils\nvllm.utils.get_port()", "the module vllm.utils has no get_port"),
        ("import vllm.utils as u\nu.get_port()", "the module vllm.utils has no get_port"),
        ("from vllm import LLM\nLLM('m', old_option=1)", "vllm.llm.LLM takes no old_option"),
        ("import vllm\nvllm.LLM('m', old_option=1)", "vllm.llm.LLM takes no old_option"),
        ("from vllm import LLM\nLLM('m', **{'old_option': 1})", "vllm.llm.LLM takes no old_option"),
        ("from vllm import LLM\nk = dict(old_option=1)\nLLM('m', **k)", "vllm.llm.LLM takes no old_option"),
        ("from vllm import LLM\nk = {}\nk['old_option'] = 1\nLLM('m', **k)", "vllm.llm.LLM takes no old_option"),
        ("from vllm import Params\nParams(guided='x')", "vllm.params.Params takes no guided"),
        ("from vllm import LLM\nx = LLM('m')\nx.engine.executor", "the class vllm.llm.Engine has no executor"),
        ("from vllm import LLM\ndef f(x: LLM | None):\n    x.engine.executor", "the class vllm.llm.Engine has no executor"),
        (
            "from vllm import LLM\nclass A:\n    def b(self): return self.x.engine.executor\n    def __init__(self): self.x = LLM('m')",
            "the class vllm.llm.Engine has no executor",
        ),
        ("from vllm.worker import Worker\nclass W(Worker):\n    def start(self): ...", "has no start: the override is never called"),
        ("from vllm.worker import Worker\nclass W(Worker):\n    def load(self, path): ...", "with device, which the override does not take"),
        ("from vllm.worker import Worker\nclass W(Worker):\n    def f(self): self.start()", "the class vllm.worker.Worker has no start"),
        ("import os\nos.environ['VLLM_OLD'] = '1'", "vLLM does not read VLLM_OLD"),
        ("import vllm\nf'{base}/v1/old'", "there is no route /v1/old"),
        ("import vllm\nx = 'vllm:old'", "there is no metric vllm:old"),
        ("x = ['vllm', 'serve', 'm', '--old-flag']", "vllm serve has no --old-flag"),
        ("x = 'vllm serve m --mode=a'", "--mode does not allow a"),
        ("patch('vllm.utils.get_port')", "the module vllm.utils has no get_port"),
        (f"def f(x):\n match x:\n  case 1: return\n  case 2:\n   {OLD}", "the module vllm.utils has no get_port"),
        (f"if True:\n    async def f():\n        {OLD}", "the module vllm.utils has no get_port"),
        (f"try:\n    import vllm\nexcept KeyError: ...\n{OLD}", "the module vllm.utils has no get_port"),
        (f"try:\n    {OLD}\nexcept ImportError as e:\n    raise RuntimeError from e", "the module vllm.utils has no get_port"),
        (f"try:\n    {OLD}\nexcept ModuleNotFoundError:\n    get_port = None", "the module vllm.utils has no get_port"),
        (f"try:\n    {OLD}\nexcept ImportError:\n    pass\nget_port()", "the module vllm.utils has no get_port"),
    ],
)  # fmt: skip
def test_what_breaks(tmp_path: Path, two_releases: History, source: str, text: str) -> None:
    problems = lacking(tmp_path, two_releases, source)
    assert any(text in line for line in problems), problems


def test_a_call_must_fit_the_signature(tmp_path: Path, two_releases: History) -> None:
    problems = lacking(tmp_path, two_releases, "from vllm import LLM\nLLM('m').generate('p', None)")
    assert problems == ["vllm.llm.LLM.generate takes 1 positional arguments, not 2"]
    problems = lacking(tmp_path, two_releases, "from vllm import LLM\nLLM('m').generate('p')")
    assert problems == ["vllm.llm.LLM.generate requires required"]


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    from vllm.utils import get_port\nexcept ImportError:\n    get_port = None",
        f"try:\n    {NEW}\nexcept (ImportError, OSError):\n    {OLD}\nget_port()",
        f"try:\n    {OLD}\nexcept Exception:\n    {NEW}\nget_port()",
        f"import vllm\nfrom packaging.version import Version, parse\nif Version(vllm.__version__) < Version('2.0'):\n    {OLD}",
        f"from vllm import __version__ as v\nif parse(v) >= parse('2.0'):\n    {NEW}\nelse:\n    {OLD}\nget_port()",
        f"from importlib.metadata import version\nV = Version(version('vllm'))\nOLD = V < Version('2')\nif OLD and x:\n    {OLD}",
        "if is_vllm_version_at_least('2.0'):\n    pass\nelse:\n    from vllm.utils import get_port",
        "if vllm_version_is('1.0'):\n    from vllm.utils import get_port",
        f"import vllm\nv = Version(vllm.__version__)\nif Version('1.0') <= v < Version('2.0'):\n    {OLD}",
        f"try:\n    old = parse(version('vllm')) == parse('1.0')\nexcept ValueError:\n    old = False\ndef f():\n    if not old: return\n    {OLD}",
        "from vllm import LLM\nk = {}\nif Version(version('vllm')) < Version('2.0'):\n    k['old_option'] = 1\nLLM('m', **k)",
        "import inspect\nfrom vllm import LLM\nk = {}\nif 'old_option' in inspect.signature(LLM).parameters:\n    k['old_option'] = 1\nLLM('m', **k)",
        "import inspect\nfrom vllm import LLM\ns = inspect.signature(LLM)\nif 'old_option' in s.parameters:\n    from vllm.utils import get_port",
        "import vllm.utils as u\nif hasattr(u, 'get_port'):\n    from vllm.utils import get_port\n    import vllm\n    vllm.LLM('m', old_option=1)",
        f"import vllm.utils as u\nassert hasattr(u, 'get_port'), 'too new'\n{OLD}\nget_port()",
        "import vllm\nfrom logging import getLogger as _getLogger\n_getLogger('vllm.utils.get_port')",
        f"def f():\n    raise NotImplementedError\n    {OLD}",
        "import sys, types\nsys.modules['vllm.utils.get_port'] = types.ModuleType('vllm.utils.get_port')",
        "import vllm\napp.add_api_route('/v1/old', f)\nurl = f'{base}/v1/old'",
        f"if Version('2.0').release > Version(vllm.__version__).release:\n    {OLD}",
        "import vllm.utils as u\nhas = hasattr(u, 'get_port')\nif has:\n    u.get_port()",
        "import inspect\nfrom vllm import LLM\nold = 'old_option' in inspect.signature(LLM).parameters\nif old:\n    LLM('m', old_option=1)",
        f"try:\n    {OLD}\nexcept ImportError:\n    pass",
        f"try:\n    {OLD}\nexcept ImportError:\n    pass\ntry:\n    {NEW}\nexcept ImportError:\n    pass\nget_port()",
        "if compare_versions('vllm', '<', '2.0'):\n    from vllm.utils import get_port",
        "if not is_vllm_available(min_version='2.0'):\n    from vllm.utils import get_port",
        f"import vllm\ndef f():\n    if Version(vllm.__version__) >= Version('2.0'):\n        return\n    {OLD}",
        "import vllm\nif vllm.__version_tuple__ < (2, 0):\n    from vllm.utils import get_port",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vllm.utils import get_port",
        "import vllm.utils as u\nif hasattr(u, 'get_port'):\n    u.get_port()",
        "import vllm.utils as u\nif not hasattr(u, 'get_port'):\n    pass\nelse:\n    u.get_port()",
        "import vllm.utils as u\ntry:\n    u.get_port()\nexcept AttributeError: ...",
        "from vllm import LLM\nif 'old_option' in inspect.signature(LLM).parameters:\n    LLM('m', old_option=1)",
        "from vllm import LLM\ntry:\n    LLM('m', old_option=1)\nexcept TypeError: ...",
        "from other import LLM\nLLM(old_option=1)",
        "from vllm import LLM\nLLM = other()\nLLM(old_option=1)",
        "from vllm import LLM\nx = LLM('m')\nfor x in y:\n    x.engine.executor",
        "from vllm.worker import Worker\nclass W(Worker):\n    def load(self, *args, **kwargs): ...",
        "from vllm.worker import Worker\nclass W(Worker):\n    def begin(self): ...\n    def f(self): self.begin()",
        "'''Sets VLLM_OLD and vllm:old.'''\nimport vllm",
        "import vllm\n@app.post('/v1/old')\ndef f(): ...\nurl = f'{base}/v1/old'",
        "import vllm\nself.app.post('/v1/old')(self.x)\nurl = f'{base}/v1/old'",
        "import vllm\nlogging.getLogger('vllm.utils.get_port')",
        "from . import vllm\nvllm.utils.get_port()",
        "from vllm_ascend import get_port",
    ],
)  # fmt: skip
def test_what_is_no_breakage(tmp_path: Path, two_releases: History, source: str) -> None:
    assert lacking(tmp_path, two_releases, source) == []


def test_a_name_of_another_file_is_no_guard(tmp_path: Path, two_releases: History) -> None:
    first = "import vllm\nNEW = Version(vllm.__version__) < Version('2')"
    result = answer_for(
        tmp_path, two_releases, {"a.py": first, "b.py": f"from a import NEW\nif NEW:\n    {OLD}"}
    )
    assert missing(result)["2.0"] == ["the module vllm.utils has no get_port"]


def test_a_method_that_vllm_adds_later_is_the_project_s_own_before(tmp_path: Path) -> None:
    method = "class W:\n    def load(self): ..."
    history = history_of(
        {"1": {"w.py": "class W: ..."}, "2": {"w.py": method}, "3": {"w.py": "class W: ..."}}
    )
    source = (
        "from vllm.w import W\nclass Own(W):\n    def load(self): ...\n    def other(self): ..."
    )
    result = answer_for(tmp_path, history, {"a.py": source})
    assert [len(problems) for problems in result.problems.values()] == [0, 0, 1]
    assert result.unknown == ()


def test_a_fallback_that_no_release_needs_is_not_missed(
    tmp_path: Path, two_releases: History
) -> None:
    source = (
        "try:\n    from vllm import LLM\nexcept ImportError:\n    from vllm.utils import get_port"
    )
    assert lacking(tmp_path, two_releases, source) == []


def test_what_no_release_has_is_told_apart(tmp_path: Path, two_releases: History) -> None:
    result = answer_for(tmp_path, two_releases, {"a.py": "from vllm.fork import nothing"})
    assert missing(result) == {"1.0": [], "2.0": []}
    assert [use.name for use in result.unknown] == ["vllm.fork.nothing"]


def test_the_replacement_is_named_where_it_is_known(tmp_path: Path, two_releases: History) -> None:
    result = answer_for(tmp_path, two_releases, {"a.py": "from vllm.utils import get_port"})
    assert (
        str(result.problems["2.0"][0])
        == "a.py:1: the module vllm.utils has no get_port (now vllm.utils.network.get_port)"
    )


OVERLOADED = """
class W:
    @overload
    def load(self, path, device): ...
    @overload
    def load(self, path): ...
    @classmethod
    def from_args(cls, args, device): ...
    def start(self, fast): ...
"""


def test_overrides_of_overloads_and_class_methods_are_not_compared(tmp_path: Path) -> None:
    history = history_of({"1": {"w.py": OVERLOADED}})
    source = "from vllm.w import W\nclass Own(W):\n    def load(self, path): ...\n    @classmethod\n    def from_args(cls, args): ..."
    assert missing(answer_for(tmp_path, history, {"a.py": source})) == {"1": []}
    changed = history_of(
        {"1": {"w.py": "class W:\n    def start(self): ..."}, "2": {"w.py": OVERLOADED}}
    )
    own = "from vllm.w import W\nclass Own(W):\n    def start(self): ..."
    assert len(missing(answer_for(tmp_path, changed, {"a.py": own}))["2"]) == 1


def test_an_attribute_that_a_class_below_the_annotated_one_has_is_not_missed(
    tmp_path: Path,
) -> None:
    base = "class A:\n    x = 1\nclass User:\n    def __init__(self, a: A): self.a = a"
    history = history_of(
        {
            "1": {"m.py": base},
            "2": {"m.py": base.replace("x = 1", "y = 1") + "\nclass B(A):\n    x = 1"},
        }
    )
    source = "from vllm.m import User\ndef f(u: User): return u.a.x"
    assert missing(answer_for(tmp_path, history, {"a.py": source})) == {"1": [], "2": []}
