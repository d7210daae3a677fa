"""What may a step know of contents while it is traced? Little of it, and later calls are asked anew.

noted      what is noted of tensors until they are written
literals   contents that are the same in every call, at which a step may look
counters   numbers of the state at which a step may look
questions  contents of the batch at which a step may look; later calls are asked anew
guessing   what a step decides by numbers that are not there yet, which is guessed, and checked in each run
"""
