"""Processes that tests start besides the product's: they can import the tests' modules."""

import os
import sys


def child_environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each), **more}
