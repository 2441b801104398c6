"""Runs under the target interpreter (Python 3.9 and later): the agent, its children, the dialect and the simulated device."""

from typing import Dict


class Unsupported(Exception):
    """The installed vLLM, or the device, does not have what is asked for; the test is then skipped. A probe may raise it too.

    ``since`` and ``until`` say which versions of vLLM have it, for example "0.9.2"; ``device`` which device cannot do it; ``needs`` what must be
    installed; ``refused_by`` which installed version refuses it in its own words. A case is not applicable only where one of them is given.
    """

    def __init__(
        self, message: str, since: str = "", until: str = "", device: str = "", needs: str = "", refused_by: str = ""
    ) -> None:
        super().__init__(message)
        given = {"since": since, "until": until, "device": device, "needs": needs, "refused_by": refused_by}
        self.claim: Dict[str, str] = {name: text for name, text in given.items() if text}


class WrongRequest(Exception):
    """The test asked for something that no known vLLM has: an error of whoever wrote it."""
