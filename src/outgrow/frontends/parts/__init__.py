"""How does a loop run that cannot be captured whole? In parts, which wait for their backward pass and share a budget.

casting        in which types autocast computes
casts          whether several of them cast a weight in one autocast block
floats         which number is a float that Dynamo hands over as a tensor
masks          how models go eager's way while Dynamo reads them
parts          a forward pass, and its backward pass that comes later
joint          both as one step with a hole in it
aliases        results that are inputs, or views of inputs
addends        what adds up to a gradient, in autograd's order
arrivals       which gradients arrive, and how they lie
ample          when one runs as it is written
passes         how the two passes run
between        what must stay as it is between the two
shared_budget  how parts of a loop leave room for each other
"""
