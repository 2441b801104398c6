"""Create sampling parameters. Runs in the target interpreter."""


def refusal(n):
    from vllm import SamplingParams

    try:
        SamplingParams(n=n)
    except Exception as error:  # not a ValueError in every release
        return str(error)
    return None
