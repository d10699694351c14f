"""Counters, metrics, logs and the endpoint: one vocabulary, nothing secret."""

import io
import json
import urllib.error
import urllib.request

import pytest

from penstock.base import log
from penstock.base.counters import CATALOGUE, Cause, Counters
from penstock.base.endpoint import Endpoint, Health
from penstock.base.errors import ConfigurationError, LocalProtocolError
from penstock.base.metrics import Metrics


def test_counters_sum_over_causes() -> None:
    counters = Counters("receiver", node="a")
    counters.add("packets_dropped", cause=Cause.CHECKSUM)
    counters.add("packets_dropped", 2, cause=Cause.DUPLICATE)
    assert counters["packets_dropped"] == 3
    assert counters.by_cause("packets_dropped") == {"checksum": 1, "duplicate": 2}
    assert counters["packets_sent"] == 0


def test_a_counter_outside_the_catalogue_is_a_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="CATALOGUE"):
        Counters("receiver").add("made_up")


@pytest.mark.spec("OPS-1")
def test_endpoint_shows_every_counter_with_its_cause_and_the_health() -> None:
    counters = Counters("receiver", node="a")
    for name in CATALOGUE:
        counters.add(name, cause=Cause.CHECKSUM)
    metrics = Metrics()
    metrics.register(counters)
    metrics.register(Counters("publisher", group="239.1.1.1"))
    health = Health(True)
    with Endpoint(metrics, lambda: health) as endpoint:
        text = fetch(f"{endpoint.url}/metrics")[1]
        for name in CATALOGUE:
            assert f'penstock_{name}_total{{cause="checksum",component="receiver",group="",node="a"}} 1.0' in text
        assert fetch(f"{endpoint.url}/health") == (200, '{"is_healthy":true,"detail":""}')
        health = Health(False, "the feed is silent")
        assert fetch(f"{endpoint.url}/health") == (503, '{"is_healthy":false,"detail":"the feed is silent"}')
        assert fetch(f"{endpoint.url}/nothing")[0] == 404
        with pytest.raises(ConfigurationError, match="cannot listen"):
            Endpoint(metrics, lambda: health, port=int(endpoint.url.rsplit(":", 1)[1]))


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_forget_what_is_unregistered() -> None:
    counters, metrics = Counters("receiver"), Metrics()
    counters.add("packets_sent")
    metrics.register(counters)
    assert b"penstock_packets_sent_total" in metrics.render()
    metrics.unregister(counters)
    assert b"penstock_packets_sent_total" not in metrics.render()


@pytest.mark.spec("OPS-1")
def test_logs_are_structured_and_keep_secrets() -> None:
    stream = io.StringIO()
    log.configure(style="json", stream=stream)
    log.logger("middleware.receiver").warning("id_collision", publisher_id=7, shared_secret="s3cret", source=("h", 1))
    line = json.loads(stream.getvalue())
    assert line["component"] == "middleware.receiver"
    assert (line["level"], line["event"], line["publisher_id"]) == ("warning", "id_collision", 7)
    assert "s3cret" not in stream.getvalue()


def test_logs_for_people_and_levels() -> None:
    stream = io.StringIO()
    log.configure(style="text", level="INFO", stream=stream)
    log.logger("sim").debug("unseen", n=1)
    log.logger("sim").info("seen", n=2, password="hunter2")
    assert stream.getvalue().endswith("INFO    sim seen n=2 password=(hidden)\n")
    assert "unseen" not in stream.getvalue()
