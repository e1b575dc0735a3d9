"""Selectors, budgets and the other words of a policy."""

from __future__ import annotations

import tracemalloc

import pytest
import strategies as s
from hypothesis import example, given
from hypothesis import strategies as st

from offload_runtime.errors import PolicyError
from offload_runtime.policy import (
    COMPONENTS,
    SELECTORS,
    Setting,
    base_name,
    group_of,
    is_set,
    normalize_selector,
    parse_budget,
    parse_selectors,
    parse_size,
)
from offload_runtime.policy.selectors import covers, specificity
from offload_runtime.policy.settings import parse_value, spell_value

GB = 1024**3


@pytest.mark.parametrize(
    ("component", "group", "base"),
    [
        ("diffusion_model", "dit", "diffusion_model"),
        ("diffusion_model_2", "dit", "diffusion_model"),
        ("text_encoder", "text_encoder", "text_encoder"),
        ("text_encoder_12", "text_encoder", "text_encoder"),
        ("image_encoder", "image_encoder", "image_encoder"),
        ("image_encoder_2", "image_encoder", "image_encoder"),
        ("vae", "vae", "vae"),
        ("vae_2", "vae", "vae"),
        ("video_vae_2", "vae", "video_vae"),
        ("condition_image_encoder", "vae", "condition_image_encoder"),
        ("audio_vae", None, "audio_vae"),
        ("vocoder_2", None, "vocoder"),
    ],
)
def test_components_have_their_group_and_base_name(component: str, group: str | None, base: str) -> None:
    assert (group_of(component), base_name(component)) == (group, base)


@pytest.mark.parametrize(
    ("selector", "covered"),
    [
        ("dit", {"diffusion_model", "diffusion_model_2"}),
        ("diffusion_model", {"diffusion_model", "diffusion_model_2"}),
        ("text_encoder", {"text_encoder", "text_encoder_2"}),
        ("text_encoder_2", {"text_encoder_2"}),
        ("image_encoder", {"image_encoder", "image_encoder_2"}),
        (
            "vae",
            {
                "vae",
                "vae_2",
                "video_vae",
                "video_vae_2",
                "condition_image_encoder",
                "condition_image_encoder_2",
            },
        ),
        ("video_vae", {"video_vae", "video_vae_2"}),
        ("audio_vae", {"audio_vae", "audio_vae_2"}),
        (
            "default",
            {
                "text_encoder",
                "text_encoder_2",
                "image_encoder",
                "image_encoder_2",
                "vae",
                "vae_2",
                "video_vae",
            }
            | {"video_vae_2", "condition_image_encoder", "condition_image_encoder_2"},
        ),
        ("all", {name + number for name in COMPONENTS for number in ("", "_2")}),
    ],
)
def test_selectors_cover_what_they_name(selector: str, covered: set[str]) -> None:
    everything = {name + number for name in COMPONENTS for number in ("", "_2")}
    assert {name for name in everything if specificity(selector, name)} == covered


def test_audio_is_in_no_group_and_not_in_default() -> None:
    for name in ("audio_vae", "vocoder"):
        assert [sel for sel in SELECTORS if specificity(sel, name)] == [name, "all"]


def test_closer_selectors_rank_higher() -> None:
    ranks = [specificity(sel, "video_vae_2") for sel in ("all", "default", "vae", "video_vae", "video_vae_2")]
    assert ranks == sorted(set(ranks))


@given(s.selectors, s.selectors)
def test_selectors_are_nested_or_disjoint(one: str, other: str) -> None:
    first, second = ({n for n in s.NAMES if specificity(sel, n)} for sel in (one, other))
    assert first <= second or second <= first or not first & second


@given(s.selectors, s.selectors)
def test_a_selector_covers_another_only_if_it_names_all_of_it(wide: str, narrow: str) -> None:
    if covers(wide, narrow):
        assert {n for n in s.NAMES if specificity(narrow, n)} <= {n for n in s.NAMES if specificity(wide, n)}


@pytest.mark.parametrize(
    ("text", "selectors"),
    [
        ("vae", ("vae",)),
        (" Text-Encoder , VAE ", ("text_encoder", "vae")),
        ("dit,vae,dit", ("dit", "vae")),
        ("text_encoder_2, image-encoder_3", ("text_encoder_2", "image_encoder_3")),
        ("vae, ALL, dit", ("all",)),
        ("default", ("default",)),
        ("none", ()),
        ("vae,,", ("vae",)),
        ("transformer, Transformer-2", ("diffusion_model", "diffusion_model_2")),
        ("diffusion_model", ("diffusion_model",)),
    ],
)
def test_selector_lists(text: str, selectors: tuple[str, ...]) -> None:
    assert parse_selectors(text) == selectors


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("text_encodr", "did you mean text_encoder"),
        ("qwerty", "possible: diffusion_model"),
        ("vae, textencoder", "text_encoder"),
        ("text_encoder_0", "did you mean text_encoder"),
        ("dit_2", "did you mean dit"),
        ("none, vae", "one or the other"),
        ("", "names no component"),
        (" , ", "names no component"),
        ("x" * 10_000, "…"),
    ],
)
def test_a_wrong_selector_names_the_nearest_valid_ones(text: str, hint: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_selectors(text)
    assert hint in str(error.value)
    assert len(str(error.value)) < 300


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_a_policy_error(text: str) -> None:
    try:
        selectors = parse_selectors(text)
    except PolicyError:
        return
    assert all(normalize_selector(selector) == selector for selector in selectors)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "1" + " " * 200_000 + "x",
        " " * 200_000,
        "1G" + "b" * 200_000 + "1",
        "a" * 200_000,
        "1," * 100_000,
        "_1" * 100_000,
    ],
)
def test_a_very_long_text_is_refused_at_once(text: str) -> None:
    """The server checks it before a run, and serves nobody else meanwhile."""
    acts = [lambda setting=setting: parse_value(setting, text, "here") for setting in Setting]
    acts += [
        lambda: parse_selectors(text),
        lambda: parse_size(text, "here"),
        lambda: parse_budget(text, "here"),
    ]
    for act in acts:
        with pytest.raises(PolicyError) as refused:
            act()
        assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", ["8 percent", "1e3MB", "lots", "8GB-9GB", "1,000 MB", "1" * 400])
def test_nothing_is_offered_for_what_could_mean_anything(text: str) -> None:
    with pytest.raises(PolicyError, match="an amount such as 6GB"):
        parse_budget(text, "here")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (Setting.DEVICE, "gpu:١"),
        (Setting.DEVICE, "²"),
        (Setting.DEVICE, "1\n1"),
        (Setting.PLACEMENT, "ſtaged"),
        (Setting.HOST, "pınned"),
        (Setting.MODE, "ｓｐｅｅｄ"),
        (Setting.STRICT, "oﬀ"),
    ],
)
def test_a_word_that_only_looks_right_is_refused(setting: Setting, text: str) -> None:
    with pytest.raises(PolicyError, match=r"^here: "):
        parse_value(setting, text, "here")


@pytest.mark.parametrize(
    "text", ["text_encoder_1٣", "text_encoder_²", "vae_2\n3", "vae_1000", "_2", "vae_02", "vae_1"]
)
def test_a_number_that_only_looks_right_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="there is no component or group"):
        parse_selectors(text)


@pytest.mark.parametrize("text", ["a\nb", "a\ud800", "a\x00b", "a\u202eb", "a\x1b[31mb", "a\u2028b"])
def test_whatever_a_person_wrote_a_refusal_is_one_line_that_can_be_printed(text: str) -> None:
    acts = [lambda setting=setting: parse_value(setting, text, "here") for setting in Setting]
    acts += [
        lambda: parse_selectors(text),
        lambda: parse_size(text, "here"),
        lambda: parse_budget(text, "here"),
    ]
    for act in acts:
        with pytest.raises(PolicyError) as refused:
            act()
        assert str(refused.value).isprintable()
        str(refused.value).encode()


def test_names_that_are_refused_are_not_kept() -> None:
    """Names come from files and prompts: whoever sends many long ones must not fill the memory."""
    tracemalloc.start()
    try:
        for i in range(200):
            with pytest.raises(PolicyError):
                parse_selectors(f"{'x' * 60_000}{i}")
            assert group_of(f"{'y' * 60_000}{i}") is None
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000


@given(st.sampled_from(Setting).flatmap(lambda setting: st.tuples(st.just(setting), s.VALUES[setting])))
def test_spelled_values_read_back_as_they_were(case: tuple[Setting, object]) -> None:
    setting, value = case
    assert parse_value(setting, spell_value(setting, value), "here") == value  # type: ignore[arg-type]


AMOUNTS = st.from_regex(r"[0-9]{1,15}(\.[0-9]{1,9})? ?([KMGTkmgt]?[iI]?[bB]|%)", fullmatch=True)


@given(st.sampled_from(Setting), st.text(max_size=12) | AMOUNTS)
@example(Setting.BUDGET, "1000.000000001TB")
@example(Setting.BUDGET, "999999999999999.999999999TB")
@example(Setting.BUDGET, "9999999999999999999999999999B")
def test_what_is_read_can_be_spelled_and_read_again(setting: Setting, text: str) -> None:
    try:
        value = parse_value(setting, text, "here")
    except PolicyError:
        return
    assert parse_value(setting, spell_value(setting, value), "here") == value


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (Setting.STRICT, True, True),
        (Setting.STRICT, "Off", False),
        (Setting.DEVICE, "cuda:1", 1),
        (Setting.DEVICE, 0, 0),
        (Setting.PLACEMENT, " Layerwise ", "layerwise"),
        (Setting.HOST, "PINNED", "pinned"),
    ],
)
def test_values_are_read_as_people_write_them(setting: Setting, text: object, value: object) -> None:
    assert parse_value(setting, text, "here") == value


@pytest.mark.parametrize(
    ("setting", "text", "hint"),
    [
        (Setting.PLACEMENT, "layer", "here: “layer” is not a placement; did you mean layerwise"),
        (Setting.MODE, "hasty", "possible: auto, manual, speed, memory"),
        (Setting.HOST, "pined", "is not a host tier; did you mean pinned"),
        (Setting.STRICT, "maybe", "write auto, on or off"),
        (Setting.DEVICE, "second", "as in gpu:1"),
        (Setting.DEVICE, "\u212a:1", "as in gpu:1"),
        (Setting.BUDGET, "lots", "an amount such as 6GB"),
    ],
)
def test_a_wrong_value_says_which_are_right(setting: Setting, text: str, hint: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_value(setting, text, "here")
    assert hint in str(error.value)


@pytest.mark.parametrize("text", [None, "", "auto", " AUTO ", "\n"])
def test_nothing_and_auto_are_not_set(text: str | None) -> None:
    assert not is_set(text)


@pytest.mark.parametrize("text", ["off", "none", "0", False, 0])
def test_everything_else_is_set(text: object) -> None:
    assert is_set(text)
