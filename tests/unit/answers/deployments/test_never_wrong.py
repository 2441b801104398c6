"""Whatever surrounds a server, its options may become unknown, but are never said to be off.

A server gets its options in a way that the reader knows, or in one of many that it may not know. The
failures that need these options are reachable or unknown, or the file is not read.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_vllm_regress.answers.deployments.configuration import read_deployments
from pytest_vllm_regress.answers.deployments.relevance import Reach, relevance
from pytest_vllm_regress.errors import UsageError
from tests.helpers.cases import project_cases

CASES = {case.id: case for case in project_cases()}


@dataclass(frozen=True)
class Option:
    """An option, and a failure of a release that needs it."""

    name: str
    value: str
    case: str
    release: str

    @property
    def words(self) -> str:
        return f"{self.name} {self.value}".strip()

    @property
    def key(self) -> str:
        return self.name.removeprefix("--")

    @property
    def camel(self) -> str:
        first, *rest = self.key.split("-")
        return first + "".join(part.title() for part in rest)

    @property
    def snake(self) -> str:
        return self.key.replace("-", "_")


OPTIONS = (
    Option("--enable-lora", "", "vllm-30931", "0.11.2"),
    Option("--tensor-parallel-size", "2", "vllm-11737", "0.8.4"),
    Option("--pipeline-parallel-size", "2", "vllm-7557", "0.8.4"),
    Option("--tool-call-parser", "hermes", "vllm-31501", "0.9.2"),
    Option("--reasoning-parser", "qwen3", "vllm-35230", "0.9.2"),
    Option("--scheduling-policy", "priority", "vllm-29747", "0.11.2"),
    Option("--kv-transfer-config", "c", "vllm-46240", "0.17.0"),
)
POD = "containers:\n- image: vllm/vllm-openai:v1\n  args: [--model, org/m, {known_list}]"
FORMS = {
    # scripts
    "plain.sh": "vllm serve org/m {known} {words}",
    "continued.sh": "exec vllm serve org/m \\\n  {known} \\\n  {words} 2>&1 | tee log",
    "quoted.sh": "bash -lc \"cd /x && vllm serve org/m {known} {words}\"",
    "nested.sh": "ssh host 'docker exec a bash -c \"vllm serve org/m {known} {words}\"'",
    "variable.sh": "MORE='{words}'\nvllm serve org/m {known} $MORE",
    "function.sh": "more() {{ printf '%s' '{words}'; }}\nvllm serve org/m {known} $(more)",
    "array.sh": "A=({known})\nif test -n \"$X\"; then A+=({words}); fi\nvllm serve org/m \"${{A[@]}}\"",
    "else.sh": "if a; then\n vllm serve org/m {known} {words}\nelse\n vllm serve org/m {known}\nfi",
    "case.sh": "case $1 in\n a) A=({words});;\n *) A=();;\nesac\nvllm serve org/m {known} \"${{A[@]}}\"",
    "set.sh": "set -- {known}\nset -- \"$@\" {words}\nvllm serve org/m \"$@\"",
    "file.sh": "cat > opts <<EOF\n{words}\nEOF\nxargs -a opts vllm serve org/m {known}",
    "loop.sh": "for o in {words}; do A=\"$A $o\"; done\nvllm serve org/m {known} $A",
    "eval.sh": "C=\"vllm serve org/m {known}\"\nC=\"$C {words}\"\neval $C",
    "program.sh": "BIN=$(which vllm)\n\"$BIN\" serve org/m --max-model-len 8 {known} {words}",
    "two.sh": "vllm serve org/other {known}\nvllm serve org/m {known} {words}",
    "sourced.sh": ". ./more.sh\nvllm serve org/m {known} $MORE # see {words}",
    "run.sh": "docker run -e X=1 vllm/vllm-openai:v1 --model org/m {known} {words}",
    "default.sh": "vllm serve org/m {known} ${{MORE:-{words}}}",
    "dockerfile": "FROM vllm/vllm-openai:v1\nENV MORE=\"{words}\"\nCMD vllm serve org/m {known} $MORE",
    "unit.service": "[Service]\nEnvironment=\"MORE={words}\"\nExecStart=/bin/vllm serve org/m {known} $MORE",
    # mappings
    "args.yaml": "containers:\n- image: vllm/vllm-openai:v1\n  args: [--model, org/m, {known_list}, {list}]",
    "text.yaml": "containers:\n- image: vllm/vllm-openai:v1\n  command: [sh, -c]\n  args: ['vllm serve org/m {known} {words}']",
    "folded.yaml": "services:\n  a:\n    image: vllm/vllm-openai:v1\n    command: >\n      --model org/m {known}\n      {words}",
    "env.yaml": "services:\n  a:\n    image: vllm/vllm-openai:v1\n    command: --model org/m {known} $MORE\n    environment: [\"MORE={words}\"]",
    "named.yaml": "services:\n  a:\n    image: vllm/vllm-openai:v1\n    command: --model org/m {known}\n    environment:\n{environment}",
    "keys.yaml": "image: {{repository: vllm/vllm-openai, tag: v1}}\nargs: [--model, org/m, {known_list}]\nextra:\n{keys}",
    "camel.yaml": "image: {{repository: vllm/vllm-openai, tag: v1}}\nargs: [--model, org/m, {known_list}]\nengine:\n{camel}",
    "pairs.yaml": "a:\n  image: vllm/vllm-openai:v1\n  args: [--model, org/m, {known_list}]\n  options:\n{pairs}",
    "map.yaml": "kind: ConfigMap\ndata:\n  options.txt: |\n    {words}\n---\n" + POD,
    "annotated.yaml": "metadata: {{annotations: {{more: '{words}'}}}}\n" + POD,
    "patch.yaml": "patches:\n- patch: |\n    - {{op: add, path: /spec/containers/0/args/-, value: '{words}'}}\n---\n" + POD,
    "broken.yaml": POD + "\n    bad: [\n  more: {words}",
    "template.yaml": "containers:\n- image: vllm/vllm-openai:v1\n  args:\n  - --model=org/m\n  {{{{- if .x }}}}\n  - {words}\n  {{{{- end }}}}",
    "anchor.yaml": "x: &x [{list}]\nservices:\n  a: {{image: 'vllm/vllm-openai:v1', command: [--model, org/m, {known_list}], more: *x}}",
    "step.yml": "steps:\n- run: |\n    vllm serve org/m {known} \\\n      {words} &",
    # programs
    "list.py": "run(['vllm', 'serve', 'org/m', {known_list}, {list}])",
    "added.py": "c = ['vllm', 'serve', 'org/m', {known_list}]\nif x:\n    c += [{list}]\nrun(c)",
    "extended.py": "c = ['vllm', 'serve', 'org/m', {known_list}]\nmore(c, [{list}])\nrun(c)",
    "joined.py": "c = 'vllm serve org/m {known}'\nc = ' '.join([c, '{words}'])\nrun(c)",
    "keywords.py": "o = dict({keywords})\nc = ['vllm', 'serve', 'org/m', {known_list}]\nfor k, v in o.items():\n    c.append(k)\nrun(c)",
    "broken.py": "MORE = [{list}]\nx = (1 2)\ndef f():\n    run(['vllm', 'serve', 'org/m', {known_list}, *MORE])",
    # Terraform
    "main.tf": "locals {{\n  more = [{list}]\n}}\n"
    "resource a b {{\n  image = \"vllm/vllm-openai:v1\"\n  args  = concat([\"--model\", \"org/m\", {known_list}], module.x, local.more)\n}}",
}  # fmt: skip
POD_FILE = "cat > pod.yaml <<EOF\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v1\n    args: [--model, org/m]\nEOF\n"
SCRIPT = "cat > run.sh <<'EOF'\nvllm serve org/m --port 80\nEOF\n"
RUNTIME = "kind: ServingRuntime\nmetadata: {name: r}\nspec: {containers: [{image: 'vllm/vllm-openai:v1', args: [--model, org/m]}]}\n"
SERVICE = "kind: InferenceService\nspec: {predictor: {model: {modelFormat: {name: vLLM}, runtime: r, args: [$MORE]}}}\n"
OPEN = {
    "patch.sh": POD_FILE+'kubectl apply -f pod.yaml\nkubectl patch pod a -p "$P"',
    "set.sh": POD_FILE+'oc set env pod/a MORE="$P"',
    "sed.sh": POD_FILE+'sed -i "s/m]/m, $X]/" pod.yaml',
    "yq.sh": POD_FILE+'yq -i "$X" "pod.yaml"',
    "append.sh": POD_FILE+'echo "$X" >> pod.yaml',
    "envsubst.sh": POD_FILE+'envsubst < pod.yaml | kubectl apply -f -',
    "overlay.sh": POD_FILE+'kubectl apply -k .',
    "line.sh": "kubectl apply -f - <<EOF\ncontainers:\n- image: vllm/vllm-openai:v1\n  args:\n  - --model=org/m\n$MORE\nEOF",
    "line2.sh": 'kubectl apply -f - <<EOF\nservices:\n  a:\n    image: vllm/vllm-openai:v1\n    command: >-\n      --model org/m\n      ${X}\nEOF',
    "script.sh": SCRIPT+'sed -i "s/80/80 $X/" run.sh',
    "script2.sh": SCRIPT+'sed -i "s/80/80 $X/" *.sh',
    "service.sh": f'kubectl apply -f - <<EOF\n{RUNTIME}EOF\nkubectl apply -f - <<EOF\n{SERVICE}EOF',
    "service.yaml": f'{RUNTIME}---\n{SERVICE}',
    "services.yaml": f'{RUNTIME}---\n{SERVICE}---\n{SERVICE}',
    "held.sh": 'C=$(cat <<EOF\nvllm serve org/m $X\nEOF\n)\nssh host "$C"',
    "readarray.sh": 'A=()\nreadarray -t A < f\nvllm serve org/m "${A[@]}"',
    "ifs.sh": 'A=()\nIFS=" " read -ra A <<< "$X"\nvllm serve org/m "${A[@]}"',
    "nameref.sh": 'A=()\nadd A $X\nvllm serve org/m "${A[@]}"',
    "nameref2.sh": 'add() { local -n a=$1; shift; a+=("$@"); }\nA=()\nadd A $X\nvllm serve org/m "${A[@]}"',
    "evals.sh": 'A=()\neval "A+=($X)"\nvllm serve org/m "${A[@]}"',
    "evalname.sh": 'A=\neval "A=\\"\\$$X\\""\nvllm serve org/m $A',
    "printfv.sh": 'A=\nprintf -v A %s "$X"\nvllm serve org/m $A',
    "getopts.sh": 'A=\nwhile getopts a: o; do case $o in a) A="$OPTARG";; esac; done\nvllm serve org/m $A',
    "while.sh": 'A=\nwhile [ $# -gt 0 ]; do A="$A $1"; shift; done\nvllm serve org/m $A',
    "whileread.sh": 'A=()\nwhile read -r l; do A+=("$l"); done < f\nvllm serve org/m "${A[@]}"',
    "dotenv.sh": 'A=\nexport $(grep -v "^#" .env | xargs)\nvllm serve org/m $A',
    "dotenv2.sh": 'A=\nset -a; source .env; set +a\nvllm serve org/m $A',
    "assoc.sh": 'A=()\nfor k in "${!O[@]}"; do A+=("--$k" "${O[$k]}"); done\nvllm serve org/m "${A[@]}"',
    "cat.sh": 'vllm serve org/m $(cat f)',
    "xargs.sh": 'xargs vllm serve org/m < f',
    "tail.sh": 'vllm serve org/m --port 80 $X',
    "only.sh": 'vllm serve $X',
    "opts.sh": 'vllm serve $MODEL_OPTS',
    "exec.sh": 'exec vllm serve org/m "$@"',
    "slice.sh": 'vllm serve org/m "${@:2}"',
    "slice2.sh": 'vllm serve org/m ${X[@]:1}',
    "indirect.sh": 'vllm serve org/m ${!X}',
    "local.sh": 'f() { local A; A=$(make); vllm serve org/m $A; }\nf',
    "python.sh": 'A=$(python - <<EOF\nprint("x")\nEOF\n)\nvllm serve org/m $A',
    "jq.sh": 'A=""\nA+=" $(jq -r .x f)"\nvllm serve org/m $A',
    "ownimage.sh": 'docker run -e VLLM_EXTRA_ARGS="$X" team/vllm:1 --model org/m',
    "ownimage.yaml": 'services:\n  a:\n    image: team/vllm:1\n    command: --model org/m\n    environment: {VLLM_EXTRA_ARGS: "${X}"}',
    "command.yaml": 'services:\n  a:\n    image: vllm/vllm-openai:v1\n    command: ${X}',
    "commandlist.yaml": 'services:\n  a:\n    image: vllm/vllm-openai:v1\n    command: [--model, org/m, "${X}"]',
    "values.yaml": 'containers:\n- image: vllm/vllm-openai:v1\n  args: {{ .Values.x }}',
    "values2.yaml": 'containers:\n- image: vllm/vllm-openai:v1\n  args: "{{ .Values.x }}"',
    "jinja.yml.j2": "containers:\n- image: vllm/vllm-openai:v1\n  args:\n  - --model=org/m\n{% for x in y %}\n  - {{ x }}\n{% endfor %}\n",
    "jinja2.yml.j2": 'services:\n  a:\n    image: vllm/vllm-openai:v1\n    command: --model org/m {% for x in y %} {{ x }} {% endfor %}\n',
    "jinja3.yml.j2": 'services:\n  a:\n    image: vllm/vllm-openai:v1\n    command: --model org/m {{ x }}\n',
    "extends.yaml": 'services:\n  a:\n    extends: {file: b.yaml, service: b}\n    image: vllm/vllm-openai:v1\n',
    "cond.tf": 'resource a b {\n  image = "vllm/vllm-openai:v1"\n  args = var.x ? ["--model", "org/m"] : []\n}',
    "local.tf": 'resource a b {\n  image = "vllm/vllm-openai:v1"\n  args = local.x\n}',
    "mod.tf": 'resource a b {\n  image = "vllm/vllm-openai:v1"\n  args = module.x.y\n}',
    "fn.tf": 'resource a b {\n  image = "vllm/vllm-openai:v1"\n  args = split(" ", var.x)\n}',
    "for.tf": 'resource a b {\n  image = "vllm/vllm-openai:v1"\n  args = [for k, v in var.x : "--${k}=${v}"]\n}',
    "unit.service": '[Service]\nEnvironmentFile=/x\nExecStart=/bin/vllm serve org/m $X',
    "super.conf": '[program:a]\ncommand=vllm serve org/m %(ENV_X)s',
    "given.py": 'from more import add\nc = ["vllm", "serve", "org/m"]\nadd(c, x)\nrun(c)',
    "given2.py": 'c = ["vllm", "serve", "org/m"]\nself.add(c)\nrun(c)',
    "insert.py": 'c = ["vllm", "serve", "org/m"]\nc.insert(3, x)\nrun(c)',
    "slice.py": 'c = ["vllm", "serve", "org/m"]\nc[3:3] = x\nrun(c)',
    "iadd.py": 'c = ["vllm", "serve", "org/m"]\nfor k in x: c += [k]\nrun(c)',
    "plus.py": 'run(["vllm", "serve", "org/m"] + x)',
    "plus2.py": 'c = ["vllm", "serve", "org/m"]\nrun(c + sys.argv[1:])',
    "plus3.py": 'c = ["vllm", "serve", "org/m"]\nd = [*c, *x]\nrun(d)',
    "plus4.py": 'c = ["vllm", "serve", "org/m"]\nd = c + x\nrun(d)',
    "text.py": 'c = "vllm serve org/m"\nc += f" {x}"\nrun(c)',
    "text2.py": 'c = f"vllm serve org/m {x}"\nrun(c)',
    "text3.py": 'run("vllm serve org/m " + x)',
    "text4.py": 'run("vllm serve org/m %s" % x)',
    "text5.py": 'run("vllm serve org/m {}".format(x))',
    "text6.py": 'run(" ".join(["vllm serve org/m", x]))',
    "text7.py": 'c = "vllm serve org/m"\nrun(f"{c} {x}")',
    "text8.py": 'c = "vllm serve org/m"\nrun(c + " " + x)',
    "text9.py": 'C = "vllm serve org/m"\ndef f(x):\n    c = C\n    c += x\n    run(c)',
    "ret.py": 'def base():\n    return ["vllm", "serve", "org/m"]\nrun(base() + x)',
    "ret2.py": 'def base():\n    c = ["vllm", "serve", "org/m"]\n    return c\nc = base()\nadd(c)\nrun(c)',
    "docker.py": 'client.containers.run("vllm/vllm-openai:v1", command=["--model", "org/m", *x])',
    "docker2.py": 'client.containers.run("vllm/vllm-openai:v1", command=x)',
    "Dockerfile": 'FROM vllm/vllm-openai:v1\nENTRYPOINT ["sh", "-c", "vllm serve org/m $X"]',
    "Makefile": 'serve:\n\tvllm serve org/m $(X)\n',
    "justfile": 'serve *args:\n  vllm serve org/m {{args}}\n',
    "a.ps1": '$a = @("--model", "org/m")\n$a += $x\ndocker run vllm/vllm-openai:v1 @a',
    "a.bat": 'vllm serve org/m %*',
    "b.bat": 'vllm serve org/m %X%',
    "a.js": 'spawn("vllm", ["serve", "org/m", ...x])',
    "a.nix": 'x = [ "vllm" "serve" "org/m" ] ++ cfg.x;',
    "b.nix": 'ExecStart = "vllm serve org/m ${x}";',
    "c.nix": 'ExecStart = "vllm serve org/m " + x;',
}  # fmt: skip
"""Commands with options that the file does not have, by the form: variables, other files, programs
that change what was written."""
NOISE = (
    "",
    "# nothing of interest\n",
    "# vllm serve org/none\n",
    "# \u00e9\t'\"`$(\n",
)


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def text_of(form: str, known: Sequence[Option], more: Sequence[Option]) -> str:
    words = " ".join(option.words for option in more)
    always = " ".join(["--port 80", *(option.words for option in known)])
    return FORMS[form].format(
        words=words,
        known=always,
        list=_listed(shlex.split(words)),
        known_list=_listed(shlex.split(always)),
        keys="\n".join(f"  {o.key}: {o.value or 'true'}" for o in more),
        camel="\n".join(f"  {o.camel}: {o.value or 'true'}" for o in more),
        pairs="\n".join(f"  - {{name: {o.key}, value: '{o.value}'}}" for o in more),
        environment="\n".join(f"      {o.snake.upper()}: '{o.value or 1}'" for o in more),
        keywords=", ".join(f"{o.snake}='{o.value}'" for o in more),
    )


def denied(path: Path, options: Sequence[Option]) -> list[str]:
    """Return the options that no server in a file is said to have."""
    try:
        found = read_deployments(str(path))
    except UsageError:
        return []
    return [
        option.name
        for option in options
        if relevance(CASES[option.case], {"vllm": option.release}, found).reach
        is Reach.NOT_REACHABLE
    ]


@pytest.mark.parametrize("form", FORMS)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    options=st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=4, unique=True),
    known=st.integers(0, 2),
    noise=st.sampled_from(NOISE),
)
def test_an_option_of_the_file_is_never_denied(
    tmp_path: Path, form: str, options: list[Option], known: int, noise: str
) -> None:
    known = min(known, len(options) - 1)
    path = tmp_path / form
    start = "" if form == "dockerfile" else noise
    path.write_text(start + text_of(form, options[:known], options[known:]), "utf-8")
    assert denied(path, options) == [], path.read_text("utf-8")


@pytest.mark.parametrize("form", OPEN)
@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(noise=st.sampled_from(NOISE))
def test_an_option_that_is_elsewhere_is_never_denied(tmp_path: Path, form: str, noise: str) -> None:
    path = tmp_path / form
    start = "" if form == "Dockerfile" else noise
    path.write_text(start + OPEN[form], "utf-8")
    assert denied(path, OPTIONS) == [], path.read_text("utf-8")
