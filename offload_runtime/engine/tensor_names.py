"""Attributes and methods of a tensor by what they need of it: nothing of its values, or a copy of all of them."""

from __future__ import annotations

FACTS = (
    *(
        "shape",
        "dtype",
        "device",
        "layout",
        "ndim",
        "itemsize",
        "nbytes",
        "requires_grad",
        "is_leaf",
        "names",
    ),
    *("grad", "grad_fn", "retains_grad", "_version", "is_cpu", "is_cuda", "is_meta", "is_mps", "is_xpu"),
    *("is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn"),
)
QUESTIONS = (
    *(
        "size",
        "stride",
        "storage_offset",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "element_size",
        "__len__",
    ),
    *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_inference", "is_same_size"),
    *("get_device", "requires_grad_", "_has_compatible_shallow_copy_type"),
    *("empty_like", "zeros_like", "ones_like", "new_empty", "new_zeros"),
)
CONVERSIONS = ("to", "float", "half", "bfloat16", "double", "clone", "cpu", "cuda")
