"""A real server: refused without the key, and from every other address of the machine."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine

TESTS = """
    import socket
    import httpx, psutil, pytest

    @pytest.mark.vllm_engine(generation="V1")
    def test_key(vllm_server):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": vllm_server.api_key[:-1]}):
            for path in ("/models", "/completions", "/chat/completions"):
                answer = httpx.post(vllm_server.base_url + path, headers=headers, json={}, trust_env=False)
                assert answer.status_code == 401, path
        assert vllm_server.get("/v1/models").status_code == 200

    @pytest.mark.vllm_engine(generation="V1")
    def test_other_addresses(vllm_server):
        port = int(vllm_server.root_url.rpartition(":")[2])
        others = {a.address for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET} - {"127.0.0.1"}
        for address in {*others, "127.0.0.2"}:
            with pytest.raises(OSError):
                socket.create_connection((address, port), timeout=5)

    @pytest.mark.vllm_engine(generation="V1")
    def test_what_the_api_server_listens_on_is_loopback(vllm_server):
        # Of the engine cores torch's rendezvous store listens on every address (SECURITY.md): that is vLLM's.
        server = psutil.Process(vllm_server.child.pid)
        listening = {c.laddr.ip for c in server.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}

    @pytest.mark.vllm_engine(generation="V1")
    def test_key_is_in_no_command_line(vllm_server):
        assert not any(vllm_server.api_key in " ".join(p.cmdline()) for p in vllm_server.child.processes())
"""


@pytest.mark.usefixtures("user_caches")
def test_server_is_refused_to_others(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    pytester.runpytest_subprocess("--vllm-env=vllm-0.8.5", "-p", "no:cacheprovider").assert_outcomes(passed=4)
