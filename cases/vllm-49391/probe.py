"""Let vLLM search a growing text for stop strings. Runs in the target interpreter."""

from vllm_regress_target import Unsupported


def stopped(text, stop, step):
    try:
        from vllm.v1.engine.detokenizer import check_stop_strings
    except ImportError:
        check_stop_strings = _older()
    for end in range(step, len(text) + 1, step):
        found = check_stop_strings(text[:end], step, stop, False)
        if found is not None:
            name, length = found
            return [text[:end] if length == -1 else text[:length], name]
    return [text, None]


def _older():
    """Return the function of releases in which it is a static method of another class."""
    try:
        from vllm.engine.output_processor.stop_checker import StopChecker
    except ImportError:
        raise Unsupported("no function for stop strings", lacks="check_stop_strings, StopChecker") from None
    return StopChecker.check_stop_strings
