"""Processes whose system calls fail: syncs from some moment on, and links without a reported result."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SYNCS = """
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(void) { const char *path = getenv("SYNCS_FAIL"); return path && access(path, F_OK) == 0; }
int fsync(int fd) { if (fails()) { errno = EIO; return -1; } return syscall(SYS_fsync, fd); }
int fdatasync(int fd) { if (fails()) { errno = EIO; return -1; } return syscall(SYS_fdatasync, fd); }
"""

LINKS = """
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* LINK_FAILS: what a link to a name *.json returns; LINK_HAPPENS: whether it is made nevertheless */
static int linked(int one, const char *old, int two, const char *new, int flags) {
    const char *fails = getenv("LINK_FAILS"), *happens = getenv("LINK_HAPPENS");
    size_t size = strlen(new);
    if (!fails || size < 5 || strcmp(new + size - 5, ".json")) return syscall(SYS_linkat, one, old, two, new, flags);
    if (happens) syscall(SYS_linkat, one, old, two, new, flags);
    errno = atoi(fails);
    return -1;
}
int link(const char *old, const char *new) { return linked(AT_FDCWD, old, AT_FDCWD, new, 0); }
int linkat(int one, const char *old, int two, const char *new, int flags) { return linked(one, old, two, new, flags); }
"""


def failing_syncs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Applies to processes started from now on, as soon as the file at this path exists."""
    failing = directory / "syncs-fail"
    preload(directory, monkeypatch, SYNCS)
    monkeypatch.setenv("SYNCS_FAIL", str(failing))
    return failing


def preload(directory: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Override functions of the C library with these C functions, in processes started from now on."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt install gcc")
    source, library = directory / "failing.c", directory / "failing.so"
    source.write_text(text)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    before = os.environ.get("LD_PRELOAD", "")  # a sanitizer's runtime must be loaded first
    monkeypatch.setenv("LD_PRELOAD", f"{before} {library}".strip())
