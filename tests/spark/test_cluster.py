"""A cluster on this machine, with the package from its wheel: executors run as separate processes.

The long run has a standalone master and two workers; the suite uses Spark's own local-cluster, which starts faster.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pyspark
import pytest

from penstock.net.udp import free_ports
from spark.journal_kit import Publisher, append
from waiting import wait_until

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"

Cluster: TypeAlias = Callable[[Path], AbstractContextManager[str]]

JOB = """
import sys
from pyspark.sql import functions as F
from penstock.spark import session

master, package, journal, folder = sys.argv[1:5]

def where(batches):
    import os, penstock, pyarrow
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"file": [penstock.__file__], "process": [os.getppid()]})

conf = {"spark.driver.host": "127.0.0.1", "spark.executorEnv.PYTHONPATH": package, "spark.cores.max": 2,
        "spark.executor.memory": "512m", "spark.executor.cores": 1}
with session(master, **conf) as spark:
    source = spark.read.format("penstock").option("journal", journal).option("model", "trade").option("partitions", 4)
    print(source.load().agg(F.count("*"), F.sum("quantity")).first())
    stream = spark.readStream.format("penstock").option("journal", journal).option("model", "trade").load()
    query = (stream.select("seq", "quantity").writeStream.format("parquet").trigger(availableNow=True)
             .option("checkpointLocation", folder + "/checkpoint").start(folder + "/out"))
    assert query.awaitTermination(600)
    print(spark.read.parquet(folder + "/out").agg(F.count("*"), F.sum("quantity")).first())
    found = spark.range(0, 8, 1, 8).mapInArrow(where, "file STRING, process BIGINT").distinct().collect()
    print(sorted({row["file"] for row in found}), len({row["process"] for row in found}))
"""


def build_wheel(project: Path, folder: Path) -> Path:
    """The wheel, with the extensions that are already built."""
    copied = folder / "project"
    copied.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(project / name, copied / name)
    shutil.copytree(project / "src" / "penstock", copied / "src" / "penstock")
    subprocess.run(
        [sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", str(folder)],
        cwd=copied, env=os.environ | {"PENSTOCK_BUILT": "1"}, check=True, timeout=300, capture_output=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


@contextmanager
def spark_process(log: Path, *arguments: str) -> Iterator[None]:
    environment = os.environ | {"SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    with (
        log.open("wb") as output,
        subprocess.Popen([str(SPARK_CLASS), *arguments], env=environment, stdout=output, stderr=output) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and two workers with a core each."""
    (port,) = free_ports(1)
    master = f"spark://127.0.0.1:{port}"
    common = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        log = folder / "master.log"
        place = ("org.apache.spark.deploy.master.Master", "--port", str(port))
        stack.enter_context(spark_process(log, *place, *common))
        for number in (1, 2):
            worker = ("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g")
            work = ("--work-dir", str(folder / f"work{number}"), master)
            stack.enter_context(spark_process(folder / f"worker{number}.log", *worker, *common, *work))
        wait_until(lambda: log.read_text().count("Registering worker") == 2, "two workers")
        yield master


@contextmanager
def local_cluster(folder: Path) -> Iterator[str]:
    yield "local-cluster[2,1,512]"


@pytest.mark.spec("PIPE-12")
@pytest.mark.soak
@pytest.mark.parametrize("cluster", [standalone, local_cluster])
def test_batch_and_streaming_on_a_cluster(tmp_path: Path, project: Path, cluster: Cluster) -> None:
    wheel = build_wheel(project, tmp_path)
    assert "cp3" in wheel.name  # for this platform, because the wheel has extensions
    package = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:  # like pip install --no-deps --target
        archive.extractall(package)
    journal = tmp_path / "j.d"
    append(journal, Publisher().packets(5_000))
    script = tmp_path / "job.py"
    script.write_text(JOB)
    environment = os.environ | {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with cluster(tmp_path) as master:
        done = subprocess.run(
            [sys.executable, str(script), master, str(package), str(journal), str(tmp_path)],
            env=environment, capture_output=True, text=True, timeout=900, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    batch, streaming, where = done.stdout.splitlines()
    total = 5_000 * 5_001 // 2
    assert batch == streaming
    assert f"count(1)=5000, sum(quantity)={total}" in batch
    assert where == f"{[str(package / 'penstock' / '__init__.py')]} 2"
