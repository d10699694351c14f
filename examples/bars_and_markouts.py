"""From raw ITCH to bars, spreads and markouts, on a laptop. Run it whole, or cell by cell.

    python examples/bars_and_markouts.py

The day is generated on the spot; put the path of a file of yours in its place. For data that is archived already,
read the archive's tables in place of what `normalised` gives: they have the same columns, and the derived
ones are there too.
"""

# %% A Spark session, and a day of ITCH
import tempfile
from pathlib import Path

from pyspark.sql import Window
from pyspark.sql import functions as f

from penstock.feed.generator import GeneratorConfig, ItchGenerator
from penstock.spark import raw, session
from penstock.spark.pipeline.derive import TimeBars, TradeQuote, as_of, derived

SECOND_NS = 1_000_000_000
folder = Path(tempfile.mkdtemp(prefix="penstock-example-"))
day = folder / "day.itch"
generator = ItchGenerator(GeneratorConfig(seed=1, symbols=20, messages=20_000))
with day.open("wb") as file:
    while blocks := bytes(generator.blocks()):
        file.write(blocks)

spark = session()

# %% Source messages become trades and quotes, by the converter table that adapters use
how = {"table": "itch", "date": "2024-01-02", "cache": str(folder / "cache")}
trades = raw.normalised(spark, day, model="trade", **how).cache()
quotes = raw.normalised(spark, day, model="quote", **how).cache()
print(f"{trades.count():,} trades, {quotes.count():,} quotes")  # noqa: T201

# %% Bars of a minute; a bar whose trades were broken later is there twice, the last revision counts
bars = derived(TimeBars(width_ns=60 * SECOND_NS), trade=trades)["bar_time"]
newest = Window.partitionBy("stream", "symbol", "venue", "event_time").orderBy(f.desc("revision"))
bars = bars.withColumn("rank", f.row_number().over(newest)).where("rank = 1").drop("rank").cache()
start = f.timestamp_micros(f.floor(f.col("event_time") / 1000)).alias("start")
bars.orderBy("symbol", "event_time").select("symbol", start, "open", "high", "low", "close", "volume", "vwap").show(5)

# %% What the spread was at each trade, and what was paid beyond the middle
quoted = derived(TradeQuote(), trade=trades, quote=quotes)["trade_quote"]
quoted = quoted.where("action = 'trade' and bid_price is not null and ask_price is not null")
middle = ((f.col("bid_price") + f.col("ask_price")) / 2).cast("double")
sign = f.when(f.col("aggressor") == "buy", 1).when(f.col("aggressor") == "sell", -1)
quoted = quoted.withColumns({"middle": middle, "sign": sign}).where("sign is not null").cache()
spreads = quoted.groupBy("symbol").agg(
    f.avg((f.col("ask_price") - f.col("bid_price")).cast("double")).alias("quoted_spread"),
    f.avg(2 * f.col("sign") * (f.col("price").cast("double") - f.col("middle"))).alias("effective_spread"),
    f.count("*").alias("trades"),
)
spreads.orderBy("symbol").show(5)

# %% Markouts: where the middle was some time after the trade, as seen by whoever took liquidity
markouts = None
for seconds in (1, 10, 60):
    later = as_of(trades.withColumn("event_time", f.col("event_time") + seconds * SECOND_NS), quotes)
    middle_later = ((f.col("bid_price") + f.col("ask_price")) / 2).cast("double").alias("later")
    joined = quoted.select("stream", "seq", "symbol", "middle", "sign").join(
        later.select("stream", "seq", middle_later), ["stream", "seq"]
    )
    gained = f.avg(f.col("sign") * (f.col("later") - f.col("middle"))).alias(f"after_{seconds}_s")
    each = joined.groupBy("symbol").agg(gained)
    markouts = each if markouts is None else markouts.join(each, "symbol")
markouts.orderBy("symbol").show(5)
