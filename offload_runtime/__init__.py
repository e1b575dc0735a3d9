"""Explicit, portable placement of model components: policy, engine and ComfyUI adapter."""
