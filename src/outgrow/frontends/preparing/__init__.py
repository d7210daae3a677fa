"""What is known of a step before it runs? What was asked for, what the machine does, and a plan.

settings   what was asked for
machines   machines that are described in files
load       whether this machine is busy
measure    what this machine does, and what ops have cost
rehearsal  what an op costs on a device and allocates there, run by itself
contents   what is in the operands then, so that results are as large as captured
overhead   what a process takes beside what is planned
ahead      what a training will take, before any of it runs
kept       plans that were made before
largest    the largest batch, volume, length or depth that has a plan
warmup     what a process takes for all this before any model exists
"""
