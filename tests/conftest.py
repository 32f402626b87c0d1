import torch
from hypothesis import HealthCheck, settings

# Tiny tensors: more threads only get in each other's way.
torch.set_num_threads(1)

settings.register_profile(
    "repeatable",
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("repeatable")
