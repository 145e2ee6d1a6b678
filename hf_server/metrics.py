"""What `/metrics` tells, in Prometheus' text form."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters of one server. Safe from any thread."""

    def __init__(self) -> None:
        on = self._registry = CollectorRegistry()
        self.prompt_tokens = Counter(
            "hf_server_prompt_tokens", "Prompt tokens, with cached ones.", registry=on
        )
        self.cached_tokens = Counter(
            "hf_server_cached_tokens", "Prompt tokens whose keys and values were still at hand.", registry=on
        )
        self.generated_tokens = Counter("hf_server_generated_tokens", "Tokens generated.", registry=on)
        self.requests = Counter("hf_server_requests", "Requests ended.", ["endpoint", "status"], registry=on)
        self.processing = Gauge("hf_server_requests_processing", "Requests under way.", registry=on)
        self.waiting = Gauge("hf_server_requests_waiting", "Requests that wait for the model.", registry=on)
        self.cache_usage = Gauge(
            "hf_server_kv_cache_usage_ratio", "Part of the key-value budget in use.", registry=on
        )
        self.batch = Histogram(
            "hf_server_batch_size",
            "Sequences in one forward pass.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=on,
        )
        self.duration = Histogram(
            "hf_server_request_seconds", "Time of a request.", ["endpoint"], buckets=_SECONDS, registry=on
        )
        self.first_token = Histogram(
            "hf_server_first_token_seconds", "Time to the first token.", buckets=_SECONDS, registry=on
        )

    def render(self) -> bytes:
        return generate_latest(self._registry)
