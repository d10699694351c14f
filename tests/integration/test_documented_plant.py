"""The commands and programs of the documents, typed one after the other beside a plant made by `penstock init`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from children import child_environment
from documents_kit import DOCUMENTS, Block, blocks_of, typed_in, unmatched
from first_plant_kit import FirstPlant, first_plant
from notebook_kit import NOTEBOOK, execute, output_types

PAGES = [page for page in DOCUMENTS if any(block.needs_plant for block in blocks_of(page))]

MADE = ("penstock init plant.d", "penstock up plant.d/plant.toml")
"""Commands that have run before any block: their documented output is compared with what they wrote."""

WIDGETS = "application/vnd.jupyter.widget-state+json"

CHILD = """
import json, sys
space = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "block", "exec"), space)
    print("\\0", flush=True)
"""


class Reader:
    """Runs the commands and programs of a page, in one shell and one Python session."""

    def __init__(self, plant: FirstPlant) -> None:
        self._plant = plant
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = child_environment(PATH=path, COLUMNS="160", **plant.variables)
        self._python: subprocess.Popen[str] | None = None

    def run(self, block: Block) -> str:
        """The first failure; empty if there was none."""
        return self._type(block) if block.kind == "console" else self._execute(block)

    def close(self) -> None:
        if self._python is not None:
            self._python.communicate()

    def _type(self, block: Block) -> str:
        for command, documented in typed_in(block):
            if command in MADE:
                output, status = (self._plant.told, self._plant.up.out)[MADE.index(command)], 0
            else:
                done = subprocess.run(
                    ["bash", "-c", self._plant.moved(command)],
                    cwd=self._plant.home,
                    env=self._environment,
                    capture_output=True,
                    text=True,
                    timeout=120,
                )
                output, status = done.stdout + done.stderr, done.returncode
            documented = [self._plant.moved(line) for line in documented]
            absent = unmatched(documented, output.replace(f"{self._plant.home}/", ""))
            if status or absent:
                return f"$ {command}\nexit status {status}, not in the output: {absent}\n{output[-2_000:]}"
        return ""

    def _execute(self, block: Block) -> str:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", CHILD],
                cwd=self._plant.home,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(self._plant.moved(block.text)) + "\n")
        self._python.stdin.flush()
        said = []
        for line in self._python.stdout:
            if line == "\0\n":
                return ""
            said.append(line)
        return "".join(said)[-2_000:]


@pytest.mark.timeout(600)
def test_everything_that_the_documents_say_works_as_it_is_printed(tmp_path: Path) -> None:
    assert len(PAGES) >= 6
    wrong = []
    with first_plant(tmp_path) as plant:
        for page in PAGES:
            reader = Reader(plant)
            try:
                for block in blocks_of(page):
                    if block.needs_plant and (why := reader.run(block)):
                        wrong.append(f"{block.where}\n{why}")
                        break
            finally:
                reader.close()
        executed = execute(plant)
    stored = nbformat.read(NOTEBOOK, as_version=4)
    assert output_types(executed) == output_types(stored), "run python tests/notebook_kit.py"
    states = [each["state"] for each in executed.metadata.widgets[WIDGETS]["state"].values()]
    (table,) = [each for each in states if "rows" in each]
    assert table["columns"] == ["topic", "seq", "bid_size", "bid_price", "ask_price", "ask_size"]
    assert 1 <= len(table["rows"]) <= 10
    (chart,) = [each for each in states if "series" in each]
    assert [each["name"] for each in chart["series"]] == ["md.us.eq.AAPL.quote"]
    assert not wrong, "\n\n".join(wrong)
