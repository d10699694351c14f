"""Files and directories that only their owner can use, regardless of the umask.

Files are created with mode 600 and directories with mode 700. `share_with_group()`, or the environment variable
PENSTOCK_FILES_GROUP, names a group whose members may read files created later: modes 640 and 2750 (new files in the
directory belong to the group). Existing files keep their mode. Secrets are never shared: they are created by
`penstock.net.secret`.
"""

import functools
import grp
import os
from pathlib import Path
from typing import NamedTuple

from penstock.base.errors import ConfigurationError

GROUP_VARIABLE = "PENSTOCK_FILES_GROUP"
HINT = "set PENSTOCK_FILES_GROUP, or group in [files] of plant.toml, to a group that this user is a member of"


class Access(NamedTuple):
    """Access rights of new files and directories."""

    file_mode: int
    directory_mode: int
    group_id: int
    """The group; -1: the system's default."""


@functools.lru_cache(maxsize=8)
def _access_of(group: str) -> Access:
    if not group:
        return Access(0o600, 0o700, -1)
    try:
        return Access(0o640, 0o2750, grp.getgrnam(group).gr_gid)
    except KeyError:
        raise ConfigurationError(f"unknown group {group!r} on this machine", hint=HINT) from None


def access() -> Access:
    return _access_of(os.environ.get(GROUP_VARIABLE, ""))


def share_with_group(group: str) -> None:
    """Let the members of a group read the files that this process and its child processes create from now on. An empty
    name changes nothing. Raises ConfigurationError if there is no such group."""
    if group:
        _access_of(group)
        os.environ[GROUP_VARIABLE] = group


def make_directory(path: Path | str) -> None:
    """Create a directory and its missing parents; an existing directory is left unchanged."""
    path = Path(path)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_directory(path.parent)
        make_directory(path)
        return
    chosen = access()
    _give(str(path), chosen)
    os.chmod(path, chosen.directory_mode)


def create_or_open(path: Path | str, flags: int) -> int:
    """Open a file and return its descriptor. A missing file is created; with O_EXCL the file must not exist. The
    descriptor is not inherited by child processes."""
    flags = (flags | os.O_CLOEXEC) & ~os.O_CREAT
    while True:
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            try:
                return os.open(path, flags)
            except FileNotFoundError:
                continue  # the file was removed meanwhile
        try:
            chosen = access()
            _give(descriptor, chosen)
            os.fchmod(descriptor, chosen.file_mode)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def create_file(path: Path | str) -> None:
    """Create an empty file, for a library that then writes to it; an existing file is truncated."""
    os.close(create_or_open(path, os.O_WRONLY | os.O_TRUNC))


def write_file(path: Path | str, data: bytes) -> None:
    """Write the file with exactly this content."""
    with open(create_or_open(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(data)


def _give(target: str | int, chosen: Access) -> None:
    if chosen.group_id < 0:
        return
    try:
        os.chown(target, -1, chosen.group_id)
    except PermissionError:
        name = os.environ.get(GROUP_VARIABLE, "")
        raise ConfigurationError(f"cannot give files to the group {name!r}", hint=HINT) from None
