"""On what does a step run? On a CPU beside a file, or on a device beside the host.

platform       what is asked of either
on_cpu         memory of the process itself, under a budget
on_device      an arena of planned addresses
beside_device  where what leaves a device goes
"""
