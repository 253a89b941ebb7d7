"""A day as an operator: the installed command, a pipeline of many tables, and every command and option."""
