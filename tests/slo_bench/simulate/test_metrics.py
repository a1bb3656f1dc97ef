import pytest
from prometheus_client.parser import text_string_to_metric_families

from slo_bench.simulate.metrics import ServerMetrics
from traffic.records import Flight, Request
from traffic.server_facts import sample
from traffic.simulated import SimulatedEngine
from traffic.step_model import EngineSettings, StepModel
from traffic.virtual_time import run_virtual


def samples(metrics: ServerMetrics) -> dict[str, float]:
    """Samples by name, with what tells them apart besides the model's name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for each in family.samples:
            extra = [value for key, value in each.labels.items() if key in ("le", "finished_reason")]
            assert each.labels["model_name"] == "m"
            found[" ".join([each.name, *extra])] = each.value
    return found


def test_the_counts_are_those_of_the_model_and_latencies_those_of_its_steps() -> None:
    settings = EngineSettings(first_shape_cost_s=0.0, kv_cache_tokens=20_000)
    model = StepModel(settings, 0)
    metrics = ServerMetrics(model, "m")
    jobs = [model.submit(0.0, 100, 5), model.submit(0.0, 300, 9), model.submit(0.0, 50, 500)]
    now_s = 0.0
    for _ in range(12):
        end_s = model.begin_step(now_s)
        assert end_s is not None
        metrics.step(model.end_step())
        now_s = end_s
    late = model.submit(now_s, 10, 1)
    seen = samples(metrics)
    assert seen["vllm:num_requests_running"] == 1
    assert seen["vllm:num_requests_waiting"] == 1
    assert seen["vllm:kv_cache_usage_perc"] == pytest.approx((50 + 11) / 20_000)
    assert seen["vllm:prompt_tokens_total"] == 450
    assert seen["vllm:generation_tokens_total"] == 5 + 9 + 12
    assert seen["vllm:num_preemptions_total"] == seen["vllm:prefix_cache_queries_total"] == 0
    assert seen["vllm:request_success_total length"] == 2
    assert seen["vllm:request_success_total abort"] == 0
    assert seen["vllm:time_to_first_token_seconds_count"] == 3
    assert seen["vllm:inter_token_latency_seconds_count"] == 4 + 8 + 11
    assert seen["vllm:request_time_per_output_token_seconds_count"] == 2
    ended_s = [model.progress(job).last_token_s or 0.0 for job in jobs[:2]]
    assert seen["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(sum(ended_s))
    assert seen["vllm:iteration_tokens_total_count"] == 12
    assert seen["vllm:iteration_tokens_total_sum"] == 450 + 5 + 9 + 12
    model.abort(jobs[2])
    model.abort(late)
    metrics.abort()
    assert samples(metrics)["vllm:request_success_total abort"] == 1


def test_a_value_on_an_edge_belongs_to_its_bucket() -> None:
    model = StepModel(EngineSettings(step_noise_share=0.0, wander_share=0.0, overhead_s=0.5), 0)
    metrics = ServerMetrics(model, "m")
    model.submit(0.0, 8, 1)
    model.begin_step(0.0)
    metrics.step(model.end_step()._replace(end_s=0.5, finished=()))
    seen = samples(metrics)
    assert seen["vllm:time_to_first_token_seconds_bucket 0.25"] == 0
    assert seen["vllm:time_to_first_token_seconds_bucket 0.5"] == 1
    assert seen["vllm:time_to_first_token_seconds_bucket +Inf"] == 1


def test_a_sample_is_what_a_scrape_of_the_same_moment_reads() -> None:
    async def main() -> None:
        model = StepModel(EngineSettings(), 0)
        metrics = ServerMetrics(model, "simulated-moe")
        async with SimulatedEngine(model, metrics.step) as engine:
            for index in range(5):
                await engine.generate(Request(index, 0.0, "x", 100 * index + 1, 7), Flight())
        given = metrics.sample(moment_s=1.0, utc_s=2.0)
        assert given == sample(metrics.exposition().decode(), moment_s=1.0, utc_s=2.0)

    run_virtual(main())
