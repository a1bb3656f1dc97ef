"""`slo-bench run`: everything from the environment, under the published bare names, for a remote machine."""
