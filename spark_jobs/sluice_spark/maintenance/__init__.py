"""Keeps lake tables small and clean between windows: joins files, purges removed rows, removes files that
no version needs. It never changes a row, and never comes before a change that waits.
"""
