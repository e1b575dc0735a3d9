"""Twelve workflows of real sizes on four cards: who gives way and who stays, however much of it is wired."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from facts import component, cpu_machine, gb, machine

from offload_runtime.policy import (
    Beside,
    BystanderFacts,
    ComponentFacts,
    Mode,
    Placement,
    Plan,
    Policy,
    Source,
    SourceKind,
    group_of,
    resolve,
)

NODE = Source(SourceKind.NODE, "Placement Policy, node 1")
CARDS = (8, 12, 16, 24)


class Situation(NamedTuple):
    """A workflow: its components, what is never ours, and who gives way on cards of 8, 12, 16 and 24 GB."""

    components: tuple[ComponentFacts, ...]
    gives_way: tuple[str, str, str, str]
    others: tuple[BystanderFacts, ...] = ()


def dit(size: float, number: str = "") -> ComponentFacts:
    return component(f"diffusion_model{number}", size, 40)


def te(size: float, number: str = "") -> ComponentFacts:
    return component(f"text_encoder{number}", size)


def vae(size: float, name: str = "vae") -> ComponentFacts:
    return component(name, size, 8)


ALL = ("te", "te", "te", "te")
SITUATIONS = {
    "Flux 2 dev fp8, Mistral 24B": Situation((dit(33), te(16.8), vae(0.3)), ALL),
    "Wan 2.2, two 14B experts fp8, umt5": Situation(
        (dit(13.3), dit(13.3, "_2"), te(6.3), vae(0.24, "video_vae")), ("te", "te", "te", "te")
    ),
    "Qwen-Image fp8, Qwen2.5-VL 7B": Situation((dit(19), te(8.7), vae(0.24)), ALL),
    "LTX-2 fp8, Gemma 12B": Situation((dit(20), te(12.3), vae(1.8, "video_vae"), vae(0.4, "audio_vae")), ALL),
    "SD3.5 large, three encoders": Situation((dit(15.3), te(6.1), vae(0.16)), ("te", "te", "te", "")),
    "HiDream fp8, four encoders": Situation((dit(15.9), te(14.5), vae(0.16)), ALL),
    "Hunyuan video fp8, Llama 8B": Situation((dit(12.3), te(8.7), vae(0.47, "video_vae")), ALL),
    "SDXL base and refiner": Situation(
        (dit(4.8), te(1.5), dit(4.2, "_2"), te(1.3, "_2"), vae(0.16)), ("te te_2", "te_2", "", "")
    ),
    "Flux fp8, ControlNet, Redux": Situation(
        (dit(11.1), te(4.8), component("image_encoder", 0.8), vae(0.3)),
        ("te ie", "te ie", "te ie", ""),
        (
            BystanderFacts("flux_controlnet.safetensors", gb(3.1), "dit"),
            BystanderFacts("redux.safetensors", gb(0.12), on_host=True),
            BystanderFacts("style_lora.safetensors", gb(9), on_host=True),
        ),
    ),
    "Chroma fp8, T5-XXL": Situation((dit(8.3), te(9.1), vae(0.3)), ("te", "te", "te", "")),
    "ACE-Step": Situation((dit(6.2), te(0.7), vae(0.3, "audio_vae")), ("te", "", "", "")),
    "a checkpoint only": Situation((dit(1.6), te(0.23), vae(0.16)), ("", "", "", "")),
}
SHORT = {"te": "text_encoder", "te_2": "text_encoder_2", "ie": "image_encoder"}
WIRINGS = {
    "all": lambda c: True,
    "encoders only": lambda c: group_of(c.name) in ("text_encoder", "image_encoder"),
    "no VAE": lambda c: group_of(c.name) in ("text_encoder", "image_encoder", "dit"),
}


def not_wired(of: ComponentFacts) -> BystanderFacts:
    """Return what is known of a component that comes through no loader of ours."""
    group = group_of(of.name)
    video = of.name == "video_vae"
    return BystanderFacts(f"{of.name}.safetensors", of.bytes, group, in_turn=group == "dit", video=video)


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_who_gives_way_does_not_depend_on_what_is_wired(name: str, card: int, wiring: str) -> None:
    situation = SITUATIONS[name]
    wired = [c for c in situation.components if WIRINGS[wiring](c)]
    left = [not_wired(c) for c in situation.components if c not in wired]
    plan = resolve(Policy(), machine(card), wired, Beside(bystanders=(*left, *situation.others)))
    expected = {SHORT[word] for word in situation.gives_way[CARDS.index(card)].split()}
    assert {d.component for d in plan if d.placement is Placement.LAYERWISE} == expected
    for decision, of in zip(plan, wired, strict=True):
        if group_of(of.name) == "dit":
            assert decision.placement is Placement.AUTO, "a diffusion model is ComfyUI's"
            assert decision.planned_bytes >= min(of.bytes, plan.room_bytes // 3), "and has its room"
    for other in left:
        named = f"{other.name} ("
        assert not expected or other.bytes < gb(1) or any(named in d.reason for d in plan)


@pytest.mark.parametrize("number", [1, 2])
def test_experts_that_run_in_turn_have_the_same_room(number: int) -> None:
    """Both come through loaders in a row, each with its own plan."""
    facts, text = machine(16), te(6.3)
    high, low = dit(13.3), dit(13.3, "_2")
    first = resolve(Policy(), facts, (text, high), Beside(bystanders=(not_wired(low),)))
    beside = Beside(tuple(zip((text, high), first, strict=True)))
    second = resolve(Policy(), facts, (low,), beside)
    decision = first["diffusion_model"] if number == 1 else second["diffusion_model_2"]
    assert decision.planned_bytes == high.bytes
    assert first["text_encoder"].planned_bytes == first.room_bytes - high.bytes


def test_an_encoder_gives_way_to_models_in_turn_that_do_not_all_fit_beside_it() -> None:
    """One of them would take its room at every prompt, although all else fits beside either of them."""
    parts = (te(6.3), dit(13.3), dit(13.3, "_2"))
    decision = resolve(Policy(), machine(24), parts)["text_encoder"]
    assert decision.placement is Placement.LAYERWISE
    assert decision.planned_bytes == te(6.3).bytes, "beside one of them it has room"
    assert "but the 32.90 GB with all diffusion models that run in turn do not" in decision.reason
    assert resolve(Policy(), machine(40), parts)["text_encoder"].placement is Placement.RESIDENT
    assert resolve(Policy(), machine(24), parts[:2])["text_encoder"].placement is Placement.RESIDENT


def test_models_that_run_together_are_added_up() -> None:
    both = (replace(dit(8), in_turn=False), te(6))
    other = BystanderFacts("negative.safetensors", gb(8), "dit")
    assert resolve(Policy(), machine(24), both)["text_encoder"].placement is Placement.RESIDENT
    plan = resolve(Policy(), machine(24), both, Beside(bystanders=(other,)))
    assert plan["text_encoder"].placement is Placement.RESIDENT  # 22 of 22.8 GB
    plan = resolve(Policy(), machine(22), both, Beside(bystanders=(other,)))
    assert plan["text_encoder"].placement is Placement.LAYERWISE


def test_what_comfyui_keeps_on_the_host_needs_no_room_on_the_card() -> None:
    lora = BystanderFacts("lora.safetensors", gb(30), on_host=True)
    plan = resolve(Policy(), machine(16), (te(9.5),), Beside(bystanders=(lora,)))
    assert plan["text_encoder"].placement is Placement.RESIDENT
    assert "lora" not in plan["text_encoder"].reason


def test_what_is_not_known_is_named_and_not_guessed() -> None:
    odd = BystanderFacts("the MODEL of node 5 (CustomLoader)", 0, "dit", in_turn=True)
    reason = resolve(Policy(), machine(16), (te(9.5),), Beside(bystanders=(odd,)))["text_encoder"].reason
    assert "beside the MODEL of node 5 (CustomLoader) (of unknown size, not through this Loader)" in reason


def test_a_long_list_is_counted() -> None:
    others = tuple(BystanderFacts(f"{i}.safetensors", gb(i), "dit") for i in range(1, 9))
    reason = resolve(Policy(), machine(16), (te(9.5),), Beside(bystanders=others))["text_encoder"].reason
    assert "8.safetensors (8.00 GB, not through this Loader)" in reason
    assert "and 5 more (15.00 GB)" in reason
    assert "5.safetensors" not in reason


def earlier(*components: ComponentFacts, card: float = 24) -> Beside:
    plan = resolve(Policy(), machine(card), components)
    return Beside(tuple(zip(components, plan, strict=True)))


def test_a_second_loader_keeps_what_the_first_kept_for_video() -> None:
    together = resolve(Policy(), machine(24), (vae(0.2, "video_vae"), dit(20)))
    second = resolve(Policy(), machine(24), (dit(20),), earlier(vae(0.2, "video_vae")))
    assert second["diffusion_model"].planned_bytes == together["diffusion_model"].planned_bytes
    known = replace(vae(0.2, "video_vae"), activation_bytes=gb(9))
    second = resolve(Policy(), machine(24), (dit(20),), earlier(known))
    assert second.room_bytes == gb(24) - gb(9) - known.bytes


def test_a_prompt_that_makes_video_keeps_room_for_it_though_its_vae_is_not_wired() -> None:
    wan = BystanderFacts("wan_vae.safetensors", gb(0.2), "vae", video=True)
    plan = resolve(Policy(), machine(24), (te(6),), Beside(bystanders=(wan,)))
    assert "6.00 GB for activations" in plan.room


@pytest.mark.parametrize("order", ["text encoder first", "diffusion model first", "one loader"])
def test_loaders_in_any_order_stream_the_encoder_and_leave_it_its_window(order: str) -> None:
    text, model, card = te(9.5), dit(12), 12
    if order == "one loader":
        plan: Plan = resolve(Policy(), machine(card), (model, text))
    elif order == "text encoder first":
        plan = resolve(Policy(), machine(card), (text,), Beside(bystanders=(not_wired(model),)))
    else:
        plan = resolve(Policy(), machine(card), (text,), earlier(model, card=card))
    assert plan["text_encoder"].placement is Placement.LAYERWISE
    assert plan["text_encoder"].planned_bytes == text.window


@pytest.mark.parametrize("card", CARDS)
def test_speed_keeps_what_fits_and_streams_the_rest(card: int) -> None:
    policy = Policy.from_widgets(NODE, mode=Mode.SPEED.value)
    text, model = te(9.5), dit(12)
    plan = resolve(policy, machine(card), (text, model, vae(0.3)))
    fits = card == 24
    assert plan["text_encoder"].placement is (Placement.RESIDENT if fits else Placement.LAYERWISE)
    assert plan["text_encoder"].planned_bytes >= text.window
    assert plan["vae"].placement is Placement.RESIDENT


def test_only_as_much_is_read_from_files_as_must() -> None:
    text, picture = te(9.5), vae(0.3)
    model = dit(20)
    plan = resolve(Policy(), cpu_machine(ram=32), (text, model, picture))
    assert {d.component for d in plan if d.placement is Placement.LAYERWISE} == {"text_encoder"}
    assert plan["vae"].placement is Placement.RESIDENT


def test_where_the_largest_is_not_in_a_file_the_next_one_is_read_from_it() -> None:
    text = replace(te(9.5), file_bytes=0)
    plan = resolve(Policy(), cpu_machine(ram=32), (text, te(8, "_2"), dit(20)))
    assert {d.component for d in plan if d.placement is Placement.LAYERWISE} == {"text_encoder_2"}


def test_on_the_cpu_what_is_not_wired_takes_memory_too() -> None:
    other = BystanderFacts("model.safetensors", gb(25), "dit")
    assert resolve(Policy(), cpu_machine(ram=32), (te(6),))["text_encoder"].placement is Placement.RESIDENT
    plan = resolve(Policy(), cpu_machine(ram=32), (te(6),), Beside(bystanders=(other,)))
    assert plan["text_encoder"].placement is Placement.LAYERWISE
