"""All talk with object storage. The only room that imports obstore."""
