"""The notebook in examples/, executed beside a plant made by `penstock init`.

python tests/notebook_kit.py    # execute it, and store the outputs
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from children import child_environment
from first_plant_kit import FirstPlant, first_plant
from penstock.demo.ports import FIRST_DEFAULT

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "notebook.ipynb"
CELL_SECONDS = 240


def execute(plant: FirstPlant) -> Any:
    """The notebook with the outputs of this plant. Raises CellExecutionError if a cell fails."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for each in notebook.cells:
        each.source = plant.moved(each.source)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        startup_timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(plant.home)}},
    )
    own = {name: str(plant.home / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")}
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *sys.path]))
    client.execute(env=child_environment(**plant.variables, **own, PYTHONPATH=path))
    return notebook


def output_types(notebook: Any) -> list[list[str]]:
    """The kinds of output of each cell."""
    return [[output.output_type for output in each.get("outputs", [])] for each in notebook.cells]


def restored(text: str, plant: FirstPlant) -> str:
    """The text with the documented ports in place of the plant's."""
    ports = {str(plant.first + number): str(FIRST_DEFAULT + number) for number in range(100)}
    return re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda found: ports.get(found[0], found[0]), text)


def store() -> None:
    with tempfile.TemporaryDirectory() as home, first_plant(Path(home)) as plant:
        notebook = execute(plant)
        for each in notebook.cells:
            each.metadata.pop("execution", None)  # times of the day
        NOTEBOOK.write_text(restored(nbformat.writes(notebook), plant) + "\n")


if __name__ == "__main__":
    store()
