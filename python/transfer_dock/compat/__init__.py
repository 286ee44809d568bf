"""Programs written for other experience data systems, on a dock: change the import, and keep the program."""
