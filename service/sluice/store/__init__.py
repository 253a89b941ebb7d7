"""All talk with object storage. The only package that imports obstore."""
