"""The demo's own judgement: are two pictures the same, how much memory was used, what is an option."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from scripts import demo, demo_encoder
from scripts.comfy_server import claim_port, place_pack
from scripts.peak_memory import Peak, PeakMemory
from scripts.places import ROOT
from scripts.problem import Problem


def png(width: int = 4, height: int = 3, **pixels: tuple[int, int, int]) -> bytes:
    image = Image.new("RGB", (width, height), (10, 20, 30))
    for place, colour in pixels.items():
        x, y = (int(digit) for digit in place.removeprefix("at"))
        image.putpixel((x, y), colour)
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def test_equal_pictures_are_equal() -> None:
    assert demo.compare(png(), png()) is None


def test_one_pixel_one_step_off_is_a_difference() -> None:
    assert demo.compare(png(), png(at21=(10, 21, 30))) == "1 of 12 pixels, by up to 1 of 255"


def test_pictures_of_other_sizes_differ() -> None:
    assert demo.compare(png(), png(width=5)) == "one has (3, 4) rows and columns, the other (3, 5)"


@pytest.mark.parametrize("port", ["eighty", "-1", "80.5"])
def test_a_port_that_is_no_number_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", port)
    with pytest.raises(Problem, match="1024 to 65535"):
        demo.main([])


def test_a_port_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Problem, match="port 70000 does not exist"):
        claim_port(70000)


def test_where_links_are_not_allowed_the_pack_is_copied_without_its_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("symbolic link privilege not held")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    place_pack(ROOT, tmp_path / "layerwise-offload")
    assert (tmp_path / "layerwise-offload" / "__init__.py").is_file()
    assert (tmp_path / "layerwise-offload" / "nodes").is_dir()
    assert not (tmp_path / "layerwise-offload" / "tests").exists()
    assert not (tmp_path / "layerwise-offload" / ".venv").exists()


ALLOCATOR = """
import sys
sys.stdin.readline(); early = bytearray(200_000_000); print(flush=True)
sys.stdin.readline(); del early; print(flush=True)
sys.stdin.readline()
"""


def test_memory_that_was_returned_still_counts_for_the_whole_but_not_after_the_mark() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ALLOCATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout

        def next_step() -> None:
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()

        with PeakMemory(process.pid) as memory:
            next_step()
            next_step()
            memory.mark()
        process.stdin.close()
    assert memory.whole.resident > 200_000_000
    assert memory.since_mark.resident < 100_000_000


def test_the_line_of_the_encoder_says_its_size_and_both_peaks(tmp_path: Path) -> None:
    file = tmp_path / demo_encoder.FILE
    file.parent.mkdir()
    file.write_bytes(bytes(3_000_000))
    found = {
        "core": demo_encoder.Encoding(Peak(200 << 20, 150 << 20), 2.0, "abc"),
        "ours": demo_encoder.Encoding(Peak(100 << 20, None), 3.0, "abc"),
    }
    assert demo_encoder.lines(tmp_path, found) == [
        "An fp8 text encoder, 3 MB, loaded and used once in a process of its own; peak memory:",
        "  Load CLIP              200 MiB (150 MiB without file pages), 2.0 s",
        "  Load CLIP (Layerwise)  100 MiB, 3.0 s",
        "  Both encode the same, to the bit (abc).",
    ]


def test_an_encoder_that_cannot_be_loaded_is_a_problem_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"Load CLIP of text_encoders/.* failed: .*comfy"):
        demo_encoder.measure(tmp_path, tmp_path)
