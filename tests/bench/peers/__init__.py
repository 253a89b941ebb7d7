"""Other systems beside ours on one server, one log and one table: what can be had from the package registries."""
