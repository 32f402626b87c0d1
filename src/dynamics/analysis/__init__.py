"""What the recorded arrays say about gradients and causes: pure functions, free of torch."""

from dynamics.analysis.accuracy import accuracy_table, thin
from dynamics.analysis.adjusted_gap import adjusted_count_table, adjusted_gap_table
from dynamics.analysis.agreement import agreement_table, recorded_measures
from dynamics.analysis.agreement_uncertainty import ablation_agreement_table, agreement_uncertainty_table
from dynamics.analysis.attribution import attribution_table, mean_attribution, signed_share
from dynamics.analysis.batch_sums import BatchSums, read_batch_sums
from dynamics.analysis.delays import GrokkingRule, delay_tables
from dynamics.analysis.depth import depth_table
from dynamics.analysis.depth_share import depth_share_table
from dynamics.analysis.emergence import confident_roles, emergence_by_layer, role_episodes
from dynamics.analysis.faithfulness import (
    FaithfulnessCurve,
    faithfulness_curve,
    faithfulness_curves,
    faithfulness_table,
)
from dynamics.analysis.findings import Findings, ScoreFindings
from dynamics.analysis.grokking import GrokkingReport, grokking_report
from dynamics.analysis.importance import SCORES, causal_importance, gradient_magnitude
from dynamics.analysis.lead_lag import events_table, largest_change, lead_lag_table, weight_norm_turn
from dynamics.analysis.many_runs import SeedInterval, rho_by_accuracy, rho_by_run, rho_by_step, seed_interval
from dynamics.analysis.pruning import ExperimentTables, experiment_tables, pruning_by_run, pruning_table
from dynamics.analysis.rank_gap import RankGap, rank_gap
from dynamics.analysis.rank_measures import RANK_MEASURES
from dynamics.analysis.resampling import Resampling
from dynamics.analysis.role_counts import role_count_table
from dynamics.analysis.role_frequency import majority_roles, role_frequency, roles_by_layer
from dynamics.analysis.role_stability import stable_role_table, threshold_table, turnover_table, with_threshold
from dynamics.analysis.roles import ROLES, chance_share, classify_roles, default_threshold
from dynamics.analysis.seed_findings import ScoreSeedFindings, SeedFindings
from dynamics.analysis.self_repair import self_repair_by_layer, self_repair_table
from dynamics.analysis.synergy import SynergyRatios, joint_ablation_table, synergy_ratios, synergy_table
from dynamics.analysis.timeline import Timeline, gap_table, layer_table, read_timeline, rho_table
from dynamics.analysis.transitions import Crossing, SigmoidFit, sigmoid_midpoint, threshold_crossing
from dynamics.analysis.uncertainty import Uncertainty, read_uncertainty, role_probability_table, uncertainty_table
from dynamics.analysis.windows import (
    WINDOWS,
    in_window,
    probe_accuracy,
    select_snapshots,
    snapshots_in_window,
    window_bounds,
)

__all__ = [
    "RANK_MEASURES",
    "ROLES",
    "SCORES",
    "WINDOWS",
    "BatchSums",
    "Crossing",
    "ExperimentTables",
    "FaithfulnessCurve",
    "Findings",
    "GrokkingReport",
    "GrokkingRule",
    "RankGap",
    "Resampling",
    "ScoreFindings",
    "ScoreSeedFindings",
    "SeedFindings",
    "SeedInterval",
    "SigmoidFit",
    "SynergyRatios",
    "Timeline",
    "Uncertainty",
    "ablation_agreement_table",
    "accuracy_table",
    "adjusted_count_table",
    "adjusted_gap_table",
    "agreement_table",
    "agreement_uncertainty_table",
    "attribution_table",
    "causal_importance",
    "chance_share",
    "classify_roles",
    "confident_roles",
    "default_threshold",
    "delay_tables",
    "depth_share_table",
    "depth_table",
    "emergence_by_layer",
    "events_table",
    "experiment_tables",
    "faithfulness_curve",
    "faithfulness_curves",
    "faithfulness_table",
    "gap_table",
    "gradient_magnitude",
    "grokking_report",
    "in_window",
    "joint_ablation_table",
    "largest_change",
    "layer_table",
    "lead_lag_table",
    "majority_roles",
    "mean_attribution",
    "probe_accuracy",
    "pruning_by_run",
    "pruning_table",
    "rank_gap",
    "read_batch_sums",
    "read_timeline",
    "read_uncertainty",
    "recorded_measures",
    "rho_by_accuracy",
    "rho_by_run",
    "rho_by_step",
    "rho_table",
    "role_count_table",
    "role_episodes",
    "role_frequency",
    "role_probability_table",
    "roles_by_layer",
    "seed_interval",
    "select_snapshots",
    "self_repair_by_layer",
    "self_repair_table",
    "sigmoid_midpoint",
    "signed_share",
    "snapshots_in_window",
    "stable_role_table",
    "synergy_ratios",
    "synergy_table",
    "thin",
    "threshold_crossing",
    "threshold_table",
    "turnover_table",
    "uncertainty_table",
    "weight_norm_turn",
    "window_bounds",
    "with_threshold",
]
