"""What does a step do that no trace sees? It is refused, or made as in eager mode.

escapes     what a step keeps that has no content
behind      what a step returns that autograd has made
unfinished  whether a function has done its work when it returns
unseen      what a step does that no trace sees
drawn       random numbers that are not torch's
entropy     numbers that it takes from the machine's entropy
signals     when a signal interrupts a step that is captured
"""
