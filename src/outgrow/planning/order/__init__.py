"""Which order of the ops needs least memory? Told for steps in which nothing leaves, and in which anything may.

lean         the least, were everything away that is not used now
reorder      the least peak where nothing leaves
ideals       an order below a limit, by sets of jobs
jobs         ops as jobs of one machine, which share its memory
moves        from one order to another by the law of order
unavoidable  what no order can do without
"""
