"""What was measured, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload_runtime.policy import CardPeak, Measured
from offload_runtime.policy.measured import format_seconds

MIB, GIB = 2**20, 2**30
STREAMED = Measured(
    in_this_run=True,
    calls=1,
    computing=0.372,
    waiting=0.338,
    moments=(0.0, 0.372),
    moved_bytes=512 * MIB,
    layer_runs=24,
    peak_bytes=2 * GIB,
)


def test_time_spent_waiting_for_weights_is_named() -> None:
    assert list(STREAMED.says()) == [
        "computed for 372 ms",
        "338 ms of that waiting for weights",
        "512 MB moved in 24 layer runs",
        "2.00 GB of the device in use at the peak",
    ]


def test_transfers_that_were_not_in_the_way_are_said_not_to_be() -> None:
    assert "transfers did not hold it up" in replace(STREAMED, waiting=0.005).says()


def test_what_was_predicted_is_said_beside_what_was_measured() -> None:
    says = list(replace(STREAMED, predicted=0.38).says())
    assert says[1:3] == ["338 ms of that waiting for weights", "predicted 380 ms"]
    assert "predicted 380 ms" not in replace(STREAMED, predicted=0.38, moments=None).says()


def test_what_was_not_used_in_this_run_says_so_first() -> None:
    assert next(iter(replace(STREAMED, in_this_run=False).says())) == "not used in this run, and before that"


def test_a_device_without_a_clock_tells_bytes_only() -> None:
    says = list(replace(STREAMED, moments=None, peak_bytes=0).says())
    assert says == ["512 MB moved in 24 layer runs"]


def test_steps_and_tiles_are_counted() -> None:
    assert next(iter(replace(STREAMED, calls=20).says())) == "computed for 372 ms in 20 calls"


def test_layers_that_are_copied_in_parts_tell_their_bytes() -> None:
    says = list(replace(STREAMED, layer_runs=0, peak_bytes=0).says())
    assert says[1:] == ["338 ms of that waiting for weights", "512 MB moved operation by operation"]


def test_what_is_resident_tells_its_time_only() -> None:
    says = list(replace(STREAMED, layer_runs=0, moved_bytes=0, waiting=0.0, peak_bytes=0).says())
    assert says == ["computed for 372 ms"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (125.4, "2 min 5 s"),
    ],
)
def test_seconds(seconds: float, said: str) -> None:
    assert format_seconds(seconds) == said


def test_a_card_at_its_peak_adds_up() -> None:
    card = CardPeak(
        "cuda:0", 24 * GIB, 20 * GIB, "RTX", 1 * GIB, {"diffusion_model": 12 * GIB}, "diffusion_model"
    )
    assert card.computing == 7 * GIB
    assert card.text() == (
        "peak of RTX: 20.00 GB of 24.00 GB in use: diffusion_model 12.00 GB, diffusion_model computing 7.00 GB, "
        "other 1.00 GB"
    )


def test_a_peak_while_nothing_that_is_placed_computes_is_one_of_loading() -> None:
    card = CardPeak("cuda:0", 24 * GIB, 20 * GIB, models={"vae": 12 * GIB})
    assert card.text().endswith("in use: vae 12.00 GB, loading 8.00 GB")
