"""What does the command line train? A workload of a user's file, which may be built without memory.

workload     a model, its optimizer, the step, the batches
loading      from `path/to/file.py:function` to a workload
unallocated  built under fake tensors
steps        its first step, and the one that comes again, captured without memory
"""
