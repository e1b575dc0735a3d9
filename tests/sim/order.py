"""What is ordered before what: vector clocks over streams and host threads, and the faults they reveal.

An *actor* is a stream or a host thread. Each piece of work an actor does gets the next number of that
actor; a clock says, per actor, up to which number everything is known to have finished first. Work launched
on a stream starts from the stream's own clock joined with what the launching thread knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from .site import Site

Actor = tuple[str, int]
Clock = dict[Actor, int]


def join(into: Clock, other: Clock) -> None:
    """Learn everything ``other`` knows."""
    for actor, number in other.items():
        if into.get(actor, 0) < number:
            into[actor] = number


@dataclass(frozen=True, slots=True)
class Access:
    """One use of some bytes: who, which piece of its work, under what name, and from where."""

    actor: Actor
    number: int
    what: str
    site: Site

    def known_to(self, clock: Clock) -> bool:
        return clock.get(self.actor, 0) >= self.number

    def __str__(self) -> str:
        kind, index = self.actor
        return f"{self.what} on {kind} {index} at {self.site}"


class SimulationFault(RuntimeError):
    """The code under test would be wrong on a real card, whatever it computed here."""


class RaceFault(SimulationFault):
    """Two uses of the same bytes are not ordered by any wait."""

    def __init__(self, problem: str, earlier: Access, later: Access | str, memory: str) -> None:
        self.problem, self.earlier, self.later = problem, earlier, later
        super().__init__(
            f"{problem}: {later} is not ordered after {earlier}. Memory: {memory}. "
            "Make the later side wait (wait_event, wait_stream, synchronize) or keep the memory alive."
        )


class ReadBeforeArrival(RaceFault):
    """Bytes are read while another actor's write of them may still be under way."""


class WriteWhileRead(RaceFault):
    """Bytes are overwritten while another actor's read of them may still be under way."""


class WriteWhileWritten(RaceFault):
    """Bytes are overwritten while another actor's write of them may still be under way."""


class FreedWhileUsed(RaceFault):
    """Memory went back to its allocator, and to a new owner, while another stream may still use it."""
