"""Runs in the target interpreter. Import xgrammar inside functions and return JSON values."""


def masked(dtype, size=40, allowed=3):
    """Apply a mask that allows one token to logits of zero, and return the tokens whose logit is still finite."""
    import torch
    import xgrammar

    logits = torch.zeros(1, size, dtype=getattr(torch, dtype))
    mask = xgrammar.allocate_token_bitmask(1, size)
    mask.fill_(0)
    mask[0, 0] = 1 << allowed
    xgrammar.apply_token_bitmask_inplace(logits, mask)
    return [token for token, value in enumerate(logits[0].tolist()) if value == 0]
