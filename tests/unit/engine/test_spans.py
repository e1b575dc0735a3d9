"""What happened when, by name: bounded, read when somebody asks, and in seconds of the run."""

from __future__ import annotations

from itertools import pairwise
from struct import pack, unpack

import pytest

from offload_runtime.engine.spans import HOST, Spans, Track

CARD = "cuda:0"


class Late:
    """An event that comes when the test says so; nobody may wait for it."""

    def __init__(self, ms: float, past: bool = True) -> None:
        self.ms, self.past = ms, past

    def query(self) -> bool:
        return self.past

    def synchronize(self) -> None:
        assert self.past, "nobody waits for what the device has still to do"

    def elapsed_time(self, end: Late) -> float:
        return end.ms - self.ms


def on_card(spans: Spans, begin: Late, end: Late, name: str = "blocks.0") -> None:
    spans.add(Track.COMPUTE, CARD, "text_encoder", name, begin, end)


def test_a_run_keeps_the_newest_and_says_how_many_have_gone() -> None:
    spans = Spans(limit=100)
    spans.align(CARD, Late(0))
    for n in range(1000):
        on_card(spans, Late(n), Late(n + 0.5), str(n))
        spans.add(Track.LOAD, HOST, "vae", str(n), float(n), float(n + 1))
    kept, unfinished = spans.read()
    assert len(kept) == 100
    assert spans.dropped == 1900
    assert unfinished == 0
    assert {"999"} <= {span.layer for span in kept}
    assert not {"0"} & {span.layer for span in kept}


def test_what_a_device_has_not_done_yet_is_bounded_too() -> None:
    spans = Spans(limit=1000)
    spans.align(CARD, Late(0))
    for n in range(3000):
        on_card(spans, Late(n, past=False), Late(n + 0.5, past=False))
    kept, unfinished = spans.read()
    assert not kept
    assert unfinished == 1000
    assert spans.dropped == 2000


def test_nobody_waits_for_what_is_not_over_and_it_is_there_later() -> None:
    spans, end = Spans(), Late(8, past=False)
    spans.align(CARD, Late(0))
    on_card(spans, Late(0), Late(4))
    on_card(spans, Late(5), end)
    assert [len(spans.read()[0]), spans.read()[1]] == [1, 1]
    end.past = True
    (_, span), unfinished = spans.read()
    assert unfinished == 0
    assert span.seconds == pytest.approx(0.003)


def test_times_count_from_the_beginning_of_the_run_even_where_a_device_tells_few_digits() -> None:
    """CUDA tells milliseconds in single precision: after a hundred seconds that is eight microseconds."""

    class Coarse(Late):
        def elapsed_time(self, end: Late) -> float:
            found: float = unpack("f", pack("f", end.ms - self.ms))[0]
            return found

    spans, step = Spans(limit=100), 100.37
    spans.align(CARD, Coarse(0))
    since = spans.now()
    for n in range(20_000):
        on_card(spans, Coarse(n * step), Coarse(n * step + 1))
    kept, _ = spans.read()
    for before, after in pairwise(kept):
        assert after.begin - before.begin == pytest.approx(step / 1000, abs=1e-6)
    assert kept[-1].begin - since == pytest.approx(19_999 * step / 1000, abs=1e-2)


def test_a_device_that_nobody_has_aligned_and_a_run_that_is_over_keep_nothing() -> None:
    spans = Spans()
    on_card(spans, Late(0), Late(1))
    assert spans.read() == ([], 0)
    spans.align(CARD, Late(0))
    on_card(spans, Late(0), Late(1, past=False))
    spans.add(Track.LOAD, HOST, "vae", "", 0.0, 1.0)
    spans.end()
    spans.add(Track.LOAD, HOST, "vae", "", 0.0, 1.0)
    assert spans.read() == ([], 0)
