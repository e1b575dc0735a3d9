"""An encoder that was found to fit, and streams what ComfyUI takes of it for others.

ComfyUI asks for a sampler's memory only when it samples, so no plan knows beforehand what fits beside it. Left to
ComfyUI, an encoder that fits but for that comes back whole with every prompt and is taken again: 956 ms a prompt
where 64 MB less memory take 455 (simulated, `bench/fit_point.py`). This one stays as long as nothing is taken, with
no slots and nothing pinned; what is taken is streamed from then on.
"""

from __future__ import annotations

import torch
from torch import nn

from ..engine import parameter_bytes
from ..policy import Placement
from .applied import Applied, bytes_there, word_of
from .where import bytes_on_devices

WHOLE = "ComfyUI loads it whole as far as it fits, and what it takes of it for others is streamed"

TAKEN = "ComfyUI needs the room of what is streamed for others"


WHILE_USED = "ComfyUI loads it whole when it is used, and evicts it when another model needs the room"


def applied_whole(
    model: nn.Module, device: torch.device, placement: Placement = Placement.RESIDENT
) -> Applied:
    """Say how much of such a component is there, while none of it is streamed; or of one that is offloaded."""
    there, whole = bytes_on_devices(model)[str(device)], parameter_bytes(model)
    rule = WHILE_USED if placement is Placement.OFFLOAD else WHOLE
    return Applied(
        word_of(placement, there, whole), f"{rule}; {bytes_there(there, whole, device)}", str(device)
    )
