"""What a person could set so that the next run waits less, or has the room that this one lacked.

From what was measured in a run, and decided by the same resolver: nothing is suggested that would be decided
otherwise. The order is SGLang-Diffusion's: a VAE first, whose transfers sit on the decode path, the diffusion model
last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .arguments import Argument, ExplicitArguments, Source, SourceKind
from .components import Placement, group_of
from .decision import Decision
from .facts import ComponentFacts
from .measured import Measured, format_seconds
from .quantities import format_bytes
from .settings import WORKFLOW_SETTINGS, Setting, parse_value, spell_value

MOST = 3
"""How many are shown: the next run shows what is left."""

LIFT, ROOM = "lift", "room"
"""The two kinds: to hold more, and to hold less."""

WIDGETS = {
    "text_encoder": "text_encoder",
    "image_encoder": "image_encoder",
    "vae": "vae",
    "dit": "diffusion_model",
}
"""Group → the widget of a Placement Policy node that places it, which a policy file may name the group by, too."""

_ORDER = ("vae", "image_encoder", "text_encoder", "other", None, "dit")
_POLICY = Source(SourceKind.NODE, "Placement Policy")
_OVERRIDE = Source(SourceKind.OVERRIDE, "Set Placement")


class RanFacts(NamedTuple):
    """One component in the run that suggestions are made from. Sizes are bytes.

    Attributes:
        facts: what is known of it.
        decision: what was decided for it.
        measured: what was measured, or None when it did not run.
        held: device memory that it took when the most of the device was in use.
        whole: device memory that it takes when it is resident.
        short: whether a use of it ended because memory had run out.
        partly: whether ComfyUI had room for a part of its weights only while it computed.
    """

    facts: ComponentFacts
    decision: Decision
    measured: Measured | None
    held: int
    whole: int
    short: bool = False
    partly: bool = False

    @property
    def name(self) -> str:
        """Its component name."""
        return self.facts.name

    @property
    def turn(self) -> tuple[int, str]:
        """What the order goes by in which lifting helps most."""
        return _ORDER.index(group_of(self.name)), self.name


Decided = Mapping[str, Decision]
"""Component name → what is decided for it."""


@dataclass(frozen=True)
class RunFacts:
    """A run that was measured.

    Attributes:
        ran: its components.
        free: device memory that was free at the peak, less what ComfyUI keeps; may be negative.
        seconds: how long the run took.
        explicit: what was asked for.
        decide: what would be decided with more values asked for, or None where that would be refused.
    """

    ran: Sequence[RanFacts]
    free: int
    seconds: float
    explicit: ExplicitArguments
    decide: Callable[[tuple[Argument, ...]], Decided | None]


@dataclass(frozen=True)
class Suggestion:
    """One value that a person could set.

    Attributes:
        kind: `lift`, to hold more, or `room`, to hold less.
        component: the component that it is about.
        selector: what the value is for, as a policy file names it; `all` for a setting of the workflow.
        node: the node that has a widget for it: `Placement Policy` or `Set Placement`.
        widget: the widget.
        key: the setting, as a policy file calls it.
        value: the value, as widgets and files spell it.
        bytes: device memory that is taken more at the peak; negative where less is. Where a budget is suggested it is
            the most that it can come to.
        seconds: the time that is no longer spent waiting for weights, in each run, or None where nobody measured it.
        why: what was measured, and what it would overrule.
    """

    kind: str
    component: str
    selector: str
    node: str
    widget: str
    key: str
    value: str
    bytes: int
    seconds: float | None
    why: str

    @property
    def line(self) -> str:
        """The value, as an entry of a policy file says it."""
        if self.selector == "all":
            return f"{self.key}: {self.value}"
        if self.key == Setting.PLACEMENT.key:
            return f"{self.selector}: {self.value}"
        return f"{self.selector}: {{{self.key}: {self.value}}}"

    @property
    def yaml(self) -> str:
        """The same as a whole policy file."""
        return f"{self.line}\n" if self.selector == "all" else f"components:\n  {self.line}\n"

    @property
    def effect(self) -> str:
        """What is to be expected of it, for people."""
        size = f"{'−' if self.bytes < 0 else '+'}{format_bytes(abs(self.bytes))}"
        if self.seconds is None:
            return f"{size} of VRAM (an estimate)"
        return f"{size} of VRAM, about −{format_seconds(self.seconds)} a prompt (an estimate)"

    def lines(self) -> list[str]:
        """Return its lines of the report text."""
        return [
            f"suggestion for {self.component}",
            f"  set      {self.line} ({self.node})",
            f"  effect   {self.effect}",
            f"  because  {self.why}",
        ]

    def to_dict(self) -> dict[str, object]:
        """Return it as plain JSON values."""
        said = {"line": self.line, "yaml": self.yaml, "effect": self.effect}
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | said


class Option(NamedTuple):
    """One value that might be set: as an argument, as people write it, and the widget that holds it."""

    argument: Argument
    value: str
    widget: str

    def suggestion(self, kind: str, component: str, size: int, seconds: float | None, why: str) -> Suggestion:
        """Return it as a suggestion."""
        return Suggestion(
            kind=kind,
            component=component,
            selector=self.argument.selector,
            node=self.argument.source.place,
            widget=self.widget,
            key=self.argument.setting.key,
            value=self.value,
            bytes=size,
            seconds=seconds,
            why=why,
        )


def option(setting: Setting, selector: str, value: str) -> Option:
    """Return what sets a value: a widget of Placement Policy if it is of the workflow, or else Set Placement."""
    source = _POLICY if setting in WORKFLOW_SETTINGS else _OVERRIDE
    return Option(
        Argument(setting, selector, parse_value(setting, value, setting.key), source), value, setting.key
    )


def placements(ran: RanFacts, placement: Placement) -> list[Option]:
    """Return what would place a component: the widget of its group, and a node for it alone."""
    alone = option(Setting.PLACEMENT, ran.name, placement.value)
    group = group_of(ran.name)
    if group not in WIDGETS:
        return [alone]
    argument = Argument(Setting.PLACEMENT, WIDGETS[group], placement, _POLICY)
    return [Option(argument, placement.value, WIDGETS[group]), alone]


def you_set(run: RunFacts, ran: RanFacts, *settings: Setting) -> list[str]:
    """Say what a person has set of some settings that a suggestion about a component would overrule."""
    found = [won for setting in settings if (won := run.explicit.winner(setting, ran.name)) is not None]
    return [
        f"you set {won.setting.key} {spell_value(won.setting, won.value)} ({won.asked_by})" for won in found
    ]
