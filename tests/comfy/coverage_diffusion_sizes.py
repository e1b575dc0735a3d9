"""Arguments of diffusion models: those of a released one, and what makes it tiny."""

from __future__ import annotations

UNET = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "num_heads": 2,
    "use_spatial_transformer": True,
}
UNET |= {"legacy": False}
TINY_UNET = UNET | {
    "model_channels": 32,
    "num_res_blocks": [1, 1],
    "channel_mult": (1, 2),
    "context_dim": 8,
    "transformer_depth": [1, 1],
    "transformer_depth_output": [1, 1, 1, 1],
    "transformer_depth_middle": 1,
}
SD1 = UNET | {
    "model_channels": 320,
    "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": (1, 2, 4, 4),
    "context_dim": 768,
    "num_heads": 8,
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "transformer_depth_middle": 1,
}
SDXL = UNET | {
    "model_channels": 320,
    "num_res_blocks": [2, 2, 2],
    "channel_mult": (1, 2, 4),
    "context_dim": 2048,
    "num_heads": -1,
    "num_head_channels": 64,
    "transformer_depth": [0, 0, 2, 2, 10, 10],
    "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
    "transformer_depth_middle": 10,
    "num_classes": "sequential",
    "adm_in_channels": 2816,
    "use_linear_in_transformer": True,
}
FLUX = {
    "in_channels": 16,
    "out_channels": 16,
    "vec_in_dim": 768,
    "context_in_dim": 4096,
    "hidden_size": 3072,
    "mlp_ratio": 4.0,
    "num_heads": 24,
    "depth": 19,
    "depth_single_blocks": 38,
    "axes_dim": [16, 56, 56],
    "theta": 10000,
    "patch_size": 2,
    "qkv_bias": True,
    "guidance_embed": True,
    "txt_ids_dims": [],
}
TINY_FLUX = FLUX | {
    "in_channels": 4,
    "out_channels": 4,
    "vec_in_dim": 8,
    "context_in_dim": 8,
    "hidden_size": 32,
    "num_heads": 2,
    "depth": 2,
    "depth_single_blocks": 3,
    "axes_dim": [4, 6, 6],
}
FLUX2 = FLUX | {
    "in_channels": 128,
    "out_channels": 128,
    "vec_in_dim": None,
    "context_in_dim": 15360,
    "hidden_size": 6144,
    "num_heads": 48,
    "depth": 8,
    "depth_single_blocks": 48,
    "axes_dim": [32, 32, 32, 32],
    "theta": 2000,
    "patch_size": 1,
    "qkv_bias": False,
    "mlp_ratio": 3.0,
    "txt_ids_dims": [3],
    "global_modulation": True,
    "mlp_silu_act": True,
    "ops_bias": False,
}
TINY_FLUX2 = FLUX2 | {
    "in_channels": 8,
    "out_channels": 8,
    "context_in_dim": 8,
    "hidden_size": 32,
    "num_heads": 2,
    "depth": 2,
    "depth_single_blocks": 3,
    "axes_dim": [4, 4, 4, 4],
}
CHROMA = FLUX | {
    "in_channels": 64,
    "out_channels": 64,
    "in_dim": 64,
    "out_dim": 3072,
    "hidden_dim": 5120,
    "n_layers": 5,
}
TINY_CHROMA = TINY_FLUX | {
    "in_channels": 16,
    "out_channels": 16,
    "in_dim": 64,
    "out_dim": 32,
    "hidden_dim": 32,
    "n_layers": 2,
}
WAN = {"in_dim": 16, "dim": 5120, "ffn_dim": 13824, "num_heads": 40, "num_layers": 40}
TINY_WAN = {
    "in_dim": 4,
    "out_dim": 4,
    "dim": 48,
    "ffn_dim": 64,
    "text_dim": 8,
    "num_heads": 2,
    "num_layers": 3,
    "freq_dim": 16,
}
HUNYUAN = FLUX | {
    "in_channels": 16,
    "context_in_dim": 4096,
    "depth": 20,
    "depth_single_blocks": 40,
    "axes_dim": [16, 56, 56],
    "theta": 256,
    "patch_size": [1, 2, 2],
    "byt5": False,
    "meanflow": False,
    "use_cond_type_embedding": False,
    "vision_in_dim": None,
    "meanflow_sum": False,
}
TINY_HUNYUAN = HUNYUAN | {
    "in_channels": 4,
    "out_channels": 4,
    "vec_in_dim": 8,
    "context_in_dim": 8,
    "hidden_size": 32,
    "num_heads": 2,
    "depth": 2,
    "depth_single_blocks": 3,
    "axes_dim": [4, 6, 6],
}
NEXT = {
    "in_channels": 16,
    "dim": 2304,
    "n_layers": 26,
    "n_heads": 24,
    "n_kv_heads": 8,
    "qk_norm": True,
    "cap_feat_dim": 2304,
    "axes_dims": [32, 32, 32],
    "axes_lens": [300, 512, 512],
}
ZIMAGE = {
    "in_channels": 16,
    "dim": 3840,
    "n_layers": 30,
    "n_heads": 30,
    "n_kv_heads": 30,
    "qk_norm": True,
    "cap_feat_dim": 2560,
    "axes_dims": [32, 48, 48],
    "axes_lens": [1536, 512, 512],
    "rope_theta": 256.0,
    "ffn_dim_multiplier": 8 / 3,
    "z_image_modulation": True,
    "time_scale": 1000.0,
    "pad_tokens_multiple": 32,
}
TINY_NEXT = {
    "in_channels": 4,
    "dim": 48,
    "n_layers": 3,
    "n_heads": 2,
    "n_kv_heads": 1,
    "cap_feat_dim": 8,
    "axes_dims": [8, 8, 8],
    "axes_lens": [64, 64, 64],
    "multiple_of": 16,
}
LTX = {
    "in_channels": 8,
    "cross_attention_dim": 32,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "caption_channels": 8,
    "num_layers": 3,
}
COSMOS2 = {
    "max_img_h": 240,
    "max_img_w": 240,
    "max_frames": 128,
    "in_channels": 16,
    "out_channels": 16,
    "patch_spatial": 2,
    "patch_temporal": 1,
    "concat_padding_mask": True,
    "crossattn_emb_channels": 1024,
    "pos_emb_cls": "rope3d",
    "pos_emb_learnable": True,
    "use_adaln_lora": True,
    "model_channels": 2048,
    "num_blocks": 28,
    "num_heads": 16,
}
TINY_COSMOS2 = COSMOS2 | {
    "in_channels": 4,
    "out_channels": 4,
    "crossattn_emb_channels": 8,
    "model_channels": 32,
    "num_blocks": 3,
    "num_heads": 2,
    "adaln_lora_dim": 8,
}
HIDREAM = {
    "patch_size": 2,
    "in_channels": 16,
    "num_layers": 16,
    "num_single_layers": 32,
    "caption_channels": [4096, 4096],
    "llama_layers": list(range(32)) + [31] * 16,
    "axes_dims_rope": (64, 32, 32),
}
TINY_HIDREAM = HIDREAM | {
    "in_channels": 4,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "caption_channels": [8, 8],
    "text_emb_dim": 8,
    "llama_layers": [0, 1, 1, 1],
    "axes_dims_rope": (8, 4, 4),
}
MMDIT = {
    "input_size": None,
    "in_channels": 16,
    "depth": 24,
    "pos_embed_max_size": 192,
    "num_patches": 36864,
    "adm_in_channels": 2048,
    "context_embedder_config": {
        "target": "torch.nn.Linear",
        "params": {"in_features": 4096, "out_features": 1536},
    },
}
TINY_MMDIT = MMDIT | {
    "in_channels": 4,
    "depth": 2,
    "pos_embed_max_size": 16,
    "num_patches": 256,
    "adm_in_channels": 8,
    "context_embedder_config": {
        "target": "torch.nn.Linear",
        "params": {"in_features": 8, "out_features": 128},
    },
}
MOCHI = {
    "in_channels": 12,
    "hidden_size_x": 3072,
    "hidden_size_y": 1536,
    "depth": 48,
    "num_heads": 24,
    "use_t5": True,
    "learn_sigma": False,
    "qk_norm": True,
    "qkv_bias": False,
    "mlp_ratio_x": 4.0,
}
