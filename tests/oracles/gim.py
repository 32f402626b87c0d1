"""GIM written out by hand: every rule is an explicit detour of the forward pass; shares no code with the package.

A half is ``z / 2 + detach(z) / 2``; a frozen scale is detached; a tempered softmax multiplies with its Jacobian.
"""

import math

import torch


class Rules:
    def __init__(self, temperature=2.0, freeze_norm=True, split_products=True):
        self.temperature, self.freeze_norm, self.split_products = temperature, freeze_norm, split_products


OFF = Rules(1.0, False, False)


class _Tempered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, temperature):
        ctx.save_for_backward(scores)
        ctx.temperature = temperature
        exponentials = torch.exp(scores - scores.max(-1, keepdim=True).values)
        return exponentials / exponentials.sum(-1, keepdim=True)

    @staticmethod
    def backward(ctx, gradient):
        (scores,) = ctx.saved_tensors
        exponentials = torch.exp((scores - scores.max(-1, keepdim=True).values) / ctx.temperature)
        p = exponentials / exponentials.sum(-1, keepdim=True)
        # The Jacobian of softmax at the temperature, row by row, without the factor 1 / T.
        jacobian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
        return torch.einsum("...i,...ij->...j", gradient, jacobian), None


def half(z, rules):
    return z / 2 + z.detach() / 2 if rules.split_products else z


def attention(query, key, value, rules, masked=None, bias=None, scale=None, softcap=None, rows=None):
    """Attend; ``masked`` is True where a key may not be seen, ``bias`` is added to the scores.

    The list ``rows`` receives the scores and values of every query of the (one) example and head.

    Heads come third to last; keys and values may have fewer, each shared by a group of query heads.
    """
    if key.shape[-3] != query.shape[-3]:
        groups = [h * key.shape[-3] // query.shape[-3] for h in range(query.shape[-3])]
        key, value = key[..., groups, :, :], value[..., groups, :, :]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.einsum("...qd,...kd->...qk", half(query, rules), half(key, rules)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if masked is not None:
        scores = torch.where(masked, torch.tensor(-torch.inf, dtype=scores.dtype), scores)
    if rows is not None:
        rows += [(row, value.flatten(0, -3)[0].detach()) for row in scores.detach().flatten(0, -2)]
    pattern = _Tempered.apply(scores, rules.temperature)
    return torch.einsum("...qk,...kd->...qd", half(pattern, rules), half(value, rules))


def causal(length):
    return torch.ones(length, length).triu(1).bool()


def layer_norm(x, weight, bias, eps, rules):
    centred = x - x.mean(-1, keepdim=True)
    sigma = torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
    y = centred / (sigma.detach() if rules.freeze_norm else sigma)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(x, weight, eps, rules):
    rms = torch.sqrt((x**2).mean(-1, keepdim=True) + eps)
    y = x / (rms.detach() if rules.freeze_norm else rms)
    return y if weight is None else y * weight


def gated(gate, up, rules):
    """Return gate x up, the gate with its nonlinearity."""
    return half(gate, rules) * half(up, rules)


def attributions(model, batches, rules):
    """Return ``(z - mean) . d log p / d z`` of every component and example, ``(components, examples)``."""
    runs = []
    for batch in batches:
        ids, labels, taps = batch["input_ids"], batch["labels"], []
        log_p = torch.log_softmax(decoder(model, ids, rules, taps=taps), -1)
        target = labels != -100
        chosen = log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        score = torch.where(target, chosen, 0.0).sum(-1) / target.sum(-1)
        runs.append((taps, torch.autograd.grad(score.sum(), taps)))
    columns = [[] for _ in runs]
    for tap in range(2 * len(model.blocks)):
        width = model.d_model // model.n_heads if tap % 2 == 0 else model.d_model
        mean = torch.cat([taps[tap].detach().flatten(0, 1) for taps, _ in runs]).mean(0)
        for column, (taps, gradients) in zip(columns, runs, strict=True):
            product = ((taps[tap].detach() - mean) * gradients[tap]).sum(1)
            column.extend(part.sum(-1) for part in product.split(width, -1))
    return torch.cat([torch.stack(column) for column in columns], 1)


def linear(module, x):
    y = torch.einsum("...i,oi->...o", x, module.weight)
    return y if module.bias is None else y + module.bias


def norm(module, x, rules):
    """Apply an ``nn.LayerNorm``."""
    return layer_norm(x, module.weight, module.bias, module.eps, rules)


def heads(x, n):
    return torch.stack(x.split(x.shape[-1] // n, -1), -3)


def decoder(model, ids, rules, embedded=None, taps=None):
    """Return the logits of `dynamics.model.Transformer` without positions, from its tokens or their embeddings.

    ``taps`` gathers, layer by layer, the heads' outputs side by side and the MLP's output.
    """
    taps = [] if taps is None else taps
    x = model.embed.weight[ids] if embedded is None else embedded
    for block in model.blocks:
        y, a = norm(block.attention_norm, x, rules), block.attention
        q, k, v = (heads(linear(projection, y), model.n_heads) for projection in (a.query, a.key, a.value))
        z = attention(q, k, v, rules, masked=causal(ids.shape[1]))
        taps.append(torch.cat(z.unbind(-3), -1))
        x = x + linear(a.output, taps[-1])
        hidden = linear(block.mlp.input, norm(block.mlp_norm, x, rules))
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        taps.append(linear(block.mlp.output, hidden))
        x = x + taps[-1]
    return linear(model.unembed, norm(model.final_norm, x, rules))
