"""The real ComfyUI-GGUF beside ours, where somebody has put it, and files as its loader reads them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

PACK = Path.home() / ".cache/layerwise-offload/packs/ComfyUI-GGUF"


def load_pack() -> Any:
    """Import the pack's parts; skip the test where it is not."""
    if not (PACK / "ops.py").is_file():
        pytest.skip(f"ComfyUI-GGUF is not in {PACK}.")
    pytest.importorskip("gguf")
    name = "gguf_pack_of_others"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, PACK / "__init__.py", submodule_search_locations=[str(PACK)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    parts = {part: importlib.import_module(f"{name}.{part}") for part in ("ops", "nodes", "loader")}
    return SimpleNamespace(**parts)


SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Kinds that the `gguf` package reads and does not write → where a block has its numbers in half precision."""


def write(path: Path, weights: dict[str, torch.Tensor], quantisation: str) -> None:
    """Write a GGUF file of matrices in a quantisation (`Q8_0`) and vectors as they are."""
    import gguf

    kind = gguf.GGMLQuantizationType[quantisation]
    writer = gguf.GGUFWriter(path, "flux")
    for name, weight in weights.items():
        values = weight.float().numpy()
        if weight.dim() > 1:
            writer.add_tensor(name, _blocks(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _blocks(values: Any, kind: Any) -> Any:
    """Return a matrix in a quantisation; for one that nobody here can write, another of its size, drawn by lot."""
    import gguf

    if kind.name not in SCALES:
        return gguf.quants.quantize(values, kind)
    count, size = gguf.GGML_QUANT_SIZES[kind]
    drawn = np.random.default_rng(values.size).integers(0, 256, (values.size // count, size), dtype=np.uint8)
    for number, place in enumerate(SCALES[kind.name]):
        scale = np.float16(0.0002 * (number + 1))
        drawn[:, place : place + 2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
    return drawn.reshape(values.shape[0], -1)
