"""A real server rejects requests without the key and does not listen on other addresses of the
machine."""

from __future__ import annotations

import pytest

from tests.helpers.squatters import needs_root

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
        others = {a.address for addresses in psutil.net_if_addrs().values() for a in addresses if a.family == socket.AF_INET} - {"127.0.0.1"}
        for address in {*others, "127.0.0.2"}:
            with pytest.raises(OSError):
                socket.create_connection((address, port), timeout=5)

    @pytest.mark.vllm_engine(generation="V1")
    def test_the_api_server_listens_on_loopback_only(vllm_server):
        # In engine cores, torch's rendezvous store listens on every address (SECURITY.md). vLLM
        # starts it.
        server = psutil.Process(vllm_server.child.pid)
        listening = {c.laddr.ip for c in server.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}

    @pytest.mark.vllm_engine(generation="V1")
    def test_key_is_in_no_command_line(vllm_server):
        assert not any(vllm_server.api_key in " ".join(p.cmdline()) for p in vllm_server.child.processes())
"""


SQUATTED = """
    import pytest
    from pytest_vllm_regress.engines import session
    from pytest_vllm_regress.errors import PortTaken
    from tests.helpers.squatters import NOBODY, squatter

    @pytest.mark.vllm_engine(front="serve", generation="V1", fresh=True)
    @pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
    def test_squatted(request, monkeypatch, tmp_path, host):
        lease = session.lease_port()
        monkeypatch.setattr(session, "lease_port", lambda: lease)
        received = tmp_path / "received"
        with squatter(lease.number, received, host=host), pytest.raises(PortTaken, match=f"uid {NOBODY}"):
            request.getfixturevalue("vllm_server")
        assert received.read_bytes() == b""

    @pytest.mark.vllm_engine(generation="V1")
    def test_every_client_reaches_the_server(vllm_server):
        vllm_server.check()
        assert vllm_server.openai.models.list().data[0].id == vllm_server.model
        assert len(vllm_server.post_all("/v1/completions", [{"model": vllm_server.model, "prompt": "a", "max_tokens": 1}] * 40)) == 40
        vllm_server.metrics()
"""


@needs_root
@pytest.mark.usefixtures("user_caches")
def test_a_server_whose_port_another_user_holds_is_not_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SQUATTED)
    result = pytester.runpytest_subprocess(
        "--vllm-env=vllm-0.8.5",
        "-p",
        "no:cacheprovider",
        "--vllm-timeout=ready=90",
        "--durations=6",
    )
    result.assert_outcomes(passed=4)


@pytest.mark.usefixtures("user_caches")
def test_a_server_is_closed_to_others(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    pytester.runpytest_subprocess(
        "--vllm-env=vllm-0.8.5", "-p", "no:cacheprovider"
    ).assert_outcomes(passed=4)
