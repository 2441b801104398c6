"""The project's own tests."""

import os

# Hypothesis would import trio wherever it is imported, which takes half a second.
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")
