"""How does a step, as the user wrote it, become a graph? It is run once on fakes, and what it did is converted.

capture        the whole way
trace          what a step does to its tensors, as nodes on fakes
substitutes    what stands for what it uses: fakes and symbols
traced         what a trace has found
results        what the graph of a trace returns
noticed        what it returns and leaves in slots
traceable      what optimizers call that cannot be traced
likeness       whether two traces do the same
leaf           what the step returns
convert        from nodes to ops on storages
assembly       from a trace to a captured step
dependence     which values of a trace depend on what the step is given
captured       a captured step: graph, inputs, results
guesses        when a run looks whether what was guessed is right
checks         calls that are there for nothing that they return
once           calls that may give other bits when they run again
names          calls of torch as plain data, and back
signature      for which calls a captured step is right
"""
