"""The demo models' tensors: name, shape and spread of every weight, as in the real models.

Shapes follow the checkpoints that ComfyUI reads (CLIP-L, T5-base, the 16-channel AutoencoderKL, SD3's MMDiT,
CLIP ViT-L/14, the T2I style adapter). The spread of a weight is 1/sqrt(inputs), so that signals neither die
nor overflow in half precision, whatever the depth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Weight:
    """A tensor to draw: normal with this standard deviation, around a constant."""

    shape: tuple[int, ...]
    std: float = 0.0
    mean: float = 0.0
    dtype: str | None = None  # None: the file's


Tensors = dict[str, Weight]


def clip_text_l() -> Tensors:
    """CLIP ViT-L text encoder: 12 layers of width 768, 77 tokens (123 M)."""
    return _clip_text(layers=12, width=768)


def clip_text_h() -> Tensors:
    """OpenCLIP ViT-H text encoder: 24 layers of width 1024, 77 tokens (354 M)."""
    return _clip_text(layers=24, width=1024)


def clip_vision_l() -> Tensors:
    """CLIP ViT-L/14 image encoder: 24 layers of width 1024, 256 patches and a class token (304 M)."""
    embeddings = "vision_model.embeddings."
    tensors: Tensors = {
        f"{embeddings}class_embedding": Weight((1024,), 1.0),
        f"{embeddings}patch_embedding.weight": Weight((1024, 3, 14, 14), (3 * 14 * 14) ** -0.5),
        f"{embeddings}position_embedding.weight": Weight((257, 1024), 0.5),
    }
    tensors |= _clip_layers("vision_model", layers=24, width=1024)
    # ComfyUI keeps these three in single precision beside a half-precision encoder.
    single = _norm("vision_model.pre_layrnorm", 1024) | _norm("vision_model.post_layernorm", 1024)
    single |= linear("visual_projection", 768, 1024, bias=False)
    return tensors | {name: replace(weight, dtype="float32") for name, weight in single.items()}


def t5_base() -> Tensors:
    """T5-base encoder: 12 blocks of width 768 (110 M)."""
    width, inner = 768, 3072
    # T5 does not scale queries by the head's width, so its query weights carry that factor.
    spreads = {"q": (width * 64) ** -0.5, "k": width**-0.5, "v": width**-0.5, "o": width**-0.5}
    tensors: Tensors = {"shared.weight": Weight((32128, width), 1.0)}
    for index in range(12):
        block = f"encoder.block.{index}.layer"
        for name, std in spreads.items():
            tensors[f"{block}.0.SelfAttention.{name}.weight"] = Weight((width, width), std)
        if index == 0:
            tensors[f"{block}.0.SelfAttention.relative_attention_bias.weight"] = Weight((32, 12), 0.1)
        tensors[f"{block}.0.layer_norm.weight"] = Weight((width,), mean=1.0)
        tensors |= linear(f"{block}.1.DenseReluDense.wi", inner, width, bias=False)
        tensors |= linear(f"{block}.1.DenseReluDense.wo", width, inner, bias=False)
        tensors[f"{block}.1.layer_norm.weight"] = Weight((width,), mean=1.0)
    tensors["encoder.final_layer_norm.weight"] = Weight((width,), mean=1.0)
    return tensors


def vae_16_channels() -> Tensors:
    """The AutoencoderKL of SD3 and Flux: 16 latent channels, widths 128 to 512, no quant layers (84 M)."""
    widths = (128, 256, 512, 512)
    tensors = _conv("encoder.conv_in", widths[0], 3, 3)
    before = widths[0]
    for level, width in enumerate(widths):
        for block in range(2):
            tensors |= _resnet(f"encoder.down.{level}.block.{block}", before, width)
            before = width
        if level < 3:
            tensors |= _conv(f"encoder.down.{level}.downsample.conv", width, width, 3)
    tensors |= _vae_middle("encoder.mid", 512) | _norm("encoder.norm_out", 512)
    tensors |= _conv("encoder.conv_out", 32, 512, 3)

    tensors |= _conv("decoder.conv_in", 512, 16, 3) | _vae_middle("decoder.mid", 512)
    before = 512
    for level, width in reversed(list(enumerate(widths))):
        for block in range(3):
            tensors |= _resnet(f"decoder.up.{level}.block.{block}", before, width)
            before = width
        if level > 0:
            tensors |= _conv(f"decoder.up.{level}.upsample.conv", width, width, 3)
    return tensors | _norm("decoder.norm_out", 128) | _conv("decoder.conv_out", 3, 128, 3, gain=0.5)


def sd3_tiny() -> Tensors:
    """SD3's MMDiT, depth 2 and width 128, conditioned on 768-wide tokens and pooled vectors (2 M)."""
    width, patches = 128, 64 * 64
    tensors: Tensors = {"pos_embed": Weight((1, patches, width), 0.5)}
    tensors |= _conv("x_embedder.proj", width, 16, 2)
    for name, inputs in (("t_embedder", 256), ("y_embedder", 768)):
        tensors |= linear(f"{name}.mlp.0", width, inputs) | linear(f"{name}.mlp.2", width, width)
    tensors |= linear("context_embedder", width, 768)
    for index in range(2):
        for side in ("context_block", "x_block"):
            block = f"joint_blocks.{index}.{side}"
            tensors |= linear(f"{block}.attn.qkv", 3 * width, width)
            # The last block only reads the context, so its context side ends at the attention.
            ends_early = index == 1 and side == "context_block"
            tensors |= linear(f"{block}.adaLN_modulation.1", (2 if ends_early else 6) * width, width)
            if not ends_early:
                tensors |= linear(f"{block}.attn.proj", width, width)
                tensors |= linear(f"{block}.mlp.fc1", 4 * width, width)
                tensors |= linear(f"{block}.mlp.fc2", width, 4 * width)
    tensors |= linear("final_layer.adaLN_modulation.1", 2 * width, width)
    return tensors | linear("final_layer.linear", 4 * 16, width)


def sd3_control_tiny() -> Tensors:
    """A ControlNet beside `sd3_tiny`, in the format of diffusers (1 M)."""
    width, patches = 128, 64 * 64
    tensors: Tensors = {"pos_embed.pos_embed": Weight((1, patches, width), 0.5)}
    tensors |= _conv("pos_embed.proj", width, 16, 2) | _conv("pos_embed_input.proj", width, 16, 2)
    for name, inputs in (("timestep", 256), ("text", 768)):
        embedder = f"time_text_embed.{name}_embedder"
        tensors |= linear(f"{embedder}.linear_1", width, inputs) | linear(
            f"{embedder}.linear_2", width, width
        )
    tensors |= linear("context_embedder", width, 768)
    for index in range(2):
        block = f"transformer_blocks.{index}"
        for name in (
            "to_q",
            "to_k",
            "to_v",
            "to_out.0",
            "add_q_proj",
            "add_k_proj",
            "add_v_proj",
            "to_add_out",
        ):
            tensors |= linear(f"{block}.attn.{name}", width, width)
        for side in ("", "_context"):
            tensors |= linear(f"{block}.norm1{side}.linear", 6 * width, width)
            tensors |= linear(f"{block}.ff{side}.net.0.proj", 4 * width, width)
            tensors |= linear(f"{block}.ff{side}.net.2", width, 4 * width)
        tensors |= linear(f"controlnet_blocks.{index}", width, width)
    return tensors


def style_adapter() -> Tensors:
    """The T2I style adapter: 257 image tokens of width 1024 to 8 text tokens of width 768 (39 M)."""
    width = 1024
    tensors: Tensors = {
        "style_embedding": Weight((1, 8, width), 1.0),
        "proj": Weight((width, 768), width**-0.5),
    }
    for index in range(3):
        layer = f"transformer_layes.{index}"  # spelled so in the real checkpoint
        tensors[f"{layer}.attn.in_proj_weight"] = Weight((3 * width, width), width**-0.5)
        tensors[f"{layer}.attn.in_proj_bias"] = Weight((3 * width,))
        tensors |= linear(f"{layer}.attn.out_proj", width, width)
        tensors |= linear(f"{layer}.mlp.c_fc", 4 * width, width)
        tensors |= linear(f"{layer}.mlp.c_proj", width, 4 * width)
        tensors |= _norm(f"{layer}.ln_1", width) | _norm(f"{layer}.ln_2", width)
    return tensors | _norm("ln_pre", width) | _norm("ln_post", width)


def _clip_text(layers: int, width: int) -> Tensors:
    tensors: Tensors = {
        "text_model.embeddings.token_embedding.weight": Weight((49408, width), 0.02),
        "text_model.embeddings.position_embedding.weight": Weight((77, width), 0.01),
    }
    tensors |= _clip_layers("text_model", layers, width)
    tensors |= _norm("text_model.final_layer_norm", width)
    return tensors | linear("text_projection", width, width, bias=False)


def _clip_layers(prefix: str, layers: int, width: int) -> Tensors:
    tensors: Tensors = {}
    for index in range(layers):
        layer = f"{prefix}.encoder.layers.{index}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors |= linear(f"{layer}.self_attn.{name}", width, width)
        tensors |= linear(f"{layer}.mlp.fc1", 4 * width, width)
        tensors |= linear(f"{layer}.mlp.fc2", width, 4 * width)
        tensors |= _norm(f"{layer}.layer_norm1", width) | _norm(f"{layer}.layer_norm2", width)
    return tensors


def _vae_middle(name: str, width: int) -> Tensors:
    tensors = _resnet(f"{name}.block_1", width, width) | _resnet(f"{name}.block_2", width, width)
    tensors |= _norm(f"{name}.attn_1.norm", width)
    for part in ("q", "k", "v", "proj_out"):
        tensors |= _conv(f"{name}.attn_1.{part}", width, width, 1)
    return tensors


def _resnet(name: str, inputs: int, outputs: int) -> Tensors:
    tensors = _norm(f"{name}.norm1", inputs) | _conv(f"{name}.conv1", outputs, inputs, 3)
    tensors |= _norm(f"{name}.norm2", outputs) | _conv(f"{name}.conv2", outputs, outputs, 3)
    return tensors | (_conv(f"{name}.nin_shortcut", outputs, inputs, 1) if inputs != outputs else {})


def linear(name: str, outputs: int, inputs: int, bias: bool = True) -> Tensors:
    """A linear layer's weight and, unless left out, its bias."""
    tensors: Tensors = {f"{name}.weight": Weight((outputs, inputs), inputs**-0.5)}
    return tensors | ({f"{name}.bias": Weight((outputs,))} if bias else {})


def _conv(name: str, outputs: int, inputs: int, size: int, gain: float = 1.0) -> Tensors:
    spread = gain * (inputs * size * size) ** -0.5
    return {
        f"{name}.weight": Weight((outputs, inputs, size, size), spread),
        f"{name}.bias": Weight((outputs,)),
    }


def _norm(name: str, width: int) -> Tensors:
    return {f"{name}.weight": Weight((width,), mean=1.0), f"{name}.bias": Weight((width,))}
