"""An engine can be made again in another process, secrets and all, and shows none of them."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace
from pathlib import Path

from flights import KEY, PATIENT, ask

from traffic.endpoint import Endpoint
from traffic.http_engine import HttpEngine
from traffic.recipe import EngineRecipe
from traffic.worker import engine_from

TENANT = "blue-and-secret"


def engine() -> HttpEngine:
    endpoint = Endpoint(
        "http://10.0.0.1:8000/v1",
        api_key=f" {KEY} ",
        headers={"X-Tenant": TENANT},
        ca_file=Path("ca.pem"),
        bounds=PATIENT,
    )
    return HttpEngine(endpoint, "m", extra_body={"top_k": 1}, forces_length=False, continuous_usage=False)


def test_the_engine_of_a_recipe_is_the_same_engine() -> None:
    recipe: EngineRecipe = pickle.loads(pickle.dumps(engine().recipe()))  # noqa: S301 - our own
    assert recipe == engine().recipe()

    async def main() -> tuple[bytes, EngineRecipe]:
        async with engine_from(recipe) as other:
            assert isinstance(other, HttpEngine)
            return other.body(ask()), other.recipe()

    assert asyncio.run(main()) == (engine().body(ask()), recipe)


def test_it_holds_what_the_endpoint_was_given() -> None:
    recipe = engine().recipe()
    assert (recipe.endpoint.url, recipe.endpoint.api_key) == ("http://10.0.0.1:8000", KEY)
    assert recipe.endpoint.headers == {"X-Tenant": TENANT}
    assert recipe.endpoint.ca_file == Path("ca.pem")
    assert (recipe.model, recipe.extra_body) == ("m", {"top_k": 1})


def test_no_text_of_it_shows_a_secret() -> None:
    recipe = engine().recipe()
    for text in (repr(recipe), repr(replace(recipe, model="other")), str(recipe.endpoint)):
        assert KEY not in text
        assert TENANT not in text
