"""Open-loop load and its facts. Knows requests, times and tokens; knows no pass or fail."""
