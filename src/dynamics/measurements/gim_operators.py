"""What GIM does at each operator: which handler, by the operator's plain name."""

from __future__ import annotations

from collections.abc import Mapping

from dynamics.measurements.gim_flow import Handler, assign, cast, part, reset
from dynamics.measurements.gim_norms import moment, norm_layer, power, subtract
from dynamics.measurements.gim_products import contract, fused, glu, multiply, softmax


def _names(handler: Handler, names: str) -> Mapping[str, Handler]:
    return dict.fromkeys(names.split(), handler)


HANDLERS: dict[str, Handler] = {
    **_names(fused, "scaled_dot_product_attention"),
    **_names(softmax, "softmax"),
    **_names(
        contract,
        "matmul mm bmm mv dot inner tensordot linear einsum addmm baddbmm addbmm addmv grouped_mm grouped_mm_fallback",
    ),
    **_names(norm_layer, "layer_norm rms_norm"),
    **_names(moment, "mean sum var std var_mean std_mean norm vector_norm"),
    **_names(power, "pow square"),
    **_names(subtract, "sub"),
    **_names(multiply, "mul div"),
    **_names(glu, "glu"),
    **_names(
        cast,
        "to float double half bfloat16 type type_as contiguous clone alias view view_as reshape flatten unflatten "
        "unsqueeze squeeze expand expand_as",
    ),
    **_names(
        part,
        "getitem select narrow index_select chunk unsafe_chunk split unsafe_split split_with_sizes tensor_split unbind",
    ),
    **_names(assign, "setitem"),
    **_names(
        reset,
        "max min amax amin aminmax prod cumsum cumprod logsumexp log_softmax cross_entropy nll_loss kl_div mse_loss "
        "group_norm batch_norm instance_norm local_response_norm conv1d conv2d conv3d conv_transpose1d "
        "conv_transpose2d conv_transpose3d bilinear cosine_similarity pairwise_distance cdist argmax argmin",
    ),
}
"""What is done at an operator, by its plain name; any other is `elementwise`."""
