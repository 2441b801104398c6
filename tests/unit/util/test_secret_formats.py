"""Secrets of many vendors are masked in many contexts; ordinary lines of logs stay as they are."""

from __future__ import annotations

import json
import random
import string

import pytest

from pytest_vllm_regress.util import masking
from pytest_vllm_regress.util.masking import HIDDEN, mask

LOWER, UPPER, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
HEX = DIGITS + "abcdef"
ANY = LOWER + UPPER + DIGITS
CONTEXTS = (
    "{}",
    "the token is {}.",
    "got '{}'",
    '{{"x": "{}"}}',
    "{{'x': ['{}', 1]}}",
    "x={}, y=1",
    "\x1b[1;32m{}\x1b[0m",
    "\x1b[m{}",
    '"first line\\n{} second"',
    "?x%3D{}",
    "({})",
    "a\n{}\nb",
)


@pytest.fixture(autouse=True)
def no_known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_known", set())


def some(length: int, alphabet: str = ANY, seed: int = 0) -> str:
    """Return the same characters for the same arguments.

    They are drawn, so that no scanner of repositories finds a secret in this file.
    """
    draw = random.Random(f"{length} {alphabet} {seed}")
    text = "".join(draw.choice(alphabet) for _ in range(length))
    return text if not set(DIGITS) & set(alphabet) else text[:-2] + "7" + text[-1]


# A prefix, and what follows it.
TOKENS = {
    "hugging face": ("hf" + "_", some(34)),
    "hugging face, organization": ("api" + "_org_", some(34)),
    "openai": ("sk" + "-", some(48)),
    "openai, project": ("sk" + "-proj-", some(60, ANY + "_-")),
    "anthropic": ("sk" + "-ant-api03-", some(90, ANY + "_-")),
    "openrouter": ("sk" + "-or-v1-", some(64, HEX)),
    "nvidia": ("nv" + "api-", some(64, ANY + "_-")),
    "groq": ("gs" + "k_", some(52)),
    "replicate": ("r" + "8_", some(37)),
    "perplexity": ("pp" + "lx-", some(48)),
    "xai": ("xa" + "i-", some(80)),
    "together": ("tg" + "p_v1_", some(43, ANY + "_-")),
    "cerebras": ("cs" + "k-", some(48)),
    "pinecone": ("pc" + "sk_", some(5) + "_" + some(63)),
    "langsmith": ("lsv2" + "_pt_", some(32, HEX) + "_" + some(10, HEX)),
    "tavily": ("tv" + "ly-", some(32)),
    "jina": ("ji" + "na_", some(60)),
    "runpod": ("rp" + "a_", some(40, UPPER + DIGITS)),
    "github": ("gh" + "p_", some(36)),
    "github, application": ("gh" + "s_", some(36)),
    "github, fine-grained": ("github" + "_pat_", some(22) + "_" + some(59)),
    "gitlab": ("gl" + "pat-", some(20, ANY + "_-")),
    "gitlab, deploy": ("gl" + "dt-", some(20, ANY + "_-")),
    "gitlab, runner": ("gl" + "rt-", some(20, ANY + "_-")),
    "gitlab, job": ("gl" + "cbt-64_", some(20, ANY)),
    "pypi": ("py" + "pi-AgEIcHlwaS5vcmc", some(80, ANY + "_-")),
    "npm": ("np" + "m_", some(36)),
    "rubygems": ("ruby" + "gems_", some(48, HEX)),
    "nuget": ("oy" + "2", some(43, LOWER + DIGITS)),
    "crates.io": ("ci" + "o", some(32)),
    "docker hub": ("dckr" + "_pat_", some(27, ANY + "_-")),
    "sonarqube": ("sq" + "u_", some(40, HEX)),
    "sourcegraph": ("sg" + "p_", some(40, HEX)),
    "figma": ("fi" + "gd_", some(40, ANY + "_-")),
    "buildkite": ("bk" + "ua_", some(40, HEX)),
    "bitbucket": ("AT" + "BB", some(32)),
    "atlassian": ("ATATT" + "3xFfGF0", some(180, ANY + "_-")),
    "artifactory": ("AK" + "C", some(69)),
    "aws": ("AK" + "IA", some(16, UPPER + DIGITS)),
    "aws, temporary": ("AS" + "IA", some(16, UPPER + DIGITS)),
    "google": ("AI" + "za", some(35, ANY + "_-")),
    "google, access": ("ya" + "29.", some(120, ANY + "_-")),
    "google, client secret": ("GOC" + "SPX-", some(28, ANY + "_-")),
    "google, refresh": ("1/" + "/0", some(60, ANY + "_-")),
    "alibaba": ("LT" + "AI", some(20)),
    "databricks": ("da" + "pi", some(32, HEX)),
    "databricks, numbered": ("da" + "pi", some(32, HEX) + "-2"),
    "digitalocean": ("dop" + "_v1_", some(64, HEX)),
    "vault": ("hv" + "s.", some(90, ANY + "_-")),
    "terraform cloud": (some(14) + ".atlas" + "v1.", some(64, ANY + "_-")),
    "doppler": ("dp" + ".pt.", some(43)),
    "dynatrace": ("dt0" + "c01.", some(24, UPPER + DIGITS) + "." + some(64, UPPER + DIGITS)),
    "heroku": ("HR" + "KU-", some(60, ANY + "_-")),
    "fly": ("fo" + "1_", some(43, ANY + "_-")),
    "supabase": ("sb" + "p_", some(40, HEX)),
    "tailscale": ("ts" + "key-auth-", some(17) + "-" + some(32)),
    "planetscale": ("pscale" + "_tkn_", some(43, ANY + "_-")),
    "grafana": ("gl" + "sa_", some(32) + "_" + some(8, HEX)),
    "sentry": ("sntr" + "yu_", some(64, HEX)),
    "new relic": ("NR" + "AK-", some(27, UPPER + DIGITS)),
    "postman": ("PM" + "AK-", some(24, HEX) + "-" + some(34, HEX)),
    "linear": ("lin" + "_api_", some(40)),
    "notion": ("nt" + "n_", some(46)),
    "airtable": ("pa" + "t" + some(14) + ".", some(64, HEX)),
    "stripe": ("sk" + "_live_", some(24)),
    "stripe, restricted": ("rk" + "_live_", some(24)),
    "stripe, test": ("sk" + "_test_", some(24)),
    "stripe, webhook": ("wh" + "sec_", some(32)),
    "square": ("sq" + "0csp-", some(43, ANY + "_-")),
    "shopify": ("shp" + "at_", some(32, HEX)),
    "razorpay": ("rzp" + "_live_", some(14)),
    "sendgrid": ("S" + "G.", some(22, ANY + "_-") + "." + some(43, ANY + "_-")),
    "brevo": ("xkeys" + "ib-", some(64, HEX) + "-" + some(16)),
    "mailgun": ("ke" + "y-", some(32, HEX)),
    "mailchimp": ("", some(32, HEX) + "-us" + "12"),
    "twilio": ("S" + "K", some(32, HEX)),
    "slack": ("xo" + "xb-", some(12, DIGITS) + "-" + some(12, DIGITS) + "-" + some(24)),
    "slack, application": (
        "xa" + "pp-1-",
        some(11, UPPER) + "-" + some(13, DIGITS) + "-" + some(64, HEX),
    ),
    "discord": ("M" + some(25), "." + some(6) + "." + some(38, ANY + "_-")),
    "telegram": (some(10, DIGITS) + ":", some(35, ANY + "_-")),
    "json web token": (
        "ey" + "J",
        some(33) + "." + some(70, ANY + "_-") + "." + some(43, ANY + "_-"),
    ),
    "age": ("AGE-SECRET" + "-KEY-1", some(58, UPPER + DIGITS)),
    "weights & biases": ("wandb" + "_v1_", some(60)),
    "posthog": ("ph" + "c_", some(43)),
    "fireworks": ("f" + "w_", some(24)),
    "firecrawl": ("f" + "c-", some(32, HEX)),
    "resend": ("r" + "e_", some(8) + "_" + some(24)),
    "amazon marketplace": ("amzn" + ".mws.", some(36, HEX + "-")),
}
S = some(24)
IN_CONTEXT = (
    f"client_secret={S}",
    f'"aws_credential": "{S}"',
    f"Cookie: session={S}; theme=dark",
    f"Set-Cookie: a=b; id={S}",
    f"X-Api-Key: {S}",
    f"proxy-authorization: {S}",
    f"jwt={S}",
    f"DB_PWD={S}",
    f"GITLAB_PAT={S}",
    f"sentry_dsn={S}",
    f"slack_webhook={S}",
    f"mongosh 'mongodb' -u me -p {S} db",
    f"vllm serve m --api-key {S} --port 1",
    f"https://example.org/x?a=1&sig={S}&b=2",
    f"https://example.org/callback?a=1&code={S}",
    f"https://me:{S}@example.org/x",
    f"https://hooks.example.org/services/{S}",
    f"https://example.org/webhook/{S}",
    f'{{"token": "{S}"}}',
    f"{{'token': '{S}'}}",
    json.dumps(json.dumps({"token": S})),
    f'{{"accessToken":"{S}"}}',
    f'{{"SecretAccessKey": "{S}", "SessionToken": "x"}}',
    f'{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{S}"}}}}}}',
    f'{{"openaiApiKey": "{S}"}}',
    f"AutoTokenizer.from_pretrained('m', token='{S}')",
    f"curl -u user:{S} https://example.org",
    f"curl -sS -u 'user:{S}' https://example.org",
    f"curl --user user:{S} -X POST x",
    f"curl --proxy-user=user:{S} x",
    f"['curl', '-u', 'user:{S}', 'https://example.org']",
    f"curl -fsSLu me:{S} x",
    f"GET /blob?sv=2022-11-02&sig={S} HTTP/1.1",
    f"?sig={S}",
    f"/object?X-Amz-Expires=60&X-Amz-Signature={S}",
    f"GET /v1/models?key=1&access_token={S} 200",
    f"AccountName=x;AccountKey={S}==;EndpointSuffix=core.windows.net",
    f"Endpoint=sb://x/;SharedAccessKey={S}",
    f"wandb: {some(40, HEX)}",
    f"wandb login {some(40, HEX)}",
    f"wandb: Appending key for api.wandb.ai to your netrc: {some(40, HEX)}",
    f"machine api.wandb.ai login user password {S}",
    f"machine api.wandb.ai\n  login user\n  password {S}",
    f"mysql -u root -p{S} db",
    f"mysql -u root -p {S} db",
    f"mysqldump --single-transaction -p'{S}' db",
    f"['mariadb', '-p{S}']",
    f"sshpass -p {S} ssh me@host",
    f"docker login -u me -p {S} registry.example.org",
    f"redis-cli -h x -a {S} ping",
    f"openssl rsa -passin pass:{S} -in x",
    f"Authorization: Bearer\n    {S}",
    f"Authorization:\n  Bearer {S}",
    f"curl -H 'Authorization: Bearer \\\n  {S}'",
    f"bearer token:\n{S}",
    f'"Bearer\\n{S}"',
    f"//npm.example.org/:_authToken={S}",
    f"//npm.example.org/:_password={S}",
    f"password = {S}",
    f"api_key: {S}",
    f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{S}\n-----END PGP PRIVATE KEY BLOCK-----",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{S}\n-----END OPENSSH PRIVATE KEY-----",
)
HARMLESS = (
    "cat: /etc/passwd: Zugriff verweigert",
    "GET http://localhost:8000/v1/models@revision",
    # uv, pip and build tools
    "error: unrecognized subcommand '-r /etc/passwd': allowed is a name and a version",
    "the requirement '-r /etc/shadow-password': allowed is NAME==VERSION",
    "/etc/passwd: not valid JSON",
    "tests/data/hf_token: not valid JSON, line 1, column 1",
    "credentials: not valid JSON",
    "api_key: not a string; give one in quotes",
    "cat: /run/secrets/db_password: No such file or directory",
    "Resolved 142 packages in 1.03s",
    "  + secretstorage==3.3.3",
    "  + python-jose==3.3.0, passlib==1.7.4, keyring==25.2.1, bcrypt==4.1.3",
    "Downloading tokenizers-0.19.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl (3.6 MB)",
    "vllm==0.8.4 --hash=sha256:8c1b2a3d4e5f60718293a4b5c6d7e8f90123456789abcdef0123456789abcdef",
    "  × No solution found when resolving dependencies: vllm==0.4.1 depends on torch==2.2.1+cpu",
    "WARNING: Running pip as the 'root' user can result in broken permissions",
    "Building wheel for flash-attn (pyproject.toml): finished with status 'error'",
    "warning: the option --password is deprecated; use --password-stdin",
    "vllm serve: error: argument --api-key: expected at least one argument",
    "usage: vllm serve [--api-key API_KEY] [--hf-token HF_TOKEN] [--ssl-keyfile SSL_KEYFILE]",
    "usage: tool --password PASSWORD --token <token>",
    # git
    "fatal: Authentication failed for 'https://github.com/vllm-project/vllm.git/'",
    "remote: Support for password authentication was removed on August 13, 2021.",
    "fatal: could not read Password: terminal prompts disabled",
    "HEAD is now at 7b5a3c2 [Bugfix] Fix token offset: off by one (#16140)",
    "commit 3f2504e04f8911d39a0c0305e82c33013f2504e0",
    "index 83db48f..bf269f4 100644",
    "warning: credential helper: not set",
    "Author: A. Keymaster <keys@example.org>",
    # pytest
    "FAILED tests/test_auth.py::test_password[no-token] - AssertionError: assert 401 == 200",
    "tests/test_secrets.py::test_password: assertion failed",
    "E       KeyError: 'token'",
    "E       AssertionError: token: expected 3, got 4",
    "    def test_api(api_key: str | None = None, token: Optional[str] = None) -> None:",
    '    api_key = os.environ["OPENAI_API_KEY"]',
    "    hf_token = self.config.hf_token",
    "    password=password, api_key=api_key)",
    "    token = get_token(request)",
    "monkeypatch.setenv('X', 'y'); secret = None",
    "f(api_key=None)",
    "12 passed, 3 skipped, 1 xfailed in 4.51s",
    # vLLM, torch, transformers, Ray
    "INFO 05-03 12:00:00 [api_server.py:1034] vLLM API server version 0.8.4",
    "non-default args: {'model': '/m', 'api_key': None, 'hf_token': None}",
    "Namespace(model='/m', api_key=None, ssl_keyfile=None, hf_token=None)",
    "engine_args: max_num_batched_tokens=2048, skip_tokenizer_init=False, tokenizer_mode='auto', hf_token=None)",
    "Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 3.0 tokens/s",
    '{"token": "Hello", "logprob": -0.25, "bytes": [72, 101]}',
    '{"token":"internationalization","logprob":-1.5,"bytes":null,"top_logprobs":[{"token":"token1234567","logprob":-2.0}]}',
    "{'token': ' the', 'token_id': 262}",
    "ValueError: token_ids: not a list",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings api_key: Field required",
    "auth_token: Input should be a valid string [type=string_type, input_value=None]",
    "secret: extra fields not permitted",
    "access_token: value is not a valid string",
    "Unauthorized: missing bearer authentication in the header",
    "401: the bearer token is missing",
    "OSError: You are trying to access a gated repo. Pass a token having permission to this repo with token=<your_token>",
    "export HF_TOKEN=<your_token>",
    "curl -H 'Authorization: Bearer $TOKEN' http://localhost:8000/v1/models",
    "set --api-key ${API_KEY}, or api_key={api_key}",
    "Special tokens: bos_token: <s>, eos_token: </s>, pad_token: [PAD], sep_token: <|endofprompt|>",
    "stop_token_ids: [151643, 151645], eos_token_id=151645",
    "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00]",
    "KeyError: 'model.layers.0.self_attn.qkv_proj.key_cache_scale_12345678'",
    "torch.compile cache key: computed from config, env, code",
    "kv_cache_dtype=fp8_e4m3 up_proj_weight_layer_12_scale re_entrant_lock_4_of_17_workers",
    "MultiModalProcessorRegistry.create.something_long_enough_to_be_looked_at",
    "docker run --gpus all -u 1000:1000 -p 8000:8000 vllm/vllm-openai --model m",
    "python -u serve.py -p 8000",
    "ray start --head -p 6379 --redis-password: not supported any more",
    "(EngineCore pid=12) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "wandb: Tracking run with wandb version 0.17.0",
    "wandb: WARNING `resume` will be ignored",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "request id: chatcmpl-3f2504e04f8911d39a0c0305e82c3301",
    "GPU 0: NVIDIA H100 (UUID: GPU-3f2504e0-4f89-11d3-9a0c-0305e82c3301)",
    # our own
    "case.toml: symptom.pattern: not a regular expression: missing ), unterminated subpattern at position 3",
    "vllm-17173 in vllm-0.8.4 on sim: REPRODUCED",
    "pytest 'cases/vllm-17173/test_case.py::test_x' --vllm-env 'vllm-0.8.4' --vllm-device sim",
    "pytest 'cases/vllm-17173/test_case.py::test_x' --vllm-env='vllm-0.8.4' --vllm-device sim",
    "environments.toml: key: allowed are cuda, cpu, sim",
    "findings: pass: 3, fail: 1; keys: 12",
)


@pytest.mark.parametrize("vendor", TOKENS)
def test_the_token_of_a_vendor_is_masked_wherever_it_stands(vendor: str) -> None:
    prefix, rest = TOKENS[vendor]
    for context in CONTEXTS:
        masked = mask(context.format(prefix + rest))
        assert rest not in masked and rest[-12:] not in masked, context
        assert HIDDEN in masked


@pytest.mark.parametrize("text", IN_CONTEXT)
def test_a_secret_is_masked_where_only_its_context_tells(text: str) -> None:
    masked = mask(text)
    assert S not in masked and some(40, HEX) not in masked


@pytest.mark.parametrize("text", HARMLESS)
def test_an_ordinary_line_stays(text: str) -> None:
    assert mask(text) == text


def test_the_tables_are_long() -> None:
    assert len(TOKENS) >= 60 and len(set(HARMLESS)) >= 60
