"""How do several processes share a step? Each has a part of every tensor, and all run one division of the step.

workers         state that is cut once, and steps that are run together
agreement       what workers compare before each step, and how a refusal is told
dataflow        a traced step as calls on named tensors, which can be divided
gathers         where a worker may hold a whole parameter for a while
batch_norms     a batch norm as sums, which workers add
slicing         operators in pieces
divided         one worker's step, traced on its parts
exchange        the operators by which boxes travel
exchange_order  the order in which they travel beside arithmetic
divisible       any division of a workload's step, without its workers
forecast        how long a divided step takes
"""
