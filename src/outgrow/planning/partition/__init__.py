"""How is a step divided among workers, with the least communication? Division by division, each solved exactly.

partition          all divisions, one after the other
level              one division
options            what there is to choose from
lacking            what workers lack, for each choice
elimination        the cheapest choices together
elimination_order  in which order they are made
likeness           calls that are alike, and are cut alike
room               what may be held beyond equal shares
footprint          the memory of one worker
shares             what each worker holds, needs, makes and sends
agenda             in which order workers run their calls
data_parallel      a rival: data parallelism
placed             a rival: ops placed on devices
"""
