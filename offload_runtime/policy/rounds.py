"""A round: the uses of a component in a row, before other models need its room. Stream at each, or move in once?

A byte that is streamed is copied at every use. One that takes the room of another model is copied once, but then
the other model's byte has to come back, and under the legacy memory manager weights are copied out, too. Every
byte weighs the same, so one of the two ways is the cheapest for all of them, and nothing between is cheaper.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import NamedTuple

from .users import PromptNodes

PAGEABLE = 2
"""A copy from or to ordinary memory takes as long as this many from pinned memory."""

PACKING = 4
"""So does a copy within memory, into a block that has to be pinned first."""


class Cost(NamedTuple):
    """What the two ways cost, in bytes copied from pinned memory.

    Attributes:
        use: streaming, at each use.
        first: streaming, beside that, once.
        move: taking the room.
        again: taking it in every round from the next one on.
    """

    use: int
    first: int
    move: int
    again: int

    def takes_room(self, uses: int, lost: int = 0) -> bool:
        """Tell whether taking the room costs no more than streaming, for so many uses to come.

        Where both cost the same, the room is taken, as ComfyUI would do it: more uses may come than are known of.
        It is taken, too, where it will be in later rounds: what streaming costs once would be spent for nothing.

        Args:
            uses: how many are to come.
            lost: what earlier rounds would have saved, had they been streamed. Once that is what streaming costs
                once, it is paid: so no more than twice the cheaper way is ever spent, however many rounds come.
        """
        once = max(0, self.first - lost)
        return once + uses * self.use >= self.move or uses * self.use >= self.again > 0


PAGED = Cost(1, 0, 2, 2)
"""Under dynamic VRAM: a byte in, and the one that gave way back, both from pinned memory, and nothing out.

Some of it comes back while the sampler computes, and costs less: where this errs, it is to what ComfyUI does.
"""


def legacy_cost(*, streamed: int, unpacked: int, pinned: bool, moved: int, evicted: int) -> Cost:
    """Return the cost under the legacy memory manager, which copies what it evicts back to ordinary memory.

    Args:
        streamed: bytes that each use copies, and would not copy if the component took the room.
        unpacked: bytes that have to be packed before they are streamed.
        pinned: whether they are copied from pinned memory.
        moved: bytes that come to the device when the component takes the room, and leave it again.
        evicted: bytes of other models that give way to them, and come back.
    """
    rate = 1 if pinned else PAGEABLE
    again = 2 * PAGEABLE * 2 * streamed  # as much of others gives way
    return Cost(rate * streamed, PACKING * unpacked, 2 * PAGEABLE * (moved + evicted), again)


class Use(NamedTuple):
    """A use that begins.

    Attributes:
        others_came: whether another model has been loaded since the last use.
        prompt: the id of the prompt that runs; None where nobody says.
        node: the id of the node that runs.
        graph: the nodes of that prompt.
        sources: the nodes that placed the component.
    """

    others_came: bool
    prompt: str | None = None
    node: str = ""
    graph: PromptNodes | None = None
    sources: frozenset[str] = frozenset()


class History:
    """What the uses of one model were so far, which says how many are to come.

    Nodes of a class that has used the model are its users, if they are behind the node that placed it. One that
    has not run in this prompt is going to, unless ComfyUI has its result: nothing before it has changed since it
    ran. How often it uses the model in one run, and whether others came before, is as it was last time.

    Attributes:
        takes_room: whether the room was taken in this round.
        left: how many uses were expected to come when the last one began, that one included.
    """

    def __init__(self) -> None:
        self.takes_room = False
        self.left = 0
        self._lost = 0  # what was copied for rounds that took the room, and would not have been for streaming
        self._prompt: str | None = None
        self._round = 0
        self._uses: Counter[str] = Counter()  # node → uses in this prompt
        self._rounds: dict[str, int] = {}  # node → in which round of this prompt it began
        self._known: dict[str, tuple[int, int]] = {}  # node → its uses and its round when it ran last
        self._kinds: dict[str, int] = {}  # class → uses in the last run of one of its nodes
        self._results: set[str] = set()  # digests of nodes that ran and whose result may still be there
        self._ran: set[str] = set()
        self._forgotten: set[str] = set()  # digests of nodes that ran although their result should be there
        self._misses = False  # whether that has happened in this prompt

    def begin(self, use: Use, cost: Cost) -> bool:
        """Note that a use begins, and tell whether it shall take the room of others."""
        if use.prompt != self._prompt or (use.graph is None and use.others_came):
            self._turn_the_page(use)
        elif use.others_came:
            self._round += 1
            self.takes_room = False
        self._look_at_results(use)
        self.left = self._here(use) + self._elsewhere(use)
        if not self.takes_room:
            self.takes_room = cost.takes_room(self.left, self._lost)
            self._lost += max(0, cost.move - self.left * cost.use) if self.takes_room else -self._lost
        self._uses[use.node] += 1
        self._rounds.setdefault(use.node, self._round)
        kind = use.graph.kind(use.node) if use.graph is not None else None
        if kind is not None:
            self._kinds[kind] = self._uses[use.node]
        return self.takes_room

    def would_begin(self, use: Use, cost: Cost) -> bool:
        """Tell what `begin` would, and note nothing."""
        return copy.deepcopy(self).begin(use, cost)

    def _turn_the_page(self, use: Use) -> None:
        """Take what the last prompt has shown as what is known, as far as this one has the same nodes."""
        self._known |= {node: (uses, self._rounds[node]) for node, uses in self._uses.items()}
        if use.graph is not None:
            self._known = {node: known for node, known in self._known.items() if use.graph.kind(node)}
            present = set(map(use.graph.digest, self._users(use)))
            self._results = (self._results | self._ran) & present
            self._forgotten &= present
        self._prompt, self._round, self.takes_room, self._misses = use.prompt, 0, False, False
        self._uses, self._rounds, self._ran = Counter(), {}, set()

    def _look_at_results(self, use: Use) -> None:
        """Note which node runs: had ComfyUI dropped its result, it may have dropped those of others, too."""
        if use.graph is None or use.node in self._uses:
            return
        digest = use.graph.digest(use.node)
        if digest in self._results:
            self._misses = True
            self._forgotten.add(digest)
        self._ran.add(digest)

    def _here(self, use: Use) -> int:
        """Return how many uses are to come of the node that runs, this one included.

        Once there are more than expected, nothing is known but that they go on: as many as there were, and this.
        """
        expected, done = self._expected_of(use, use.node), self._uses[use.node]
        return expected - done if done < expected else done + 1

    def _elsewhere(self, use: Use) -> int:
        """Return how many uses are to come of other nodes before others need the room."""
        if use.graph is None:
            return 0
        there = self._ran if self._misses else self._ran | (self._results - self._forgotten)
        waiting = {
            digest: self._expected_of(use, node)  # of two that are the same, one runs
            for node in self._users(use)
            if node not in self._uses and self._known.get(node, (0, 0))[1] <= self._round
            if (digest := use.graph.digest(node)) not in there
        }
        return sum(waiting.values())

    def _expected_of(self, use: Use, node: str) -> int:
        if node in self._known:
            return self._known[node][0]
        return self._kinds.get((use.graph.kind(node) if use.graph is not None else None) or "", 1)

    def _users(self, use: Use) -> list[str]:
        assert use.graph is not None
        return use.graph.users({*self._kinds, use.graph.kind(use.node) or ""}, use.sources)
