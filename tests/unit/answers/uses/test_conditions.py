"""Uses that only some releases get to, or that the project provides itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import History
from tests.unit.answers.api_history.releases import history_of
from tests.unit.answers.uses.projects import answer_for, missing

OLD, NEW = "from vllm.utils import get_port", "from vllm.utils.network import get_port"
CALL = "LLM('m', old_option=1)"
HELPER = (
    "def takes(f, name):\n    known = inspect.signature(f)\n    return name in known.parameters\n"
)
TRIES = (
    "def takes(f, name):\n    try:\n        return name in inspect.getfullargspec(f).args\n"
    "    except TypeError:\n        return False\n"
)
SKIPS = "import vllm.utils\nneeds = pytest.mark.skipif(not hasattr(vllm.utils, 'get_port'))\n"


@pytest.mark.parametrize(
    "source",
    [
        # Versions that a name holds.
        f"import vllm\nNEWER = Version('2.0')\nif Version(vllm.__version__) < NEWER:\n    {OLD}",
        f"import vllm\nNEWER = (2, 0)\nif vllm.__version_tuple__ < NEWER:\n    {OLD}",
        f"import vllm\nclass Since:\n    NEWER = '2.0'\nif Version(vllm.__version__) < Version(Since.NEWER):\n    {OLD}",
        f"import vllm\nTESTED = {{'0.9', '1.0'}}\nif vllm.__version__ in TESTED:\n    {OLD}",
        f"NEWER = '2.0'\nif not is_vllm_version_at_least(NEWER):\n    {OLD}",
        f"NEWER = Version('2.0')\ndef f(vllm_version):\n    if vllm_version < NEWER:\n        {OLD}",
        f"import vllm\nclass A:\n    def __init__(self):\n        self.release = Version(vllm.__version__)\n"
            f"    def f(self):\n        if self.release < Version('2.0'):\n            {OLD}",
        f"class A:\n    def f(self):\n        if self._vllm_version < Version('2.0'):\n            {OLD}",
        f"try:\n    vllm_version = version('vllm')\nexcept OSError:\n    vllm_version = '0.0'\n"
            f"if Version('1.0') <= Version(vllm_version) < Version('2.0'):\n    {OLD}",
        f"import vllm\nOLDER = SpecifierSet('<2.0')\nif Version(vllm.__version__) in OLDER:\n    {OLD}",
        f"import vllm\nif SpecifierSet('<2.0').contains(vllm.__version__):\n    {OLD}",
        f"import vllm\nif Version(vllm.__version__).major < 2:\n    {OLD}",
        f"import vllm\nif int(vllm.__version__.split('.')[0]) == 1:\n    {OLD}",
        f"import vllm\nmajor, minor = map(int, vllm.__version__.split('.')[:2])\nif (major, minor) < (2, 0):\n    {OLD}",
        f"import vllm\nclear = {{v: vllm.__version__.startswith(v) for v in KNOWN}}\nif any(clear[v] for v in ('0.9', '1.')):\n    {OLD}",
        f"import vllm\nclear = {{'old': vllm.__version__ < '2.0', 'x': y}}\nif all([x, clear['old']]):\n    {OLD}",
        f"OLDER = '>=0.5,<2.0'\n@for_release(OLDER)\ndef f():\n    {OLD}",
        f"@for_release('<2.0')\ndef f():\n    {OLD}",
        # Tests of the release that are not understood.
        f"import vllm\nif vllm.__version__ in known:\n    {OLD}\nelse:\n    {NEW}",
        f"import vllm\nis_old = [f(vllm.__version__) for f in checks]\nif any(is_old):\n    {OLD}",
        f"import vllm\ndef is_old():\n    return not matches('1', vllm.__version__)\nif is_old():\n    {OLD}",
        f"from vllm import LLM, __version__ as v\nx = {CALL} if old(v) else LLM('m')",
        # What tells the version, or False without vLLM.
        f"import vllm\ndef is_new():\n    v = version('vllm')\n    if v is None:\n        return False\n"
            f"    return Version(v) >= Version('2.0')\nif not is_new():\n    {OLD}",
        f"try:\n    import vllm\n    is_new = vllm.__version__ >= '2.0'\n    if is_new:\n        {NEW}\n    else:\n        {OLD} as other\n"
            f"except ImportError:\n    is_new = False\ndef f():\n    if not is_new:\n        {OLD} as third",
        # Modules that are looked for.
        f"if importlib.util.find_spec('vllm.utils.get_port') is not None:\n    {OLD}",
        f"if has_module('vllm.utils.get_port'):\n    {OLD}",
        "get_port = try_import('vllm.utils.get_port')",
        # Keywords that are removed where a release does not take them.
        "from vllm import LLM\nk = {'old_option': 1}\nfor n in list(k):\n    if n not in known: k.pop(n)\nLLM('m', **k)",
        "from vllm import LLM\nk = {'old_option': 1}\nfor n in list(k):\n    if n not in known: del k[n]\nLLM('m', **k)",
        # Tables by release.
        f"def old():\n    {OLD}\ndef new():\n    {NEW}\nRUN = {{'1.0': old, '2.0': new}}\nRUN[version('vllm')]()",
        "import vllm\nPATHS = {'1.0': 'vllm.utils.get_port', '2.0': 'vllm.utils.network.get_port'}",
        # Helpers with arguments.
        f"from vllm import LLM\n{HELPER}class A:\n    def __init__(self, x: LLM):\n        self.x = LLM\n"
            f"    def f(self):\n        if takes(self.x, 'old_option'):\n            {OLD}",
        f"from vllm import LLM\n{TRIES}if takes(LLM, 'old_option'):\n    {OLD}",
        f"from vllm import LLM\nold = inspect.signature(LLM).parameters.get('old_option')\nif old is not None:\n    {OLD}",
        f"from vllm import LLM\nx = {CALL} if takes(LLM, 'old_option') else LLM('m')",
        # Tests that are left out.
        "u = pytest.importorskip('vllm.utils.get_port')\nu.start()",
        f"pytest.importorskip('vllm.utils.get_port')\n{OLD}",
        f"def test():\n    pytest.importorskip('vllm', minversion='3.0')\n    {OLD}",
        f"{SKIPS}@needs\ndef test():\n    {OLD}",
        f"{SKIPS}def helper():\n    {OLD}\n@needs\ndef test(): helper()",
        f"import vllm.utils\npytestmark = [slow, pytest.mark.skipif(condition=not hasattr(vllm.utils, 'get_port'))]\ndef test():\n    {OLD}",
        f"import vllm.utils\n@unittest.skipUnless(hasattr(vllm.utils, 'get_port'), 'x')\nclass T:\n    def test(self):\n        {OLD}",
        # Attempts.
        f"def f():\n    try:\n        {NEW}\n        logger.info('new')\n        return get_port\n"
            f"    except ImportError:\n        pass\n    {OLD}",
        "try:\n    from vllm.llm import LLM\n    from vllm.utils import get_port\nexcept Exception:\n"
            f"    LLM = get_port = None\ndef f():\n    {CALL}",
        "try:\n    from vllm.params import Params\n    from vllm.utils import get_port\nexcept ImportError:\n"
            "    class Params: ...\nPARAMS = Params(guided='x')",
        # Functions in functions.
        f"def choose(vllm_version):\n    def old():\n        {OLD}\n    def new(): ...\n"
            "    return old if vllm_version == '1.0' else new",
        # Strings that are compared.
        "assert 'vllm.utils.get_port' in names(vllm)",
        "import vllm\nif module in ('vllm.utils.get_port', 'x', 'y'): ...",
        "if name in ('VLLM_OLD', 'VLLM_OTHER', 'x') or name == 'VLLM_OLD': ...",
        "import vllm\nself.assertIn('vllm.utils.get_port', names)\nname.startswith('vllm.utils.get_port')",
        "import vllm\nLOGGING = {'loggers': {'vllm.utils.get_port': {'level': 'INFO'}}}",
        "import vllm\nwarnings.filterwarnings('ignore', module='vllm.utils.get_port')",
        # Variables that are read or removed.
        "x = Option(envvar='VLLM_OLD')",
        "for name in ('VLLM_OLD', 'VLLM_KEPT'):\n    os.environ.pop(name, None)",
        "LISTED = ['VLLM_OLD']",
        "import vllm.envs as envs\nold = getattr(envs, 'VLLM_OLD', True)",
        "environment = dict(os.environ)\ndel environment['VLLM_OLD']\nenvironment.pop('VLLM_OLD', None)",
        "env_bool('VLLM_OLD', False)",
        # Names that the project replaces.
        "import vllm\nfrom own import New\nvllm.llm.LLM = New\n"
            f"def f():\n    from vllm.llm import LLM\n    {CALL}",
        "import vllm.utils\nvllm.utils.get_port = own\nvllm.utils.get_port()",
        "import vllm.utils\nsetattr(vllm.utils, 'get_port', own)\nvllm.utils.get_port()",
        f"sys.modules['vllm.utils'] = own\n{OLD}",
        "from vllm.worker import Worker\ndef run(self):\n    self.start()\ndef start(self): ...\n"
            "patch.object(Worker, 'start', start, create=True).start()\nWorker.run = run",
        "from vllm.llm import Engine\ndef g(self): ...\ndef f(x: Engine):\n    x.executor()\nput(Engine, 'executor', g)",
    ],
)  # fmt: skip
def test_what_the_release_does_not_get_to_is_no_breakage(
    tmp_path: Path, two_releases: History, source: str
) -> None:
    assert missing(answer_for(tmp_path, two_releases, {"a.py": source}))["2.0"] == []


@pytest.mark.parametrize(
    "source",
    [
        f"import vllm\nNEWER = Version('1.0')\nif Version(vllm.__version__) > NEWER:\n    {OLD}",
        f"import torch\nNEWER = Version('2.0')\nif Version(torch.__version__) < NEWER:\n    {OLD}",
        f"def old():\n    {OLD}\nRUN = {{'1.0': old, 'other': f}}",
        f"from vllm import LLM\n{HELPER}if takes(LLM, 'seed'):\n    {OLD}",
        f"pytest.importorskip('vllm.llm')\n{OLD}",
        f"pytest.importorskip('torch')\n{OLD}",
        f"import vllm\nif Version(vllm.__version__).minor < 5:\n    {OLD}",
        f"import torch\nif Version(torch.__version__).major < 2:\n    {OLD}",
        f"if has_module('vllm.utils'):\n    {OLD}",
        "from vllm import LLM\nk = {'old_option': 1}\ndel k['seed']\nLLM('m', **k)",
        f"needs = pytest.mark.skipif(not torch.cuda.is_available())\n@needs\ndef test():\n    {OLD}",
        f"def f():\n    try:\n        import flash\n        {NEW}\n        return get_port\n"
            f"    except ImportError:\n        pass\n    {OLD}",
        f"def f():\n    try:\n        return other()\n    except ImportError:\n        pass\n    {OLD}",
        "try:\n    from vllm.llm import LLM\n    import other\nexcept ImportError:\n    LLM = None\n"
            f"def f():\n    {CALL}",
        f"def choose(vllm_version):\n    def old():\n        {OLD}\n"
            f"    if vllm_version == '1.0':\n        return old\ndef other():\n    def old():\n        {OLD}\n    return old",
        "patch_all(['vllm.utils.get_port'])",
        "import vllm.utils\nassert vllm.utils.get_port in names",
        "import vllm.utils\nx = getattr(vllm.utils.get_port, 'x', None)",
        "os.environ.update({'VLLM_OLD': '1'})",
        "os.environ.setdefault('VLLM_OLD', '1')",
        "monkeypatch.setenv('VLLM_OLD', '1')",
        "for name, value in [('VLLM_OLD', '1')]:\n    os.environ[name] = value",
        # What is kept before it is replaced is vLLM's own.
        "import vllm.utils\nkept = vllm.utils.get_port\nvllm.utils.get_port = own",
        f"from vllm.llm import LLM\nimport vllm\nvllm.llm.LLM = own\n{CALL}",
        "import vllm\nclass Own(vllm.LLM): ...\nvllm.llm.LLM = Own\nvllm.LLM('m').engine.executor",
        f"import vllm\nvllm.llm.LLM = wrap(own)\n{CALL.replace('LLM', 'vllm.LLM')}",
        f"import vllm\ndef own(*args, **kwargs): ...\nvllm.llm.LLM = own\n{CALL.replace('LLM', 'vllm.LLM')}",
    ],
)  # fmt: skip
def test_what_the_release_gets_to_is_a_breakage(
    tmp_path: Path, two_releases: History, source: str
) -> None:
    assert missing(answer_for(tmp_path, two_releases, {"a.py": source}))["2.0"]


def test_versions_and_replacements_are_known_in_other_files(
    tmp_path: Path, two_releases: History
) -> None:
    files = {
        "app/versions.py": "import vllm\nNEWER = Version('2.0')\n",
        "app/run.py": f"import vllm\nfrom . import versions\nfrom .versions import NEWER\n"
        f"if Version(vllm.__version__) < NEWER:\n    {OLD}\n"
        f"if Version(vllm.__version__) < versions.NEWER:\n    {OLD}",
        "app/patches.py": "import vllm\nfrom .own import Params\nvllm.params.Params = Params",
        "app/use.py": "from vllm.params import Params\nParams(guided='x')",
    }
    assert missing(answer_for(tmp_path, two_releases, files))["2.0"] == []


def test_a_replacement_in_a_test_is_for_that_test_only(
    tmp_path: Path, two_releases: History
) -> None:
    files = {
        "tests/test_it.py": "import vllm\ndef test(monkeypatch):\n"
        "    monkeypatch.setattr(vllm.params, 'Params', Fake)",
        "app/use.py": "from vllm.params import Params\nParams(guided='x')",
    }
    result = missing(answer_for(tmp_path, two_releases, files))["2.0"]
    assert result == ["vllm.params.Params takes no guided"]


@pytest.mark.parametrize("folder", ["patches/vllm_{}", "vllm/v{}", "vllm_patches/for_{}"])
def test_files_that_no_import_names_are_for_the_release_in_their_names(
    tmp_path: Path, two_releases: History, folder: str
) -> None:
    files = {
        f"app/{folder.format('1_0')}/worker.py": OLD,
        f"app/{folder.format('2_0')}.py": NEW,
        "app/__init__.py": "import vllm\nload(f'patches.{name}')",
    }
    assert missing(answer_for(tmp_path, two_releases, files)) == {"1.0": [], "2.0": []}


@pytest.mark.parametrize("entered", [False, True])
def test_a_folder_for_a_release_that_only_imports_itself_is_for_that_release(
    tmp_path: Path, two_releases: History, entered: bool
) -> None:
    files = {
        "vllm_app/patch_1_0/__init__.py": f"from . import utils\n{OLD}",
        "vllm_app/patch_1_0/utils.py": OLD,
        "vllm_app/patch_2_0/__init__.py": NEW,
        "vllm_app/__init__.py": "import vllm\nfrom vllm_app import patch_2_0"
        + "\nfrom vllm_app import patch_1_0" * entered,
    }
    assert bool(missing(answer_for(tmp_path, two_releases, files))["2.0"]) is entered


@pytest.mark.parametrize("folder", ["patches_v1.0.0", "vllm_1_0"])
def test_a_folder_that_is_named_for_a_release_is_for_that_alone(
    tmp_path: Path, folder: str
) -> None:
    old, new = {"a.py": "def f(): ..."}, {"b.py": ""}
    history = history_of({"0.9.0": new, "1.0.0": old, "1.1.0": new})
    files = {
        f"{folder}/datasets.py": "from vllm.a import f",
        "app.py": "import vllm, datasets",
    }
    assert not any(missing(answer_for(tmp_path, history, files)).values())


REFUSES = "import vllm.utils as u\nimport other\n"


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("get_port = getattr(u, 'get_port', None)\nif get_port is None:\n    raise OSError", ["2.0"]),
        ("if version('vllm') == '2.0':\n    raise OSError", ["2.0"]),
        ("def register():\n    if version('vllm') == '2.0':\n        raise OSError", ["2.0"]),
        ("x = getattr(other, 'x', None)\nif x is None:\n    raise OSError", []),
        (
            "try:\n    from flash import fast\nexcept ImportError:\n    fast = None\n"
            "if fast is None:\n    raise OSError",
            [],
        ),
        ("if hasattr(u, 'get_port') and other.x:\n    raise OSError", []),
        ("if version('vllm') == '1.0' and other.x:\n    raise OSError", []),
        ("if version('vllm') == '1.0':\n    raise unittest.SkipTest", []),
        ("import vllm.nowhere\nif version('vllm') == '1.0':\n    raise OSError", []),
    ],
)  # fmt: skip
def test_only_what_certainly_raises_refuses_a_release(
    tmp_path: Path, two_releases: History, source: str, refused: list[str]
) -> None:
    problems = answer_for(tmp_path, two_releases, {"a.py": REFUSES + source}).problems
    kinds = {release: {p.use.kind for p in found} for release, found in problems.items()}
    assert [release for release in kinds if "version" in kinds[release]] == refused


METRICS = history_of(
    {
        "1.0": {
            "metrics.py": "N = ['vllm:gpu_usage_perc', 'vllm:kv_all_total_bytes', 'vllm:kv_all_moved_bytes', 'vllm:old_count']"
        },
        "2.0": {
            "metrics.py": "N = ['vllm:usage_perc', 'vllm:kv_all_total_bytes', 'vllm:fresh_sum']"
        },
    }
)


@pytest.mark.parametrize(
    ("source", "lacks"),
    [
        # A new name beside the one before it.
        ("import vllm\nN = ['vllm:gpu_usage_perc', 'vllm:usage_perc']", []),
        ("import vllm\nN = {'vllm:gpu_usage_perc': 1, 'vllm:fresh_sum': 2}", ["gpu_usage_perc"]),
        ("import vllm\nN = ['vllm:old_count', 'vllm:fresh_sum']", ["old_count"]),
        # Others that the code takes instead.
        ("import vllm\nx = m.get('vllm:fresh_sum') or m.get('vllm:old_count')", []),
        ("import vllm\nx = m.get('vllm:fresh_sum', m.get('vllm:old_count'))", []),
        ("import vllm\nx = first_of(m, 'vllm:fresh_sum', 'vllm:old_count')", []),
        ("import vllm\nfor n in ('vllm:fresh_sum', 'vllm:old_count'):\n    if n in m: break", []),
        ("import vllm\nx = m.get('vllm:fresh_sum')\nif x is None:\n    x = m['vllm:old_count']", []),
        ("import vllm\nif has('vllm:fresh_sum'): ...\nelse:\n    f('vllm:old_count')", []),
        ("import vllm\nif has('vllm:fresh_sum'):\n    f('vllm:old_count')", ["old_count"]),
        ("import vllm\nif n == 'vllm:fresh_sum': ...\nelif n == 'vllm:old_count': ...", ["old_count"]),
        ("import vllm\nFORMER = 'vllm:kv_all_total_bytes'\nN = 'vllm:kv_all_moved_bytes'", []),
        ("import vllm\nTHRESHOLD = 'vllm:kv_all_total_bytes'\nN = 'vllm:kv_all_moved_bytes'", ["kv_all_moved_bytes"]),
    ],
)  # fmt: skip
def test_a_metric_with_another_in_its_place_is_not_missed(
    tmp_path: Path, source: str, lacks: list[str]
) -> None:
    result = missing(answer_for(tmp_path, METRICS, {"a.py": source}))
    assert result["2.0"] == [f"there is no metric vllm:{name}" for name in lacks]


def test_a_private_hook_that_a_base_class_loses_is_missed_below_a_model(tmp_path: Path) -> None:
    base = "class Base:\n    def _parse(self): ...\n    def other(self): ..."
    model = "from vllm.base import Base\nclass Model(Base): ..."
    path = "model_executor/models/m.py"
    history = history_of(
        {
            "1": {"base.py": base, path: model},
            "2": {"base.py": base.replace("_parse", "parse"), path: model},
        }
    )
    own = "from vllm.model_executor.models.m import Model\nclass Own(Model):\n    def _parse(self): ..."
    result = missing(answer_for(tmp_path / "1", history, {"a.py": own}))
    assert [len(problems) for problems in result.values()] == [0, 1]
    both = f"{own}\nclass Info:\n    def parse(self): ..."
    assert missing(answer_for(tmp_path / "2", history, {"a.py": both})) == {"1": [], "2": []}


def test_variables_that_a_script_reads_or_removes_are_no_uses(
    tmp_path: Path, two_releases: History
) -> None:
    start = "\nvllm serve m"
    read = f"unset VLLM_OLD\necho $VLLM_OLD ${{VLLM_OLD:-x}}{start}"
    assert missing(answer_for(tmp_path / "1", two_releases, {"a.sh": read}))["2.0"] == []
    sets = f"export VLLM_OLD=1{start}"
    assert missing(answer_for(tmp_path / "2", two_releases, {"a.sh": sets}))["2.0"]


def test_an_override_is_called_while_vllm_asks_to_rename_it(tmp_path: Path) -> None:
    old, new = "class Base:\n    def embed(self): ...", "class Base:\n    def encode(self): ..."
    shim = f"{new[:-4]}\n        warn('`embed` is deprecated and will be removed. Please rename it to `encode`.')"
    history = history_of({"1.0": {"a.py": old}, "2.0": {"a.py": shim}, "3.0": {"a.py": new}})
    source = "from vllm.a import Base\nclass A(Base):\n    def embed(self): ...\n"
    lacks = ["the class vllm.a.Base has no embed: the override is never called"]
    result = missing(answer_for(tmp_path, history, {"a.py": source}))
    assert result == {"1.0": [], "2.0": [], "3.0": lacks}
    both = f"{source}    def encode(self): ..."
    assert missing(answer_for(tmp_path, history, {"a.py": both}))["3.0"] == []


def test_what_is_assigned_to_an_attribute_is_reached_from_there(tmp_path: Path) -> None:
    base = {"a.py": "class A: ...", "layers/__init__.py": ""}
    history = history_of({"1": {**base, "layers/sampler.py": "def get(): ..."}, "2": base})
    source = """
        from vllm.a import A
        from vllm.layers.sampler import get
        class Own(A):
            def __init__(self):
                self.sampler = get()
            def sample(self):
                return self.sampler.run(1)
        """
    result = missing(answer_for(tmp_path, history, {"a.py": source}))
    assert result["2"] == ["the module vllm.layers.sampler does not exist"]


@pytest.mark.parametrize(
    ("later", "count"), [("@property\n    def x(self): ...", 0), ("def x(self): ...", 1)]
)
def test_a_property_of_a_layer_may_have_been_an_attribute(
    tmp_path: Path, later: str, count: int
) -> None:
    path = "model_executor/layers/a.py"
    history = history_of({"1": {path: "class A: ..."}, "2": {path: f"class A:\n    {later}"}})
    source = "from vllm.model_executor.layers.a import A\nA().x"
    assert len(missing(answer_for(tmp_path, history, {"a.py": source}))["1"]) == count
