"""What can go wrong, by whose fault it is. Every message is one line: what happened and what to do.

SloBenchError
├── UsageError            the caller asked for something impossible
├── EngineError           the server, the engine or its machine
└── InvalidMeasurement    the measurement itself cannot be believed
"""


class SloBenchError(Exception):
    """Anything that ends a command with one line on stderr."""


class UsageError(SloBenchError):
    """Bad input: an option, a file, a label, a model that does not exist."""


class EngineError(SloBenchError):
    """The engine could not be reached, refused, died, or did not come to rest."""


class InvalidMeasurement(SloBenchError):  # noqa: N818 - the word of the method
    """The client or the set-up spoiled the measurement; the message names cause and remedy."""


class VirtualTimeError(SloBenchError):
    """Code under the virtual loop reached for the real world, or waits for something that can never come."""
