"""What developers run on their own machine. Not part of the wheel."""
