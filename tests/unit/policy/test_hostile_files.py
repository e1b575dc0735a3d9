"""Whatever the bytes are, reading them gives a policy or one `PolicyError`: never another error, and at once."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload_runtime.errors import PolicyError
from offload_runtime.policy import Policy, Source, SourceKind
from offload_runtime.policy.files import dump_policy, parse_policy

FILE = Source(SourceKind.FILE, "hostile.offload.yaml")
SEEDS = [f.read_bytes() for f in sorted((Path(__file__).parent / "fixtures").rglob("*.offload.*"))]
TOKENS = [
    b"version: 1", b"mode: ", b"components:", b"vae", b"text_encoder", b"layerwise", b": ", b"\n", b"  ", b"- ", b"[",
    b"]", b"{", b"}", b",", b"&a ", b"*a", b"!!int ", b"!", b"<<: ", b"? ", b"|\n", b">-\n", b"'", b'"', b"\\", b"#",
    b"%", b"---\n", b"...\n", b"\t", b"\xff", b"\x00", b"\xe2\x80\xa8", b"~", b"null", b"6GB", b"50%", b"\r",
    b"%YAML 9.9\n", b"component_residency", b"vae_cpu_offload", b"\xef\xbb\xbf", b"=", b"1" * 5000,
    b"\\ud800", b"0o7", b"1e999",
]  # fmt: skip


def read(data: bytes | str) -> None:
    refused = None
    try:
        policy = parse_policy(data, FILE)
    except PolicyError as error:
        refused = error
    if refused is None:
        assert isinstance(policy, Policy)
        assert parse_policy(dump_policy(policy), FILE) == policy.flattened(FILE)
        return
    line, column = refused.line or 0, refused.column or 0
    assert line >= 1
    assert column >= 1
    assert str(refused).startswith(f"hostile.offload.yaml, line {line}, column {column}: ")
    str(refused).encode()  # it can be printed


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    read(data)


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    read(text)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join))
def test_anything_made_of_what_files_are_made_of(data: bytes) -> None:
    read(data)


@given(st.sampled_from(SEEDS), st.integers(0, 400), st.integers(0, 30), st.sampled_from(TOKENS))
def test_broken_versions_of_good_files(seed: bytes, at: int, cut: int, token: bytes) -> None:
    read(seed[:at] + token + seed[at + cut :])


_KEYS = st.sampled_from(
    ["version", "mode", "components", "vae", "strict", "vram_budget", "component_residency", "host"]
)
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9), _KEYS
)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(_KEYS, st.text(max_size=5)), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(_KEYS, _JSON, max_size=5), st.booleans(), st.sampled_from([None, 2, "\t"]))
def test_any_json(value: object, ascii_only: bool, indent: int | str | None) -> None:
    read(json.dumps(value, ensure_ascii=ascii_only, indent=indent))


BOMBS = {
    "aliases": "a0: &a0 [x,x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1},*a{i - 1}]\n" for i in range(1, 40)),
    "deep lists": "[" * 65_000,
    "deep mappings": "{a: " * 16_000,
    "deep blocks": "".join(f"{' ' * i}a:\n" for i in range(350)),
    "many values": "[" + "1," * 32_000 + "]",
    "many keys": "\n".join(f"k{i}: v" for i in range(6_000)),
    "many documents": "---\n" * 16_000,
    "a long word": "mode: " + "x" * 65_000,
    "a long number": "vram_budget: " + "9" * 65_000,
    "a long key": "x" * 65_000 + ": 1",
    "long quotes": 'mode: "' + "\\u0041" * 10_000 + '"',
    "open quotes": "'" * 65_001,
    "many questions": "? " * 32_000,
    "many dashes": "- " * 32_000,
    "many colons": ": " * 32_000,
    "many names": "components: {'" + "vae," * 16_000 + "': cpu}",
    "a selector that looks numbered": "components: {'" + "_1" * 30_000 + "': cpu}",
    "too large": "#" * 10_000_000,
}  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_are_refused_at_once_and_in_little_memory(bomb: str) -> None:
    tracemalloc.start()
    try:
        read(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 * 1024
