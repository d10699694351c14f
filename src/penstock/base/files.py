"""Files and directories that only their owner can use, whatever the umask is.

Files are made with mode 600 and directories with mode 700. `share_with_group()`, or the environment variable
PENSTOCK_FILES_GROUP, names a group whose members may read what is made from then on: 640 and 2750 (new files in the
directory belong to the group). What is there already keeps its mode. Secrets are never shared: they are made by
`penstock.net.secret`.
"""

import functools
import grp
import os
from pathlib import Path
from typing import NamedTuple

from penstock.base.errors import ConfigurationError

GROUP_VARIABLE = "PENSTOCK_FILES_GROUP"
HINT = "PENSTOCK_FILES_GROUP, or group in [files] of the plant's document, names a group that this user is a member of"


class Access(NamedTuple):
    """Who may use what is made."""

    file_mode: int
    directory_mode: int
    group_id: int
    """-1: as the system chooses."""


@functools.lru_cache(maxsize=8)
def _access_of(group: str) -> Access:
    if not group:
        return Access(0o600, 0o700, -1)
    try:
        return Access(0o640, 0o2750, grp.getgrnam(group).gr_gid)
    except KeyError:
        raise ConfigurationError(f"there is no group {group!r} on this machine", hint=HINT) from None


def access() -> Access:
    return _access_of(os.environ.get(GROUP_VARIABLE, ""))


def share_with_group(group: str) -> None:
    """Let the members of a group read what this process, and those that it starts, make from now on. An empty name
    changes nothing. ConfigurationError if there is no such group."""
    if group:
        _access_of(group)
        os.environ[GROUP_VARIABLE] = group


def make_directory(path: Path | str) -> None:
    """Make a directory and those above it that are missing; one that is there is left as it is."""
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
    """A descriptor of a file, which is made if there is none; with O_EXCL it must not be there. The descriptor is
    closed in programs that this process starts."""
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
                continue  # it was removed meanwhile
        try:
            chosen = access()
            _give(descriptor, chosen)
            os.fchmod(descriptor, chosen.file_mode)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def create_file(path: Path | str) -> None:
    """An empty file, for a library that is then told to write it; one that is there is emptied."""
    os.close(create_or_open(path, os.O_WRONLY | os.O_TRUNC))


def write_file(path: Path | str, data: bytes) -> None:
    """The file has this content, and nothing else."""
    with open(create_or_open(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(data)


def _give(target: str | int, chosen: Access) -> None:
    if chosen.group_id < 0:
        return
    try:
        os.chown(target, -1, chosen.group_id)
    except PermissionError:
        name = os.environ.get(GROUP_VARIABLE, "")
        raise ConfigurationError(f"files cannot be given to the group {name!r}", hint=HINT) from None
