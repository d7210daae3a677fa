"""What is to be decided, and how is it found? By what follows, module by module.

entry       planner, problem, names, uncollected, compiled
free        free, early_updates, apart, by_layout, waiting, reuse, admitted, leaving: decisions that cost nothing
floor       floor, unavoidable
order       lean, reorder, ideals, jobs, moves
search      search, annealing, changes, space, pareto; compiled: tables, sequence, residence, transfers, heights
back        recompute, swap: from arrays to decisions
bound       bound, coarsen, outline, programme
addresses   addresses, blocks, placement, stitched
partition   partition, level, options, lacking, elimination, elimination_order, likeness, room, footprint, shares,
            agenda; rivals: placed, data_parallel
others      published
"""
