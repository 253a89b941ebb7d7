"""What a release has beside the code: archives that can be built again, a bill of materials, licenses, notes."""
