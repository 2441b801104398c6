"""Uses in Python source: what breaks, and what is no breakage."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.presentation import report
from pytest_vllm_regress.util.report import to_terminal
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
        # What strings import.
        ("LLM, exists = optional_import('vllm', 'LLM')\nLLM('m', old_option=1)", "vllm.llm.LLM takes no old_option"),
        ("u = importlib.import_module('vllm.utils')\nu.get_port()", "the module vllm.utils has no get_port"),
        # Arguments of a parser that takes vLLM's.
        ("import vllm\np = make_arg_parser(P())\nargs = p.parse_args()\nprint(args.old_flag)", "vllm serve has no --old-flag"),
        ("import vllm\nAsyncEngineArgs.add_cli_args(p)\na, _ = p.parse_known_args()\na.old_flag", "vllm serve has no --old-flag"),
        ("import vllm\nmake_arg_parser(p)\ndef f(args: argparse.Namespace):\n    return args.old_flag", "vllm serve has no --old-flag"),
        # A router's metrics.
        ("import vllm\nfor f in text_string_to_metric_families(t):\n    if f.name == 'vllm:old': ...", "there is no metric vllm:old"),
        # What parameters without an annotation are.
        ("from vllm import LLM\ndef f(x):\n    x.engine.executor\nf(LLM('m'))", "the class vllm.llm.Engine has no executor"),
        ("from vllm import LLM\ndef f(y, x):\n    x.engine.executor\ndef g():\n    f(1, x=LLM('m'))", "the class vllm.llm.Engine has no executor"),
        ("from vllm import LLM\ndef f(self):\n    self.engine.executor\nsetattr(LLM, 'run', f)", "the class vllm.llm.Engine has no executor"),
        ("from vllm import LLM\ndef f(this):\n    this.engine.executor\nLLM.run = f", "the class vllm.llm.Engine has no executor"),
        ("from vllm import LLM\ndef f(self):\n    self.engine.executor\nx.run = f.__get__(x, LLM)", "the class vllm.llm.Engine has no executor"),
        ("from vllm.worker import Worker\nclass W(Worker):\n    def start(self): ...", "has no start: the override is never called"),
        ("from vllm.worker import Worker\nclass W(Worker[X]):\n    def start(self): ...", "has no start: the override is never called"),
        ("from vllm.worker import Worker\nclass W(Worker):\n    def load(self, path): ...", "with device, which the override does not take"),
        ("from vllm.worker import Worker\nclass W(Worker):\n    def f(self): self.start()", "the class vllm.worker.Worker has no start"),
        ("import os\nos.environ['VLLM_OLD'] = '1'", "vLLM does not read VLLM_OLD"),
        ("import vllm\nf'{base}/v1/old'", "there is no route /v1/old"),
        ("import vllm\nx = 'vllm:old'", "there is no metric vllm:old"),
        ("import vllm\nx = {'a': GaugeMetric('vllm:old')}", "there is no metric vllm:old"),
        ("import vllm\nx = get_counter('vllm:old')", "there is no metric vllm:old"),
        ("x = ['vllm', 'serve', 'm', '--old-flag']", "vllm serve has no --old-flag"),
        ("x = ['vllm', 'serve', 'm']\nif y:\n    x.append('--old-flag')", "vllm serve has no --old-flag"),
        ("x = ['vllm', 'serve', 'm']\nx.extend(['--mode', 'a'])", "--mode does not allow a"),
        ("x = ['vllm', 'serve', 'm']\nx += ['--old-flag', y]", "vllm serve has no --old-flag"),
        ("x = 'vllm serve m --mode=a'", "--mode does not allow a"),
        ("patch('vllm.utils.get_port')", "the module vllm.utils has no get_port"),
        (f"def f(x):\n match x:\n  case 1: return\n  case 2:\n   {OLD}", "the module vllm.utils has no get_port"),
        (f"if True:\n    async def f():\n        {OLD}", "the module vllm.utils has no get_port"),
        (f"try:\n    import vllm\nexcept KeyError: ...\n{OLD}", "the module vllm.utils has no get_port"),
        (f"try:\n    {OLD}\nexcept ImportError as e:\n    raise RuntimeError from e", "the module vllm.utils has no get_port"),
        (f"try:\n    {OLD}\nexcept ModuleNotFoundError:\n    get_port = None", "the module vllm.utils has no get_port"),
        (f"try:\n    {OLD}\nexcept ImportError:\n    pass\nget_port()", "the module vllm.utils has no get_port"),
        (f"for x in y:\n    break\nelse:\n    {OLD}", "the module vllm.utils has no get_port"),
        (f"while x:\n    continue\nelse:\n    {OLD}", "the module vllm.utils has no get_port"),
        (f"try:\n    {OLD}\nexcept ImportError:\n    if x:\n        raise\n    else:\n        sys.exit(1)", "the module vllm.utils has no get_port"),
        ("from vllm import LLM\nLLM('m').engine.executor.unknown.name", "the class vllm.llm.Engine has no executor"),
        (
            "from vllm import LLM\nclass A:\n    def __init__(self): self.k = {'old_option': 1}\n    def f(self): return LLM('m', **self.k)",
            "vllm.llm.LLM takes no old_option",
        ),
        (
            "from vllm import LLM\nclass A:\n    def f(self): return LLM('m', **self.k)\n    @property"
            "\n    def k(self):\n        d = dict(seed=1)\n        d.update(old_option=1)\n        return d",
            "vllm.llm.LLM takes no old_option",
        ),
        ("from vllm import LLM\ndef k(): return {'seed': 1} | {'old_option': 1}\nLLM('m', **k())", "vllm.llm.LLM takes no old_option"),
        ("from vllm import LLM\nd = {'old_option': 1}\nLLM('m', **{'seed': 1, **d})", "vllm.llm.LLM takes no old_option"),
        ("from vllm import LLM\nd = {}\nd.setdefault('old_option', 1)\nLLM('m', **d)", "vllm.llm.LLM takes no old_option"),
        ("from vllm import LLM\nd = {}\nmore = {'old_option': 1}\nd.update(more)\nLLM('m', **d)", "vllm.llm.LLM takes no old_option"),
        ("from vllm import LLM\n@dataclass\nclass A:\n    old_option: int = 1\ndef f(a: A):\n"
            "    LLM('m', **asdict(a))", "vllm.llm.LLM takes no old_option"),
        ("from vllm import LLM\n@dataclass\nclass A:\n    old_option: int = 1\na = A()\nLLM('m', **vars(a))", "vllm.llm.LLM takes no old_option"),
        ("from vllm import LLM\np = ArgumentParser()\np.add_argument('-o', '--old-option')\n"
            "a = p.parse_args()\nLLM('m', **vars(a))", "vllm.llm.LLM takes no old_option"),
        ("from vllm import LLM\nclass L(LLM):\n    def __init__(self): super().__init__('m', 1, 0)", "takes 2 positional arguments, not 3"),
        (f"try:\n    {OLD}\nexcept Exception:\n    logger.warning('no')\nget_port()", "the module vllm.utils has no get_port"),
        (f"def has_port():\n    return torch.version.cuda\nif has_port():\n    {OLD}", "the module vllm.utils has no get_port"),
        (f"@version_range('>=1.0')\ndef f():\n    {OLD}", "the module vllm.utils has no get_port"),
        (
            "def f(): LLM('m', old_option=1)\nif __name__ == '__main__':\n    if x:\n        from vllm import LLM\n    f()",
            "vllm.llm.LLM takes no old_option",
        ),
        ("from vllm.utils import *\nget_port()", "the module vllm.utils has no get_port"),
        ("from vllm.worker import *\nclass W(Worker):\n    def f(self): super().start()", "the class vllm.worker.Worker has no start"),
        (
            "from vllm import LLM\nclass A:\n    def __init__(self): self.x = LLM('m')\nclass B(Other, A):\n    def f(self): self.x.engine.executor",
            "the class vllm.llm.Engine has no executor",
        ),
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
        "from vllm.worker import Worker\nclass W(Worker):\n    def load(self, path): raise RuntimeError('not used')",
        "from vllm.worker import Worker\nclass W(Worker):\n    def load(self, path): ...\n    def load(self, path, device): ...",
        "from vllm.worker import Worker\nclass W(Worker):\n    def begin(self): ...\n    def f(self): self.begin()",
        "'''Sets VLLM_OLD and vllm:old.'''\nimport vllm",
        "import vllm\n@app.post('/v1/old')\ndef f(): ...\nurl = f'{base}/v1/old'",
        "import vllm\nself.app.post('/v1/old')(self.x)\nurl = f'{base}/v1/old'",
        "import vllm\nlogging.getLogger('vllm.utils.get_port')",
        "from . import vllm\nvllm.utils.get_port()",
        f"import vllm\ndef old():\n    {OLD}\ndef new(): ...\nf = new if Version(vllm.__version__) >= Version('2.0') else old",
        "import vllm\nimport vllm.utils as u\nx = Version(vllm.__version__) < Version('2.0') and u.get_port()",
        f"def v(name):\n    return version(name)\nV = v('vllm')\nif V == '1.0':\n    {OLD}",
        f"def v(name):\n    try:\n        return version(name)\n    except ValueError:\n        return None\nNAME = 'vllm'\n"
        f"V = v(NAME)\nif parse(V) < parse('2'):\n    {OLD}",
        f"try:\n    {OLD}\nexcept ImportError:\n    pass\nelse:\n    get_port()",
        "import vllm\ne = vllm.LLM('m').engine\ne.executor = 1",
        f"from contextlib import suppress\nwith suppress(Exception):\n    {OLD}",
        f"import vllm\nV = vllm.__version__\nif V == '1.0' or V.startswith('1.'):\n    {OLD}",
        f"import vllm\nif vllm.__version__.startswith(('0.', '1.0')):\n    {OLD}",
        f"import vllm\nif vllm.__version__ in ('0.9', '1.0'):\n    {OLD}",
        f"import vllm\nif vllm.__version__ not in ['1.0']:\n    pass\nelse:\n    {OLD}",
        f"import vllm\ndef is_old():\n    return Version(vllm.__version__) < Version('2.0')\nif is_old():\n    {OLD}",
        f"import vllm\ndef never():\n    {OLD}\nif vllm.__version__ == '0.1':\n    never()",
        "from vllm import LLM\nd = {'old_option': 1}\nd.pop('old_option')\nLLM('m', **d)",
        "import os\nos.environ.get('VLLM_OLD')",
        "import os\nif 'VLLM_OLD' in os.environ and os.environ['VLLM_OLD']: ...",
        "import vllm\nprint('Set VLLM_OLD=1 to use the old way')",
        "import vllm\ndef generate_sglang(base):\n    return post(f'{base}/v1/old')",
        "import vllm\nclass Handler:\n    def do_POST(self):\n        if self.path == '/v1/old': return vllm",
        "import vllm\nGauge('vllm:old', 'of the project itself')",
        "import vllm\nx = ['other', 'serve', 'm']\nx.append('--old-flag')",
        "import vllm\nmetrics.Family(name='vllm:old')",
        "from vllm_ascend import get_port",
        f"@version_range('>=1.0,<2.0')\ndef f():\n    {OLD}",
        f"import vllm\nclass T:\n    @pytest.mark.skipif(Version(vllm.__version__) >= Version('2'), reason='x')\n    def test(self):\n        {OLD}",
        f"if not is_vllm('<2.0'):\n    pytest.skip('x')\n{OLD}",
        f"def has(owner, name):\n    return name in inspect.signature(owner).parameters\nfrom vllm import LLM\nif has(LLM, 'old_option'):\n    {OLD}",
        f"import vllm.utils as u\ndef has_port():\n    if not x:\n        return False\n"
            f"    return callable(getattr(u, 'get_port', None))\nif has_port():\n    {OLD}",
        f"def is_old():\n    try:\n        {OLD}\n        return True\n    except ImportError:\n"
            f"        return False\nimport vllm\nif is_old():\n    vllm.LLM('m', old_option=1)",
        f"try:\n    {NEW}\n    NEW = True\nexcept ImportError:\n    NEW = False\nif not NEW:\n    {OLD}",
        f"NEW = False\ntry:\n    {NEW}\n    NEW = True\nexcept ImportError:\n    pass\nif not NEW:\n    {OLD}",
        f"try:\n    {OLD}\nexcept ImportError:\n    get_port = None\nimport vllm\nif get_port is not None:\n    vllm.LLM('m', old_option=1)",
        f"import vllm\ntry:\n    {OLD}\n    vllm.LLM('m', old_option=1)\nexcept ImportError:\n    pass",
        f"import vllm\nclass A:\n    @property\n    def is_old(self):\n        return vllm.__version__ == '1.0'\n"
            f"    def f(self):\n        if self.is_old:\n            {OLD}",
        f"import vllm\nclass A:\n    def __init__(self):\n        self.old = vllm.__version__ == '1.0'\n"
            f"    def f(self):\n        if self.old:\n            {OLD}",
        f"import vllm\ndef f(installed):\n    parts = installed[:1]\n    if parts == (1,):\n        {OLD}\nf(vllm.__version_tuple__)",
        f"import vllm\nif vllm.__version_tuple__[:1] == (1,):\n    {OLD}",
        "import vllm\nraise ValueError('Start it by `vllm serve m --old-flag` first')",
        "from __future__ import annotations\nimport vllm.utils\ndef f():\n    x: vllm.utils.get_port = 1",
        "from vllm.worker import Worker\nclass W(Worker):\n    def start(self): ...\ndef f(w): w.start()",
        "from vllm.worker import Worker\nclass W(Worker):\n    def start(self): super().start()\ndef f(w): w.start()",
        "from vllm.worker import Worker\nclass W(Worker):\n    def load(self, path): ...\nclass Runner:\n    def f(self): self.worker.load('p')",
        "from vllm.worker import Worker\nclass W(Worker):\n    start: int = 1\n    def f(self): self.start",
        "from vllm.worker import Worker\nclass W(Worker):\n    def __init__(self): self.start = None\n    def f(self): self.start",
        "from vllm.utils import *\nfrom other import *\nget_port()",
        "from vllm.utils import *\ndef f(get_port): get_port()",
        "from vllm import LLM\nif x:\n    m = LLM('m')\nelse:\n    m = other()\nm.generate(input_ids=1)",
    ],
)  # fmt: skip
def test_what_is_no_breakage(tmp_path: Path, two_releases: History, source: str) -> None:
    assert lacking(tmp_path, two_releases, source) == []


COMPAT = """
import vllm
IS_OLD = Version(vllm.__version__) < Version('2')
UNRELATED = other()
INSTALLED = vllm.__version__
def is_new(): return not IS_OLD
def version_of(name): return version(name)
def has(owner, name): return getattr(owner, name, None) is not None
"""


@pytest.mark.parametrize(
    ("source", "is_guarded"),
    [
        (f"from pkg.compat import IS_OLD\nif IS_OLD:\n    {OLD}", True),
        (f"from .compat import IS_OLD as old\nif old:\n    {OLD}", True),
        (f"from .compat import INSTALLED\nif Version(INSTALLED) < Version('2'):\n    {OLD}", True),
        (f"from .compat import is_new\nif not is_new():\n    {OLD}", True),
        (f"from .compat import version_of\nif version_of('vllm') == '1.0':\n    {OLD}", True),
        (f"from . import IS_OLD\nif IS_OLD:\n    {OLD}", True),
        (f"from .compat import UNRELATED\nif UNRELATED:\n    {OLD}", False),
        (f"from .compat import version_of\nif version_of('torch') == '1.0':\n    {OLD}", False),
        (f"from elsewhere.compat import IS_OLD\nif IS_OLD:\n    {OLD}", False),
        (f"from . import compat\nif compat.IS_OLD:\n    {OLD}", True),
        (f"from pkg import compat as c\nif not c.is_new():\n    {OLD}", True),
        (
            f"from .compat import has\nimport vllm.utils as u\nif has(u, 'get_port'):\n    {OLD}",
            True,
        ),
    ],
)
def test_version_tests_of_the_project_s_own_modules_are_known(
    tmp_path: Path, two_releases: History, source: str, is_guarded: bool
) -> None:
    files = {
        "src/pkg/__init__.py": "from .compat import IS_OLD  # vllm",
        "src/pkg/compat.py": COMPAT,
        "src/pkg/user.py": source,
    }
    lacks = missing(answer_for(tmp_path, two_releases, files))["2.0"]
    assert lacks == ([] if is_guarded else ["the module vllm.utils has no get_port"])


def test_what_another_module_imports_from_vllm_is_followed(
    tmp_path: Path, two_releases: History
) -> None:
    files = {
        "a.py": "from vllm import LLM\nclass A:\n    def __init__(self): self.x = LLM('m')",
        "b.py": "from a import LLM  # vllm\nLLM('m', old_option=1)",
        "c.py": "from a import A  # vllm\nclass C(A):\n    def f(self): self.x.engine.executor",
    }
    lacks = missing(answer_for(tmp_path, two_releases, files))["2.0"]
    gone = "the class vllm.llm.Engine has no executor"
    assert sorted(lacks) == [gone, "vllm.llm.LLM takes no old_option"]


@pytest.mark.parametrize(
    "source",
    [
        "class W(Worker):\n    def load(self): ...",
        "class W(Worker):\n    def run(self): ...\nclass R:\n    def run(self):\n        w = W()\n        w.run()",
    ],
)
def test_arguments_that_nobody_must_pass_are_not_missed(tmp_path: Path, source: str) -> None:
    first = "class Worker:\n    def load(self): ...\n    def run(self): ..."
    second = "class Worker:\n    def load(self, *, dummy=0): ...\n    def run(self, prefix=''): ..."
    history = history_of({"1": {"w.py": first}, "2": {"w.py": second}})
    files = {"a.py": f"from vllm.w import Worker\n{source}"}
    assert missing(answer_for(tmp_path, history, files))["2"] == []


def test_constants_that_the_history_leaves_out_are_in_no_list(tmp_path: Path) -> None:
    model = {"models/m.py": "SIZE = 64", "models/__init__.py": ""}
    files = {"a.py": "from vllm.models.m import SIZE"}
    result = answer_for(tmp_path, history_of({"1": {}, "2": model}), files)
    assert result.unknown == ()


@pytest.mark.parametrize(("method", "is_lost"), [("embed", True), ("named_parts", False)])
def test_a_method_that_a_model_loses_is_missed(tmp_path: Path, method: str, is_lost: bool) -> None:
    model = f"class Model(nn.Module):\n    def {method}(self): ..."
    history = history_of({"1": {"m.py": model}, "2": {"m.py": model.replace(method, "other")}})
    source = f"from vllm.m import Model\nm = Model()\nm.{method}()"
    lacks = missing(answer_for(tmp_path, history, {"a.py": source}))["2"]
    assert lacks == ["the class vllm.m.Model has no embed"] * is_lost


@pytest.mark.parametrize(
    ("source", "complete"),
    [
        ("if V == '1.0':\n    pass\nelse:\n    raise ValueError", ["1.0"]),
        (
            "if V == '0.6.3':\n    pass\nelif V >= '2.0':\n    pass\nelse:\n    raise ValueError",
            ["2.0"],
        ),
        ("if V == '0.6.3':\n    pass\nelse:\n    raise ValueError", []),
        ("if V == '1.0':\n    pass\nelif not other():\n    raise ValueError", ["1.0", "2.0"]),
        ("def f():\n    if V != '1.0':\n        raise ValueError", ["1.0", "2.0"]),
        (
            "try:\n    if V != '1.0':\n        raise ValueError\nexcept ValueError: ...",
            ["1.0", "2.0"],
        ),
    ],
)
def test_a_release_for_which_a_module_raises_on_import_is_not_supported(
    tmp_path: Path, two_releases: History, source: str, complete: list[str]
) -> None:
    result = answer_for(tmp_path, two_releases, {"a.py": f"V = version('vllm')\n{source}"})
    assert list(result.complete) == complete


@pytest.mark.parametrize(
    "source", ["from vllm import Params\nParams(never=1)", "from vllm.utils import never"]
)
def test_what_no_release_has_is_named_beside_the_headline(
    tmp_path: Path, two_releases: History, source: str
) -> None:
    result = answer_for(tmp_path, two_releases, {"a.py": source})
    assert missing(result) == {"1.0": [], "2.0": []}
    text = to_terminal(report(result, "project"))
    assert "everything else exists in: 1.0 to 2.0" in text
    assert "never" in text.partition("in no release")[2]


@pytest.mark.parametrize(
    ("patch", "is_added"),
    [
        ("class Own(Engine):\n    executor: int = 1", True),
        ("class P(Patch[Engine]):\n    def executor(self): ...", True),
        ("class P(Patch[Engine]):\n    kept = Engine().executor\n    def executor(self): ...", False),
        ("class P(Patch[Other]):\n    executor: int = 1", False),
    ],
)  # fmt: skip
def test_what_the_project_adds_to_a_class_is_not_missed(
    tmp_path: Path, two_releases: History, patch: str, is_added: bool
) -> None:
    files = {
        "a.py": f"from vllm.llm import Engine\n{patch}",
        "b.py": "from vllm import LLM\nLLM('m').engine.executor",
    }
    lacks = missing(answer_for(tmp_path, two_releases, files))["2.0"]
    assert lacks == ["the class vllm.llm.Engine has no executor"] * (not is_added)


def test_what_is_annotated_with_a_protocol_may_have_more(tmp_path: Path) -> None:
    client = "class Client(Protocol):\n    x: int = 1\n    y: int = 2"
    history = history_of({"1": {"m.py": client}, "2": {"m.py": client.replace("y", "z")}})
    source = "from vllm.m import Client\ndef f(c: Client): return c.y"
    assert missing(answer_for(tmp_path, history, {"a.py": source})) == {"1": [], "2": []}


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


def test_an_override_is_not_missed_where_its_class_has_what_is_called_instead(
    tmp_path: Path,
) -> None:
    history = history_of(
        {
            "1": {"w.py": "class W:\n    def old(self): ..."},
            "2": {"w.py": "class W:\n    def new(self): ..."},
        }
    )
    source = "from vllm.w import W\nclass Own(W):\n    def old(self): ...\n"
    assert len(missing(answer_for(tmp_path, history, {"a.py": source}))["2"]) == 1
    both = f"{source}    def new(self): ..."
    assert missing(answer_for(tmp_path, history, {"a.py": both})) == {"1": [], "2": []}


def test_who_mixes_a_class_in_calls_its_methods(tmp_path: Path) -> None:
    files = {
        version: {"w.py": f"class WMixin:\n    def load(self, {parameter}): ..."}
        for version, parameter in (("1", "a"), ("2", "b"))
    }
    source = "from vllm.w import WMixin\nclass Own(WMixin):\n    def load(self, a): ..."
    assert missing(answer_for(tmp_path, history_of(files), {"a.py": source})) == {"1": [], "2": []}


def test_the_last_place_of_what_moved_twice_is_named(tmp_path: Path) -> None:
    source = "def f(): ..."
    history = history_of(
        {"1": {"a.py": source}, "2": {"b.py": source}, "3": {"c.py": source}, "4": {"d.py": ""}}
    )
    result = answer_for(tmp_path, history, {"m.py": "from vllm.a import f"})
    hints = {release: [p.instead for p in found] for release, found in result.problems.items()}
    assert hints == {"1": [], "2": ["vllm.b.f"], "3": ["vllm.c.f"], "4": [""]}


def test_what_existed_beside_the_former_object_does_not_replace_it(tmp_path: Path) -> None:
    both = {"a.py": "class A: ...", "b.py": "class A: ..."}
    history = history_of({"1": both, "2": {**both, "a.py": ""}})
    result = answer_for(tmp_path, history, {"m.py": "from vllm.a import A"})
    assert [problem.instead for problem in result.problems["2"]] == [""]


@pytest.mark.parametrize(
    ("handler", "falls_back"),
    [
        ("except Exception:\n    logger.warning('no')", True),
        ("except ImportError:\n    pass", True),
        ("except ImportError:\n    get_port = None", False),
        (f"except ImportError:\n    {NEW}", False),
    ],
)
def test_what_the_project_does_without_is_told_apart(
    tmp_path: Path, two_releases: History, handler: str, falls_back: bool
) -> None:
    result = answer_for(tmp_path, two_releases, {"a.py": f"try:\n    {OLD}\n{handler}"})
    assert result.problems["2.0"] == ()
    texts = [lost.text for lost in result.fallbacks]
    assert texts == ["the module vllm.utils has no get_port"] * falls_back


def test_what_vllm_passes_as_its_configuration_is_known_by_its_name(tmp_path: Path) -> None:
    config = "class Own:\n    {}: int = 1\nclass VllmConfig:\n    own: Own\ndef get_current_vllm_config(): ..."
    history = history_of({n: {"config.py": config.format(f)} for n, f in (("1", "a"), ("2", "b"))})
    source = (
        "from vllm.config import get_current_vllm_config as get\n"
        "def check(cls, vllm_config):\n    own = vllm_config.own\n    own.a\n"
        "def other(vllm_config: dict):\n    vllm_config.own.b\n"
    )
    result = missing(answer_for(tmp_path, history, {"a.py": source}))
    assert result == {"1": [], "2": ["the class vllm.config.Own has no a"]}
    result = missing(answer_for(tmp_path, history, {"a.py": f"{source}get().own.b"}))
    assert result["1"] == ["the class vllm.config.Own has no b"]


@pytest.mark.parametrize(
    "files",
    [
        {"a.py": "import vllm\nargs = p.parse_args()\nargs.old_flag"},
        {"a.py": "import vllm\nmake_arg_parser(p)\np.add_argument('--old-flag')\nargs = p.parse_args()\nargs.old_flag"},
        {"a.py": "import vllm\nmake_arg_parser(p)\nargs = p.parse_args()\nargs.old_flag", "b.py": "p.add_argument('-o', '--old_flag')"},
        {"a.py": "import vllm\nmake_arg_parser(p)\nargs = p.parse_args()\nargs.old_flag = 1\nif hasattr(args, 'old_flag'):\n    args.old_flag"},
        {"a.py": "import vllm\nmake_arg_parser(p)\ndef f(args: Own):\n    args.old_flag"},
        {"a.py": "import vllm\nx = Gauge('vllm:old', 'x')", "b.py": "import vllm\nx = 'vllm:old'"},
        {"a.py": "import vllm\nx = Gauge('vllm:old', 'x')\nr = requests.get(u + '/metrics')"},
    ],
)  # fmt: skip
def test_arguments_and_metrics_of_the_project_are_its_own(
    tmp_path: Path, two_releases: History, files: dict[str, str]
) -> None:
    assert missing(answer_for(tmp_path, two_releases, files))["2.0"] == []


def test_a_router_reads_metrics_of_the_names_that_it_offers(
    tmp_path: Path, two_releases: History
) -> None:
    files = {
        "router.py": "import vllm\nx = Gauge('vllm:old', 'x')",
        "scraper.py": "import vllm\nurl = f'{base}/metrics'\nr = requests.get(url)\nx = find(r, 'vllm:old')",
    }
    (problem,) = answer_for(tmp_path, two_releases, files).problems["2.0"]
    assert str(problem.use.place) == "scraper.py:4"


@pytest.mark.parametrize(
    ("method", "lacks"),
    [
        ("choose(cls, name, use_v1)", "is called without use_v1, which the override requires"),
        ("choose(cls, name, use_v1=True)", ""),
        ("choose(cls)", "is called with name, which the override does not take"),
        ("choose(cls, name)", ""),
    ],
)
def test_a_platform_is_called_by_vllm(tmp_path: Path, method: str, lacks: str) -> None:
    class_method = "class Platform:\n    @classmethod\n    def choose(cls, {}): ..."
    before = "*args, **kwargs"
    history = history_of(
        {n: {"platforms/a.py": class_method.format(p)} for n, p in (("1", before), ("2", "name"))}
    )
    source = f"from vllm.platforms.a import Platform\nclass Own(Platform):\n    @classmethod\n    def {method}: ..."
    result = missing(answer_for(tmp_path, history, {"a.py": source}))
    assert result["2"] == [f"vllm.platforms.a.Platform.choose {lacks}"] * bool(lacks)


def test_functions_that_are_called_with_different_things_are_not_known(
    tmp_path: Path, two_releases: History
) -> None:
    source = "from vllm import LLM\ndef f(x):\n    x.engine.executor\nf(LLM('m'))\nf(other)"
    assert lacking(tmp_path, two_releases, source) == []


def test_a_private_method_runs_where_it_is_called(tmp_path: Path, two_releases: History) -> None:
    source = f"""
import vllm
class A:
    def run(self):
        if vllm.__version__ == '1.0':
            self._old()
    def _old(self):
        {OLD}
"""
    assert lacking(tmp_path, two_releases, source) == []
