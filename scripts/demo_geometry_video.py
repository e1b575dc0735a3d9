"""A tiny LTX-Video checkpoint: its transformer and video VAE at a fraction of their size, in one file.

The original brings its own configuration along, in the file's metadata, so ComfyUI builds what that says. Text
conditioning is 768 wide, as the demo's CLIP-L makes it; a latent pixel is 32 by 32 pixels and 8 frames, as ever.
"""

from __future__ import annotations

from .demo_geometry import Tensors, Weight, linear

WIDTH, HEADS, LAYERS = 64, 4, 2
LATENT_CHANNELS, TEXT_WIDTH = 128, 768
VAE_WIDTH, PATCH = 128, 4  # the width is not configurable in older ComfyUI versions
VAE_BLOCKS = [["compress_all", 1]] * 3 + [["res_x", 1]]  # of the encoder; the decoder's are in reverse

CONFIG = {
    "transformer": {
        "num_attention_heads": HEADS,
        "attention_head_dim": WIDTH // HEADS,
        "cross_attention_dim": WIDTH,
        "caption_channels": TEXT_WIDTH,
    },
    "vae": {
        "dims": 3,
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": LATENT_CHANNELS,
        "encoder_blocks": VAE_BLOCKS,
        "decoder_blocks": VAE_BLOCKS,
        "encoder_base_channels": VAE_WIDTH,
        "decoder_base_channels": VAE_WIDTH,
        "norm_layer": "pixel_norm",
        "patch_size": PATCH,
        "latent_log_var": "uniform",
        "causal_decoder": False,
    },
}


def ltxv_tiny() -> Tensors:
    """The whole checkpoint (15 M, nearly all of it the VAE)."""
    parts = {"model.diffusion_model": _transformer(), "vae": _vae()}
    return {f"{part}.{name}": weight for part, tensors in parts.items() for name, weight in tensors.items()}


def _transformer() -> Tensors:
    tensors: Tensors = {"scale_shift_table": Weight((2, WIDTH), WIDTH**-0.5)}
    tensors |= linear("patchify_proj", WIDTH, LATENT_CHANNELS)
    tensors |= linear("adaln_single.emb.timestep_embedder.linear_1", WIDTH, 256)
    tensors |= linear("adaln_single.emb.timestep_embedder.linear_2", WIDTH, WIDTH)
    tensors |= linear("adaln_single.linear", 6 * WIDTH, WIDTH)
    tensors |= linear("caption_projection.linear_1", WIDTH, TEXT_WIDTH)
    tensors |= linear("caption_projection.linear_2", WIDTH, WIDTH)
    for index in range(LAYERS):
        block = f"transformer_blocks.{index}"
        tensors[f"{block}.scale_shift_table"] = Weight((6, WIDTH), WIDTH**-0.5)
        for attention in ("attn1", "attn2"):
            for name in ("to_q", "to_k", "to_v", "to_out.0"):
                tensors |= linear(f"{block}.{attention}.{name}", WIDTH, WIDTH)
            for name in ("q_norm", "k_norm"):
                tensors[f"{block}.{attention}.{name}.weight"] = Weight((WIDTH,), mean=1.0)
        tensors |= linear(f"{block}.ff.net.0.proj", 4 * WIDTH, WIDTH)
        tensors |= linear(f"{block}.ff.net.2", WIDTH, 4 * WIDTH)
    return tensors | linear("proj_out", LATENT_CHANNELS, WIDTH)


def _vae() -> Tensors:
    pixels = 3 * PATCH * PATCH
    tensors = _conv("encoder.conv_in", VAE_WIDTH, pixels) | _conv(
        "decoder.conv_in", VAE_WIDTH, LATENT_CHANNELS
    )
    sides = (("encoder", "down_blocks", VAE_BLOCKS), ("decoder", "up_blocks", VAE_BLOCKS[::-1]))
    for side, name_of_blocks, blocks in sides:
        for index, (kind, _) in enumerate(blocks):
            block = f"{side}.{name_of_blocks}.{index}"
            if kind == "res_x":
                for name in ("conv1", "conv2"):
                    tensors |= _conv(f"{block}.res_blocks.0.{name}", VAE_WIDTH, VAE_WIDTH)
            elif side == "encoder":
                tensors |= _conv(block, VAE_WIDTH, VAE_WIDTH)
            else:  # eight outputs for each, which become 2 by 2 pixels and 2 frames
                tensors |= _conv(f"{block}.conv", 8 * VAE_WIDTH, VAE_WIDTH)
    tensors |= _conv("encoder.conv_out", LATENT_CHANNELS + 1, VAE_WIDTH)
    tensors |= _conv("decoder.conv_out", pixels, VAE_WIDTH)
    ones = ("std-of-means", "mean-of-stds", "mean-of-stds_over_std-of-means")
    for name in (*ones, "mean-of-means", "channel"):
        values = Weight((LATENT_CHANNELS,), mean=float(name in ones))
        tensors[f"per_channel_statistics.{name}"] = values
    return tensors


def _conv(name: str, outputs: int, inputs: int) -> Tensors:
    return {
        f"{name}.conv.weight": Weight((outputs, inputs, 3, 3, 3), (27 * inputs) ** -0.5),
        f"{name}.conv.bias": Weight((outputs,)),
    }
