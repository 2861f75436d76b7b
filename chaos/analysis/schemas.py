"""Declared types of what the analysis reads and writes."""

from __future__ import annotations

from pyspark.sql import types as T

#: One row per event, as `chaos.history.SCHEMA` writes them.
EVENTS = T.StructType(
    [
        T.StructField("run_id", T.StringType()),
        T.StructField("seed", T.LongType()),
        T.StructField("scenario", T.StringType()),
        T.StructField("ev_seq", T.LongType()),
        T.StructField("proc_id", T.IntegerType()),
        T.StructField("proc_kind", T.StringType()),
        T.StructField("incarnation", T.IntegerType()),
        T.StructField("t_mono_ns", T.LongType()),
        T.StructField("t_lo_us", T.LongType()),
        T.StructField("t_hi_us", T.LongType()),
        T.StructField("kind", T.StringType()),
        T.StructField("queue_id", T.IntegerType()),
        T.StructField("pub_id", T.IntegerType()),
        T.StructField("seq", T.LongType()),
        T.StructField("attempt", T.IntegerType()),
        T.StructField("channel_id", T.LongType()),
        T.StructField("consumer_id", T.IntegerType()),
        T.StructField("delivery_tag", T.LongType()),
        T.StructField("redelivered", T.BooleanType()),
        T.StructField("multiple", T.BooleanType()),
        T.StructField("requeue", T.BooleanType()),
        T.StructField("node_id", T.IntegerType()),
        T.StructField("epoch", T.IntegerType()),
        T.StructField("fault_id", T.IntegerType()),
        T.StructField("result", T.LongType()),
        T.StructField("bytes", T.IntegerType()),
        T.StructField("crc_ok", T.BooleanType()),
        T.StructField("err", T.StringType()),
        T.StructField("detail", T.StringType()),
    ]
)

#: Which attempt to publish which message to which queue.
ATTEMPT_KEY = ["queue_id", "pub_id", "seq", "attempt"]
#: Which message, whatever the attempt.
MESSAGE_KEY = ["queue_id", "pub_id", "seq"]
