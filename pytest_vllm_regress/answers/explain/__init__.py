"""Explain a log: what went wrong, on which lines, whether it is documented, and what to do about it.

``log.explain`` reads it once. ``log_lines`` selects the lines and says which versions they name;
``json_records`` and ``prefixes`` remove what containers, loggers and people put around them;
``tracebacks`` and ``error_lines`` read the failures. ``case_patterns`` says which cases they show,
``diagnoses`` which known causes; ``failures`` decides which one is the root cause, and
``explanation`` how sure each documented failure is.
"""
