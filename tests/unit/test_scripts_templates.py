"""The example workflows as people see them among ComfyUI's templates: by their file's name, with a picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image, ImageChops, ImageStat

from scripts.template_pictures import EXAMPLES, PICTURES, SIDE, Picture, drawn

ROOT = Path(__file__).resolve().parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
EACH = pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)


def test_every_example_has_a_picture_and_is_in_the_readme() -> None:
    workflows = {file.stem for file in EXAMPLES.glob("*.json")}
    assert {picture.name for picture in PICTURES} == workflows
    assert {file.stem for file in EXAMPLES.glob("*.jpg")} == workflows
    assert [name for name in workflows if f"*{name}*" not in README] == []


@EACH
def test_it_is_called_by_words(picture: Picture) -> None:
    assert re.fullmatch(r"[A-Z][\w.,]*( [\w.,]+)+", picture.name)
    assert "_" not in picture.name


@EACH
def test_its_picture_is_square_light_and_the_one_that_is_drawn(picture: Picture) -> None:
    with Image.open(picture.file) as shown:
        assert shown.size == (SIDE, SIDE)
        assert ImageStat.Stat(shown.convert("L")).mean[0] > 128
        differs = ImageChops.difference(shown.convert("L"), drawn(picture).convert("L"))
    assert ImageStat.Stat(differs).mean[0] < 2, "run `python -m scripts.template_pictures`"


@EACH
def test_its_number_is_said_elsewhere(picture: Picture) -> None:
    """In the README beside how it was measured, or in the workflow."""
    number = re.findall(r"[\d.]+", picture.number)
    assert len(number) == 1
    if picture.said:
        assert picture.said in README
        return
    text = (EXAMPLES / f"{picture.name}.json").read_text(encoding="utf-8").lower()
    words = {"500 MB": "500 mb", "2 layers": "two of its layers", "0 GB": "no graphics card"}
    words["3 places"] = "a **file** or text, a **placement policy**, a **set placement**"
    assert words[picture.number] in text
