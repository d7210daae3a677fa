"""How does what a user wrote become a plan, and how does that run? By what follows, module by module.

capture       capture, trace, convert, names, arguments, state, signature, configuration, guards, counters, literals,
              escapes, attributes, unseen, drawn, refusals
fake tensors  fakes, layouts, precision, reserves, eager_ways, generator, schedules, containers
the loop      compile, one_thread, entries, calls, within_budget, prepare, kept, settings, warmup
platforms     platform, on_cpu, on_device, beside_device, devices, rehearsal, measure, machines, lower
workers       workers, dataflow, gathers, batch_norms, divided, divisible, exchange, exchange_order, forecast, slicing
kernels       fusing, inductor
other loops   dynamo, joint, addends, arrivals, parts, passes, shared_budget, between, lightning, huggingface
workloads     workload, loading, unallocated, build, largest
"""
