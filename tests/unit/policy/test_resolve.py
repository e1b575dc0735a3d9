"""Decisions on machines of all kinds: what bounds them, how far wishes are done, and the sentences that say so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from facts import FLUX, NODE, T5, VAE, asks, component, cpu_machine, gb, machine, one

from offload_runtime.errors import StrictPolicyError
from offload_runtime.policy import (
    PAGED,
    STREAMED,
    ComponentFacts,
    MachineFacts,
    Placement,
    PlacementRow,
    Policy,
    Source,
    SourceKind,
    cannot_copy,
    not_movable,
    parse_budget,
    resolve,
)

ON_CPU = component("vae", 0.3, 8, on_cpu=True)
TE_ON_CPU = component("text_encoder", 9.5, on_cpu=True)
FIXED = component("vae", 0.3, 8, can=not_movable(STREAMED, "AudioOobleckVAE"))
NO_LAYERS = component("text_encoder", 1, 0)
MPS = machine(32, device="mps", shared_memory=True)
DIRECTML = machine(8, "--directml -1", device="privateuseone:0")
NO_COPY = cannot_copy(STREAMED, "--directml -1")


@pytest.mark.parametrize(
    ("asked", "facts", "of", "placement", "says"),
    [
        ("offload", cpu_machine("--cpu"), TE_ON_CPU, "resident", "--cpu leaves only the CPU"),
        (
            "layerwise",
            cpu_machine(),
            component("text_encoder", 9.5, file_bytes=0, why_no_file="no file holds the same weights"),
            "resident",
            "no file holds the same weights",
        ),
        ("offload", cpu_machine(), TE_ON_CPU, "resident", "a machine without an accelerator"),
        ("layerwise", cpu_machine("--cpu"), TE_ON_CPU, "layerwise", None),
        ("cpu", cpu_machine("--cpu"), TE_ON_CPU, "cpu", None),
        ("resident", machine(24, "--cpu-vae"), ON_CPU, "cpu", "--cpu-vae computes it on the CPU"),
        ("offload", machine(24, "--cpu-vae"), ON_CPU, "cpu", "--cpu-vae computes it on the CPU"),
        ("layerwise", machine(24, "--lowvram"), TE_ON_CPU, "layerwise", "--lowvram computes it on the CPU"),
        ("resident", machine(24, "--novram"), TE_ON_CPU, "cpu", "--novram computes it on the CPU"),
        ("resident", machine(24), TE_ON_CPU, "cpu", "ComfyUI computes it on the CPU"),
        (
            "layerwise",
            cpu_machine("--disable-mmap"),
            TE_ON_CPU,
            "resident",
            "--disable-mmap lets no layers be",
        ),
        ("layerwise", machine(24, "--disable-mmap"), TE_ON_CPU, "cpu", "--disable-mmap lets no layers be"),
        ("layerwise", machine(24, "--disable-mmap"), T5, "layerwise", None),
        ("resident", machine(24, "--novram"), T5, "layerwise", "--novram lets no weights stay"),
        ("resident", machine(24, "--novram"), NO_LAYERS, "auto", "--novram lets no weights stay"),
        ("layerwise", machine(24, "--gpu-only"), T5, "resident", "--gpu-only keeps every weight"),
        ("offload", machine(24, "--gpu-only"), FLUX, "resident", "--gpu-only keeps every weight"),
        ("cpu", machine(24, "--gpu-only"), T5, "resident", "--gpu-only keeps every weight"),
        ("resident", machine(24, "--gpu-only"), T5, "resident", None),
        ("offload", machine(24, "--highvram"), FLUX, "resident", "--highvram leaves a diffusion model"),
        ("offload", machine(24, "--highvram"), T5, "offload", None),
        ("layerwise", machine(24, "--highvram"), T5, "layerwise", None),
        ("resident", machine(24, "--disable-smart-memory"), T5, "offload", "--disable-smart-memory unloads"),
        ("resident", machine(24, "--disable-smart-memory", "--highvram"), T5, "resident", None),
        ("layerwise", machine(24, "--disable-async-offload"), T5, "layerwise", None),
        ("layerwise", machine(24), NO_LAYERS, "auto", "no repeated layers were found"),
        ("layerwise", machine(24), FIXED, "auto", "does not allow this AudioOobleckVAE to be offloaded"),
        ("offload", machine(24), FIXED, "auto", "does not allow this AudioOobleckVAE to be offloaded"),
        ("layerwise", MPS, T5, "resident", "mps shares its memory with the CPU"),
        ("offload", MPS, T5, "resident", "mps shares its memory with the CPU: offloading frees none"),
        ("offload", MPS, TE_ON_CPU, "cpu", "ComfyUI computes it on the CPU"),
        (
            "layerwise",
            DIRECTML,
            component("text_encoder", 1, can=NO_COPY),
            "offload",
            "--directml -1 cannot copy layers",
        ),
        (
            "layerwise",
            machine(12, device="xpu:0"),
            component("text_encoder", 9.5, can=cannot_copy(STREAMED, "xpu:0")),
            "offload",
            "xpu:0 cannot copy layers",
        ),
        ("resident", machine(8), T5, "resident", "only 6.80 GB of its 9.50 GB fit in 6.80 GB"),
        (
            "resident",
            machine(8, "--reserve-vram 4", inference_reserve=gb(4.8)),
            T5,
            "resident",
            "--reserve-vram 4",
        ),
        ("offload", machine(8), T5, "offload", "only 6.80 GB of its 9.50 GB fit"),
        ("layerwise", machine(1.5), T5, "layerwise", "so layers move in parts"),
    ],
)
def test_the_machine_bounds_every_wish_and_is_named(
    asked: str, facts: MachineFacts, of: ComponentFacts, placement: str, says: str | None
) -> None:
    decision = one(asks(asked), facts, of)
    assert str(decision.placement) == placement
    assert decision.asked == asked
    if says is None:
        assert decision.limits == ()
    else:
        assert says in "; ".join(decision.limits)
        assert says in decision.why
    strict = asks(asked).extended(Policy.from_widgets(NODE, strict="on"))
    if says is not None:
        with pytest.raises(StrictPolicyError, match=r"the policy is strict \(Placement Policy, node 1\)"):
            one(strict, facts, of)
    else:
        assert one(strict, facts, of) == decision


@pytest.mark.parametrize(
    ("flags", "of", "placement", "by"),
    [
        (("--gpu-only",), T5, "resident", "--gpu-only"),
        (("--highvram",), T5, "resident", "--highvram"),
        (("--cpu-vae",), ON_CPU, "cpu", "--cpu-vae"),
        (("--lowvram",), TE_ON_CPU, "cpu", "--lowvram"),
        (("--lowvram",), VAE, "resident", None),
        (("--disable-pinned-memory", "--reserve-vram 2"), T5, "resident", None),
    ],
)
def test_the_command_line_asks_below_nodes(
    flags: tuple[str, ...], of: ComponentFacts, placement: str, by: str | None
) -> None:
    decision = one(Policy(), machine(24, *flags), of)
    assert str(decision.placement) == placement
    assert (str(decision.source) if decision.source else None) == by


def test_a_node_wins_over_the_command_line_and_the_loser_is_told() -> None:
    decision = one(asks("layerwise"), machine(24, "--highvram"))
    assert decision.placement is Placement.LAYERWISE
    assert decision.reason == (
        "layerwise was set by Placement Policy, node 1, which wins over resident from --highvram"
    )
    assert [str(loser.source) for loser in decision.overruled] == ["--highvram"]
    row = PlacementRow.of(T5, decision)
    assert row.overruled == ("placement resident from --highvram",)
    assert "  over     placement resident from --highvram" in row.lines()


def test_lowvram_asks_nothing_with_dynamic_vram() -> None:
    assert one(Policy(), machine(24, "--lowvram", dynamic_vram=True)).source is None


def test_the_command_line_wins_over_the_default_of_the_user() -> None:
    default = Policy.for_component(
        Source(SourceKind.USER_DEFAULT, "your default"), "all", placement="layerwise"
    )
    assert str(one(default, machine(24, "--highvram")).source) == "--highvram"
    assert str(one(default, machine(24)).source) == "your default"


@pytest.mark.parametrize(
    ("facts", "of", "mode", "placement", "says"),
    [
        (cpu_machine(), TE_ON_CPU, "auto", "resident", "ComfyUI computes it on the CPU"),
        (cpu_machine(), TE_ON_CPU, "memory", "layerwise", "mode is memory"),
        (
            cpu_machine(ram=8),
            TE_ON_CPU,
            "auto",
            "layerwise",
            "9.50 GB of weights on the CPU are more than 90%",
        ),
        (machine(24), TE_ON_CPU, "auto", "cpu", "ComfyUI computes it on the CPU"),
        (machine(24), TE_ON_CPU, "memory", "layerwise", "mode is memory"),
        (MPS, T5, "auto", "resident", "mps shares its memory"),
        (MPS, T5, "memory", "resident", "mps shares its memory"),
        (MPS, TE_ON_CPU, "memory", "layerwise", "mode is memory"),
        (MPS, TE_ON_CPU, "auto", "cpu", "ComfyUI computes it on the CPU"),
        (
            DIRECTML,
            replace(T5, can=NO_COPY),
            "auto",
            "offload",
            "--directml -1 cannot copy layers while it computes",
        ),
        (machine(8), VAE, "speed", "resident", "mode is speed"),
        (machine(8), T5, "speed", "layerwise", "9.50 GB of weights do not fit in 6.80 GB"),
        (machine(24), component("audio_vae"), "memory", "auto", "placed only on request"),
        (machine(24), component("vocoder"), "auto", "auto", "placed only on request"),
        (machine(8), NO_LAYERS, "memory", "auto", "no repeated layers"),
        (machine(2), component("vae", 4, 8), "auto", "layerwise", "its 4.00 GB alone do not fit"),
        (machine(4), component("vae", 5, 8, spread=2), "auto", "resident", "visible decode path"),
        (machine(2), component("video_vae", 4, 8), "auto", "resident", "visible decode path"),
        (
            machine(24),
            component("text_encoder", 4, passes=40),
            "memory",
            "offload",
            "ran its layers 40 times",
        ),
        (
            machine(4),
            component("text_encoder", 9, passes=40),
            "auto",
            "layerwise",
            "but its 9.00 GB do not fit",
        ),
        (
            machine(4),
            component("text_encoder", 18, passes=40, spread=2),
            "auto",
            "layerwise",
            "but its 9.00 GB do not fit",
        ),
        (
            machine(8),
            component("text_encoder", 9, can=not_movable(STREAMED, "T5")),
            "auto",
            "auto",
            "nothing can give way for it",
        ),
        (machine(24, "--novram"), VAE, "auto", "layerwise", "--novram lets no weights stay"),
    ],
)
def test_automatic_decisions_on_other_machines(
    facts: MachineFacts, of: ComponentFacts, mode: str, placement: str, says: str
) -> None:
    decision = one(Policy.from_widgets(NODE, mode=mode), facts, of)
    assert (str(decision.placement), decision.asked) == (placement, None)
    assert says in decision.why
    assert decision.limits == ()  # nothing was asked in vain


def test_reasons_hold_the_numbers() -> None:
    reason = resolve(Policy(), machine(12), (T5, FLUX, VAE))["text_encoder"].reason
    assert reason == (
        "21.80 GB of weights do not fit in 10.80 GB (the card's 12.00 GB less 1.20 GB for activations) together, "
        "and an encoder runs its 24 layers once per prompt"
    )


def test_where_comfyui_pages_weights_in_the_host_is_its_own_and_the_report_says_so() -> None:
    paged = replace(T5, can=PAGED)
    assert one(asks("layerwise"), machine(24), paged).host_tier is None
    decision = one(asks("layerwise", host="pinned"), machine(24), paged)
    assert decision.host_tier is None
    assert "pinned from" in decision.limits[0]
    assert "dynamic VRAM keeps the weights" in decision.why


def test_what_happens_anyway_is_never_refused() -> None:
    for facts, of in ((cpu_machine("--cpu"), TE_ON_CPU), (cpu_machine(), T5)):
        assert not one(asks("resident"), facts, of).limits


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (machine(24), "the card has 24.00 GB"),
        (cpu_machine(), "has no meaning on the CPU"),
    ],
)
def test_a_budget_that_the_machine_does_not_have_is_a_note_or_refused(facts: MachineFacts, says: str) -> None:
    policy = Policy.from_widgets(NODE, vram_budget="48GB")
    plan = resolve(policy, facts, (T5,))
    assert any(says in note for note in plan.notes)
    with pytest.raises(StrictPolicyError):
        resolve(policy.extended(Policy.from_widgets(NODE, strict="on")), facts, (T5,))


@pytest.mark.parametrize("budget", ["4GB", "48GB", "50%"])
def test_a_budget_beside_cpu_is_kept_without_effort(budget: str) -> None:
    decision = one(asks("cpu", vram_budget=budget), machine(24))
    spelled = str(parse_budget(budget, ""))
    assert decision.why == f"cpu was set by {NODE}; it takes none of the {spelled} of VRAM that {NODE} allows"
    assert decision.limits == ()
    assert decision.planned_bytes == 0


def test_a_budget_has_no_meaning_on_the_cpu() -> None:
    decision = one(asks("layerwise", vram_budget="1GB"), cpu_machine(), TE_ON_CPU)
    assert decision.budget_bytes is None
    assert "has no meaning on the CPU" in decision.why


@pytest.mark.parametrize(
    ("device", "facts", "says"),
    [
        ("gpu:0", machine(24), None),
        ("cuda:0", machine(24), None),
        ("gpu:1", machine(24), "this machine has 1 accelerator and computes on cuda:0"),
        ("gpu:2", machine(24, accelerators=2), "this machine has 2 accelerators"),
        ("gpu:1", machine(24, accelerators=2), "ComfyUI's own device, cuda:0"),
        ("gpu:1", cpu_machine(), "this machine has no accelerator and computes on cpu"),
    ],
)
def test_a_policy_from_a_machine_with_more_gpus_falls_back_and_says_so(
    device: str, facts: MachineFacts, says: str | None
) -> None:
    decision = one(asks("auto", device=device), facts)
    assert decision.device == facts.device
    assert (says in decision.why) if says else decision.limits == ()


def test_no_look_ahead_without_async_offload() -> None:
    """It is what the flag asks for: said, and no limit that a strict policy would refuse."""
    waits = machine(12, "--disable-async-offload")
    asked = one(asks("layerwise").extended(Policy.from_widgets(NODE, strict="on")), waits)
    automatic = resolve(Policy(), waits, (T5, FLUX))["text_encoder"]
    for decision in (asked, automatic):
        assert (decision.look_ahead, decision.limits) == (False, ())
        assert "--disable-async-offload allows no look-ahead, so every layer is waited for" in decision.reason
    for other in (one(asks("layerwise"), machine(12)), one(asks("resident"), waits)):
        assert other.look_ahead
        assert "look-ahead" not in other.why


def test_a_strict_refusal_is_one_sentence_with_everything_in_it() -> None:
    policy = asks("resident").extended(Policy.from_widgets(NODE, strict="on"))
    with pytest.raises(StrictPolicyError) as error:
        resolve(policy, machine(8), (T5, VAE, NO_LAYERS_2))
    assert str(error.value).startswith(
        "the policy is strict (Placement Policy, node 1), and this machine cannot do"
    )
    assert "text_encoder: only" in str(error.value)
    assert "switch strict off" in str(error.value)


NO_LAYERS_2 = component("text_encoder_2", 1, 0)


def test_a_plan_finds_its_decisions_by_name() -> None:
    plan = resolve(Policy(), machine(24), (T5, VAE))
    assert (len(plan), [d.component for d in plan]) == (2, ["text_encoder", "vae"])
    with pytest.raises(KeyError):
        plan["diffusion_model"]
