"""Text encoders that only read: CLIP, T5, BERT, and the pairs they come in."""

from __future__ import annotations

from coverage_text import BERT, CLIP, LLAMA, T5, TE, text

WIDE_T5 = {**T5, "d_model": 4096}  # joined with CLIP along tokens, which SD3 pads to this width
CASES = [
    text("CLIP-L (SD 1.x)", "comfy.sd1_clip:SD1ClipModel", {"clip_l": CLIP}),
    text("CLIP-H (SD 2.x)", f"{TE}.sd2_clip:SD2ClipModel", {"clip_h": CLIP}),
    text("CLIP-L, CLIP-G (SDXL)", "comfy.sdxl_clip:SDXLClipModel", {"clip_l": CLIP, "clip_g": CLIP}),
    text(
        "CLIP-L, CLIP-G, T5-XXL (SD3)",
        f"{TE}.sd3_clip:SD3ClipModel",
        {"clip_l": CLIP, "clip_g": CLIP, "t5xxl": WIDE_T5},
    ),
    text("CLIP-L, T5-XXL (Flux)", f"{TE}.flux:FluxClipModel", {"clip_l": CLIP, "t5xxl": T5}),
    text("T5-XXL (PixArt, Chroma)", f"{TE}.pixart_t5:PixArtT5XXL", {"t5xxl": T5}),
    text("T5-XXL (Mochi, LTX-Video)", f"{TE}.genmo:MochiT5XXL", {"t5xxl": T5}),
    text("T5-XXL (CogVideoX)", f"{TE}.cogvideo:CogVideoXT5XXL", {"t5xxl": T5}),
    text("T5-XXL 1.0 (Cosmos)", f"{TE}.cosmos:CosmosT5XXL", {"t5xxl": T5}),
    text("T5-base (Stable Audio)", f"{TE}.sa_t5:SAT5Model", {"t5base": T5}),
    text("pile-T5-XL (AuraFlow)", f"{TE}.aura_t5:AuraT5Model", {"pile_t5xl": T5}),
    text("umT5-XXL (Wan)", f"{TE}.wan:WanT5Model", {"umt5xxl": T5}),
    text("umT5-base (ACE-Step)", f"{TE}.ace:AceT5Model", {"": T5}),
    text("BERT, mT5-XL (HunyuanDiT)", f"{TE}.hydit:HyditModel", {"hydit_clip": BERT, "mt5xl": T5}),
    text(
        "CLIP-L, Llama 3 (HunyuanVideo)",
        f"{TE}.hunyuan_video:HunyuanVideoClipModel",
        {"clip_l": CLIP, "llama": LLAMA},
    ),
    text(
        "CLIP-L, CLIP-G, T5-XXL, Llama 3 (HiDream)",
        f"{TE}.hidream:HiDreamTEModel",
        {"clip_l": CLIP, "clip_g": CLIP, "t5xxl": T5, "llama": LLAMA},
    ),
]
