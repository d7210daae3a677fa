"""What does a step find in a user's program? Tensors in many places, and what cannot be captured.

unseen/     what a step does that no trace sees
left/       what it leaves behind in the program
training/   what is trained, and where it hangs
reach/      what it reaches by names
refusals    why a step cannot be captured
filling     how containers are copied, compared and filled
functions   which functions of torch the user's modes see
own_thread  what other threads do meanwhile
living      the objects of some kind that the process holds
unreadable  what refuses whoever reads it
lines       whose a line is, and which is the user's

Folders import each other in one direction, in this order from the top.
"""
