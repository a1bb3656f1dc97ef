"""What runs under the GPU's own interpreter, with torch, nvcc and FlashInfer's sources; nothing of slo_bench.

`building`, `runner`, `measuring` and `script` are also the body of the script that `--export-script` writes, in one
file and without their imports of each other. So no name is defined in two of them.
"""
