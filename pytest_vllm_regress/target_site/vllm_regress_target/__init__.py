"""Code that runs in the target interpreter (Python 3.9 and later): the agent, its children, the
dialect and the simulated device."""


class Unsupported(Exception):
    """The installed vLLM or the device does not support what the test asks for. The test is
    skipped. Probes may raise it, too.

    ``since`` and ``until``: the first and last version of vLLM that supports it, for example
    "0.9.2". ``lacks``: what was looked up in vLLM and is not there. ``refused_by``: the installed
    version, if it refuses in its own words. ``needs``: the package that must be installed.
    ``device``: the device that does not support it. A case is only marked as not applicable if one
    of them is given.
    """

    def __init__(
        self,
        message: str,
        since: str = "",
        until: str = "",
        device: str = "",
        needs: str = "",
        refused_by: str = "",
        lacks: str = "",
    ) -> None:
        super().__init__(message)
        facts = {
            "since": since,
            "until": until,
            "device": device,
            "needs": needs,
            "refused_by": refused_by,
            "lacks": lacks,
        }
        self.claim: dict[str, str] = {name: text for name, text in facts.items() if text}


class WrongRequest(Exception):
    """The test asked for something that no known vLLM has, so the test is wrong."""
