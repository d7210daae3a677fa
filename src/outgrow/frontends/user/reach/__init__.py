"""What does a step reach by the names in its code, and what are the attributes and containers there?

containers     which containers may hold tensors
configuration  what in attributes tells modules and optimizers what to do
functions      what a function sees beyond its own variables, and what it wraps
values         what is known of a value that a function works with
reads          what the code of a function reads by name
locations      where a value is that a step finds outside
reach          which locations outside a step reaches by names
helpers        which modules, scalers and loggers run in a step beside those in training
hooks          functions that torch calls by itself
"""
