"""Runs `penstock` and kills its own process, as with kill -9, at a step: pipeline_driver.py STEP COUNT ARGUMENTS..."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from integration.archive_writer import Killer
from penstock.cli.main import main
from penstock.spark.pipeline import commits

if __name__ == "__main__":
    step, count = sys.argv[1:3]
    del sys.argv[1:3]
    commits.reached = Killer(step, int(count))
    main()
