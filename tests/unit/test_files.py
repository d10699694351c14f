"""Files and directories that only their owner can use, whatever the umask is (AUTH-7)."""

import grp
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.base import files
from penstock.base.errors import ConfigurationError
from penstock.base.files import (
    GROUP_VARIABLE,
    create_file,
    create_or_open,
    make_directory,
    share_with_group,
    write_file,
)

pytestmark = pytest.mark.spec("AUTH-7")


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o777])
def umask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(GROUP_VARIABLE, raising=False)
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_created_directory_belongs_to_its_owner_and_others_keep_their_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_directory(tmp_path / "a" / "b" / "c")
    make_directory(tmp_path / "a" / "b" / "c")
    assert [mode(tmp_path / each) for each in ("", "a", "a/b", "a/b/c")] == [0o755, 0o700, 0o700, 0o700]
    write_file(tmp_path / "file", b"")
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_directory(tmp_path / "file" / "below")


def test_created_files_belong_to_their_owner_and_existing_files_keep_their_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    os.close(create_or_open(path, os.O_RDWR))
    assert mode(path) == 0o600
    path.chmod(0o644)
    write_file(path, b"content")
    assert (path.read_bytes(), mode(path)) == (b"content", 0o644)
    create_file(path)
    assert (path.read_bytes(), mode(path)) == (b"", 0o644)
    with pytest.raises(FileExistsError):
        create_or_open(path, os.O_RDWR | os.O_EXCL)
    descriptor = create_or_open(path, os.O_WRONLY | os.O_APPEND)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_a_named_group_may_read_files_created_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = grp.getgrgid(os.getegid()).gr_name
    monkeypatch.setenv(GROUP_VARIABLE, "")
    share_with_group("")
    share_with_group(group)
    make_directory(tmp_path / "shared" / "below")
    write_file(tmp_path / "shared" / "below" / "file", b"content")
    assert [mode(tmp_path / each) for each in ("shared", "shared/below")] == [0o2750, 0o2750]
    found = (tmp_path / "shared" / "below" / "file").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o640, os.getegid())


def test_an_unknown_group_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown group 'nobody-has-this'"):
        share_with_group("nobody-has-this")
    monkeypatch.setenv(GROUP_VARIABLE, "nobody-has-this")
    with pytest.raises(ConfigurationError, match="unknown group"):
        write_file(tmp_path / "file", b"")


ELSEWHERE = {
    "base/files.py": "the place itself",
    "net/secret.py": "secrets: always mode 600, never for a group",
    "net/live/unix.py": "directories of sockets: always mode 700, never for a group",
    "topics/groups.py": "the map of topics to groups, which every node reads",
    "spark/session.py": "a script that starts Java",
    "demo/layout.py": "documents of a demonstration, in its own directory of mode 700",
}
MAKES = re.compile(
    r"O_CREAT|os\.makedirs|os\.mkdir|\.mkdir\(|\.touch\(|write_text\(|write_bytes\(|open\([^()]*[\"'][wax]b?\+?[\"']"
)


def test_no_other_code_creates_files() -> None:
    root = Path(penstock.__file__).parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        lines = [line.strip() for line in path.read_text().splitlines() if MAKES.search(line)]
        lines = [line for line in lines if "create_or_open(" not in line]
        if lines and name not in ELSEWHERE and not name.startswith(("bench/", "sim/")):
            found[name] = lines
    assert found == {}, f"use {files.__name__}"
