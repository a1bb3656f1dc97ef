"""A plan of two simulated arms, for whoever hands one on."""

PLAN = """\
label = "two-arms"
drift = false
[all]
engine = "simulated"
mode = "smoke"
[[arm]]
label = "before"
[[arm]]
label = "after"
simulated = ["step_time_factor=0.9"]
"""
