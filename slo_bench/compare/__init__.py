"""Two arms at one load, block by block in turn: the command, its servers, its document."""
