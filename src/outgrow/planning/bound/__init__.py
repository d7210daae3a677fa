"""Which step time can no plan beat? What a linear programme says of an outline of the step.

bound      the programme, and why it is a bound
outline    moments, slots, and what rests over them
coarsen    an outline drawn from a graph
programme  programmes written down row by row, and solved
"""
