"""Where in the arena of a device does each storage lie? In one piece where that fits, else in pages.

addresses  an address for each stay of each storage
blocks     which bytes lie side by side, and when
placement  one address for each block
stitched   pages for each block, in any order
"""
