"""What an LLM server can carry inside its service-level objective, and whether a change really moved it."""

from importlib.metadata import version

__version__ = version("slo-bench")
