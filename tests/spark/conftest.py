"""One Spark session for all tests of a process: starting one takes seconds."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import session as new_session

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'penstock[spark]'")


# Spark's workers import the test modules to find the functions that tests define.
TESTS = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))

# The tests run little work in many short processes, so optimising Java compilation would not pay off.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

SMALL = {
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": False,
}
"""For some hundred rows: compiling Java for a query, or planning a query anew while it runs, takes longer than running
it. Commands of tests do both."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of Spark and py4j that Penstock cannot fix."""
    for item in items:
        if "tests/spark" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Local, two cores, Penstock's data sources registered."""
    made = new_session("local[2]", app="penstock-tests", **SMALL)
    yield made
    made.stop()
