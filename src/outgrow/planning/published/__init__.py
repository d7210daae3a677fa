"""How do others decide? Planners of papers, one a module, and what several of them share.

They are asked where the captured step does not fit.

capuchin         Capuchin: swapping, or recomputation where that costs less
meng             Meng et al.: all maps are swapped but those nearest to the loss
nnabla_window    NNabla: swapping by a window that runs ahead
sqrt_checkpoint  checkpoints between segments
tflms_v1         TFLMS: what goes from the forward to the backward pass is swapped
tflms_v2         TFLMS v2: tensors between distant ops are swapped
olla             OLLA, also MODeL: the order by an integer programme
serenity         SERENITY: the order by dynamic programming
lanes            slots on the lanes of a link
triggers         ops that trigger transfers
phases           where the backward pass begins
levels           how far apart two ops are
profile          ops, seconds, live bytes and gaps of a graph
lineage          what is built again for a storage
regeneration     what it costs to close a gap by recomputation
repetition       bytes that are held if some storages are built again
orders           what methods share that choose the order alone
refusal          what is said where no plan was found
"""
