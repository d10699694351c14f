"""Processes whose syncs fail from some moment on."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FAILING = """
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(void) { const char *path = getenv("SYNCS_FAIL"); return path && access(path, F_OK) == 0; }
int fsync(int fd) { if (fails()) { errno = EIO; return -1; } return syscall(SYS_fsync, fd); }
int fdatasync(int fd) { if (fails()) { errno = EIO; return -1; } return syscall(SYS_fdatasync, fd); }
"""


def failing_syncs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of processes that are started from now on, as soon as the file of this path is there."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt install gcc")
    source, library, failing = directory / "failing.c", directory / "failing.so", directory / "syncs-fail"
    source.write_text(FAILING)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    before = os.environ.get("LD_PRELOAD", "")  # a sanitizer's runtime has to be the first
    monkeypatch.setenv("LD_PRELOAD", f"{before} {library}".strip())
    monkeypatch.setenv("SYNCS_FAIL", str(failing))
    return failing
