"""How does a program run? By what follows, module by module.

run           program, execute, recording
run again     on a CPU: foreknown, numbered, rerun; with planned addresses: score, lists, joined, repeated
the CPU       heap, results, arena, memory, freeing, over_operands, process, native
a device      device, device_memory, planned_arena, directed, pages, streams, flights
the next tier medium, tiers, pool, spill, resting, exported, links; below it: below, staged
"""
