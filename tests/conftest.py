"""Property tests have no deadline: how long a loaded machine takes tells nothing of the code."""

from hypothesis import settings

settings.register_profile("without a deadline", deadline=None)
settings.load_profile("without a deadline")
