"""Messages to transactions: which rows belong to which commit, in which order. Pure.

`transitions` says which message may come when, `assembler` what each one does. `shape_cuts` says where
a batch is cut because a table's shape changes. `fragments` collects a batch, `runs` and `sizes` turn it
into arrays, `assembly` is the result. `aborted_xids` holds the subtransactions that rolled back.
"""
