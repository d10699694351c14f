"""Runs `penstock` and kills its own process at a step, as with kill -9.

pipeline_driver.py STEP COUNT KINDS ARGUMENTS...: only derivations of these kinds exist; commas separate the kinds.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from integration.archive_writer import Killer
from penstock.cli.main import main
from penstock.cli.pipeline import run as pipeline_run
from penstock.spark.pipeline.archive import commits
from penstock.spark.pipeline.derive import DERIVATIONS

if __name__ == "__main__":
    step, count, kinds = sys.argv[1:4]
    del sys.argv[1:4]
    commits.reached = Killer(step, int(count))
    pipeline_run.DERIVATIONS = tuple(each for each in DERIVATIONS if type(each).__name__ in kinds.split(","))
    main()
