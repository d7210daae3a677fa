"""What do operators see in place of tensors while a step is traced? Fakes, which say what kernels would give.

eager/     what torch does otherwise where nothing is traced
fakes      fake twins of the user's tensors, and the mode that runs operators on them
kernels/   what kernels give where torch's own fakes say something else
looks/     contents at which a step may look
arguments  what a call is given, and what of it is written
generator  operators that save and restore the generator's state

Folders import each other in one direction, in this order from the top.
"""
