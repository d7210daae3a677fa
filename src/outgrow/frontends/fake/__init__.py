"""What do operators see in place of tensors while a step is traced? Fakes, which say what kernels would give.

fakes       fake twins of the user's tensors, and the mode that runs operators on them
layouts     strides as kernels give them
smaller     strides of elementwise results, which kernels are asked for on small operands
failing     what kernels give for which torch's own fakes fail
asked       how kernels lay what they give for zeros
ambiguous   strides of what is contiguous and channels-last at once, which kernels are asked for
spectra     Fourier transforms, which lie by the strides of what is transformed
precision   types as kernels give them
arguments   what a call is given, and what of it is written
checked     what torch looks at only to raise an error
alignments  what a loss keeps whose targets have lengths
reserves    what libraries keep for the backward pass
eager_ways  the way that torch goes where nothing is traced
products    gradients of products, as eager has them
extremes    gradients of the largest element of all and its like, as eager has them
fills       gradients of numbers that fill a mask, as eager has them
logits      gradients of binary cross entropies of two types, as eager rounds them
smoothing   smoothed cross entropies of weighted classes, as eager has them
labels      numbers of classes that are bytes
byte_masks  masks that are bytes
twice       gradients that may not be differentiated again
values      singular values and eigenvalues for which nobody wants vectors
onehot      one-hot vectors, as eager makes them
uncast      operators that autocast would cast within
foreign     what custom operators may not do, since no trace sees it
generator   operators that save and restore the generator's state
lists       calls on lists of tensors, which become a call for each
noted       what is noted of tensors until they are written
literals    contents that are the same in every call, at which a step may look
counters    numbers of the state at which a step may look
questions   contents of the batch at which a step may look; later calls are asked anew
guessing    what a step decides by numbers that are not there yet, which is guessed, and checked in each run
sums        layouts of sums of gradients, as eager has them
conjugates  tensors that torch conjugates by a mark alone
"""
