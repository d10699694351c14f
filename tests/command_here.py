"""The command in this process, for tests of its output; tests of its exit and its leftovers need a process."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from click.testing import Result
from typer.testing import CliRunner

from logs import logs_kept
from penstock.cli.main import app, main


def run_here(*arguments: object, columns: int = 160) -> "subprocess.CompletedProcess[str]":
    """`penstock ARGUMENTS`, with the result of subprocess.run(); log destinations are restored afterwards."""
    words = ["penstock", *map(str, arguments)]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
    status: object = 0
    try:
        with (
            logs_kept(),
            patch.object(sys, "argv", words),
            patch.dict("os.environ", COLUMNS=str(columns)),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            main()
    except SystemExit as ended:
        status = ended.code
    return subprocess.CompletedProcess(words, int(str(status or 0)), _text(out), _text(err))


def invoke_here(*arguments: str) -> Result:
    """The same, with errors raised, and in one output."""
    with logs_kept():
        return CliRunner().invoke(app, arguments)


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
