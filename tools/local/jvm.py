"""Options of a JVM that lives for minutes."""

QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""Without its second compiler, Java starts in half the time. It then keeps 48 MB of compiled code by default. Spark has
more, and would compile the same code again and again.
"""
