"""What is trained, and where does it hang? Models, optimizers, gradients, and what moves their numbers.

state      models, optimizers, gradients: the slots where tensors hang
plain      what models and optimizers keep that is no tensor
devices    on which devices tensors may lie
set_data   tensors that a step gives the memory of others
sharing    which tensors share memory
guards     conditions on hyper-parameters under which a captured step holds
schedules  what becomes of `scheduler.step()`
"""
