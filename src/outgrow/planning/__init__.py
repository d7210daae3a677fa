"""What is to be decided, and how is it found? By what follows; each folder has its own map.

problem      what a planner gets
planner      from a problem to a plan
planned      what a plan makes of a graph, and what is expected of it
names        what planners and kernels are called
leaving      which storages may leave the device
floor        the smallest budget
free/        decisions that cost nothing
bound/       seconds that no plan can beat
order/       the order that needs least memory
search/      the joint choice
addresses/   where each storage lies in an arena
partition/   how a step is divided among workers
published/   how others decide
pareto       what memory buys
arrays       what arrays hold
compiled     functions on arrays as machine code

Folders import each other in one direction, which a contract of import-linter lays down. Beside them stands what all of
them ask (problem, leaving, floor, and what helps to compute), and what stands on top of all (planner, pareto).
"""
