"""A trading day, from the exchange's bytes to bars, spreads and markouts. Run the cells in a notebook, or run the file:

python examples/trading_day.py                        # a generated day
python examples/trading_day.py day.itch 2019-01-30    # your own file: NASDAQ TotalView-ITCH 5.0, plain or gzip
"""

# %% A day of ITCH: your own file, or a generated day
import sys
import tempfile
from pathlib import Path

from pyspark.sql import functions as F

import penstock.spark
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.spark import raw
from penstock.spark.pipeline.derive import as_of

if len(sys.argv) == 3:
    day, date = Path(sys.argv[1]), sys.argv[2]
else:
    day, date = Path(tempfile.mkdtemp(prefix="penstock-example-")) / "day.itch", "2024-01-02"
    generator = ItchGenerator(GeneratorConfig(seed=7, symbols=20, messages=100_000))
    with day.open("wb") as file:
        while blocks := bytes(generator.blocks()):
            file.write(blocks)

spark = penstock.spark.session()

# %% Rows, made by the converter table that feed adapters run: the same numbers, the same bytes
trades = raw.normalised(spark, str(day), table="itch", date=date, model="trade").where("action = 'trade'").cache()
quotes = raw.normalised(spark, str(day), table="itch", date=date, model="quote").cache()
print(f"{trades.count():,} trades, {quotes.count():,} quotes")

# %% Minute bars: times are nanoseconds since 1970 in UTC, prices are decimals
minute = F.timestamp_seconds(F.floor(F.col("event_time") / 60_000_000_000) * 60).alias("minute")
bars = trades.groupBy("symbol", minute).agg(
    F.min_by("price", "seq").alias("open"),
    F.max("price").alias("high"),
    F.min("price").alias("low"),
    F.max_by("price", "seq").alias("close"),
    F.sum("quantity").alias("volume"),
    (F.sum(F.col("price") * F.col("quantity")) / F.sum("quantity")).cast("decimal(18,4)").alias("vwap"),
)
bars.orderBy(F.desc("volume"), "symbol").show(5)

# %% The quoted spread in basis points, where both sides are quoted
middle = (F.col("bid_price") + F.col("ask_price")) / 2
spread = quotes.where("bid_price < ask_price").select(
    "symbol", ((F.col("ask_price") - F.col("bid_price")) / middle * 10_000).cast("double").alias("bps")
)
spread.groupBy("symbol").agg(F.percentile("bps", 0.5).alias("median_bps"), F.count("*").alias("quotes")).orderBy(
    F.desc("quotes"), "symbol"
).show(5)

# %% Trading cost: each trade with the quote at the time of the trade, and with the quote one second later
priced = as_of(trades, quotes).where("bid_price < ask_price").withColumn("middle", middle)
later = as_of(trades.withColumn("event_time", F.col("event_time") + 1_000_000_000), quotes)
later = later.select("seq", middle.alias("middle_later"))
sign = F.when(F.col("aggressor") == "buy", 1).when(F.col("aggressor") == "sell", -1)
markouts = priced.join(later, "seq").select(
    "symbol",
    (2 * sign * (F.col("price") - F.col("middle")) / F.col("middle") * 10_000).cast("double").alias("effective_bps"),
    (sign * (F.col("middle_later") - F.col("middle")) / F.col("middle") * 10_000).cast("double").alias("markout_bps"),
)
markouts.groupBy("symbol").agg(
    F.avg("effective_bps").alias("effective_bps"), F.avg("markout_bps").alias("markout_1s_bps"), F.count("*").alias("n")
).orderBy(F.desc("n"), "symbol").show(5)

# %% The end
spark.stop()
if len(sys.argv) != 3:
    day.unlink()
    day.parent.rmdir()
