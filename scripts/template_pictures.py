"""The pictures of the example workflows, as ComfyUI shows templates: `python -m scripts.template_pictures`.

Each is a square with one number, and what it is the number of. A number is one that README.md, or the workflow itself,
says; `tests/unit/test_scripts_templates.py` looks it up there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from .places import ROOT

EXAMPLES = ROOT / "example_workflows"
SIDE = 640
_MARGIN = 48
_NIGHT, _QUIET = "#17202a", "#4a5763"


@dataclass(frozen=True)
class Picture:
    """What a picture says.

    Attributes:
        name: the workflow's.
        ground: the colour behind it all: one for a family of models.
        number: the one number.
        of: what it is the number of.
        how: how it is known.
        said: where README.md says it; "" where the workflow does.
    """

    name: str
    ground: str
    number: str
    of: str
    how: str
    said: str = ""

    @property
    def file(self) -> Path:
        """Where ComfyUI looks for it: beside the workflow."""
        return EXAMPLES / f"{self.name}.jpg"


PICTURES = (
    Picture(
        "Flux on a small card",
        "#ffd9a0",
        "53 %",
        "of the time of an image with a new prompt",
        "text encoder 9.9 GB, model 12 GB, card 12\xa0GB; simulated",
        "| legacy: the same | 0.53 /",
    ),
    Picture(
        "Flux Redux with a picture as the prompt",
        "#ffd9a0",
        "500 MB",
        "of VRAM, at most, for the image encoder",
        "the budget that the workflow sets",
    ),
    Picture(
        "Flux with little memory",
        "#ffd9a0",
        "0.9 GB",
        "of memory to load T5-XXL, instead of 15.2 GB",
        "measured on ComfyUI 0.3.75, fp8 file",
        "15.2 GB / 0.9 GB",
    ),
    Picture(
        "LTX Video with a resident VAE",
        "#b9e3d0",
        "91.8 GB",
        "that are not copied while a film is decoded",
        "a video VAE, resident instead of layerwise; simulated",
        "copies 91.8 GB for one film",
    ),
    Picture(
        "LTX Video with little memory",
        "#b9e3d0",
        "1.5 GB",
        "of memory to encode with T5-XXL, instead of 10.8 GB",
        "measured on ComfyUI 0.3.75, fp8 file",
        "10.8 GB / 1.5 GB",
    ),
    Picture(
        "SD 3.5 with a ControlNet",
        "#c4d8f5",
        "2 layers",
        "of a ControlNet of 8 GB on the card at a time",
        "as its note says",
    ),
    Picture(
        "SD 3.5 without a graphics card",
        "#c4d8f5",
        "0 GB",
        "of VRAM: each layer of 11\xa0GB is read when it runs",
        "layerwise on a CPU",
    ),
    Picture(
        "Placement policy on demo models",
        "#e3d3f3",
        "0 pixels",
        "differ between a placed workflow and a plain one",
        "compared by “make demo”",
        "identical pixel for pixel",
    ),
    Picture(
        "Policies as files, nodes and overrides",
        "#e3d3f3",
        "3 places",
        "to say it: a file, a node, an override",
        "the later one wins",
    ),
)


def drawn(picture: Picture) -> Image.Image:
    """Draw a picture."""
    image = Image.new("RGB", (SIDE, SIDE), picture.ground)
    draw = ImageDraw.Draw(image)
    y = _write(draw, picture.name, 40, _MARGIN, _NIGHT)
    draw.line((_MARGIN, y + 14, SIDE - _MARGIN, y + 14), fill=_NIGHT, width=4)
    _write(draw, picture.number, 132, 210, _NIGHT)
    _write(draw, picture.of, 44, 380, _NIGHT)
    _write(draw, picture.how, 26, SIDE - _MARGIN - 64, _QUIET)
    return image


def _write(draw: ImageDraw.ImageDraw, text: str, size: int, top: int, colour: str) -> int:
    """Write a text in as many lines as it takes; returns where it ends."""
    font = ImageFont.load_default(size)
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and draw.textlength(longer, font) > SIDE - 2 * _MARGIN:
            lines.append(word)
        else:
            lines[-1] = longer
    for line in lines:
        draw.text((_MARGIN, top), line.replace("\xa0", " "), font=font, fill=colour)
        top += round(size * 1.2)
    return top


def main() -> None:
    """Draw them all."""
    for picture in PICTURES:
        drawn(picture).save(picture.file, quality=90)


if __name__ == "__main__":
    main()
