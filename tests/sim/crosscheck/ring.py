"""A reference streamer in small: two slots, one copy stream, packed pinned masters. The bound the engine is
held to.

Only the order of events matters here: no budgets, no host tiers, no care for odd parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .decoder import Decoder
from .standins import StandIn


class Ring:
    """Streams every block but the resident ones; whatever is not in a block stays on the device."""

    def __init__(self, model: StandIn | Decoder, device: torch.device, half_resident: bool) -> None:
        self.order = list(model.blocks)
        if getattr(model, "geometry", None) is not None and model.geometry.reverse:
            self.order.reverse()
        for name, child in model.named_children():
            if name != "blocks":
                child.to(device)
        for block in self.order[1::2] if half_resident else ():
            block.to(device)
        self.streamed = self.order[::2] if half_resident else self.order
        self.masters = [self._pack(block) for block in self.streamed]
        size = max(master.numel() for master in self.masters)
        self.slots = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self.views = [[self._views(block, slot) for slot in self.slots] for block in self.streamed]
        self.copies = torch.Stream(device)
        self.arrived = [torch.Event(device) for _ in self.slots]
        self.used = [torch.Event(device) for _ in self.slots]
        for index, block in enumerate(self.streamed):
            block.forward = self._wrap(index, block.forward)

    @staticmethod
    def _entries(block: nn.Module) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
        return [
            (m._parameters, n, p) for m in block.modules() for n, p in m._parameters.items() if p is not None
        ]

    def _pack(self, block: nn.Module) -> torch.Tensor:
        """One pinned buffer for a block; its values are not copied, since nobody looks at them here."""
        return torch.empty(
            sum(p.nbytes for *_, p in self._entries(block)), dtype=torch.uint8, pin_memory=True
        )

    def _views(self, block: nn.Module, slot: torch.Tensor) -> list[nn.Parameter]:
        views, at = [], 0
        for *_, p in self._entries(block):
            views.append(
                nn.Parameter(slot[at : at + p.nbytes].view(p.dtype).view(p.shape), requires_grad=False)
            )
            at += p.nbytes
        return views

    def _fetch(self, index: int) -> None:
        slot, master = index % 2, self.masters[index]
        self.copies.wait_event(self.used[slot])
        with self.copies:
            self.slots[slot][: master.numel()].copy_(master, non_blocking=True)
            self.arrived[slot].record(self.copies)

    def _wrap(self, index: int, forward: Any) -> Any:
        entries = self._entries(self.streamed[index])

        def run(x: torch.Tensor) -> torch.Tensor:
            if index == 0:
                self._fetch(0)
            if index + 1 < len(self.streamed):
                self._fetch(index + 1)
            compute = torch.accelerator.current_stream()
            compute.wait_event(self.arrived[index % 2])
            try:
                for (owner, name, _), view in zip(entries, self.views[index][index % 2], strict=True):
                    owner[name] = view
                return forward(x)
            finally:
                for owner, name, parameter in entries:
                    owner[name] = parameter
                self.used[index % 2].record(compute)

        return run
