"""Names for torch's profiler: which layer a transfer is for.

`torch.profiler.record_function` costs several microseconds when no profiler runs, so it is only called while one does.
What tells is the flag that torch's own compiler reads for this. It has no public name, but holds for all threads, and
`torch.autograd._profiler_enabled` has no public name either and is false on a thread that is recorded with
`profile_all_threads`. A torch that has no such flag profiles as before, without these names.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.autograd.profiler as _profiler

PREFIX = "layerwise_offload"

_unnamed: AbstractContextManager[None] = nullcontext()


def named(what: str, name: str) -> AbstractContextManager[object]:
    """Name what is done inside for a profiler, if one runs: `layerwise_offload: copy encoder.block.3`."""
    if getattr(_profiler, "_is_profiler_enabled", False):
        return torch.profiler.record_function(f"{PREFIX}: {what} {name}")
    return _unnamed
