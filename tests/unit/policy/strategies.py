"""Hypothesis strategies for policies, machines and workflows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from offload_runtime.policy import (
    COMPONENTS,
    PAGED,
    SELECTORS,
    STREAMED,
    UNSET,
    WORKFLOW_SETTINGS,
    Argument,
    Budget,
    ComponentFacts,
    Kind,
    MachineFacts,
    Placement,
    Policy,
    Setting,
    Source,
    SourceKind,
    cannot_copy,
    not_movable,
)
from offload_runtime.policy.kinds import Amount, Device

MB = 1024**2
NAMES = tuple(name + number for name in COMPONENTS for number in ("", "_2", "_13"))

names = st.sampled_from(NAMES)
selectors = st.sampled_from((*SELECTORS, *NAMES))
budgets = st.one_of(
    st.integers(0, 1 << 36).map(lambda n: Budget(bytes=n)),
    st.integers(0, 100_000).map(lambda n: Budget(percent=n / 1000)),
)


def values(kind: Kind[Any]) -> st.SearchStrategy[Any]:
    """Return values of a kind, without `auto`."""
    if isinstance(kind, Amount):
        return budgets
    if isinstance(kind, Device):
        return st.integers(0, 3)
    words = [word for word in kind.choices if word != UNSET]
    return st.sampled_from(words).map(lambda word: kind.parse(word, "here"))


VALUES = {setting: values(setting.row.kind) for setting in Setting}


def sources(*kinds: SourceKind) -> st.SearchStrategy[Source]:
    """Return sources of few places, so that the same one turns up again; of some kinds, or of any."""
    return st.builds(
        Source, st.sampled_from(kinds or tuple(SourceKind)), st.sampled_from(["1", "12:5", "file"])
    )


@st.composite
def arguments(draw: st.DrawFn, by: st.SearchStrategy[Source], *, strict: bool = True) -> Argument:
    """Return one explicit value."""
    setting = draw(st.sampled_from([s for s in Setting if strict or s is not Setting.STRICT]))
    selector = "all" if setting in WORKFLOW_SETTINGS else draw(selectors)
    return Argument(setting, selector, draw(VALUES[setting]), draw(by))


def policies(
    by: st.SearchStrategy[Source] | None = None, *, strict: bool = False
) -> st.SearchStrategy[Policy]:
    """Return policies of any sources."""
    by = sources() if by is None else by
    return st.lists(arguments(by, strict=strict), max_size=8).map(lambda a: Policy(tuple(a)))


@st.composite
def workflows(draw: st.DrawFn) -> tuple[ComponentFacts, ...]:
    """Return up to six components with distinct names."""
    return tuple(draw(_component(name)) for name in draw(st.lists(names, unique=True, max_size=6)))


_capabilities = st.sampled_from(
    [
        STREAMED,
        STREAMED,
        PAGED,
        PAGED.without(Placement.CPU, Placement.AUTO, "its loader does not say how to load it again"),
        cannot_copy(STREAMED, "xpu:0"),
        not_movable(STREAMED, "AudioOobleckVAE"),
    ]
)


@st.composite
def _component(draw: st.DrawFn, name: str) -> ComponentFacts:
    size = draw(st.integers(0, 30_000)) * MB
    layers = draw(st.integers(0, 60))
    in_layers = draw(st.integers(0, size)) if layers else 0
    slots = draw(st.one_of(st.just(0), st.integers(0, max(in_layers, 1))))
    tables = draw(st.integers(0, size - in_layers))
    return ComponentFacts(
        name=name,
        model="Model",
        bytes=size,
        layers=layers,
        layer_bytes=in_layers,
        slot_bytes=slots if layers else 0,
        on_cpu=draw(st.booleans()),
        passes=draw(st.sampled_from([None, 1, 1, 20])),
        activation_bytes=draw(st.sampled_from([0, 0, 2000 * MB])),
        can=draw(_capabilities),
        file_bytes=draw(st.sampled_from([None, None, 0, in_layers])),
        table_bytes=tables,
        file_beside_bytes=draw(st.sampled_from([0, tables, size - in_layers])),
        loose_bytes=draw(st.integers(0, size - in_layers - tables)),
        spread=draw(st.sampled_from([1, 1, 2])),
    )


@st.composite
def machines(draw: st.DrawFn) -> MachineFacts:
    """Return machines with and without an accelerator, under all kinds of flags."""
    accelerator = draw(st.sampled_from([True, True, True, False]))
    total = draw(st.integers(0, 100_000)) * MB if accelerator else 0
    ram = draw(st.integers(1, 100_000)) * MB
    lone = ["--cpu-vae", "--disable-async-offload", "--disable-pinned-memory", "--disable-smart-memory"]
    lone.append("--disable-mmap")
    vram_flag = draw(
        st.sampled_from([(), (), ("--gpu-only",), ("--highvram",), ("--lowvram",), ("--novram",)])
    )
    return MachineFacts(
        device="cuda:0" if accelerator else "cpu",
        accelerator=accelerator,
        vram_total=total,
        vram_free=total,
        ram_total=ram,
        ram_available=draw(st.integers(0, ram)),
        inference_reserve=draw(st.integers(0, 4000)) * MB if accelerator else 0,
        vram_others=draw(st.integers(0, total)),
        pin_limit=draw(st.one_of(st.none(), st.integers(0, 60_000).map(lambda n: n * MB))),
        accelerators=draw(st.integers(1, 3)) if accelerator else 0,
        shared_memory=draw(st.sampled_from([False, False, True])),
        dynamic_vram=draw(st.booleans()),
        flags=(*vram_flag, *draw(st.lists(st.sampled_from(lone), unique=True, max_size=2))),
    )
