"""Real servers on loopback, without containers, for the demonstration, the tests and the local
stack.

Owns their whole life: whatever is started here is stopped here, by process id. Nothing in this
package is part of the product, and nothing in `service` or `spark_jobs` imports it.
"""
