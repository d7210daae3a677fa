"""What do the commands of `outgrow` do? Each takes what `outgrow.cli` parsed and a narrator that tells what happens.

job        what a command is told, and what a plan is about
train      trains a workload under a budget
plan       plan, compare and explain: what training would take
fit        the largest setting that fits, or the smallest budget
partition  how a step is divided among workers
machine    what this machine does, or one that is described

What goes wrong is raised. Of these only `machine` can be imported without torch.
"""
