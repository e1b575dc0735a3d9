"""The JSON Schema for editors and the parser refuse and read the same files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload_runtime.errors import PolicyError
from offload_runtime.policy import SELECTORS, HostTier, Mode, Placement, Source, SourceKind
from offload_runtime.policy.files import parse_policy
from offload_runtime.policy.files.legacy import LAYERWISE_LISTS, LEGACY_KEYS, RESIDENCY, WITHOUT_MEANING
from offload_runtime.policy.files.schema import json_schema

jsonschema = pytest.importorskip("jsonschema")
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
FILE = Source(SourceKind.FILE, "my.offload.yaml")


def read(document: dict[str, Any]) -> str:
    """Return "" for a document that the parser reads, else what it says."""
    try:
        parse_policy(json.dumps(document), FILE)
    except PolicyError as error:
        return str(error)
    return ""


def agree(document: dict[str, Any]) -> None:
    said, valid = read(document), VALIDATOR.is_valid(document)
    assert valid is not bool(said), (document, said)


def mostly(likely: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return two of the one for one of the other; `one_of` would weigh all their branches alike."""
    return st.sampled_from([likely, likely, other]).flatmap(lambda chosen: chosen)


def disguised(words: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return words as people and opponents write them: other case, dashes, spaces, a character more or less."""
    shapes = st.sampled_from([str, str.upper, str.title, lambda w: w.replace("_", "-"), lambda w: f" {w}\t"])
    changed = st.builds(lambda word, shape: str(shape(word)), words, shapes)
    longer = st.builds(lambda a, b: a + b, changed, st.text(max_size=2))
    before = st.builds(lambda a, b: a + b, st.text(max_size=1), changed)
    return mostly(changed, st.one_of(longer, before))


DIGITS = st.one_of(
    st.integers(0, 1200).map(str), st.sampled_from(["1", "01", "100", "100.0", "100.01", "101", "٣", "²"])
)
AMOUNTS = st.one_of(
    st.builds(lambda n, gap, unit: n + gap + unit, DIGITS, st.sampled_from(["", " "]),
              st.sampled_from(["%", "GB", "mib", "b", "\u212ab", "TB", "G", ""])),
    st.from_regex(r"[0-9]{1,30}(\.[0-9]{1,10})? ?([KMGTkmgt]?[iI]?[bB]|%)", fullmatch=True),
)  # fmt: skip
NAMES = mostly(
    st.sampled_from((*SELECTORS, "none")),
    st.one_of(
        st.sampled_from(["auto", "clip", ""]),
        st.builds(lambda name, n: f"{name}_{n}", st.sampled_from(SELECTORS), DIGITS),
    ),
)
NAME_LISTS = st.one_of(
    disguised(NAMES), st.lists(disguised(NAMES), max_size=3).map(",".join), st.sampled_from([",", "vae,,", " , vae"])
)  # fmt: skip
WORDS = st.sampled_from([
    *(member.value for kind in (Placement, Mode, HostTier) for member in kind),
    "on", "off", "true", "false", "yes", "no", "1", "gpu", "none", "gpu:1", "cuda:12", "cpu:0", "gpu:", ":1",
])  # fmt: skip
MODES = disguised(st.sampled_from([*RESIDENCY, "auto", ""]))
PAIRS = st.builds(
    lambda name, mode, gap: f"{name}{gap}={gap}{mode}", disguised(NAMES), MODES, st.sampled_from(["", " "])
)
TEXTS = st.one_of(disguised(WORDS), disguised(AMOUNTS), NAME_LISTS, PAIRS, st.text(max_size=6))
SCALARS = st.one_of(TEXTS, TEXTS, TEXTS, st.none(), st.booleans(), st.integers(-2, 120))
LISTS = st.lists(st.one_of(NAME_LISTS, PAIRS, SCALARS), max_size=3)
MAPPINGS = st.dictionaries(NAME_LISTS, SCALARS, max_size=1)
ANYTHING = st.one_of(SCALARS, SCALARS, LISTS, MAPPINGS)
ENTRIES = mostly(
    disguised(st.sampled_from([word.value for word in Placement])), st.one_of(SCALARS, LISTS, MAPPINGS)
)
COMPONENTS = st.dictionaries(NAME_LISTS, ENTRIES, max_size=1)  # only the parser sees that two name the same
LIKELY = {
    "mode": disguised(st.sampled_from([word.value for word in Mode])),
    "strict": st.one_of(st.booleans(), disguised(st.sampled_from(["on", "off", "true", "no", ""]))),
    "vram_budget": AMOUNTS,
    "placement": disguised(st.sampled_from([word.value for word in Placement])),
    "host": disguised(st.sampled_from([word.value for word in HostTier])),
    "device": st.one_of(st.integers(-1, 101), disguised(st.sampled_from(["gpu:1", "cuda:12", "cpu:0", "7"]))),
    "version": st.sampled_from([1, 2, "1", "", None]),
    "components": COMPONENTS,
    "performance_mode": disguised(st.sampled_from([word.value for word in Mode])),
    "component_residency": st.one_of(
        PAIRS, st.lists(PAIRS, max_size=3), st.lists(PAIRS, max_size=3).map(",".join),
        st.dictionaries(NAMES, st.one_of(st.none(), MODES), max_size=1),
    ),
    **dict.fromkeys(
        (*LAYERWISE_LISTS, "cpu_offload_components"), st.one_of(NAME_LISTS, st.lists(NAME_LISTS, max_size=3))
    ),
}  # fmt: skip
SWITCHES = LIKELY["strict"]


def settings_of(*keys: str) -> st.SearchStrategy[tuple[str, Any]]:
    """Return one of some keys with a value: mostly of its own kind, sometimes of another."""
    return st.sampled_from(keys).flatmap(
        lambda key: st.tuples(st.just(key), mostly(LIKELY.get(key, SWITCHES), ANYTHING))
    )


@settings(max_examples=300)
@given(settings_of("mode", "strict", "vram_budget", "version", "components", "vae", "Mode"))
def test_the_pack_s_own_keys(setting: tuple[str, Any]) -> None:
    agree(dict([setting]))


@settings(max_examples=300)
@given(settings_of("placement", "vram_budget", "host", "device", "Host"))
def test_the_settings_of_a_component(setting: tuple[str, Any]) -> None:
    agree({"components": {"vae": dict([setting])}})


@settings(max_examples=300)
@given(COMPONENTS)
def test_components(components: dict[str, Any]) -> None:
    agree({"components": components})


@settings(max_examples=500)
@given(settings_of(*LEGACY_KEYS, *WITHOUT_MEANING), st.data())
def test_sglang_s_keys(setting: tuple[str, Any], data: st.DataObject) -> None:
    key, value = setting
    agree({data.draw(disguised(st.just(key))): value})


@pytest.mark.parametrize(
    "document",
    [
        {"vram_budget": "101%"},
        {"vram_budget": "100.000000001%"},
        {"components": {"text_encoder_1000": "cpu"}},
        {"components": {"text_encoder_1": "cpu"}},
        {"components": {"text_encoder_٢": "cpu"}},
        {"components": {"vae": {"device": "cpu:1"}}},
        {"layerwise_offload_components": "text_encoder_1000"},
        {"component_residency": {"vea": None}},
        {"cpu_offload_components": ["none", "none"]},
        {"vae_cpu_offload": 3},
        {"dit_offload_prefetch_size": 2},
        {"mode": "fast"},
    ],
)
def test_both_refuse(document: dict[str, Any]) -> None:
    assert read(document)
    assert not VALIDATOR.is_valid(document)


@pytest.mark.parametrize(
    "document",
    [
        {"version": 1},
        {"version": "1"},
        {"mode": "Speed", "strict": "yes", "vram_budget": "AUTO"},
        {"strict": True, "components": {"Text-Encoder-2, VAE": " Layerwise "}},
        {"components": {"vae": {"device": 1}, "none": "cpu", "dit,,": None}},
        {"vram_budget": "9999999999999999999999999999B"},
        {"--Layerwise-Offload-Modules": ["dit, vae", ""], "component_residency": "vae=resident,"},
        {"component_residency": {"vae": "Snapshot-Offload"}},
    ],
)
def test_both_accept(document: dict[str, Any]) -> None:
    assert not read(document)
    assert VALIDATOR.is_valid(document)
