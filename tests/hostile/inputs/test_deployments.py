"""``audit --serve`` reads any deployment in bounded time and memory, or refuses it with a message."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.deployments.configuration import MAX_BYTES, read_deployments
from pytest_vllm_regress.answers.deployments.shell import MAX_NESTED
from pytest_vllm_regress.cli import main
from pytest_vllm_regress.errors import UsageError

TREE = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 9)
)
SERVER = "image: vllm/vllm-openai\n"
REFUSED = {
    "a variable of many aliases": (
        TREE + SERVER + "environment: {X: *a8}\n",
        "more than 100000 values",
    ),
    "a word of many aliases": (TREE + SERVER + "command: [*a8]\n", "more than 100000 values"),
    "an option of many aliases": (TREE + "vllmConfig: {model: *a8}\n", "more than 100000 values"),
    "merged aliases": (
        "a0: &a0 {x: 1}\n"
        + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)),
        "more than 100000 values",
    ),
    "an alias in itself": (
        "a: &a {" + ", ".join(f"k{n}: 1" for n in range(1000)) + ", <<: [" + "*a, " * 1000 + "]}\n",
        "contains it",
    ),
    "a long list": ("a: [" + "1, " * 150_000 + "]\n", "more than 100000 values"),
    "a number with the base 60": ("a: " + "1:" * 5000 + "1\n", "a number of more than 100 digits"),
    "deep lists": ("[" * 5000, "nested too deeply|nesting depth"),
    "many servers": (("---\n" + SERVER) * 200, "starts more than 100 servers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_yaml_that_asks_for_disproportionate_work_is_refused(name: str, tmp_path: Path) -> None:
    text, message = REFUSED[name]
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_deployments(str(tmp_path / "a.yaml"))


def test_aliases_that_people_write_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "x: &x\n  image: vllm/vllm-openai\n  environment: {A: '1'}\nservices:\n"
        + "".join(f"  s{n}:\n    <<: *x\n    command: --model m{n}\n" for n in range(20))
    )
    deployments = read_deployments(str(tmp_path / "a.yaml"))
    assert {str(deployment.options.get("model")) for deployment in deployments} >= {
        f"m{n}" for n in range(20)
    }
    assert all(deployment.variables == {"A": "1"} for deployment in deployments)


def test_a_huge_word_of_a_command_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("vllm serve " + "a" * (MAX_BYTES - 100))
    with pytest.raises(UsageError, match="a command of more than 65536 characters"):
        read_deployments(str(tmp_path / "a.sh"))


@pytest.mark.parametrize(("depth", "is_read"), [(MAX_NESTED, True), (MAX_NESTED + 1, False)])
def test_scripts_in_scripts_are_read_to_a_limited_depth(
    depth: int, is_read: bool, tmp_path: Path
) -> None:
    text = "vllm serve m"
    for _ in range(depth):
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        text = f'sh -c "{quoted}"'
    (tmp_path / "a.sh").write_text(text)
    with nullcontext() if is_read else pytest.raises(UsageError, match="starts no vLLM"):
        (deployment,) = read_deployments(str(tmp_path / "a.sh"))
        assert deployment.options == {"model": "m"}


def test_many_commands_in_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("vllm serve --model x\n" * 200)
    with pytest.raises(UsageError, match="starts more than 100 servers"):
        read_deployments(str(tmp_path / "a.sh"))


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("if a; then X{n}=1; fi\n", "$X1"),
        ('if a; then X="$X $X"; fi\n', "$X"),
        ("if a; then A+=(--x y); fi\n", "${{A[@]}}"),
        ("f{n}() {{ X{n}=1; }}\na && f{n}\n", "$X1"),
        ("f() {{ X{n}=1\n", "$X1"),
        ("f() {{ X=1; f; }}\nf\n", "$X"),
        ("case $1 in a{n}|b*{n}*) X{n}=1;; esac\n", "$X1"),
        ("[[ $X == *{n}* || $X -gt {n} ]] && Y=1\n", "$Y"),
    ],
)
def test_the_work_for_branches_grows_with_the_text(tmp_path: Path, line: str, use: str) -> None:
    def work(count: int) -> float:
        lines = "".join(line.format(n=n) for n in range(count))
        (tmp_path / "a.sh").write_text(f"X='a b'\nA=()\n{lines}vllm serve m {use.format()}\n")
        start = time.process_time()
        read_deployments(str(tmp_path / "a.sh"))
        return time.process_time() - start

    work(10)
    assert work(16_000) < 12 * max(work(4_000), 0.05)


@pytest.mark.parametrize(
    ("name", "start", "part"),
    [
        ("a.sh", "vllm serve m\n", "X=$(cat <<EOF\n"),
        ("a.sh", "vllm serve m\n", "X=$(python <<E{n}\na\nE{n}\n"),
        ("a.sh", "cat > a.yaml <<E\nimage: vllm/vllm-openai\nE\n", "kubectl "),
        ("a.sh", "cat > a.sh <<E\nvllm serve m\nE\n", "sed -i "),
        ("a.sh.j2", "vllm serve m #}}\n", "{{#"),
        ("a.nix", 'x = [ "vllm" "serve" "m" ]', " ++ a (b) c"),
        ("a.py", "l = []\nc = ['vllm', 'serve', 'm']\n", "l = []\nl += [' '.join(l)]\n"),
        ("a.py", "c = ['vllm', 'serve', 'm']\nif a0:\n    c += x\n", "a{n} = a{m} or a{m}\n"),
    ],
)
def test_the_work_grows_with_the_text(tmp_path: Path, name: str, start: str, part: str) -> None:
    def work(count: int) -> float:
        parts = "".join(part.format(n=n, m=n + 1) for n in range(count))
        (tmp_path / name).write_text(start.format() + parts + "\n")
        began = time.process_time()
        read_deployments(str(tmp_path / name))
        return time.process_time() - began

    work(10)
    assert work(8_000) < 16 * max(work(1_000), 0.05)


def test_functions_that_call_each_other_are_read_a_limited_number_of_times(tmp_path: Path) -> None:
    calls = "".join(f"f{n}() {{ f{n + 1} a $@ $@; f{n + 1} $@ $@; }}\n" for n in range(300))
    (tmp_path / "a.sh").write_text(f"{calls}f300() {{ vllm serve m; }}\nf0 b\n")
    start = time.process_time()
    assert len(read_deployments(str(tmp_path / "a.sh"))) == 1
    assert time.process_time() - start < 5


def test_json_that_is_nested_too_deeply_is_no_command(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM vllm/vllm-openai\nCMD " + "[" * 50_000)
    assert read_deployments(str(tmp_path / "Dockerfile"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "vllm==0.8.4", "--serve", "~no-such-user/x"],
        ["audit", "~no-such-user/x"],
        ["explain", "~no-such-user/x"],
        ["uses", "~no-such-user/x"],
        ["run", "--env", "vllm@~no-such-user/x", "vllm-17173"],
        ["--cases", "~no-such-user/x", "list"],
        ["audit", "--env", "~no-such-user/x"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_the_home_of_an_unknown_user_is_a_missing_file(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "internal error" not in capsys.readouterr().err
