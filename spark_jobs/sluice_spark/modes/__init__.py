"""What a lake table holds: the present rows (mirror, by key or by whole rows) or every change
(changelog).
"""
