"""How does what a user wrote become a plan, and how does that run? By what follows; each folder has its own map.

user/          what a step finds in a user's program
fake/          what operators see in place of tensors
tracing/       from a step to a graph
workloads/     what the command line trains
lowering/      from a graph to kernels and a program
preparing/     what is known of a step before it runs
platforms/     on what a step runs
workers/       how several processes share a step
wrong_guesses  which guesses of a call were wrong
calls          how one call of a captured step is fed
within_budget  which plan has a program within the budget
one_thread     which thread may run a step
torn           which steps may run after one has failed
runs           what is kept of the runs of a step
beside         what the process holds beside a step
entry          what is kept for one kind of call
advice         what slows a step down that its user can change
guided         how a step is planned, from what its runs have shown
capturing      how a call becomes a graph: of the whole step, or of a worker's part
entries        which plans a step has
compile        who owns the loop over steps
build          how a model is made that does not fit into memory
parts/         how a loop runs that cannot be captured whole
dynamo         how it is cut into parts
huggingface    Hugging Face's trainer
lightning      Lightning's trainer

Folders import each other in one direction: nothing imports what stands below it here. Beside them stands the loop over
steps, and what users import by its name.
"""
