import numpy as np

from dynamics import take_snapshot
from dynamics.measurements import MEASUREMENTS
from tests.cases import Channels, channels_map, channels_probe
from tests.strategies import decoder, probe


def test_every_measurement_scores_as_many_batches_as_it_announces():
    seen = []
    snapshot = take_snapshot(decoder(), probe(decoder()), progress=lambda done, total: seen.append((done, total)))
    total = 2 + 2 + (1 + 1 + 8) * 2 + 2 + 2 * 6 * 2
    assert seen == [(done, total) for done in range(1, total + 1)]
    assert len(snapshot) == 9


def test_every_measurement_returns_the_arrays_it_announces_with_the_axes_it_announces():
    sizes = {"component": 3, "baseline": 2, "method": 1, "batch": 2, "example": 4}
    model = decoder(n_layers=1)
    attending = model, probe(model, sizes=((3, 2), (1, 3))), None
    for name, measurement in MEASUREMENTS.items():
        assert measurement.name == name
        subject = attending if name == "self_repair" else (Channels(), channels_probe(), channels_map())
        snapshot = take_snapshot(*subject, measurements=[name], methods="gradient")
        assert set(snapshot) == {"loss", "exact_match"} | {spec.name for spec in measurement.arrays}
        for spec in measurement.arrays:
            assert snapshot.spec(spec.name) is spec
            assert snapshot.dims(spec.name) == spec.dims
            assert snapshot[spec.name].shape == tuple(sizes[dim] for dim in spec.dims)
            assert snapshot[spec.name].dtype == (np.bool_ if "match" in spec.name else np.float64)
