"""Notes, pages and summaries of finished runs, from their directories alone."""
