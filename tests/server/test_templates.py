"""ComfyUI's own workflow templates: placed, each gets the same verdict; and film is told from pictures."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.policy import vae_use
from scripts import comfyui_tree
from scripts.comfy_client import ComfyClient, Prompt
from scripts.comfy_server import THIS_PACK, ComfyServer
from tests.server import template_files, template_placing

QUESTIONS = Path(__file__).parent / "packs" / "questions"
PICTURES = ("qwen_image_vae", "qwen_image_layered_vae")
FILM = ("wan_2.1_vae", "wan2_1_vae", "wan2.2_vae")
EITHER = ("image_", "video_bernini_r_image_editing")
"""Templates that make a picture with the VAE of Wan, or in several frames."""


class Asking(ComfyClient):
    """A client of a server that answers questions."""

    def ask(self, question: str, body: object) -> Any:
        return json.loads(self._open(f"/questions/{question}", body))


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Asking, template_files.Stubs]]:
    """A server on which nothing runs, with room for model files without content."""
    packs = {**THIS_PACK, QUESTIONS.name: QUESTIONS}
    models = tmp_path_factory.mktemp("models")
    with ComfyServer(Path(sys.executable), comfyui_tree.require(), models, packs=packs) as server:
        client = Asking(server.url)
        yield client, template_files.Stubs(client, server.base)


@pytest.fixture(scope="module")
def templates(asking: tuple[Asking, template_files.Stubs]) -> dict[str, Prompt]:
    client, stubs = asking
    found = dict(template_files.prompts(client.object_info()))
    for prompt in found.values():
        stubs.write(prompt)
    return found


def test_placed_templates_get_the_verdict_that_they_get_without(
    asking: tuple[Asking, template_files.Stubs],
    templates: dict[str, Prompt],
    capsys: pytest.CaptureFixture[str],
) -> None:
    client, stubs = asking
    object_info = client.object_info()
    counts: Counter[str] = Counter()
    wrong = []
    without_socket: set[str] = set()
    for name, prompt in templates.items():
        placed, sources = template_placing.place(prompt, object_info)
        before, after = client.ask("verdict", prompt), client.ask("verdict", placed)
        counts.update(templates=1, placed=bool(sources), valid=before["valid"], sources=len(sources))
        if before != after:
            wrong.append((name, before, after))
        without_socket |= template_placing.left_out(prompt, object_info, stubs)
        for source in sources:
            named = [str(file) for file in stubs.named(prompt[source.node])]
            body = {"prompt": placed, "node": source.placer, "sockets": [source.socket]}
            found = client.ask("files", body)[source.socket]
            counts.update(files=len(named))
            if not set(named) <= set(found) or _names(found)[: len(named)] != _names(named):
                wrong.append((name, source, named, found))
    with capsys.disabled():
        sys.stdout.write(f"\n{', '.join(f'{count} {what}' for what, count in counts.items())}\n")
    assert wrong == []
    assert counts["placed"] > 40
    assert without_socket == set()


def _names(files: list[str]) -> list[str]:
    """The names of files, each once: two folders may have one of the same name."""
    return list(dict.fromkeys(Path(file).name for file in files))


def test_templates_tell_pictures_from_film(templates: dict[str, Prompt]) -> None:
    found: dict[str, bool] = {}
    wrong = []
    for template, prompt in templates.items():
        for name, node in prompt.items():
            file = str(node["inputs"].get("vae_name", "")).lower()
            film = file.startswith(FILM)
            if (not film and not file.startswith(PICTURES)) or (film and template.startswith(EITHER)):
                continue
            use = vae_use(prompt, name, 0)
            found[template] = film
            if ((use.frames or 0) > 1 or use.video is True) is not film:
                wrong.append((template, file, use))
    assert wrong == []
    assert set(found.values()) == {True, False}
