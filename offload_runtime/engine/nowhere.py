"""Tensors without memory: of a shape and a dtype, but whoever reads or writes a value of one gets an exception.

A weight that is converted as it is read has no right bytes anywhere. Code that goes round torch's dispatch must not
find wrong ones instead, nor be killed.
"""

from __future__ import annotations

from typing import Any

import torch

_core: Any = torch._C

IS_KNOWN = hasattr(_core, "_set_storage_data_ptr_access_error_msg")
"""Whether this torch can make them; old versions cannot."""

_SAID = (
    "a weight that `layerwise` reads from the model file when it is used, and converts, was read in a way that torch "
    "does not tell of. Choose another placement for it"
)


def take_memory(tensor: torch.Tensor) -> None:
    """Leave a tensor, and all that share its memory, without any."""
    storage = tensor.untyped_storage()
    storage.resize_(0)
    _core._set_storage_data_ptr_access_error_msg(storage._cdata, _SAID)


def let_be_set(tensor: torch.Tensor) -> None:
    """Let a tensor without memory view other memory: torch asks for that which it has."""
    _core._clear_storage_data_ptr_access_error_msg(tensor.untyped_storage()._cdata)
