"""What the recorded arrays say about gradients and causes: pure functions, free of torch."""

from dynamics.analysis.accuracy import accuracy_table, thin
from dynamics.analysis.agreement import agreement_table, recorded_measures
from dynamics.analysis.faithfulness import (
    FaithfulnessCurve,
    faithfulness_curve,
    faithfulness_curves,
    faithfulness_table,
)
from dynamics.analysis.importance import SCORES, causal_importance, gradient_magnitude
from dynamics.analysis.many_runs import SeedInterval, rho_by_accuracy, rho_by_step, seed_interval
from dynamics.analysis.pruning import ExperimentTables, experiment_tables, pruning_by_run, pruning_table
from dynamics.analysis.rank_gap import RankGap, rank_gap
from dynamics.analysis.role_frequency import majority_roles, role_frequency, roles_by_layer
from dynamics.analysis.roles import ROLES, chance_share, classify_roles, default_threshold
from dynamics.analysis.self_repair import self_repair_by_layer, self_repair_table
from dynamics.analysis.synergy import SynergyRatios, joint_ablation_table, synergy_ratios, synergy_table
from dynamics.analysis.timeline import Timeline, gap_table, layer_table, read_timeline, rho_table

__all__ = [
    "ROLES",
    "SCORES",
    "ExperimentTables",
    "FaithfulnessCurve",
    "RankGap",
    "SeedInterval",
    "SynergyRatios",
    "Timeline",
    "accuracy_table",
    "agreement_table",
    "causal_importance",
    "chance_share",
    "classify_roles",
    "default_threshold",
    "experiment_tables",
    "faithfulness_curve",
    "faithfulness_curves",
    "faithfulness_table",
    "gap_table",
    "gradient_magnitude",
    "joint_ablation_table",
    "layer_table",
    "majority_roles",
    "pruning_by_run",
    "pruning_table",
    "rank_gap",
    "read_timeline",
    "recorded_measures",
    "rho_by_accuracy",
    "rho_by_step",
    "rho_table",
    "role_frequency",
    "roles_by_layer",
    "seed_interval",
    "self_repair_by_layer",
    "self_repair_table",
    "synergy_ratios",
    "synergy_table",
    "thin",
]
