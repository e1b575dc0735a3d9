"""The published figures: profile rtx4090, second run, milliseconds / peak MB of weights on the device."""

from __future__ import annotations

from .systems import Row

_COLUMNS = ("clip_l", "siglip", "t5xxl", "qwen7b", "kl_vae", "reverse", "video_vae")

_TABLE = """
resident | 1.1/246 | 6.1/825 | 33.9/9525 | 47.7/14141 | 86.8/99 | 10.2/2738 | 727/4599
whole_to | 45.7/246 | 150/825 | 1565/9525 | 2319/14141 | 106/99 | 454/2738 | 1478/4599
whole_pinned | 12.1/246 | 42.6/825 | 417/9525 | 616/14141 | 91.8/99 | 121/2738 | 916/4599
comfy_async | 11.4/81 | 37.8/20 | 392/347 | 583/1226 | 88.1/9 | 115/151 | 4014/85
comfy_async_pageable | 24.4/81 | 76.6/20 | 777/347 | 1152/1226 | 91.1/9 | 226/151 | 7804/85
comfy_sync | 23.5/76 | 78.4/10 | 800/263 | 1183/1090 | 96.6/5 | 232/76 | 8234/42
comfy_dynamic | 1.1/246 | 6.1/825 | 33.9/9525 | 47.7/14141 | 86.8/99 | 10.2/2738 | 727/4599
comfy_dynamic_noroom | 10.4/101 | 34.4/34 | 383/353 | 568/1242 | 86.9/34 | 110/168 | 3708/101
diffusers_block | 45.7/90 | 150/33 | 1565/649 | 2319/1556 | 106/33 | 454/245 | 15723/138
diffusers_block_stream | 20.7/104 | 37.3/64 | 416/1035 | 701/2022 | 88.4/66 | 114/472 | 3770/266
diffusers_block_stream_rec | 20.7/104 | 37.3/64 | 416/1035 | 701/2022 | 87.4/89 | 114/472 | 3770/266
diffusers_block_stream_lowcpu | 37.8/104 | 120/64 | 1343/1035 | 2006/2022 | 98.2/66 | 386/472 | 12960/266
diffusers_leaf | 45.8/76 | 150/10 | 1565/263 | 2319/1090 | 106/5 | 454/76 | 15736/42
diffusers_leaf_stream | 12.2/76 | 39.7/20 | 394/263 | 584/1090 | 88.7/9 | 115/151 | 4050/85
diffusers_leaf_stream_rec | 12.1/77 | 38.1/20 | 385/297 | 570/1116 | 86.9/87 | 112/151 | 3805/85
ref_ring | 7.0/104 | 33.4/64 | 372/1035 | 524/2022 | 86.8/87 | 110/472 | 3678/266
ref_ring_half | 3.6/189 | 17.4/460 | 188/5666 | 265/8548 | 86.8/122 | 56.1/1831 | 1840/2560
"""

#: SGLang's layerwise manager, whose code the simulator does not run.
_SGLANG = """
sglang_pinned | 7.0/104 | 33.4/64 | 372/1035 | 524/2022 | 88.1/87 | 201/2738 | 3678/266
sglang_pageable | 16.5/104 | 75.7/64 | 807/1035 | 1130/2022 | 96.0/87 | 428/2738 | 8112/266
"""

#: Profile h200: milliseconds only, and no `video_vae`.
_H200 = """
resident | 1.1 | 2.5 | 7.8 | 10.8 | 18.5 | 2.5
whole_to | 26.0 | 80.3 | 777 | 1150 | 30.2 | 227
whole_pinned | 7.0 | 22.1 | 200 | 296 | 21.6 | 58.8
comfy_async | 6.5 | 20.0 | 194 | 288 | 19.8 | 56.9
comfy_dynamic_noroom | 5.5 | 17.8 | 192 | 284 | 18.7 | 55.4
diffusers_block_stream | 11.3 | 20.5 | 209 | 351 | 20.2 | 57.8
diffusers_leaf_stream | 7.2 | 21.9 | 196 | 290 | 20.4 | 57.8
sglang_pinned | 3.6 | 16.8 | 186 | 262 | 19.2 | 101
sglang_pageable | 9.1 | 38.2 | 395 | 553 | 23.3 | 212
"""

#: 0.3.75 keeps no cast buffers: the peak is the biggest weight.
_OLD_CORE_WEIGHTS = {"clip_l": 76, "siglip": 10, "t5xxl": 263, "qwen7b": 1090, "kl_vae": 5, "reverse": 76}


def _parse(table: str) -> dict[tuple[str, str], Row]:
    rows = {}
    for line in table.strip().splitlines():
        system, *cells = (cell.strip() for cell in line.split("|"))
        for model, cell in zip(_COLUMNS, cells, strict=False):
            rows[system, model] = Row(*(float(part) for part in cell.split("/")))
    return rows


PUBLISHED = _parse(_TABLE)
SGLANG = _parse(_SGLANG)
H200 = _parse(_H200)
MODELS = _COLUMNS


def expected(system: str, model: str, gathers: bool) -> Row:
    """The published cell. ``gathers``: core copies through one cast buffer per stream (0.33)."""
    row = PUBLISHED[system, model]
    if system.startswith("comfy_async") and not gathers:
        return Row(row.ms, _OLD_CORE_WEIGHTS[model])
    return row
