"""How does a step, as the user wrote it, become a graph? It is run once on fakes, and what it did is converted.

capture        the whole way, and what is captured
trace          what a step does to its tensors, as nodes on fakes
convert        from nodes to ops on storages
found          how tensors lie that a step finds outside
checks         calls that are there for nothing that they return
names          calls of torch as plain data, and back
arguments      all the arguments that the schema of an operator has a place for
signature      for which calls a captured step is right
"""
