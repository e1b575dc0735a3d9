"""The nodes in Chinese: labels and tooltips change, what is saved and queued does not."""

from __future__ import annotations

from typing import Any

from comfy_page import ComfyPage
from playwright.sync_api import expect

POLICY = "LayerwiseOffload_PlacementPolicy"


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


def test_the_help_page_of_a_node_is_chinese_too(chinese: ComfyPage) -> None:
    chinese.select(chinese.add(POLICY))
    chinese.page.get_by_test_id("info-button").click()
    panel = chinese.page.get_by_test_id("properties-panel")
    expect(panel.get_by_role("heading", name="示例", exact=True)).to_be_visible()
    expect(panel.get_by_role("row", name="resident")).to_contain_text("整个常驻设备")


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
