"""The accuracy gate: its items, and asking a running engine for them."""
