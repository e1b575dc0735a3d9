"""What a check of a machine keeps in its file, what of a file is believed, and how people read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.errors import PolicyError
from offload_runtime.policy.machine_check import MAX_BYTES, MachineCheck, Verdict, parse_machine_check
from offload_runtime.policy.machine_text import machine_text

CARD = MachineCheck(
    device="Card 9000",
    kind="cuda",
    device_bytes=24 << 30,
    memory_bytes=64 << 30,
    system="Linux 6.1",
    python="3.12.1",
    torch="2.9.0",
    comfyui="0.33.0",
    checked=1_800_000_000,
    pinned_copies=((1 << 20, 1 / 20000), (1 << 28, (1 << 28) / 25e9)),
    pageable_copies=((1 << 20, 1 / 10000), (1 << 28, (1 << 28) / 12.5e9)),
    disk=3.1e9,
    page_cache=9.2e9,
    memory=11e9,
    overlap=0.97,
    overlap_staged=0.9,
    verdicts=(
        Verdict("streamed equals resident, from a file", "no: layer 4, fp8 linear differs in use 2", False),
    ),
    notes=("Pinned memory was not measured, because none can be pinned here.",),
)


def changed(**values: Any) -> bytes:
    return json.dumps({**json.loads(CARD.to_json()), **values}).encode()


def test_what_was_written_is_read_back() -> None:
    assert parse_machine_check(CARD.to_json().encode()) == CARD
    least = MachineCheck("CPU", "cpu")
    assert parse_machine_check(least.to_json().encode()) == least


def test_predictions_read_speeds_in_bytes_a_second_and_the_cost_of_a_copy() -> None:
    assert CARD.link_pinned == pytest.approx(25e9)
    assert CARD.link_pageable == pytest.approx(12.5e9)
    assert CARD.copy_latency == pytest.approx(1 / 20000 - (1 << 20) / 25e9)
    cpu = MachineCheck("CPU", "cpu")
    assert (cpu.link_pinned, cpu.link_pageable, cpu.copy_latency, cpu.holds) == (None, None, None, True)
    assert not CARD.holds


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is no JSON"),
        (b"\xff\xfe", "it is no JSON"),
        (b"[" * 100_000, "it is larger than"),
        (b"[" * 50_000, "it is no JSON"),
        (b" " * (MAX_BYTES + 1), "it is larger than"),
        (b"[1]", "its version is None, and this pack reads 1"),
        (changed(version=2), "its version is 2, and this pack reads 1"),
        (changed(device=7), "device: Input should be a valid string"),
        (changed(disk="fast"), "disk: Input should be a valid number"),
        (changed(disk=-1), "disk is no size or time"),
        (changed(disk=float("nan")), "disk is no size or time"),
        (changed(overlap=float("inf")), "overlap is no size or time"),
        (changed(pinned_copies=[[1, 0.0]]), "takes no time"),
        (changed(pinned_copies=[[1]]), "pinned_copies.0.1"),
        (changed(notes=["x"] * 65), "longer than any"),
        (changed(notes=["x" * 401]), "longer than any"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(data: bytes, why: str) -> None:
    with pytest.raises(
        PolicyError, match=r"layerwise_offload_machine\.json cannot be used, because"
    ) as error:
        parse_machine_check(data)
    message = str(error.value)
    assert why in message
    assert "\n" not in message
    assert len(message) < 400
    assert message.endswith("run Check this machine again")


@given(cut=st.integers(0, 2000), at=st.integers(0, 2000), with_=st.binary(max_size=8))
def test_a_damaged_file_is_read_or_refused_in_a_sentence(cut: int, at: int, with_: bytes) -> None:
    whole = CARD.to_json().encode()
    for data in (whole[:cut], whole[:at] + with_ + whole[at + len(with_) :]):
        try:
            found = parse_machine_check(data)
        except PolicyError:
            continue
        assert machine_text(found)


def test_the_text_says_what_was_measured_what_fails_and_what_is_missing() -> None:
    assert machine_text(CARD).splitlines() == [
        "Check of this machine: Card 9000 · VRAM 24.00 GB · memory 64.00 GB",
        "ComfyUI 0.33.0 · torch 2.9.0 · Python 3.12.1 · Linux 6.1",
        "",
        "link from pinned memory: 25.0 GB/s · copies of 1 MB: 21.0 GB/s",
        "link from pageable memory: 12.5 GB/s · copies of 1 MB: 10.5 GB/s",
        "each copy costs 8 µs beside its bytes",
        "a copy from pinned memory beside computing of the same length: 97% of it hidden",
        "a copy from pageable memory beside computing of the same length: 90% of it hidden",
        "disk to memory: 3.1 GB/s",
        "a file that is in memory already to memory: 9.2 GB/s",
        "memory to memory: 11.0 GB/s",
        "",
        "FAILS · streamed equals resident, from a file · no: layer 4, fp8 linear differs in use 2",
        "",
        "Pinned memory was not measured, because none can be pinned here.",
    ]


def test_what_was_not_measured_has_no_line() -> None:
    assert machine_text(MachineCheck("CPU", "cpu", disk=5e8)).splitlines()[3:] == ["disk to memory: 500 MB/s"]
