"""``python -m pytest_vllm_regress`` is the command ``vllm-regress``."""

import sys

from .cli import main

sys.exit(main())
