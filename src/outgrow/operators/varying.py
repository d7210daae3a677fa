"""Which operators may give other bits when they run again on the same operands?

Those whose threads add up at places that they share, or write there, in whatever order they come. PyTorch lists them at
`torch.use_deterministic_algorithms` (https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms),
as what acts otherwise then or raises an error. Of those named for the CPU each was seen to vary on two threads, from
some thousands of elements on; no other one of the list was. Attention is added, whose kernels for a GPU sum gradients
so, and by cuDNN results, too.

Left out are convolutions, for which cuDNN may choose such kernels: a plan takes their gradients apart.
"""

_ANYWHERE = frozenset({"_index_put_impl", "_unsafe_index_put", "index_copy", "index_put", "put"})

_ON_GPU = frozenset(
    {
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d_backward",
        "_ctc_loss_backward",
        "_efficient_attention_backward",
        "_embedding_bag_dense_backward",
        "_flash_attention_backward",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_flash_attention_backward",
        "_upsample_bicubic2d_aa_backward",
        "_upsample_bilinear2d_aa_backward",
        "adaptive_max_pool2d_backward",
        "avg_pool3d_backward",
        "bincount",
        "cumsum",
        "fractional_max_pool2d_backward",
        "fractional_max_pool3d_backward",
        "grid_sampler_2d_backward",
        "grid_sampler_3d_backward",
        "histc",
        "index_add",
        "max_pool3d_with_indices_backward",
        "max_unpool2d",
        "max_unpool3d",
        "median",
        "nll_loss2d_forward",
        "reflection_pad1d_backward",
        "reflection_pad2d_backward",
        "reflection_pad3d_backward",
        "replication_pad1d_backward",
        "replication_pad2d_backward",
        "replication_pad3d_backward",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "upsample_bicubic2d_backward",
        "upsample_bilinear2d_backward",
        "upsample_linear1d_backward",
        "upsample_trilinear3d_backward",
    }
)


def varies(operator: str, *, on_cpu: bool) -> bool:
    """Return whether an operator, in place or not, may give other bits of the same operands, on a CPU or on a GPU.

    >>> varies("aten.index_put_.default", on_cpu=True), varies("aten.scatter_add.default", on_cpu=True)
    (True, False)
    """
    namespace, name, *_ = operator.split(".")
    name = name.removesuffix("_")
    return namespace == "aten" and (name in _ANYWHERE or (name in _ON_GPU and not on_cpu))
