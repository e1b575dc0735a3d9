"""Memory that the operations of a layer share."""

from __future__ import annotations

import threading

import pytest
import torch

from offload_runtime.engine.scratch import Scratch

SHAPE = torch.Size((8, 4))


@torch.no_grad()
def test_within_a_layer_the_same_memory_serves_again() -> None:
    scratch = Scratch()
    with scratch:
        large = scratch.tensor(SHAPE, torch.float32)
        small = scratch.tensor(torch.Size((3, 5)), torch.float16)
        assert (small.shape, small.dtype, small.is_contiguous()) == ((3, 5), torch.float16, True)
        assert small.data_ptr() == large.data_ptr()


@torch.no_grad()
def test_it_is_given_back_when_the_outermost_layer_is_done_and_when_it_fails() -> None:
    scratch = Scratch()
    with scratch:
        with scratch:
            first = scratch.tensor(SHAPE, torch.float32)
        assert scratch.tensor(SHAPE, torch.float32).data_ptr() == first.data_ptr()
    with scratch:
        assert scratch.tensor(SHAPE, torch.float32).data_ptr() != first.data_ptr()
    with pytest.raises(KeyboardInterrupt):
        _fail_with(scratch, first)
    with scratch:
        assert scratch.tensor(SHAPE, torch.float32).data_ptr() != first.data_ptr()


def _fail_with(scratch: Scratch, memory: torch.Tensor) -> None:
    with scratch:
        memory.set_(scratch.tensor(SHAPE, torch.float32))  # type: ignore[call-overload]
        raise KeyboardInterrupt


@torch.no_grad()
def test_outside_of_a_layer_nothing_is_shared() -> None:
    scratch = Scratch()
    one, other = (scratch.tensor(SHAPE, torch.float32) for _ in range(2))
    assert one.data_ptr() != other.data_ptr()


def test_whoever_wants_gradients_shares_nothing() -> None:
    scratch = Scratch()
    with scratch, torch.enable_grad():
        one, other = (scratch.tensor(SHAPE, torch.float32) for _ in range(2))
        assert one.data_ptr() != other.data_ptr()


@torch.no_grad()
def test_another_thread_has_its_own() -> None:
    scratch, found = Scratch(), []

    def ask() -> None:
        with torch.no_grad(), scratch:
            found.append(scratch.tensor(SHAPE, torch.float32).data_ptr())

    with scratch:
        mine = scratch.tensor(SHAPE, torch.float32)
        other = threading.Thread(target=ask)
        other.start()
        other.join()
    assert found
    assert found[0] != mine.data_ptr()


@torch.no_grad()
def test_made_in_inference_mode_it_serves_outside_of_it() -> None:
    scratch = Scratch()
    with scratch:
        with torch.inference_mode():
            scratch.tensor(SHAPE, torch.float32).fill_(1)
        scratch.tensor(SHAPE, torch.float32).fill_(2)
