"""What can be had for nothing? Rewrites that free memory and repeat or move nothing.

free           all of them, one after the other; operands go of which only the layout matters
resting        what no op uses may be away
early_updates  parameters are updated as soon as can be
by_rows        two ops run as one, some rows at a time
by_operand     concatenations put one operand after the other into the result
apart          large ops run in parts
waiting        gradients of weights wait
reuse          dying operands are written over
admitted       which of many decisions the laws admit
"""
