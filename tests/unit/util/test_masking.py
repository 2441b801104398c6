"""Secrets, and nothing else, are kept from children and masked in text."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.masking import HOSTILE, log, seconds
from pytest_vllm_regress.util import masking
from pytest_vllm_regress.util.masking import (
    HIDDEN,
    is_secret,
    mask,
    register,
    register_all,
    scanner,
    without_secrets,
)

SECRETS = {
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOp",
    "OPENAI_API_KEY": "not-even-random",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN": "FwoGZXIvYXdzEBY",
    "MY_PASSWORD": "hunter2!",
    "DOCKER_AUTH_CONFIG": '{"auths": {"x": "y"}}',
    "SSH_AUTH_SOCK": "/tmp/ssh-x/agent.1",
    "GITHUB_PAT": "abcdef123",
    "SENTRY_DSN": "https://abc@o1.example.org/2",
    "SESSION_COOKIE": "abcdefgh",
    "TLS_PRIVATE_KEY": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----",
    "DATABASE_URL": "postgres://me:pa55word@db/x",
    "HTTPS_PROXY": "http://me:pa55word@proxy:3128",
    "PIP_INDEX_URL": "https://__token__:pa55word@example.org/simple",
    "DB_PASS": "open sesame",
    "SERVICE_BEARER": "abcdefghij",
    "LOGIN_JWT": "abc.def.ghi",
    "ALERTS_WEBHOOK": "https://hooks.example.org/services/T0/B0/abcdef",
    "INDEX": "https://pa55word@example.org/simple",
}
NOT_EVERYWHERE = {
    "CI_HOOK_URL": "https://hooks.slack.com/services/T000/B000/abcdef",
    "PIN_PASSWORD": "4711",
    "SHORT_SECRET": "abcd",
}
HARMLESS = {
    "PATH": "/usr/bin",
    "PWD": "/home/me",
    "TOKENIZERS_PARALLELISM": "false",
    "TOKENIZER_MODE": "mistral",
    "KEYBOARD": "german",
    "AUTHOR": "somebody",
    "XAUTHORITY": "/home/me/.Xauthority",
    "HTTP_PROXY": "http://proxy:3128",
    "HF_HOME": "/data/hf",
    "VLLM_USE_V1": "1",
}

PIECES = [
    "password",
    "=",
    "'",
    " ",
    "\n",
    "token",
    "--",
    "key",
    ":",
    "://",
    "@",
    "a",
    "hf_" + "b" * 20,
    "Bearer ",
    "abcdefghij",
    "/",
    "?",
    "sig",
    "x",
]


@pytest.fixture(autouse=True)
def no_known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_known", set())


def test_children_inherit_no_secrets_but_other_variables() -> None:
    assert without_secrets(SECRETS | NOT_EVERYWHERE | HARMLESS) == HARMLESS


@pytest.mark.parametrize("name", SECRETS)
def test_secret_variables_are_masked_in_every_spelling(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, SECRETS[name])
    secret = "pa55word" if "pa55word" in SECRETS[name] else SECRETS[name]
    value = SECRETS[name]
    texts = [f"it is {value}.", json.dumps({"a": value}), repr([value]), f"{value}{value}"]
    texts += [f"https://x/?t={quote(value, safe='')}"] if secret == value else []
    for text in texts:
        masked = mask(text)
        assert HIDDEN in masked
        for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe="")):
            assert form not in masked


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abcdefghij", "abcdefghij"),
        ("{'authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz"),
        ("headers={'X-Api-Key': 'abcdefgh'}", "abcdefgh"),
        ("curl -H 'authorization: token abcdefgh'", "abcdefgh"),
        ("Set-Cookie: session=abcdefgh; Path=/", "abcdefgh"),
        ("password=correct-horse", "correct-horse"),
        ('"db_password": "correct horse"', "correct"),
        ("HF_TOKEN=xyzxyzxyz", "xyzxyzxyz"),
        ("--api-key=abcdefgh", "abcdefgh"),
        ("api_key: 'abcdefgh'", "abcdefgh"),
        ("redis://:pa55word@host:6379/0", "pa55word"),
        ("a hf_AbCdEfGhIjKlMnOpQrSt in a sentence", "hf_AbC"),
        ("sk-proj-abcdefghijklmnopqrst", "sk-proj"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIA"),
        ("ghp_abcdefghijklmnopqrst1234", "ghp_"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N", "eyJ"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc", "MIIE"),
        ("DB_PASS=hunter2", "hunter2"),
        ("MY_BEARER: abcdefgh", "abcdefgh"),
        ("login_jwt = 'a.b.c'", "a.b.c"),
        ("https://hooks.slack.com/services/T000/B000/abcdef", "abcdef"),
        ("https://discord.com/api/webhooks/123/abcdef?wait=1", "abcdef"),
        ("https://corp.webhook.office.com/webhookb2/abcdef@x/IncomingWebhook/y", "abcdef"),
        ("https://api.telegram.org/bot123:abcdef/sendMessage", "abcdef"),
        ("https://tokentoken@github.com/a/b.git", "tokentoken"),
        ("postgres://me:p@ss/word@db/x", "ss/word"),
        ("postgres://me:p@ss/word@db/x", ":p@"),
        ("https://me:a/b@c@example.org/simple", "b@c"),
        ("https://storage.example.org/x?sig=abcdef&se=1", "abcdef"),
        ("mysql --user me --password hunter2 --host x", "hunter2"),
        ("['vllm', 'serve', '--api-key', 'abc def', '--port', '1']", "abc def"),
        ('"--hf-token", "abc"', '"abc"'),
        ("serve --api-key\tabc", "abc"),
        ('{"db_password": "correct horse battery", "x": 1}', "horse"),
        ("password='it\\'s a secret' x", "a secret"),
        ('"{\\"password\\": \\"correct horse\\"}"', "horse"),
        ("export MY_PASSWORD=correct horse battery", "battery"),
        ("SERVICE_SECRET=correct horse battery\nnext", "battery"),
        ("password=12", "12"),
        ("Cookie: a=b; session=abcdef", "abcdef"),
        ("https://me:pa55word@", "pa55word"),
    ],
)
def test_text_that_looks_like_a_secret_is_masked(text: str, secret: str) -> None:
    assert secret not in mask(text)


@pytest.mark.parametrize(
    "text",
    [
        "expected 8 results, got 1",
        "Can't pickle local object 'build_token_enforcer_tokenizer_data.<locals>.decode_fn'",
        "unexpected token: something_longer at 3",
        "max_tokens=4096 stop_token_ids=[151643] eos_token: <|endoftext|>",
        "tokenizer: PreTrainedTokenizerFast, tokenizer_pool_size=0",
        "KeyError: 'model.layers.0'",
        "http://127.0.0.1:20000/v1/models",
        "the secret of good tests",
        "https://github.com/vllm-project/vllm/issues/16140",
        "ssh://git@github.com/vllm-project/vllm",
        "http://localhost:8000/v1/@me and http://[::1]:8000/x@y",
        "12 passed, 1 failed; pass: 3",
        "api_key: None, token=True",
        "in KeyError(key='model.layers.0')",
    ],
)
def test_text_of_symptoms_is_not_masked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HARMLESS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MAX_TOKENS", "4096")
    monkeypatch.setenv("SOME_SECRET", "1")  # too short to hide
    assert mask(text) == text


def test_a_line_of_a_multiline_secret_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLS_PRIVATE_KEY", SECRETS["TLS_PRIVATE_KEY"])
    assert "MIIEvQ" not in mask("(worker) MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n")


def test_both_halves_of_a_shortened_repr_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "abcdefghijklmnopqrstuvwxyz")
    assert mask("x = 'yes abcdefghijk...tuvwxyz no'") == f"x = 'yes {HIDDEN}...{HIDDEN} no'"
    assert mask("abc...xyz") == "abc...xyz"  # too little to tell


def test_secrets_passed_to_a_child_are_masked() -> None:
    register_all(
        {
            "MY_TOKEN": "handed-over",
            "VLLM_USE_V1": "1",
            "TOKENS": "123456",
            "INDEX": "https://me:pa55word@x/",
        }
    )
    assert mask("handed-over 123456") == f"{HIDDEN} 123456"
    assert is_secret("INDEX", "https://me:pa55word@x/")
    assert register("") == ""
    assert mask("nothing") == "nothing"


@given(st.text(min_size=6, alphabet=st.characters(exclude_categories=["Cs"])), st.text(), st.text())
def test_no_registered_secret_survives(secret: str, before: str, after: str) -> None:
    masking._known.clear()
    register(secret)
    masked = mask(before + secret + after)
    assert secret in HIDDEN or secret not in masked.replace(HIDDEN, "\0")
    assert mask(masked) == masked or HIDDEN in masked


@pytest.mark.parametrize("part", list(HOSTILE.values()), ids=list(HOSTILE))
def test_masking_is_linear_for_any_text(part: str) -> None:
    """Guards against quadratic patterns."""
    small, large = (
        min(seconds(part * (size // len(part))) for _ in range(2)) for size in (20_000, 160_000)
    )
    assert large < 0.1 or large < 20 * small, (small, large)


def test_a_large_log_is_masked_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "hunter2!")
    assert (
        min(seconds(log(1_000_000)) for _ in range(3)) < 0.5
    )  # benchmarks/masking.py: ten times as much within 1 s


def test_short_and_numeric_values_are_masked_as_whole_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIN_PASSWORD", "4711")
    assert mask("pin 4711, port 47110, [4711]") == f"pin {HIDDEN}, port 47110, [{HIDDEN}]"


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.integers(1, 9))
def test_chunk_boundaries_do_not_change_the_result(text: str, size: int) -> None:
    whole = mask(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanner, "_CHUNK", size)
        assert mask(text) == whole


@given(
    st.text(),
    st.sampled_from(
        ["password='", "://a:", "Cookie: ", "--token ", "...", "-----BEGIN PRIVATE KEY-----"]
    ),
    st.text(),
)
def test_any_text(before: str, word: str, after: str) -> None:
    mask(before + word + after)
