"""The nodes in Chinese: labels and tooltips change, what is saved and queued does not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from comfy_page import ComfyPage
from playwright.sync_api import expect

POLICY = "LayerwiseOffload_PlacementPolicy"
REPORT = "LayerwiseOffload_PlacementReport"
ENGLISH = re.compile(r"(?<![\w.-])[a-z]{2,} [a-z]{2,}(?! \()")
"""Two words of prose, which are no names, values or flags."""


def test_a_node_speaks_chinese_and_is_queued_as_ever(
    comfy: ComfyPage, chinese: ComfyPage, example: dict[str, Any]
) -> None:
    comfy.load(example)
    chinese.load(example)
    assert chinese.prompt_without_titles() == comfy.prompt_without_titles()
    shown = chinese.page.evaluate(
        """id => {
            const node = app.canvas.graph.getNodeById(id);
            return { title: node.title, labels: node.widgets.map(w => w.label) };
        }""",
        chinese.node_id(POLICY),
    )
    assert shown["title"] == "放置策略"
    assert shown["labels"][:3] == ["◇ 模式", "◆ 文本编码器", "◆ 图像编码器"]
    chinese.center_on(chinese.node_id(POLICY))
    if chinese.renderer == "nodes2":
        expect(chinese.page.get_by_text("显存预算").first).to_be_visible()


def test_the_panel_is_chinese_too(chinese: ComfyPage) -> None:
    node_id = chinese.add(POLICY)
    chinese.page.evaluate(
        """id => {
            const node = app.canvas.graph.getNodeById(id), widget = node.widgets.find(w => w.name === "vae");
            widget.value = "cpu";
            widget.callback(widget.value, app.canvas, node);
        }""",
        node_id,
    )
    expect(chinese.page.get_by_role("button", name="加载策略文件…")).to_be_visible()
    expect(chinese.page.get_by_role("button", name="把“VAE”恢复为 auto")).to_be_visible()
    expect(chinese.page.locator(".lwo-field[data-name=vae]")).to_contain_text("◆VAE: cpu")
    expect(chinese.page.locator(".lwo-fields")).to_contain_text("上次运行的结果")


def test_what_a_language_does_not_say_stays_english(chinese: ComfyPage) -> None:
    texts = {"zh": {"layerwiseOffload": {"resetField": "把 {field} 恢复"}}}
    chinese.page.route("**/i18n", lambda route: route.fulfill(json=texts))
    try:
        assert chinese.page.evaluate(
            """async () => {
                const entry = performance.getEntriesByType("resource").find(e => e.name.endsWith("/strings.mjs"));
                const { loadTexts, text } = await import(`${entry.name}?again`);
                await loadTexts();
                return [text("resetField", { field: "vae" }), text("copyYaml")];
            }"""
        ) == ["把 vae 恢复", "Copy as YAML"]
    finally:
        chinese.page.unroute("**/i18n")
        chinese.page.evaluate(  # both have their sentences from one module
            """async () => {
                const entry = performance.getEntriesByType("resource").find(e => e.name.endsWith("/strings.mjs"));
                await (await import(entry.name)).loadTexts();
            }"""
        )


def test_the_help_page_of_a_node_is_chinese_too(chinese: ComfyPage) -> None:
    chinese.select(chinese.add(POLICY))
    chinese.page.get_by_test_id("info-button").click()
    panel = chinese.page.get_by_test_id("properties-panel")
    expect(panel.get_by_role("heading", name="示例", exact=True)).to_be_visible()
    expect(panel.get_by_role("row", name="resident")).to_contain_text("整个常驻设备")


def test_the_text_of_a_report_is_chinese_too(chinese: ComfyPage, chinese_decoding: dict[str, str]) -> None:
    chinese.run()
    chinese.center_on(chinese_decoding[REPORT])
    chinese.page.locator(".lwo-scroll details").evaluate("e => { e.open = true }")
    text = chinese.page.locator("pre.layerwise-offload-text")
    expect(text).to_contain_text("放置报告 · 在 cpu 上计算")
    expect(text).to_contain_text("  实际  layerwise：")
    expect(text).to_contain_text("显存预算 2.00 GB 在 CPU 上没有意义。")
    assert ENGLISH.findall(text.inner_text()) == []


def test_a_refusal_is_told_in_chinese_and_in_english(
    chinese: ComfyPage, chinese_decoding: dict[str, str]
) -> None:
    chinese.set_widget(chinese_decoding[POLICY], "strict", "on")
    with pytest.raises(AssertionError, match="the policy is strict"):
        chinese.run()
    errors = chinese.page.get_by_role(
        "button", name="查看详情"
    ).first  # newer frontends keep what was said behind it
    told = chinese.page.get_by_text("而本机无法全部做到").first
    expect(errors.or_(told)).to_be_visible()
    if errors.is_visible():
        errors.click()
    expect(told).to_be_visible()
    expect(told).to_contain_text("显存预算 2.00 GB 在 CPU 上没有意义")
    expect(told).to_contain_text("has no meaning on the CPU")


def test_sentences_of_the_server_are_chinese_down_to_their_parts(chinese: ComfyPage) -> None:
    english = {
        "text_encoder: nobody knows this, and it stays": "text_encoder: nobody knows this, and it stays",
        "layerwise was set by Set Placement, node 8": "layerwise 由 设置放置，节点 8 设置",
        "all 9.50 GB of weights beside a.b (1.00 GB, not through this Loader) fit in 5.00 GB (the card's 8.00 GB less "
        "3.00 GB for activations), and what fits is never streamed; only 3.00 GB of its 4.00 GB fit in 5.00 GB": (
            "全部 9.50 GB 权重，此外还有 a.b（1.00 GB，不经过这个加载器） 放得进 5.00 GB（显卡的 8.00 GB 减去 "
            "留给激活的 3.00 GB），而放得下的从不逐层传输；它的 4.00 GB 中只有 3.00 GB 放得进 5.00 GB"
        ),
        "12 of 12 layers run on cuda:0 out of slots of 9 MB, each copied from memory (1.00 GB pinned) while the one "
        "before it runs: 90 MB of 90 MB per pass": (
            "12 层中的 12 层在 cuda:0 上经由 9 MB 的槽位运行，每层从内存（其中 1.00 GB 锁页）复制，在前一层运行的同时"
            "进行：每遍 90 MB 中的 90 MB"
        ),
    }
    english |= {
        "a.offload.yaml, line 3, column 7: vae: “fast” is not a placement; did you mean resident?": (
            "a.offload.yaml，第 3 行，第 7 列：vae：“fast”不是有效的 placement；是否想写 resident？"
        ),
        "there is no component or group “host”; did you mean vae?": "没有组件或组“host”；是否想写 vae？",
        "the policy is strict (Set Placement, node 2), and this machine cannot do all of it: vae: host pinned from "
        "Set Placement, node 2 has no effect: it is not streamed; a.offload.yaml asks for a VRAM budget of 9.00 GB, "
        "and the card has 8.00 GB. Change these values, or switch strict off to get as close to them as possible": (
            "策略为严格（设置放置，节点 2），而本机无法全部做到：vae：来自 设置放置，"
            "节点 2 的 host pinned 不起作用：它不逐层传输；a.offload.yaml 要求 9.00 GB 的显存预算，而显卡有 8.00 GB。"
            "请更改这些值，或关闭严格以尽量接近它们"
        ),
    }
    told = chinese.page.evaluate(
        """async sentences => {
            const entry = performance.getEntriesByType("resource").find(e => e.name.endsWith("/sentences.mjs"));
            const { inLanguage, learnSentences } = await import(entry.name);
            const texts = await (await app.api.fetchApi("/i18n")).json();
            learnSentences(texts.zh.layerwiseOffloadSentences);  // another test may have taken others
            return sentences.map(inLanguage);
        }""",
        list(english),
    )
    assert told == list(english.values())
