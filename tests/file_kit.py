"""Modes of files, for tests of access rights."""

import stat
from pathlib import Path


def readable_by_others(root: Path) -> list[str]:
    """Each path in and below a directory that other users can access, with its mode; the directory must not be
    empty."""
    found = [root, *root.rglob("*")]
    assert len(found) > 1, f"{root} is empty"
    modes = [(path, stat.S_IMODE(path.stat().st_mode)) for path in found if not path.is_socket()]
    return [f"{path.relative_to(root.parent)} {mode:o}" for path, mode in modes if mode & 0o077]
