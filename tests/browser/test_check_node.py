"""The node *Check this machine*: its report is shown where it ran, and in the person's language."""

from __future__ import annotations

import re

from comfy_page import ComfyPage
from playwright.sync_api import expect

CHECK = "LayerwiseOffload_CheckMachine"
ENGLISH = re.compile(r"(?<![\w.-])[a-z]{2,} [a-z]{2,}")
"""Two words of prose, which are no names or values."""


def test_what_was_found_is_shown_in_the_node(comfy: ComfyPage) -> None:
    comfy.center_on(comfy.add(CHECK))
    region = comfy.page.get_by_role("region", name="Check of this machine")
    expect(region).to_contain_text("what this machine can do is measured then")
    comfy.run()
    expect(region).to_contain_text("disk to memory: ")
    expect(region).to_contain_text("holds · streamed equals resident, from a file · yes: 15 layers, 3 uses")
    expect(region).to_contain_text("because the CPU computes here")
    comfy.screenshot("check_machine")


def test_what_was_found_is_said_in_chinese(chinese: ComfyPage) -> None:
    chinese.center_on(chinese.add(CHECK))
    chinese.run()
    text = chinese.page.locator("pre.layerwise-offload-text")
    expect(text).to_contain_text("本机检查：")
    expect(text).to_contain_text("流式等于常驻，来自文件 · 是：15 层，3 次使用")
    assert ENGLISH.findall(text.inner_text()) == []
