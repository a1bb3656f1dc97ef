"""What an LLM server can carry inside its service-level objective, and whether a change really moved it."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("slo-bench")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "unknown"
