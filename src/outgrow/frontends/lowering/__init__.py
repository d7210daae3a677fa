"""How does a graph become what runs? Neighbours become kernels before the plan, the rest a program after it.

fusing    which ops can become one kernel
inductor  kernels for them
by_rows   the kernel of two operators that run as one, some rows at a time
in_turn   the kernels that put operands side by side, one after the other
lower     from a derived graph to a program
"""
