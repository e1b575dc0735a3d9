"""Who wins: explicit values by source, chain and selector, and what counts as explicit at all."""

from __future__ import annotations

import sys

import pytest
import strategies as s
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.errors import PolicyError
from offload_runtime.policy import (
    COMPONENTS,
    Argument,
    Budget,
    ExplicitArguments,
    Mode,
    Placement,
    Policy,
    Setting,
    Source,
    SourceKind,
    linked_from,
)

NODE = Source(SourceKind.NODE, "Placement Policy, node 12:5")
FILE = Source(SourceKind.FILE, "small.offload.yaml")


def wish(selector: str, placement: str, by: Source) -> Policy:
    return Policy.for_component(by, selector, placement=placement)


def override(number: int) -> Source:
    return Source(SourceKind.OVERRIDE, f"Set Placement, node {number}")


def winner(policy: Policy, component: str) -> str | None:
    won = policy.explicit.winner(Setting.PLACEMENT, component)
    return str(won.value) if won is not None else None


def test_kinds_of_source_rank_as_the_design_says() -> None:
    ranked = [
        SourceKind.OVERRIDE,
        SourceKind.NODE,
        SourceKind.FILE,
        SourceKind.COMMAND_LINE,
        SourceKind.USER_DEFAULT,
    ]
    assert ranked == sorted(SourceKind, reverse=True)


@pytest.mark.parametrize(
    ("chain", "component", "wins"),
    [
        # a greater kind wins wherever it stands in the chain
        ([("text_encoder", "cpu", override(1)), ("text_encoder", "resident", NODE)], "text_encoder", "cpu"),
        ([("text_encoder", "resident", NODE), ("text_encoder", "offload", FILE)], "text_encoder", "resident"),
        # even with a wider selector
        ([("text_encoder_2", "cpu", NODE), ("all", "resident", override(1))], "text_encoder_2", "resident"),
        # within a kind the later one wins
        ([("vae", "cpu", override(1)), ("vae", "resident", override(2))], "vae", "resident"),
        ([("vae", "cpu", override(1)), ("all", "resident", override(2))], "vae", "resident"),
        # within one source the closer selector wins, in any order
        ([("text_encoder_2", "cpu", FILE), ("text_encoder", "offload", FILE)], "text_encoder_2", "cpu"),
        ([("text_encoder", "offload", FILE), ("default", "cpu", FILE)], "text_encoder_2", "offload"),
        ([("all", "cpu", FILE), ("default", "offload", FILE)], "video_vae", "offload"),
        ([("vae", "cpu", FILE), ("video_vae", "offload", FILE)], "video_vae_2", "offload"),
        ([("vae", "cpu", FILE), ("audio_vae", "offload", FILE)], "audio_vae", "offload"),
        # the same selector twice in one source: the last word counts
        ([("vae", "cpu", FILE), ("vae", "resident", FILE)], "vae", "resident"),
        # the same source again, behind another one of its kind, is a later link of the chain
        (
            [("vae", "cpu", override(1)), ("vae", "offload", override(2)), ("vae", "cpu", override(1))],
            "vae",
            "cpu",
        ),
        ([("vae", "cpu", FILE)], "audio_vae", None),
        ([("default", "cpu", FILE)], "diffusion_model", None),
    ],
)
def test_precedence(chain: list[tuple[str, str, Source]], component: str, wins: str | None) -> None:
    policy = Policy().extended(*(wish(*link) for link in chain))
    assert winner(policy, component) == wins


def test_the_losers_are_kept_nearest_first() -> None:
    policy = Policy().extended(
        wish("all", "cpu", FILE), wish("vae", "resident", override(3)), wish("vae", "offload", NODE)
    )
    found = policy.explicit.candidates(Setting.PLACEMENT, "vae")
    assert [(str(a.value), a.source) for a in found] == [
        ("resident", override(3)),
        ("offload", NODE),
        ("cpu", FILE),
    ]


@pytest.mark.parametrize("value", ["auto", "AUTO", "", "  ", None])
def test_sentinels_none_and_absent_keys_are_not_explicit(value: str | None) -> None:
    assert (
        Policy.from_widgets(NODE, mode=value, vram_budget=value, strict=value, placements={"vae": value})
        == Policy()
    )
    assert Policy.from_widgets(NODE) == Policy()
    assert Policy.for_component(NODE, value, placement="cpu") == Policy()
    assert Policy.for_component(NODE, "vae", placement=value, vram_budget=value, host=value) == Policy()


def test_a_value_that_automatic_would_have_chosen_is_explicit() -> None:
    policy = Policy.from_widgets(NODE, mode="manual", placements={"vae": "resident"})
    assert policy.explicit.is_explicit(Setting.PLACEMENT, "vae")
    assert policy.explicit.is_explicit(Setting.MODE)
    assert not policy.explicit.is_explicit(Setting.PLACEMENT, "diffusion_model")


def test_off_is_an_explicit_value() -> None:
    explicit = Policy.from_widgets(NODE, strict="off").explicit
    assert explicit.is_explicit(Setting.STRICT)
    assert explicit.value(bool, Setting.STRICT) is False


def test_unset_in_a_later_node_keeps_the_value_of_an_earlier_one() -> None:
    first = Policy.from_widgets(NODE, placements={"vae": "cpu", "dit": "auto"})
    later = Policy.from_widgets(
        Source(SourceKind.NODE, "node 13"), placements={"vae": "auto", "dit": "resident"}
    )
    both = first.extended(later)
    assert (winner(both, "vae"), winner(both, "diffusion_model")) == ("cpu", "resident")


def test_a_bypassed_override_is_as_if_it_had_never_been() -> None:
    base, last = wish("vae", "cpu", override(1)), wish("dit", "resident", override(3))
    with_middle = base.extended(wish("vae", "resident", override(2)), last)
    assert winner(with_middle, "vae") == "resident"
    assert winner(base.extended(last), "vae") == "cpu"


def test_one_policy_shared_by_two_loaders_is_not_changed_by_either() -> None:
    shared = wish("vae", "cpu", NODE)
    left = shared.extended(wish("vae", "resident", override(1)))
    right = shared.extended(wish("vae", "offload", override(2)))
    assert [winner(p, "vae") for p in (shared, left, right)] == ["cpu", "resident", "offload"]


def test_list_mapped_inputs_make_policies_of_their_own() -> None:
    made = [Policy.from_widgets(NODE, placements={"vae": value}) for value in ("cpu", "auto", "resident")]
    assert [winner(policy, "vae") for policy in made] == ["cpu", None, "resident"]


def test_a_comma_list_sets_every_selector_in_it() -> None:
    policy = Policy.for_component(
        override(1), "text-encoder, VAE", placement="cpu", vram_budget="1GB", host="staged"
    )
    assert {(a.setting, a.selector) for a in policy.arguments} == {
        (setting, name)
        for setting in (Setting.PLACEMENT, Setting.BUDGET, Setting.HOST)
        for name in ("text_encoder", "vae")
    }
    assert policy.explicit.value(Budget, Setting.BUDGET, "video_vae") == Budget(bytes=1 << 30)


def test_typos_are_refused_even_beside_values_that_are_not_set() -> None:
    with pytest.raises(PolicyError, match="did you mean text_encoder"):
        Policy.for_component(override(1), "tex_encoder")
    with pytest.raises(PolicyError, match="vram_budget: “6GBB”"):
        Policy.from_widgets(NODE, vram_budget="6GBB")


PROMPT = {
    "7": {"class_type": "PrimitiveString", "inputs": {"value": "cpu"}},
    "12": {"class_type": "LayerwiseOffload_PlacementPolicy", "inputs": {"vae": ["7", 0], "mode": "memory"}},
    "12:5": {"class_type": "LayerwiseOffload_PlacementPolicy", "inputs": {"vae": ["12:4", 1], "dit": ["7"]}},
    "13": {"class_type": "LayerwiseOffload_PlacementPolicy", "inputs": {"vae": "cpu"}},
}


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ("12", {"vae": "node 7 (PrimitiveString)"}),  # a typed value beside it has no link
        ("12:5", {"vae": "node 12:4"}),  # inside a subgraph, from a node that this prompt does not hold
        ("13", {}),  # a legacy primitive node is inlined as a literal
        ("99", {}),
        (None, {}),
    ],
)
def test_links_are_found_in_the_prompt(node: str | None, found: dict[str, str]) -> None:
    assert linked_from(PROMPT, node, ("mode", "vae", "dit")) == found


def test_the_link_of_a_value_is_told() -> None:
    policy = Policy.from_widgets(NODE, placements={"vae": "cpu"}, via={"vae": "node 7 (PrimitiveString)"})
    assert policy.arguments[0].asked_by == "Placement Policy, node 12:5, linked from node 7 (PrimitiveString)"


@given(st.lists(s.arguments(s.sources()), max_size=10), s.names)
def test_every_value_for_a_component_is_either_the_winner_or_a_loser(
    made: list[Argument], component: str
) -> None:
    found = ExplicitArguments(made).candidates(Setting.PLACEMENT, component)
    for_it = Policy(tuple(a for a in made if a.setting is Setting.PLACEMENT))
    unused = for_it.unused([component])
    assert sorted(map(repr, found)) == sorted(repr(a) for a in for_it.arguments if a not in unused)
    assert [a.source.kind for a in found] == sorted((a.source.kind for a in found), reverse=True)


@given(s.policies(), s.policies(s.sources(SourceKind.USER_DEFAULT, SourceKind.COMMAND_LINE)), s.names)
def test_lower_sources_never_change_a_winner(policy: Policy, lower: Policy, component: str) -> None:
    high = Policy(tuple(a for a in policy.arguments if a.source.kind > SourceKind.COMMAND_LINE))
    for setting in Setting:
        won = high.explicit.winner(setting, component)
        if won is not None:
            assert high.extended(lower).explicit.winner(setting, component) == won
            assert lower.extended(high).explicit.winner(setting, component) == won


@given(s.policies(strict=True))
def test_flattening_decides_every_component_the_same(policy: Policy) -> None:
    flat = policy.flattened(FILE)
    assert {a.source for a in flat.arguments} <= {FILE}
    for component in s.NAMES:
        for setting in Setting:
            one, other = (p.explicit.winner(setting, component) for p in (policy, flat))
            assert (one and one.value) == (other and other.value)
    assert flat.flattened(FILE) == flat


def test_the_work_for_a_long_chain_grows_with_its_length_only() -> None:
    """Anybody who reaches the server can send one, and quadratic work would stop it for everybody."""

    def work(count: int) -> int:
        names = [f"{name}_{i}" for i in range(2, 500) for name in COMPONENTS][:count]
        wishes = [wish(name, "cpu", override(i)) for i, name in enumerate(names)]
        calls = 0

        def counted(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(counted)
        try:
            assert len(Policy().extended(*wishes).effective().arguments) == count
        finally:
            sys.setprofile(before)
        return calls

    assert work(600) < 2.5 * work(300)


def test_unused_values_are_those_for_no_component() -> None:
    policy = Policy.from_widgets(NODE, mode="speed", placements={"vae": "cpu", "dit": "resident"})
    assert [a.selector for a in policy.unused({"video_vae", "text_encoder"})] == ["dit"]
    assert policy.unused({"vae", "diffusion_model_2"}) == ()


def test_values_are_typed() -> None:
    explicit = Policy.from_widgets(NODE, mode="speed", placements={"vae": "cpu"}).explicit
    assert explicit.value(Mode, Setting.MODE) is Mode.SPEED
    assert explicit.value(Placement, Setting.PLACEMENT, "vae_2") is Placement.CPU
    assert explicit.value(Placement, Setting.PLACEMENT, "diffusion_model") is None
