"""One model of health: facts about a pipeline go in, one verdict comes out, and every surface
renders that verdict.

`problems` lists what can be wrong, `facts` holds what was seen, `verdict` judges it. Pure: no
clock, no I/O, no library.
"""
