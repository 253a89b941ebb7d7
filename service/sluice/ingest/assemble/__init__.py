"""Messages to transactions: which rows belong to which commit, in which order. Pure.

`transitions` says which message may come when, `assembler` what each one does. `draft` collects one
batch, `runs` and `sizes` turn it into arrays, `assembly` is the result. `aborted` holds the
subtransactions that rolled back.
"""
