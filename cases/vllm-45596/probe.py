"""Send a request to the server's application, without a server. Runs in the target interpreter."""


def versions():
    """Return the versions of fastapi and of the package that measures its requests."""
    from importlib.metadata import version

    return [version("fastapi"), version("prometheus-fastapi-instrumentator")]


def status_of(path):
    """Return the status with which vLLM's application answers a GET request."""
    import inspect

    from fastapi.testclient import TestClient
    from vllm.entrypoints.openai import api_server
    from vllm_regress_target.dialect.commandline import serve_parser

    arguments = [serve_parser().parse_args([])]
    if "supported_tasks" in inspect.signature(api_server.build_app).parameters:
        arguments.append(("generate",))
    return TestClient(api_server.build_app(*arguments)).get(path).status_code
