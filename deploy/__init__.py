"""How Sluice is run: local servers, the demonstration, images and database roles."""
