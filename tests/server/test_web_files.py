"""The pack's files as a browser gets them: an update reaches it, whatever it has kept."""

from __future__ import annotations

import urllib.error
import urllib.request
from email.message import Message

import pytest

from scripts.comfy_client import DIRECT
from scripts.comfy_server import ComfyServer
from scripts.places import PACK_NAME, ROOT

FILES = sorted(file.relative_to(ROOT / "web").as_posix() for file in (ROOT / "web").rglob("*.*"))
ASKED_EACH_TIME = (["no-cache"], ["no-store"])
"""ComfyUI itself sends one or the other with scripts and styles; the latter is not kept at all."""


def headers(server: ComfyServer, path: str, **asked: str) -> tuple[int, Message]:
    """The status and the headers of an answer."""
    request = urllib.request.Request(f"{server.url}{path}", headers=asked)
    try:
        with DIRECT.open(request, timeout=30) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.headers


@pytest.mark.parametrize("file", FILES)
def test_a_browser_asks_for_a_file_each_time(server: ComfyServer, file: str) -> None:
    status, found = headers(server, f"/extensions/{PACK_NAME}/{file}")
    assert status == 200
    assert found.get_all("Cache-Control") in ASKED_EACH_TIME


def test_the_answer_that_nothing_has_changed_says_it_too(server: ComfyServer) -> None:
    path = f"/extensions/{PACK_NAME}/modules/strings.mjs"
    _, found = headers(server, path)
    status, found = headers(server, path, **{"If-None-Match": found["ETag"]})
    assert status == 304
    assert found.get_all("Cache-Control") == ["no-cache"]


def test_the_files_of_other_packs_are_left_alone(server: ComfyServer) -> None:
    status, found = headers(server, "/extensions/stand_ins/helper.mjs")
    assert status == 200
    assert found["Cache-Control"] is None


@pytest.mark.parametrize("language", ["en", "fr", "pt-BR"])
def test_a_help_page_is_there_in_every_language_that_is_asked_for(server: ComfyServer, language: str) -> None:
    """What a frontend does not find is an error in the browser's log."""
    node = "LayerwiseOffload_Loader"
    status, found = headers(server, f"/extensions/{PACK_NAME}/docs/{node}/{language}.md")
    english = (ROOT / "web" / "docs" / f"{node}.md").stat().st_size
    assert (status, int(found["Content-Length"])) == (200, english)
    assert "html" not in found["Content-Type"]


def test_a_help_page_in_a_language_that_is_there_is_in_that_language(server: ComfyServer) -> None:
    node = "LayerwiseOffload_Loader"
    status, found = headers(server, f"/extensions/{PACK_NAME}/docs/{node}/zh.md")
    chinese = (ROOT / "web" / "docs" / node / "zh.md").stat().st_size
    assert (status, int(found["Content-Length"])) == (200, chinese)


@pytest.mark.parametrize("path", ["docs/LayerwiseOffload_Nothing/en.md", "docs/..%2fdocs/en.md"])
def test_there_is_no_help_for_what_is_not_there(server: ComfyServer, path: str) -> None:
    assert headers(server, f"/extensions/{PACK_NAME}/{path}")[0] == 404
