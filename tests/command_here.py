"""The command in this process: for what it says; how it ends and what it leaves behind needs a process of its own."""

import io
import logging
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from penstock.cli.main import main


def run_here(*arguments: object, columns: int = 160) -> "subprocess.CompletedProcess[str]":
    """`penstock ARGUMENTS`, as subprocess.run() would have it; logs go where they went before, afterwards."""
    words = ["penstock", *map(str, arguments)]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
    root = logging.getLogger("penstock")
    before = list(root.handlers), root.level, root.propagate
    status: object = 0
    try:
        with (
            patch.object(sys, "argv", words),
            patch.dict("os.environ", COLUMNS=str(columns)),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            main()
    except SystemExit as ended:
        status = ended.code
    finally:
        root.handlers[:], root.propagate = before[0], before[2]
        root.setLevel(before[1])
    return subprocess.CompletedProcess(words, int(str(status or 0)), _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
