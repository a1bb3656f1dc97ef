"""FlashInfer's grouped GEMM with FP8 block scales: what its estimate of rows per expert does to its kernels.

FlashInfer picks a branch and a tile from an estimate of the rows that each expert gets. Its estimate is the count of
tokens; what the kernels meet is tokens x top-k / experts. Both are timed here, checked, and shown side by side.
"""
