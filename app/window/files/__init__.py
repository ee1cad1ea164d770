"""Opening, saving and exporting, and runs that are kept on disk while they go on."""
