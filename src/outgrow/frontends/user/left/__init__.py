"""What does a step leave behind in the program, beside tensors of what is trained?

changes     values and contents that a step changes, which each call changes again
attributes  what modules and optimizers keep in their attributes
refusing    what stands for it there, and refuses to be read
renewed     which containers a step makes anew
outside     the numbers at these locations, things that a step uses, and its helpers
said        what it prints and logs
belongings  what is at these locations, and below, in case that the step is refused
gathered    results that it leaves there, and what goes on by them
made        objects of the user's that it makes, with results in them
counts      which numbers a step only counts up
taken       what a step takes out of what is outside, so that it is gone
"""
