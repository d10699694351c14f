"""Rules of the code that linters do not check."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "penstock"

CORES = (
    "admin", "assured", "engine", "feed", "filter", "plant", "security", "middleware", "journal", "topics", "tree",
    "wire", "model",
)  # fmt: skip
"""Packages whose Python code must be deterministic: clocks, randomness and I/O are passed in."""

FORBIDDEN_IN_CORES = {
    "asyncio", "concurrent", "datetime", "multiprocessing", "os", "random", "secrets", "select", "selectors",
    "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip

ALLOWED = {
    # an expression's TIMESTAMP literal is parsed, no clock is read
    ("topics", "datetime"),
    ("model", "datetime"),
    ("feed", "datetime"),
    # the midnight of a given trading date
    ("convert", "datetime"),
    # reads when a subscription begins
    ("web", "datetime"),
    # reads the dates of a policy document, not a clock
    ("security", "datetime"),
}

ENTRY_POINTS = {
    "penstock.cli.main",
    "penstock.engine.client.offload.process",
    "penstock.demo.booking",
    "penstock.demo.consumer",
    "penstock.demo.pipeline",
    "penstock.demo.subscriber",
    "penstock.node.roles",
    "penstock.web.live.process",
}


def python_files(package: str = "") -> list[Path]:
    return sorted((SOURCE / package).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module a file imports, also inside functions; `from a import b` counts as a and a.b."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def is_driver(path: Path) -> bool:
    """True if a file may do I/O: it is below `live/` or `client/`, and not below a `core/`."""
    folders = path.relative_to(SOURCE).parts[1:-1]
    return "core" not in folders and not {"live", "client"}.isdisjoint(folders)


def assert_deterministic(path: Path) -> None:
    package = path.relative_to(SOURCE).parts[0]
    roots = {name.split(".")[0] for name in imports(path)}
    bad = {root for root in roots & FORBIDDEN_IN_CORES if (package, root) not in ALLOWED}
    assert not bad, f"{path.relative_to(SOURCE)} imports {', '.join(sorted(bad))}: pass it in instead"


@pytest.mark.parametrize("package", CORES)
def test_cores_import_no_clock_socket_random_or_thread(package: str) -> None:
    for path in python_files(package):
        if not is_driver(path):
            assert_deterministic(path)


def test_core_folders_import_no_clock_socket_random_or_thread() -> None:
    """In every package, also in one that does I/O elsewhere."""
    cores = list(filter(is_core, python_files()))
    packages = {path.relative_to(SOURCE).parts[0] for path in cores}
    assert packages >= {"assured", "capture", "convert", "filter", "net", "plant", "top", "tree", "web"}
    for path in cores:
        assert_deterministic(path)


def is_core(path: Path) -> bool:
    return "core" in path.relative_to(SOURCE).parts[:-1]


def test_cores_import_no_drivers() -> None:
    """A core imports nothing below `live/`, and nothing below `client/` but a client's core."""
    for path in filter(is_core, python_files()):
        for name in imports(path):
            folders = name.split(".")[2:]
            is_of_driver = "core" not in folders and not {"live", "client"}.isdisjoint(folders)
            assert not is_of_driver, f"{path.relative_to(SOURCE)} imports {name}"


def test_no_file_is_dead() -> None:
    used = set(ENTRY_POINTS)
    for path in python_files():
        used |= imports(path)
    for text in compiled_texts():
        used |= set(re.findall(r"^from ([\w.]+) import", text, flags=re.MULTILINE))
    benches = set(re.findall(r'Bench\(\s*"([\w.]+)"', (SOURCE / "bench" / "catalogue.py").read_text()))
    used |= {f"penstock.bench.{name}" for name in benches}
    used |= {f"penstock.cli.{place.partition(':')[0]}" for place in COMMANDS.values()}
    texts = compiled_texts()
    for path in SOURCE.rglob("*.pyx"):
        name = module_name(path)
        is_cimported = any(f"cimport {path.stem}" in text or f"{name} cimport" in text for text in texts)
        assert name in used or is_cimported, f"nothing imports {path.relative_to(SOURCE)}"
    for path in python_files():
        if path.name != "__init__.py":
            assert module_name(path) in used, f"nothing imports {path.relative_to(SOURCE)}"


def compiled_texts() -> list[str]:
    return [path.read_text() for path in SOURCE.rglob("*.pyx")]


def test_every_compiled_module_is_typed() -> None:
    for path in SOURCE.rglob("*.pyx"):
        assert path.with_suffix(".pyi").exists(), f"{path.relative_to(SOURCE)} has no .pyi"


def test_every_package_has_a_docstring() -> None:
    for path in SOURCE.glob("*/__init__.py"):
        docstring = ast.get_docstring(parsed(path))
        assert docstring, f"{path.relative_to(SOURCE)} has no docstring"


PLACEHOLDERS = {"toy.py", "_name.pyx"}
"""Files of examples in docstrings."""


def test_every_file_that_a_comment_names_exists() -> None:
    """A name with a folder is a path below src/penstock, the package or the project; one without is a file of the same
    package or of base."""
    paths = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.*") if path.suffix != ".so"]
    for path in (each for each in SOURCE.rglob("*.p*") if each.suffix in (".py", ".pyx", ".pxd", ".pyi")):
        package = path.relative_to(SOURCE).parts[0]
        for name in re.findall(r"(?<![\w.*{/-])((?:[\w-]+/)*_?[a-z]\w*\.(?:pyx|pxd|py))\b(?!\()", path.read_text()):
            own = [
                each for each in paths if f"/{each}".endswith(f"/{name}") and each.startswith((f"{package}/", "base/"))
            ]
            is_known = name in PLACEHOLDERS or own or name in paths or (SOURCE.parents[1] / name).exists()
            assert is_known, f"{path.relative_to(SOURCE)} names {name}, which does not exist"


def test_production_does_not_import_the_simulator() -> None:
    for path in python_files():
        package = path.relative_to(SOURCE).parts[0]
        if package not in ("sim", "cli", "bench"):
            assert not any(name.startswith("penstock.sim") for name in imports(path)), path


def test_nothing_fails_silently() -> None:
    for path in python_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ExceptHandler):
                is_silent = node.type is None or all(isinstance(each, ast.Pass) for each in node.body)
                assert not is_silent, f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_importing_starts_nothing(project: Path) -> None:
    """Counted in a new interpreter: no thread, no open socket."""
    script = """
import os, threading
import penstock, penstock.journal, penstock.middleware, penstock.model, penstock.net, penstock.topics, penstock.wire
import penstock.net.live.handover, penstock.shm
paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
links = [os.readlink(path) for path in paths if os.path.lexists(path)]
assert threading.active_count() == 1
assert not [link for link in links if link.startswith("socket")], links
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=project, timeout=60)
