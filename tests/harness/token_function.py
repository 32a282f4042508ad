"""A token provider as an operator would write one: it returns the token in the file that TEST_TOKEN_FILE names."""

import os
import time
from pathlib import Path


def token() -> tuple[str, float]:
    return Path(os.environ["TEST_TOKEN_FILE"]).read_text(), time.time() + 60


def broken() -> tuple[str, float]:
    raise RuntimeError("the-secret")
