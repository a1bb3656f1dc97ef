"""What can go wrong with rented machines, each in one line: what happened and what to do."""

from __future__ import annotations


class CloudError(Exception):
    """The root of the errors of this package."""


class CloudUsageError(CloudError):
    """Something was asked that cannot be done (exit 2)."""


class CloudTrouble(CloudError):  # noqa: N818 -- the kind of trouble is what its user must know
    """The provider, the network or the machine failed (exit 4)."""


class ApiError(CloudTrouble):
    """The API answered, and refused: what was asked has surely not been done.

    status: of HTTP; code: the API's own word for it, empty where the answer was none of the API's.
    """

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Ambiguous(CloudTrouble):
    """Nobody knows whether what was asked has been done."""


class LinkLost(CloudTrouble):
    """The machine did not answer over SSH."""


class HostKeyChanged(CloudTrouble):
    """The machine at the address is another one than before; never retried."""


class NotConfirmed(CloudTrouble):
    """The API never said that the machine is gone: it may still be billed. rescue: the command that ends it."""

    def __init__(self, message: str, *, rescue: str) -> None:
        super().__init__(message)
        self.rescue = rescue
