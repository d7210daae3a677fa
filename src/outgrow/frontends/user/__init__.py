"""What does a step find in a user's program? Tensors in many places, and what cannot be captured.

state          models, optimizers, gradients: the slots where tensors hang
plain          what models and optimizers keep that is no tensor
containers     which containers may hold tensors
devices        on which devices tensors may lie
configuration  what in attributes tells modules and optimizers what to do
filling        how containers are copied, compared and filled
changes        values and contents that a step changes, which each call changes again
attributes     what modules and optimizers keep in their attributes
renewed        which containers a step makes anew
functions      what a function sees beyond its own variables, and what it wraps
reads          what the code of a function reads by name
locations      where a value is that a step finds outside
reach          which locations outside a step reaches by names
helpers        which modules and scalers run in a step beside those in training
hooks          functions that torch calls by itself
outside        the numbers at these locations, things that a step uses, and its helpers
said           what it prints and logs
belongings     what is at these locations, and below, in case that the step is refused
gathered       results that it leaves there, and what goes on by them
counts         which numbers a step only counts up
taken          what a step takes out of what is outside, so that it is gone
escapes        what a step keeps that has no content
own_thread     what other threads do meanwhile
behind         what a step returns that autograd has made
unfinished     whether a function has done its work when it returns
set_data       tensors that a step gives the memory of others
unseen         what a step does that no trace sees
living         the objects of some kind that the process holds
drawn          random numbers that are not torch's
entropy        numbers that it takes from the machine's entropy
sharing        which tensors share memory
guards         conditions on hyper-parameters under which a captured step holds
schedules      what becomes of `scheduler.step()`
signals        when a signal interrupts a step that is captured
unreadable     what refuses whoever reads it
lines          whose a line is, and which is the user's
refusals       why a step cannot be captured
"""
