"""The policy nodes in core's own executor: what is explicit, who wins, and what the cache may not change."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import models
import pytest
from graphs import Graph, Prompt, node, only, validate

POLICY = "PlacementPolicy"


def said(policy: Any) -> list[str]:
    return [f"{a.setting} {a.selector} {a.value}" for a in policy.arguments]


ALL_AUTO = dict.fromkeys(
    ("mode", "text_encoder", "image_encoder", "vae", "diffusion_model", "vram_budget"), "auto"
)


@pytest.mark.parametrize("inputs", [{}, ALL_AUTO, {"vram_budget": ""}, {"strict": "auto"}])
def test_absent_keys_and_auto_set_nothing(graph: Graph, inputs: dict[str, str]) -> None:
    assert only(graph, {"1": node(POLICY, **inputs)}).arguments == ()


def test_every_widget_is_explicit_when_it_is_not_auto(graph: Graph) -> None:
    inputs = {"mode": "manual", "text_encoder": "layerwise", "image_encoder": "cpu", "vae": "resident"}
    inputs |= {"diffusion_model": "offload", "vram_budget": "6GB", "strict": "off"}
    policy = only(graph, {"12:5": node(POLICY, **inputs)}, "12:5")
    assert said(policy) == [
        "mode all manual",
        "strict all False",
        "total_budget all 6.00 GB",
        "placement text_encoder layerwise",
        "placement image_encoder cpu",
        "placement vae resident",
        "placement dit offload",
    ]
    assert {a.asked_by for a in policy.arguments} == {"Placement Policy, node 12:5"}


def test_a_link_is_explicit_unless_it_resolves_to_auto(graph: Graph) -> None:
    prompt = {
        "7": node("Text", texts="cpu"),
        "8": node("Text", texts="auto"),
        "1": node(POLICY, vae=["7", 0], text_encoder=["8", 0]),
    }
    (argument,) = only(graph, prompt).arguments
    assert (argument.selector, str(argument.value)) == ("vae", "cpu")
    assert argument.asked_by == "Placement Policy, node 1, linked from node 7 (Text)"


def test_list_mapped_inputs_give_a_policy_each(graph: Graph) -> None:
    prompt = {
        "7": node("Text", texts="cpu|auto|resident"),
        "1": node(POLICY, vae=["7", 0]),
        "sink": node("Sink", value=["1", 0]),
    }
    assert [said(policy) for policy in graph.run(prompt)] == [
        ["placement vae cpu"],
        [],
        ["placement vae resident"],
    ]


def test_override_nodes_chain_and_the_last_one_wins(graph: Graph) -> None:
    prompt = {
        "1": node("SetPlacement", component="vae", placement="cpu"),
        "2": node("SetPlacement", component="all", placement="resident", base=["1", 0]),
        "3": node(POLICY, vae="offload", base=["2", 0]),
    }
    explicit = only(graph, prompt, "3").explicit
    found = [(str(a.value), str(a.source)) for a in explicit.candidates("placement", "vae")]
    assert found == [
        ("resident", "Set Placement, node 2"),
        ("cpu", "Set Placement, node 1"),
        ("offload", "Placement Policy, node 3"),
    ]


def test_a_set_placement_sets_all_that_it_says_for_all_that_it_names(graph: Graph) -> None:
    inputs = {
        "component": "text_encoder_4, vae",
        "placement": "layerwise",
        "vram_budget": "20%",
        "host": "staged",
    }
    assert said(only(graph, {"1": node("SetPlacement", **inputs)})) == [
        "placement text_encoder_4 layerwise",
        "placement vae layerwise",
        "budget text_encoder_4 20%",
        "budget vae 20%",
        "host text_encoder_4 staged",
        "host vae staged",
    ]


@pytest.mark.parametrize("inputs", [{}, {"component": "auto", "placement": "cpu"}, {"component": "vae"}])
def test_a_set_placement_at_auto_sets_nothing(graph: Graph, inputs: dict[str, str]) -> None:
    assert only(graph, {"1": node("SetPlacement", **inputs)}).arguments == ()


def test_a_cached_policy_node_still_counts(graph: Graph) -> None:
    def prompt(last: str) -> Prompt:
        return {
            "1": node(POLICY, vae="cpu"),
            "2": node("SetPlacement", component="dit", placement=last, base=["1", 0]),
        }

    first, second = only(graph, prompt("resident"), "2"), only(graph, prompt("offload"), "2")
    assert first.arguments[0] is second.arguments[0]  # node 1 did not run again
    assert said(second) == ["placement vae cpu", "placement dit offload"]
    assert said(first) == ["placement vae cpu", "placement dit resident"]


def test_two_nodes_with_the_same_widgets_do_not_mix(graph: Graph) -> None:
    prompt = {
        "1": node("SetPlacement", component="vae", placement="cpu"),
        "2": node("SetPlacement", component="vae", placement="resident", base=["1", 0]),
        "3": node("SetPlacement", component="vae", placement="cpu", base=["2", 0]),
    }
    assert said(only(graph, prompt, "3"))[-1] == "placement vae cpu"
    assert str(only(graph, prompt, "3").explicit.winner("placement", "vae").value) == "cpu"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (node(POLICY, vram_budget="6GBB"), "vram_budget - “6GBB” is not a budget; did you mean 6GB?"),
        (
            node(POLICY, **ALL_AUTO | {"vram_budget": "8"}),
            "vram_budget - “8” is not a budget; did you mean 8GB?",
        ),
        (node("SetPlacement", component="vae", vram_budget="8"), "did you mean 8GB?"),
        (node("LoadPolicy", text="mode: fast"), "line 1, column 7: mode: “fast” is not a mode"),
    ],
)
def test_what_is_typed_wrong_is_refused_before_anything_runs(
    graph: Graph, wrong: dict[str, Any], says: str
) -> None:
    (error,) = validate({"1": wrong, "2": node("SavePolicy", policy=["1", 0])})
    assert says in error


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (node(POLICY, vae="resdent"), "vae: “resdent” is not a placement; did you mean resident"),
        (node(POLICY, diffusion_model="cpuu"), "diffusion_model: “cpuu” is not a placement"),
        (node(POLICY, vae=[["x"], 1]), "vae: “[['x'], 1]” is not a placement"),
        (node(POLICY, vae={"a": 1}), "vae: “{'a': 1}” is not a placement"),
        (node(POLICY, strict="maybe"), "write auto, on or off"),
        (node(POLICY, mode="\ud800\n"), "mode: “�” is not a mode"),
        (node("SetPlacement", component="tex_encoder"), "did you mean text_encoder"),
        (node("SetPlacement", component="vae", host="pined"), "did you mean pinned"),
        (node("SetPlacement", component="vae", device="cuda"), "device: “cuda” is not a device"),
        (node("LoadPolicy", file="../x.offload.yaml"), "is not the name of a policy file"),
        (node("LoadPolicy", file="nowhere.offload.yaml"), "there is no policy file"),
        (node("LoadPolicy", file=5, text=5), "there is no policy file “5.offload.yaml”"),
    ],
)
def test_other_words_are_refused_at_the_latest_by_the_node(
    graph: Graph, wrong: dict[str, Any], says: str
) -> None:
    """Older versions do not check lists, no version checks what is linked."""
    with pytest.raises(RuntimeError) as refused:
        graph.run({"1": wrong, "2": node("SavePolicy", policy=["1", 0])})
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("right", "means"),
    [
        (
            node(POLICY, strict=True, vae="Resident", mode=" SPEED "),
            ["mode: speed", "strict: on", "vae: resident"],
        ),
        (node(POLICY, strict=False), ["strict: off"]),
        (
            node("SetPlacement", component="VAE", placement="CPU", host="Staged"),
            ["placement: cpu", "host: staged"],
        ),
    ],
)
def test_words_may_be_written_as_people_write_them(
    graph: Graph, right: dict[str, Any], means: list[str]
) -> None:
    prompt = {"1": right, "2": node("SavePolicy", policy=["1", 0])}
    assert validate(prompt) == []
    graph.run(prompt)
    (text,) = graph.ui("2")["text"]
    assert all(f"{line}  # " in text for line in means), text


@pytest.mark.parametrize(
    ("overwrite", "replaced"), [("on", True), (True, True), ("ON", True), ("off", False)]
)
def test_a_file_is_replaced_when_overwrite_is_on(
    graph: Graph, user: Path, overwrite: Any, replaced: bool
) -> None:
    user.mkdir()
    file = user / "a.offload.yaml"
    file.write_text("mode: speed")
    prompt = {
        "1": node(POLICY, vae="cpu"),
        "2": node("SavePolicy", policy=["1", 0], file="a", overwrite=overwrite),
    }
    assert validate(prompt) == []
    if not replaced:
        with pytest.raises(RuntimeError, match="is there already"):
            graph.run(prompt)
    else:
        graph.run(prompt)
    assert ("vae: cpu" in file.read_text()) is replaced


def test_a_text_is_checked_beside_the_servers_event_loop(pack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop_ran = threading.Event()
    files = sys.modules["layerwise_offload_under_test.nodes.policy_files"]
    monkeypatch.setattr(files, "parse_policy", lambda *_: loop_ran.wait(20) and pytest.fail("reached"))

    async def check() -> Any:
        asyncio.get_running_loop().call_later(0.1, loop_ran.set)
        return await files.LoadPolicyNode.validate_inputs(text="mode: speed")

    with pytest.raises(pytest.fail.Exception, match="reached"):
        asyncio.run(check())


def test_a_policy_node_looks_at_its_own_links_only(pack: Any) -> None:
    """In a graph of thousands of nodes each one would otherwise walk all of them."""
    from comfy_execution.graph import DynamicPrompt

    class Seen(DynamicPrompt):
        asked: list[str] = []  # noqa: RUF012 — one test

        def get_node(self, node_id: str) -> Any:
            self.asked.append(node_id)
            return super().get_node(node_id)

    chain = {str(i): node("SetPlacement", component="vae", base=[str(i - 1), 0]) for i in range(1, 500)}
    prompt = Seen(
        chain | {"0": node("Text", texts="cpu"), "500": node(POLICY, vae=["0", 0], base=["499", 0])}
    )
    prompt_module = sys.modules["layerwise_offload_under_test.nodes.prompt"]
    assert prompt_module.links(prompt, "500", ("vae", "mode")) == {"vae": "node 0 (Text)"}
    assert set(Seen.asked) == {"0", "499", "500"}


def test_saving_another_policy_does_not_run_a_loader_again(pack: Any, user: Path) -> None:
    import nodes as core

    loader = core.NODE_CLASS_MAPPINGS["LayerwiseOffload_Loader"]
    before = loader.fingerprint_inputs()
    user.mkdir()
    (user / "other.offload.yaml").write_text("mode: speed")
    assert loader.fingerprint_inputs() == before
    (user / "default.offload.yaml").write_text("mode: speed")
    assert loader.fingerprint_inputs() != before


@pytest.mark.parametrize(
    "right",
    [
        node(POLICY, **ALL_AUTO),
        node("SetPlacement", component="text_encoder_4, vae", placement="cpu"),
        node("LoadPolicy", text="components: {vae: cpu}"),
        node("LoadPolicy", file="auto", text=""),
    ],
)
def test_what_is_right_passes(graph: Graph, right: dict[str, Any]) -> None:
    assert validate({"1": right, "2": node("SavePolicy", policy=["1", 0])}) == []


def test_nothing_is_written_without_a_name(graph: Graph, user: Path) -> None:
    graph.run({"1": node(POLICY, vae="cpu"), "2": node("SavePolicy", policy=["1", 0])})
    (text,) = graph.ui("2")["text"]
    assert "  vae: cpu  # Placement Policy, node 1\n" in text
    assert not user.exists()


def test_a_saved_policy_decides_the_same_when_it_is_loaded(graph: Graph, user: Path) -> None:
    chain = {
        "1": node(POLICY, mode="memory", vae="cpu", text_encoder="offload"),
        "2": node(
            "SetPlacement", component="text_encoder_2", vram_budget="1.5GB", host="staged", base=["1", 0]
        ),
        "3": node("SetPlacement", component="default", placement="layerwise", base=["2", 0]),
    }
    graph.run(chain | {"4": node("SavePolicy", policy=["3", 0], file="My card")})
    assert graph.ui("4")["text"][0] == "saved as My card.offload.yaml"
    saved = only(graph, {"1": node("LoadPolicy", file="My card.offload.yaml")})
    source = saved.arguments[0].source
    assert str(source) == "file My card.offload.yaml"
    assert saved == only(graph, chain, "3").flattened(source)


def test_files_and_text_lose_to_nodes_and_text_wins_over_the_file(graph: Graph, user: Path) -> None:
    user.mkdir()
    (user / "a.offload.yaml").write_text("components: {vae: cpu, dit: cpu, image_encoder: cpu}")
    prompt = {
        "1": node(POLICY, image_encoder="resident"),
        "2": node("LoadPolicy", file="a.offload.yaml", text="components: {dit: offload}", base=["1", 0]),
    }
    explicit = only(graph, prompt, "2").explicit
    names = ("vae", "diffusion_model", "image_encoder")
    assert [str(explicit.winner("placement", name).value) for name in names] == ["cpu", "offload", "resident"]


def test_a_file_is_read_again_when_it_has_changed(graph: Graph, user: Path) -> None:
    user.mkdir()
    prompt = {"1": node("LoadPolicy", file="a.offload.yaml")}
    for placement in ("cpu", "resident"):
        (user / "a.offload.yaml").write_text(f"components: {{vae: {placement}}}")
        assert said(only(graph, prompt)) == [f"placement vae {placement}"]


@pytest.mark.parametrize("name", ["../escape", "/tmp/escape", "a/b", ".."])
def test_a_workflow_cannot_write_elsewhere(graph: Graph, user: Path, name: str) -> None:
    with pytest.raises(RuntimeError, match="is not the name of a policy file"):
        graph.run({"1": node(POLICY), "2": node("SavePolicy", policy=["1", 0], file=name)})
    assert not list(user.parent.rglob("*.yaml"))


def test_a_file_is_replaced_only_on_request(graph: Graph, user: Path) -> None:
    def save(vae: str, **more: str) -> None:
        graph.run({"1": node(POLICY, vae=vae), "2": node("SavePolicy", policy=["1", 0], file="a", **more)})

    save("cpu")
    with pytest.raises(RuntimeError, match="is there already"):
        save("resident")
    save("resident", overwrite="on")
    assert "vae: resident" in (user / "a.offload.yaml").read_text()


def test_the_files_of_the_user_are_offered(pack: Any, user: Path) -> None:
    import nodes as core

    user.mkdir()
    (user / "mine.offload.yaml").write_text("mode: auto")
    inputs = core.NODE_CLASS_MAPPINGS["LayerwiseOffload_LoadPolicy"].INPUT_TYPES()
    kind, options = inputs["optional"]["file"]
    assert (options.get("options") or kind) == ["auto", "mine.offload.yaml"]


class SmallClip:
    """A loader of a small text encoder."""

    RETURN_TYPES = ("CLIP",)
    FUNCTION = "run"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}}

    def run(self) -> tuple[Any]:
        return (models.FAMILIES["clip"].make(),)


def test_the_default_file_of_the_user_holds_for_every_workflow(graph: Graph, user: Path) -> None:
    import nodes as core

    core.NODE_CLASS_MAPPINGS["SmallClip"] = SmallClip
    prompt = {
        "1": {"class_type": "SmallClip", "inputs": {}},
        "2": node(POLICY, image_encoder="cpu"),
        "3": node("Loader", clip=["1", 0], policy=["2", 0]),
        "4": node("PlacementReport", placements=["3", 4]),
    }

    def report() -> str:
        graph.run(prompt)
        text: str = graph.ui("4")["text"][0]
        return text

    assert "default.offload.yaml" not in report()
    user.mkdir()
    (user / "default.offload.yaml").write_text("components: {text_encoder: cpu, vae: cpu}")
    text = report()  # the loader runs again, though nothing in the graph has changed
    assert "cpu (your default file default.offload.yaml)" in text
    assert "image_encoder is not in this workflow" in text
    assert "vae is not in this workflow" not in text  # a default is for all workflows
    (user / "default.offload.yaml").write_text("mode: fast")
    with pytest.raises(
        RuntimeError, match=r"your default file default\.offload\.yaml, line 1, column 7: mode: “fast”"
    ):
        report()
