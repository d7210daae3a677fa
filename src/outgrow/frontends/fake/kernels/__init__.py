"""What do kernels give where torch's own fakes say something else, or nothing?

layouts     strides as kernels give them
smaller     strides of elementwise results, which kernels are asked for on small operands
failing     what kernels give for which torch's own fakes fail
asked       how kernels lay what they give for zeros
ambiguous   strides of what is contiguous and channels-last at once, which kernels are asked for
spectra     Fourier transforms, which lie by the strides of what is transformed
precision   types as kernels give them
alignments  what a loss keeps whose targets have lengths
reserves    what libraries keep for the backward pass
byte_masks  masks that are bytes
lists       calls on lists of tensors, which become a call for each
sums        layouts of sums of gradients, as eager has them
conjugates  tensors that torch conjugates by a mark alone
"""
