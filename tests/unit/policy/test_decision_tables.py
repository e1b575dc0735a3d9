"""The decisions of the systems we learn from, as tables: theirs, ours, and why they differ where they do.

`theirs` is the list of component groups that SGLang-Diffusion streams by itself (from its two origin reports and
its tests); the sizes are those of the models in question. Ours differs where all weights fit together (what fits
is never streamed) and for VAEs (they give way last).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from facts import component, gb, machine

from offload_runtime.policy import (
    ComponentFacts,
    Mode,
    Placement,
    Policy,
    Source,
    SourceKind,
    resolve,
)

NODE = Source(SourceKind.NODE, "Placement Policy, node 1")


def workflow(
    encoder: float, image_encoder: float, dit: float, vae: float, *, video: bool = False, **facts: object
):
    """Return the four components of a workflow; 0 leaves one out. A video VAE loops over chunks."""
    made = (
        component("text_encoder", encoder),
        component("image_encoder", image_encoder),
        component("diffusion_model", dit, 40, **facts),
        component("video_vae" if video else "vae", vae, 12),
    )
    return tuple(c for c in made if c.bytes)


QWEN_IMAGE = workflow(15.5, 0, 40.9, 0.25)
Z_IMAGE = workflow(8, 0, 12.3, 0.3)
FLUX = workflow(9.5, 0, 23.8, 0.3)
WAN_1_3B = workflow(11.4, 1.3, 2.8, 0.5, video=True)
WAN_14B = workflow(11.4, 1.3, 28.6, 0.5, video=True)
WAN_A14B = (*WAN_14B, component("diffusion_model_2", 28.6, 40))
MOCHI = workflow(9.5, 0, 20, 0.7, video=True)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    vram: float
    components: tuple[ComponentFacts, ...]
    theirs: str
    ours: str
    mode: Mode = Mode.AUTO
    asked: dict[str, str] = field(default_factory=dict)
    why_not: str = ""


ROWS = [
    # the auto-tuner's own examples
    Row("Qwen-Image on 80 GB", 80, QWEN_IMAGE, "te ie", "", why_not="57 GB fit in 80"),
    Row("Qwen-Image on 40 GB", 40, QWEN_IMAGE, "te ie vae", "te", why_not="a VAE gives way last"),
    Row("Z-Image on 31 GB", 31, Z_IMAGE, "te ie", "", why_not="21 GB fit in 31"),
    Row("Z-Image on 16 GB", 16, Z_IMAGE, "te ie vae", "te", why_not="a VAE gives way last"),
    Row("Wan 1.3B on 80 GB", 80, WAN_1_3B, "te ie vae", "", why_not="16 GB fit in 80"),
    Row("Wan 1.3B on 48 GB", 48, WAN_1_3B, "te ie vae", "", why_not="16 GB fit in 48"),
    Row(
        "Wan 1.3B on 16 GB",
        16,
        WAN_1_3B,
        "te ie vae",
        "te",
        why_not="the text encoder alone makes room enough",
    ),
    Row(
        "Wan 14B on 24 GB",
        24,
        WAN_14B,
        "dit te ie vae",
        "te ie",
        why_not="ComfyUI streams a diffusion model itself",
    ),
    Row(
        "Wan 14B on 48 GB", 48, WAN_14B, "te ie vae", "te", why_not="the text encoder alone makes room enough"
    ),
    Row(
        "Wan A14B on 80 GB",
        80,
        WAN_A14B,
        "dit te ie vae",
        "te",
        why_not="its experts run in turn, and the text encoder alone makes room enough for both",
    ),
    Row("Wan A14B on 139 GB", 139, WAN_A14B, "te ie", "", why_not="71 GB fit in 139"),
    # memory mode, from the report that turned VAE offload off
    Row(
        "video on 16 GB, memory",
        16,
        MOCHI,
        "te ie vae",
        "te",
        Mode.MEMORY,
        why_not="its VAE loops over chunks",
    ),
    Row("images on 16 GB, memory", 16, FLUX, "te ie vae", "te vae", Mode.MEMORY),
    Row(
        "images on 48 GB, memory", 48, FLUX, "te ie vae", "te", Mode.MEMORY, why_not="VAEs stay from 45 GB on"
    ),
    # explicit values, from the report that made layerwise the default
    Row("VAE offload asked", 16, FLUX, "te ie", "te", asked={"vae": "offload"}),
    Row("VAE offload asked, memory", 16, FLUX, "te ie", "te", Mode.MEMORY, {"vae": "offload"}),
    Row("encoder resident asked", 16, FLUX, "ie vae", "", asked={"text_encoder": "resident"}),
    Row(
        "encoder resident asked, memory", 16, FLUX, "ie vae", "vae", Mode.MEMORY, {"text_encoder": "resident"}
    ),
    Row("encoder offload asked", 16, WAN_14B, "ie vae", "ie", asked={"text_encoder": "offload"}),
    Row("diffusion model layerwise asked", 16, FLUX, "dit", "dit", asked={"dit": "layerwise"}),
    Row("diffusion model resident asked", 16, FLUX, "te ie", "te", asked={"dit": "resident"}),
    Row("everything layerwise asked", 80, FLUX, "dit te ie vae", "dit te vae", asked={"all": "layerwise"}),
    Row("default layerwise asked", 80, FLUX, "te ie vae", "te vae", asked={"default": "layerwise"}),
    # modes
    Row("manual", 12, FLUX, "", "", Mode.MANUAL),
    Row("speed, everything fits", 48, FLUX, "", "", Mode.SPEED),
    Row(
        "speed",
        12,
        FLUX,
        "",
        "te",
        Mode.SPEED,
        why_not="an encoder that does not fit comes and goes with every prompt, which takes longer",
    ),
]
SHORT = {"dit": "diffusion_model", "te": "text_encoder", "ie": "image_encoder", "vae": "vae"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_streamed(row: Row) -> None:
    policy = Policy.from_widgets(NODE, mode=row.mode.value, placements=row.asked)
    plan = resolve(policy, machine(row.vram), row.components)
    streamed = {d.component for d in plan if d.placement is Placement.LAYERWISE}
    assert streamed == {SHORT[word] for word in row.ours.split()}
    named = {SHORT[word] for word in row.theirs.split()}
    present = {c.name.replace("video_vae", "vae") for c in row.components}
    if streamed != named & present and not row.asked:
        assert row.why_not, "a difference needs its reason in the table"


PROMPT_CHANGE = [
    # encoder, diffusion model and card in GB of 10⁹ bytes; whether the encoder gives way
    (9.5, 12, 12, True),
    (9.5, 12, 16, True),
    (9.5, 12, 24, False),
    (9.5, 20, 12, True),
    (9.5, 20, 16, True),
    (9.5, 20, 24, True),
    (14.1, 12, 12, True),
    (14.1, 12, 16, True),
    (14.1, 12, 24, True),
    (14.1, 20, 12, True),
    (14.1, 20, 16, True),
    (14.1, 20, 24, True),
]


@pytest.mark.parametrize(("encoder", "dit", "card", "gives_way"), PROMPT_CHANGE)
def test_a_prompt_change_never_streams_what_fits_and_never_evicts_the_diffusion_model(
    encoder: float, dit: float, card: float, gives_way: bool
) -> None:
    scale = 1e9 / 1024**3
    te, model = component("text_encoder", encoder * scale), component("diffusion_model", dit * scale, 40)
    plan = resolve(Policy(), machine(card * scale), (te, model))
    assert (plan["text_encoder"].placement is Placement.LAYERWISE) == gives_way
    assert plan["diffusion_model"].placement is Placement.AUTO
    beside = plan.room_bytes - plan["text_encoder"].planned_bytes
    assert plan["diffusion_model"].planned_bytes == min(model.bytes, beside)
    if (
        gives_way and model.bytes + te.window <= plan.room_bytes
    ):  # then spare room keeps layers of the encoder
        assert plan["text_encoder"].planned_bytes == plan.room_bytes - model.bytes
    if gives_way and model.bytes + te.window > plan.room_bytes:  # else it takes its window and no more
        assert plan["text_encoder"].planned_bytes == te.window


@pytest.mark.parametrize(
    ("spread", "mode", "vram", "streamed"),
    [
        (2, Mode.AUTO, 16, {"text_encoder", "image_encoder", "vae"}),
        (2, Mode.MEMORY, 80, {"text_encoder", "image_encoder", "vae"}),
        (2, Mode.AUTO, 80, set()),  # what fits is never streamed
        (1, Mode.AUTO, 24, {"text_encoder", "image_encoder"}),
        (2, Mode.SPEED, 16, {"text_encoder", "image_encoder"}),  # their bytes come once a prompt either way
    ],
)
def test_beside_a_diffusion_model_that_is_spread_everything_else_makes_room(
    spread: int, mode: Mode, vram: float, streamed: set[str]
) -> None:
    components = workflow(11.4, 1.3, 28.6, 0.5, spread=spread)
    plan = resolve(Policy.from_widgets(NODE, mode=mode.value), machine(vram, accelerators=spread), components)
    assert {d.component for d in plan if d.placement is Placement.LAYERWISE} == streamed
    assert plan["diffusion_model"].placement is Placement.AUTO
    if spread > 1:
        assert f"spread over {spread} devices" in plan["diffusion_model"].reason


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("vram", [8, 24, 46, 80])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_diffusion_model_is_left_to_comfyui_whether_it_fits_or_not(
    mode: Mode, vram: float, *, dynamic: bool
) -> None:
    """Streaming it makes the first prompt slower, or all of them (`docs/diffusion_models.md`)."""
    components = workflow(11.4, 1.3, 28.6, 0.5)
    plan = resolve(
        Policy.from_widgets(NODE, mode=mode.value), machine(vram, dynamic_vram=dynamic), components
    )
    assert plan["diffusion_model"].placement is Placement.AUTO


def test_a_diffusion_model_that_somebody_wants_streamed_keeps_what_its_budget_allows() -> None:
    policy = Policy.from_widgets(NODE, placements={"dit": "layerwise"}).extended(
        Policy.for_component(NODE, "dit", vram_budget="100%")
    )
    decision = resolve(policy, machine(24), [component("diffusion_model", 28.6, 40)])["diffusion_model"]
    assert decision.placement is Placement.LAYERWISE
    assert gb(20) < (decision.budget_bytes or 0) < gb(24)


def test_ample_memory_is_named_as_the_reason() -> None:
    reason = resolve(Policy(), machine(80), Z_IMAGE)["text_encoder"].reason
    assert "at least twice all 20.60 GB" in reason
