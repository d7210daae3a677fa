"""What leaves, what is built again, and in which order does it all run? A search over what the schedule costs.

search      the whole way, from a graph to decisions
boards      what is searched on: orders of the step
space       what there is to decide
contracted  what of a space a search has to see
changes     which policies are near a policy
annealing   what a policy costs, thousands of times
tables      a graph as arrays
sequence    the ops that run under a policy
residence   what they hold, and where it rests
choice      which gaps are swapped, by rules
transfers   when bytes move, and what that costs
heights     the largest number in a stretch, for transfers and choice
decisions   from arrays back to decisions
"""
