"""What the recorded arrays say about gradients and causes: pure functions, free of torch."""

from dynamics.analysis.accuracy import accuracy_table, thin
from dynamics.analysis.adjusted_gap import adjusted_count_table, adjusted_gap_table
from dynamics.analysis.agreement import agreement_table, recorded_measures
from dynamics.analysis.agreement_uncertainty import ablation_agreement_table, agreement_uncertainty_table
from dynamics.analysis.batch_sums import BatchSums, read_batch_sums
from dynamics.analysis.depth import depth_table
from dynamics.analysis.depth_share import depth_share_table
from dynamics.analysis.faithfulness import (
    FaithfulnessCurve,
    faithfulness_curve,
    faithfulness_curves,
    faithfulness_table,
)
from dynamics.analysis.importance import SCORES, causal_importance, gradient_magnitude
from dynamics.analysis.rank_gap import RankGap, rank_gap
from dynamics.analysis.rank_measures import RANK_MEASURES
from dynamics.analysis.resampling import Resampling
from dynamics.analysis.role_counts import role_count_table
from dynamics.analysis.roles import ROLES, chance_share, classify_roles, default_threshold
from dynamics.analysis.self_repair import self_repair_by_layer, self_repair_table
from dynamics.analysis.timeline import Timeline, gap_table, layer_table, read_timeline, rho_table
from dynamics.analysis.uncertainty import Uncertainty, read_uncertainty, role_probability_table, uncertainty_table

__all__ = [
    "RANK_MEASURES",
    "ROLES",
    "SCORES",
    "BatchSums",
    "FaithfulnessCurve",
    "RankGap",
    "Resampling",
    "Timeline",
    "Uncertainty",
    "ablation_agreement_table",
    "accuracy_table",
    "adjusted_count_table",
    "adjusted_gap_table",
    "agreement_table",
    "agreement_uncertainty_table",
    "causal_importance",
    "chance_share",
    "classify_roles",
    "default_threshold",
    "depth_share_table",
    "depth_table",
    "faithfulness_curve",
    "faithfulness_curves",
    "faithfulness_table",
    "gap_table",
    "gradient_magnitude",
    "layer_table",
    "rank_gap",
    "read_batch_sums",
    "read_timeline",
    "read_uncertainty",
    "recorded_measures",
    "rho_table",
    "role_count_table",
    "role_probability_table",
    "self_repair_by_layer",
    "self_repair_table",
    "thin",
    "uncertainty_table",
]
