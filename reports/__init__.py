"""The run directory's documents, and what they say: notes, tables, figures."""
