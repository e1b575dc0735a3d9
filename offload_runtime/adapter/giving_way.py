"""An encoder that was found to fit, and streams what ComfyUI takes of it for others.

ComfyUI asks for a sampler's memory only when it samples, so no plan knows beforehand what fits beside it. Left to
ComfyUI, an encoder that fits but for that comes back whole with every prompt and is taken again: 956 ms a prompt
where 64 MB less memory take 455 (simulated, `bench/fit_point.py`). This one stays as long as nothing is taken, with
no slots and nothing pinned; what is taken is streamed from then on.
"""

from __future__ import annotations

from ..engine import parameter_bytes
from ..policy import Placement
from .applied import GONE, Applied, bytes_there, word_of
from .backends import StreamedToDevice
from .where import bytes_on_devices

WHOLE = "ComfyUI loads it whole as far as it fits, and what it takes of it for others is streamed"


class GivingWay(StreamedToDevice):
    """The stream backend with room for all of the component."""

    def applied(self) -> Applied:
        """Say what is streamed now, or how much of the component is there."""
        model = self._model()
        if model is None:
            return GONE
        if any(a.streamer.is_installed and a.streamer.streamed_bytes() for a in self._attachments):
            streamed = super().applied()
            taken = "ComfyUI needs the room of what is streamed for others"
            return streamed._replace(how=f"{streamed.how}; {taken}")
        there, whole = bytes_on_devices(model)[str(self._device)], parameter_bytes(model)
        how = f"{WHOLE}; {bytes_there(there, whole, self._device)}"
        return Applied(word_of(Placement.RESIDENT, there, whole), how, str(self._device))
