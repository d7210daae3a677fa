"""What does torch do otherwise where nothing is traced? A step must come to the same bits.

alike       whether two tensors are alike
checked     what torch looks at only to raise an error
eager_ways  the way that torch goes where nothing is traced
products    gradients of products, as eager has them
extremes    gradients of the largest element of all and its like, as eager has them
fills       gradients of numbers that fill a mask, as eager has them
logits      gradients of binary cross entropies of two types, as eager rounds them
smoothing   smoothed cross entropies of weighted classes, as eager has them
kinds       types of numbers
labels      numbers of classes that are bytes
twice       gradients that may not be differentiated again
values      singular values and eigenvalues for which nobody wants vectors
onehot      one-hot vectors, as eager makes them
uncast      operators that autocast would cast within
foreign     what custom operators may not do, since no trace sees it
"""
