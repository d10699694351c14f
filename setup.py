"""Builds the compiled kernels; everything else about the package is in pyproject.toml.

Each `_name.pyx` below src/penstock is one extension. PENSTOCK_BUILT=1 packages the existing extensions beside their
sources without a build. PENSTOCK_DEBUG=1 builds them with Cython's bounds checks, C
assertions and gcc's address and undefined-behaviour sanitizers, for `make test-debug`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Lock

from Cython.Build import cythonize
from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

SOURCE = Path("src")
IS_BUILT = os.environ.get("PENSTOCK_BUILT") == "1"  # the Makefile has built them: pip need not do it again
DEBUG = os.environ.get("PENSTOCK_DEBUG") == "1"

BUILD = Path("build/cython-debug" if DEBUG else "build/cython")
SHARED = "penstock._cyutility"
"""The module with Cython's utility code (mainly memoryviews), which all extensions share."""

PROGRESS_STEP = 25
"""Where nobody watches a terminal, progress is a line for so many extensions."""

SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize=alignment"]
# -g0: debug information, which Python's flags enable, costs a third of the compile time
COMPILE_ARGS = ["-O1", "-g", "-UNDEBUG", *SANITIZERS] if DEBUG else ["-O3", "-g0"]
WARNINGS = ["-Wall", "-Wno-unused-function", "-Wno-sign-compare", "-Wno-maybe-uninitialized"]
LINK_ARGS = SANITIZERS if DEBUG else []
DIRECTIVES = {
    "language_level": "3",
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "cdivision": True,
    "overflowcheck": False,
    "embedsignature": True,
    "freethreading_compatible": False,
}


class BuildWithExtensions(build_py):
    """Includes the built extensions in the package."""

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        return [*super().find_data_files(package, src_dir), *map(str, Path(src_dir).glob("*.so"))]


class BuildWithProgress(build_ext):
    """Says how many extensions are built, because a first build takes a minute or two."""

    done = 0
    lock = Lock()

    def build_extension(self, ext: Extension) -> None:
        super().build_extension(ext)
        with self.lock:
            self.done += 1
            is_last = self.done == len(self.extensions)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r    {self.done} of {len(self.extensions)} extensions" + "\n" * is_last)
            elif self.done % PROGRESS_STEP == 0 or is_last:
                sys.stderr.write(f"    {self.done} of {len(self.extensions)} extensions\n")
            sys.stderr.flush()


class BuiltDistribution(Distribution):
    """A package with built extensions, and so for this platform only."""

    def has_ext_modules(self) -> bool:
        return True


def headers(source: Path, seen: set[Path]) -> set[str]:
    """The headers of ours that a compiled module includes, by itself or through what it cimports."""
    found: set[str] = set()
    for path in (source.with_suffix(".pyx"), source.with_suffix(".pxd")):
        if path in seen or not path.exists():
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8")
        found |= {str(SOURCE / name) for name in re.findall(r'extern from "(penstock/[^"]+)"', text)}
        for package, names in re.findall(r"^from ([\w.]+) cimport (\([^)]*\)|.*)", text, flags=re.MULTILINE):
            base = SOURCE.joinpath(*package.split("."))
            for module in (base, *(base / name for name in re.findall(r"\w+", names))):
                found |= headers(module, seen)
    return found


def shared_utility() -> Extension:
    source = BUILD / "penstock" / "_cyutility.c"
    source.parent.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        subprocess.run([sys.executable, "-m", "cython", "--generate-shared", str(source)], check=True)
    return Extension(SHARED, [str(source)], extra_compile_args=COMPILE_ARGS, extra_link_args=LINK_ARGS)


def extension(pyx: Path) -> Extension:
    return Extension(
        ".".join(pyx.relative_to(SOURCE).with_suffix("").parts),
        [str(pyx)],
        include_dirs=[str(SOURCE)],
        depends=sorted(headers(pyx, set())),
        extra_compile_args=[*WARNINGS, *COMPILE_ARGS],
        extra_link_args=LINK_ARGS,
    )


setup(
    cmdclass={"build_py": BuildWithExtensions} if IS_BUILT else {"build_ext": BuildWithProgress},
    distclass=BuiltDistribution if IS_BUILT else Distribution,
    ext_modules=cythonize(
        [] if IS_BUILT else [shared_utility(), *map(extension, sorted(SOURCE.rglob("_*.pyx")))],
        compiler_directives=DIRECTIVES,
        include_path=[str(SOURCE)],
        build_dir=str(BUILD),
        shared_utility_qualified_name=SHARED,
        nthreads=os.cpu_count() or 1,
        quiet=True,
    ),
)
