"""Several prompts for one image: never slower than without the pack, with both memory managers. No numbers, times."""

from __future__ import annotations

import pytest

from .comfyui import ComfyUI
from .encodes import Image, Texts, Work, all_new, render

BOTH = pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "legacy"])
SLOWER = 1.02

#: Layers of the encoder, gigabytes of the diffusion model and of the card, steps, encodes.
WORKS = [
    (24, 12, 12, 8, 1),
    (24, 12, 12, 8, 2),
    (24, 12, 12, 8, 8),
    (24, 12, 16, 4, 3),
    (35, 12, 24, 8, 1),
    (32, 14, 12, 5, 1),  # the encoder alone is larger than the card
    (32, 14, 12, 5, 12),
    (9, 24, 10, 9, 10),  # the diffusion model is
    (14, 6, 24, 15, 2),  # both fit
]


def both(work: Work, sequence: list[Texts]) -> tuple[list[Image], list[Image]]:
    """Render with the pack and without."""
    if work.dynamic and not _has_dynamic():
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    ours, core = (render(work, sequence, ours=who) for who in (True, False))
    print([f"{a.seconds:.2f} / {b.seconds:.2f}" for a, b in zip(ours, core, strict=True)])  # noqa: T201
    return ours, core


def _has_dynamic() -> bool:
    from .accelerator import Accelerator

    with Accelerator() as sim:
        comfy = ComfyUI(sim)
        try:
            return comfy.has_dynamic
        finally:
            comfy.close()


@BOTH
@pytest.mark.parametrize("work", WORKS, ids=str)
def test_an_image_is_never_slower_than_without_the_pack(
    work: tuple[int, int, int, int, int], dynamic: bool
) -> None:
    encodes = work[-1]
    ours, core = both(Work(*work, dynamic), list(all_new(encodes, 3)))
    for image, theirs in zip(ours, core, strict=True):
        assert image.seconds <= SLOWER * theirs.seconds
    if encodes == 1 and core[-1].beyond > 0.02 * core[-1].seconds:
        assert ours[-1].beyond <= 0.97 * core[-1].beyond, "where core evicts for a single encode"


@BOTH
def test_nor_when_people_change_one_of_two_prompts(dynamic: bool) -> None:
    """Both are new, then the positive one alone for some images, then both again."""
    texts: list[Texts] = [("cat", "dog"), ("tree", "dog"), ("house", "dog"), ("sea", "sun"), ("sand", "sun")]
    ours, core = both(Work(24, 12, 12, 8, 2, dynamic), texts)
    for image, theirs in zip(ours, core, strict=True):
        assert image.seconds <= SLOWER * theirs.seconds
    for alone in (1, 2, 4):
        assert ours[alone].beyond <= 0.97 * core[alone].beyond, "one encode, and it gives way"


@BOTH
def test_a_list_of_prompts_is_known_from_the_second_time_on(dynamic: bool) -> None:
    texts: list[Texts] = [("one",), (tuple("abcdef"),), (tuple("ghijkl"),), ("two",)]
    ours, core = both(Work(24, 12, 12, 8, 6, dynamic), texts)
    assert ours[2].seconds <= SLOWER * core[2].seconds
    assert ours[3].seconds <= SLOWER * core[3].seconds
    surprised = ours[1].beyond / core[1].beyond
    assert surprised <= 1.6, "nobody could know, and it takes the room as soon as it shows"
