"""The engine: layers, slots, host tiers and the streamer. Knows torch, not ComfyUI."""

from .file_sizes import FileSizes, file_sizes
from .lane import Lane
from .ledger import Ledger
from .loose import LooseTensors
from .mapped import MappedWeights
from .packed import PackedWeights
from .stacks import Layer, Stack, is_compiled, parameter_bytes, tensor_bytes
from .store_file import digest, write
from .streamer import Streamer
from .tiers import FileTier, MappedTier, MemoryTier, Tier
from .trace import Trace
from .units import least_slot_bytes, slot_bytes_for
from .weight_file import WeightFile, dtypes_in_file

__all__ = [
    "FileSizes",
    "FileTier",
    "Lane",
    "Layer",
    "Ledger",
    "LooseTensors",
    "MappedTier",
    "MappedWeights",
    "MemoryTier",
    "PackedWeights",
    "Stack",
    "Streamer",
    "Tier",
    "Trace",
    "WeightFile",
    "digest",
    "dtypes_in_file",
    "file_sizes",
    "is_compiled",
    "least_slot_bytes",
    "parameter_bytes",
    "slot_bytes_for",
    "tensor_bytes",
    "write",
]
