"""What the API answers with, in its own shapes; every name and number here is made up, or of a public price list."""

from __future__ import annotations

import uuid
from typing import Any

API_KEY = "secret_made-up_0123.not-a-real-key"
JUPYTER_SECRET = "made-up-jupyter-token"  # noqa: S105 -- made up
"""Every token begins so: tests look for it in whatever is written."""

TYPES: dict[str, tuple[str, int, int, int, str]] = {
    "gpu_1x_a10": ("1x A10 (24 GB PCIe)", 129, 1, 1400, "x86_64"),
    "gpu_1x_h100_sxm5": ("1x H100 (80 GB SXM5)", 429, 1, 2816, "x86_64"),
    "gpu_8x_h100_sxm5": ("8x H100 (80 GB SXM5)", 3192, 8, 22000, "x86_64"),
    "gpu_1x_gh200": ("1x GH200 (96 GB)", 229, 1, 4096, "arm64"),
}
"""What it is, cents per hour, GPUs, GiB of disk, architecture."""

REGIONS = {"us-west-1": "California, USA", "us-east-1": "Virginia, USA", "us-south-1": "Texas, USA"}
FAMILIES = {"lambda-stack-24-04": "24.4.4", "gpu-base-24-04": "24.4.4"}

REFUSALS: dict[str, tuple[int, str]] = {
    "no-capacity": (400, "instance-operations/launch/insufficient-capacity"),
    "wrong-region-filesystem": (400, "instance-operations/launch/file-system-in-wrong-region"),
    "quota": (400, "global/quota-exceeded"),
    "invalid-parameters": (400, "global/invalid-parameters"),
    "not-exist": (404, "global/object-does-not-exist"),
    "not-exist-400": (400, "global/object-does-not-exist"),
    "bad-key": (401, "global/invalid-api-key"),
    "inactive": (403, "global/account-inactive"),
    "invalid-address": (403, "global/invalid-address"),
    "forbidden": (403, "global/forbidden"),
    "not-found": (404, "global/not-found"),
    "conflict": (409, "global/conflict"),
    "unknown": (400, "global/unknown"),
    "internal": (500, "global/internal-error"),
    "internal-409": (409, "global/internal-error"),
    "429-json": (429, "global/too-many-requests"),
    "upstream-400": (400, "provider/internal-unavailable"),
    "upstream": (503, "provider/internal-unavailable"),
}
PAGES: dict[str, tuple[int, str, str]] = {
    "429": (429, "text/plain", "slow down"),
    "408": (408, "text/plain", "too late"),
    "502": (502, "text/html", "<html><body>Bad gateway</body></html>"),
    "500-html": (500, "text/html", "<html><body>Oh no</body></html>"),
    "cloudflare": (403, "text/html", "<html><body>error code: 1010</body></html>"),
    "not-json": (200, "text/html", "<html><body>Sign in to the network</body></html>"),
    "wrong-shape": (200, "application/json", '{"data": {"unexpected": [1, 2]}}'),
    "empty-body": (200, "application/json", ""),
    "redirect": (307, "text/plain", "elsewhere"),
}


def region_json(name: str) -> dict[str, str]:
    return {"name": name, "description": REGIONS.get(name, name)}


def type_json(name: str) -> dict[str, Any]:
    description, cents, gpus, storage_gib, architecture = TYPES[name]
    specs = {"vcpus": 26 * gpus, "memory_gib": 225 * gpus, "storage_gib": storage_gib, "gpus": gpus}
    words = {"name": name, "description": description, "gpu_description": description.partition(" ")[2]}
    return {**words, "price_cents_per_hour": cents, "specs": specs, "architecture": architecture}


def image_json(family: str, architecture: str, region: str) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{family}.{architecture}.{region}")),
        "created_time": "2026-08-01T00:00:00+00:00",
        "updated_time": "2026-08-02T00:00:00+00:00",
        "name": f"{family}-{architecture}",
        "description": family,
        "family": family,
        "version": FAMILIES[family],
        "architecture": architecture,
        "region": region_json(region),
    }
