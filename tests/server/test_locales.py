"""The pack in other languages: every text of a node is there, none is left over, and ComfyUI serves them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.comfy_client import ComfyClient
from scripts.locales import ENGLISH, LOCALES, node_texts
from scripts.places import ROOT
from scripts.sentences import templates
from scripts.workflow import PACK_PREFIX

LANGUAGES = sorted(folder.name for folder in LOCALES.iterdir())
TRANSLATIONS = [language for language in LANGUAGES if language != "en"]
HELP = sorted((ROOT / "web" / "docs").glob("*.md"))
CHINESE = re.compile(r"[\u4e00-\u9fff]")
# A name that people who work in Chinese use as it is.
SAME_IN_CHINESE = {"CLIP", "VAE"}
# The frontend's message format gives these a meaning of their own.
SYNTAX = re.compile(r"[{}|@]")
WEB = ROOT / "web"
STRINGS = WEB / "modules" / "strings.mjs"
OURS = "layerwiseOffload"
SENTENCES = "layerwiseOffloadSentences"


def read(language: str, file: str) -> dict[str, Any]:
    return json.loads((LOCALES / language / file).read_text(encoding="utf-8"))


def texts(tree: dict[str, Any], way: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from texts(value, (*way, key))
        else:
            yield (*way, key), value


def interface_texts() -> dict[str, str]:
    """The English texts of the pack's own interface, which are in its code."""
    found = re.findall(r'^  (\w+): "(.*)",$', STRINGS.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(found)


def test_english_says_what_the_nodes_say(object_info: dict[str, Any]) -> None:
    assert read("en", ENGLISH.name) == node_texts(object_info), "run `make fixtures`"


def test_english_and_chinese_are_there() -> None:
    assert {"en", "zh"} <= set(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_has_every_text_and_no_other(language: str) -> None:
    main = read(language, "main.json")
    interface = main.pop(OURS, {})
    main.pop(SENTENCES, None)
    for there, english in (
        (read(language, "nodeDefs.json"), read("en", "nodeDefs.json")),
        (main, read("en", "main.json")),
    ):
        assert dict(texts(there)).keys() == dict(texts(english)).keys()
    assert interface.keys() == (set() if language == "en" else interface_texts().keys())


@pytest.mark.parametrize("language", TRANSLATIONS)
def test_a_text_of_the_interface_tells_the_same_values(language: str) -> None:
    there = read(language, "main.json")[OURS]
    for key, english in interface_texts().items():
        assert sorted(re.findall(r"{\w+}", there[key])) == sorted(re.findall(r"{\w+}", english)), key


@pytest.mark.parametrize("language", TRANSLATIONS)
def test_every_sentence_of_the_server_is_told(language: str) -> None:
    there = read(language, "main.json")[SENTENCES]
    assert there.keys() == templates()
    for english, translated in there.items():
        assert set(re.findall(r"{\d}", translated)) <= set(re.findall(r"{\d}", english)), english


def test_every_text_of_the_interface_is_used() -> None:
    files = [file for file in WEB.rglob("*") if file.suffix in (".js", ".mjs") and file != STRINGS]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    assert [key for key in interface_texts() if f'"{key}"' not in code] == []


@pytest.mark.parametrize("language", TRANSLATIONS)
@pytest.mark.parametrize("what", ["commands", "settings"])
def test_every_command_and_setting_has_its_texts(language: str, what: str) -> None:
    """In the frontend's keys the dots of an id are underscores."""
    entry = (WEB / "layerwise_offload.js").read_text(encoding="utf-8")
    (block,) = re.findall(rf"^  {what}: \[\n(.*?)^  \],$", entry, re.MULTILINE | re.DOTALL)
    ids = {name.replace(".", "_") for name in re.findall(r'^      id: "(.+)",', block, re.MULTILINE)}
    assert ids
    assert read(language, f"{what}.json").keys() == ids


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_empty_or_means_something_to_the_message_format(language: str) -> None:
    for way, text in texts(read(language, "nodeDefs.json")):
        assert text.strip(), way
        assert not SYNTAX.search(text), way


def test_every_chinese_text_is_chinese() -> None:
    for file in ("main.json", "nodeDefs.json", "commands.json", "settings.json"):
        for way, text in texts(read("zh", file)):
            words = re.search("[A-Za-z]", re.sub(r"{\w+}", "", text))
            assert not words or CHINESE.search(text) or text in SAME_IN_CHINESE, way


def test_every_choice_that_a_tooltip_explains_is_explained_in_chinese_too(
    object_info: dict[str, Any],
) -> None:
    """Choices stay in English, as they are saved in workflows."""
    chinese = read("zh", "nodeDefs.json")
    for node_id, node in read("en", "nodeDefs.json").items():
        for name, config in object_info[node_id]["input"].get("optional", {}).items():
            explained = set(re.findall(r"\w+", node["inputs"][name]["tooltip"])) & set(choices(config))
            there = re.findall(r"[a-z_]+", chinese[node_id]["inputs"][name]["tooltip"])
            assert explained <= set(there), (node_id, name)


def choices(config: list[Any]) -> list[str]:
    return config[1].get("options", []) if config[0] == "COMBO" else []


def test_every_category_and_socket_type_of_ours_has_a_name(object_info: dict[str, Any]) -> None:
    ours = [info for name, info in object_info.items() if name.startswith(PACK_PREFIX)]
    inputs = [config for info in ours for group in info["input"].values() for config in group.values()]
    used = {config[0] for config in inputs if isinstance(config[0], str)}
    used |= {kind for info in ours for kind in info["output"]}
    main = read("en", "main.json")
    assert {kind for kind in used if kind.startswith("LAYERWISE")} == set(main["dataTypes"])
    assert {info["category"].rpartition("/")[2] for info in ours} == set(main["nodeCategories"])


@pytest.mark.parametrize("page", HELP, ids=lambda page: page.stem)
def test_a_help_page_is_there_in_chinese_with_the_same_tables_and_example(page: Path) -> None:
    english = page.read_text(encoding="utf-8")
    chinese = (page.with_suffix("") / "zh.md").read_text(encoding="utf-8")
    assert CHINESE.search(chinese)
    assert "\n## 示例\n" in chinese
    for sign in ("# ", "| ", "- ", "```"):
        count = [sum(line.startswith(sign) for line in text.splitlines()) for text in (english, chinese)]
        assert count[0] == count[1], f"lines that begin with {sign!r}"


def test_comfyui_serves_the_texts(client: ComfyClient) -> None:
    served = client.get_json("/i18n")
    for language in LANGUAGES:
        assert read(language, "nodeDefs.json").items() <= served[language]["nodeDefs"].items()
        assert read(language, "main.json").items() <= served[language].items()
    for what in ("commands", "settings"):
        assert read("zh", f"{what}.json").items() <= served["zh"][what].items()
