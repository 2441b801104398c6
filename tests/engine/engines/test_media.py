"""Images on the simulated device: their pixels count, not only their sizes."""

from __future__ import annotations

import pytest

from tests.helpers.environments import require_environment

TESTS = """
    import pytest
    from pytest_vllm_regress import png_url

    @pytest.mark.vllm_engine(front="serve", generation="GENERATION", model="vision")
    def test_pixels(vllm_server):
        def answer(colour, **options):
            image = {"type": "image_url", "image_url": {"url": png_url(56, 56, colour=colour)}}
            content = [image, {"type": "text", "text": "What is it?"}]
            body = {"max_tokens": 8, "temperature": 0, **options}
            return vllm_server.chat([{"role": "user", "content": content}], **body)["choices"][0]

        red, blue, again = (answer(colour) for colour in (b"\\xff\\0\\0", b"\\0\\0\\xff", b"\\xff\\0\\0"))
        assert red["message"]["content"] == again["message"]["content"]
        assert red["message"]["content"] != blue["message"]["content"]
        scored = answer(b"\\xff\\0\\0", prompt_logprobs=1)
        assert scored["message"]["content"] == red["message"]["content"]
"""


@pytest.mark.engine
@pytest.mark.parametrize(
    ("environment", "generation"),
    [("vllm-0.8.5", "V0"), ("vllm-0.8.5", "V1"), ("vllm-0.33.0", "V1")],
)
def test_the_pixels_of_an_image_decide_the_answer(
    pytester: pytest.Pytester, user_caches: None, environment: str, generation: str
) -> None:
    require_environment(environment)
    pytester.makepyfile(test_media=TESTS.replace("GENERATION", generation))
    result = pytester.runpytest_subprocess("--vllm-env", environment, "test_media.py")
    result.assert_outcomes(passed=1)
