"""Rented machines and money. Imports nothing of what is measured; nothing can be rented yet."""
