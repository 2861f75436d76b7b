"""What stays of a judgement beside the record: every finding, and the judgement itself."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from chaos.judge import judgement_file
from chaos.judge.judgement import Judgement
from chaos.spark_judge.judge import judged
from chaos.spark_judge.record import read_events, read_facts

FINDINGS_DIRECTORY = "findings"


def judge_run(spark: SparkSession, run_uri: str, facts_uri: str) -> Judgement:
    """Judge a run, and write all findings and the judgement beside its record."""
    with judged(read_events(spark, run_uri), read_facts(spark, facts_uri)) as found:
        written = f"{run_uri}/{FINDINGS_DIRECTORY}"
        found.findings.write.mode("overwrite").parquet(written)
        judgement = found.judgement(spark.read.schema(found.findings.schema).parquet(written))
    _write(spark, run_uri, judgement)
    return judgement


def _write(spark: SparkSession, run_uri: str, judgement: Judgement) -> None:
    parts = urlsplit(run_uri)
    if parts.scheme == "file":
        judgement_file.write(judgement, Path(unquote(parts.path)))
        return
    context = spark.sparkContext
    hadoop = context._jvm.org.apache.hadoop  # type: ignore[union-attr]
    path = hadoop.fs.Path(f"{run_uri}/{judgement_file.FILE_NAME}")
    stream = path.getFileSystem(context._jsc.hadoopConfiguration()).create(path, True)
    stream.write(bytearray(judgement_file.text_of(judgement).encode()))
    stream.close()
