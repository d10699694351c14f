"""Extension modules: they register feeds that Penstock does not ship.

    load_modules(["toy.py", "acme.feeds"], beside=Path("/etc/penstock"))
    load_entry_points()

A module registers its datagram formats, converter functions and converter tables when it is imported. A configuration,
a table or the command line names a module by its path or dotted name, or the module is installed with an entry point in
the group `penstock.feeds`. Each module is loaded once per process.
"""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterable
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path

from penstock.base.errors import ConfigurationError

GROUP = "penstock.feeds"

_lock = threading.RLock()
_loaded: set[str] = set()


def load_modules(names: Iterable[str], beside: Path = Path()) -> None:
    """Load Python files (names that end in .py, relative to `beside`) and modules by their dotted names."""
    for name in names:
        with _lock:
            if name.endswith(".py"):
                _load_file((beside / name).absolute())
            else:
                _load_named(name)


def absolute_modules(names: Iterable[str], beside: Path = Path()) -> tuple[str, ...]:
    """Return the same modules with absolute paths, so that another process finds them."""
    return tuple(str((beside / name).absolute()) if name.endswith(".py") else name for name in names)


def load_entry_points() -> None:
    """Load all modules that are installed with an entry point in the group `penstock.feeds`."""
    with _lock:
        for each in entry_points(group=GROUP):
            key = f"entry point {each.name} = {each.value}"
            if key in _loaded:
                continue
            _loaded.add(key)
            try:
                each.load()
            except (Exception, SystemExit) as error:
                _loaded.discard(key)
                raise _refused(error, f"entry point {each.name!r} of {GROUP} ({each.value})") from error


def _load_named(name: str) -> None:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _refused(error, f"module {name}") from error


def _load_file(path: Path) -> None:
    key = str(path.resolve())
    if key in _loaded:
        return
    if not path.is_file():
        raise ConfigurationError(
            "there is no such file", where=str(path), hint="give a Python file that registers a feed"
        )
    name = f"penstock_feeds_{sha256(key.encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _loaded.add(key)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        _loaded.discard(key)
        raise _refused(error, str(path)) from error


def _refused(error: BaseException, where: str) -> ConfigurationError:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    line = f" (line {place.tb_lineno})" if place is not None and place.tb_frame.f_code.co_filename in where else ""
    return ConfigurationError(f"cannot load the module: {type(error).__name__}: {error}{line}", where=where)
