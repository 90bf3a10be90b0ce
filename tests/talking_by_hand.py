"""A conditional latent diffusion of talking heads and its adapters, written out slowly. Nothing here comes from coterie.

Everything is a dict of raw float64 tensors. One clip, one frame, one head of attention at a time; gradients are torch's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]
HEAD = 8  # channels of one head of attention


def conv(w: Mapping[str, Tensor], name: str, x: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
    return F.conv2d(x[None], w[f"{name}.weight"], w[f"{name}.bias"], stride, padding)[0]


def unconv(w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.conv_transpose2d(x[None], w[f"{name}.weight"], w[f"{name}.bias"], 2, 1)[0]


def linear(w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    out = x @ w[f"{name}.weight"].T
    return out + w[f"{name}.bias"] if f"{name}.bias" in w else out


def normed(w: Mapping[str, Tensor], name: str, x: Tensor, groups: int) -> Tensor:
    """Group norm: each group of channels has mean 0 and variance 1 over its channels and places."""
    parts = []
    for part in x.split(len(x) // groups):
        parts.append((part - part.mean()) / (part.var(unbiased=False) + 1e-5).sqrt())
    return torch.cat(parts) * w[f"{name}.weight"][:, None, None] + w[f"{name}.bias"][:, None, None]


# --- frames and conditions --------------------------------------------------------------------------------------------------


def encode(w: Mapping[str, Tensor], video: Tensor) -> Tensor:
    """Standardised latents of one clip [frames, 3, s, s]."""
    found = []
    for x in video:
        h = F.silu(conv(w, "encoder.layers.0", x, 2))
        h = F.silu(conv(w, "encoder.layers.2", h, 2))
        h = conv(w, "encoder.layers.4", h)
        found.append((h - w["latents.mean"][:, None, None]) / w["latents.std"][:, None, None])
    return torch.stack(found)


def decode(w: Mapping[str, Tensor], latents: Tensor, clamp: bool = True) -> Tensor:
    found = []
    for z in latents:
        h = z * w["latents.std"][:, None, None] + w["latents.mean"][:, None, None]
        h = F.silu(conv(w, "decoder.layers.0", h))
        h = F.silu(unconv(w, "decoder.layers.2", h))
        found.append(unconv(w, "decoder.layers.4", h) + 0.5)
    return torch.stack(found).clamp(0, 1) if clamp else torch.stack(found)


def sound_tokens(w: Mapping[str, Tensor], audio: Tensor) -> Tensor:
    """c(a): [frames, context] from [frames, bands]; each frame hears its neighbours, silence beyond the ends."""
    padded = F.pad(audio, (0, 0, 1, 1))
    tokens = []
    for f in range(len(audio)):
        near = w["audio.near.bias"] + sum(w["audio.near.weight"][:, :, i] @ padded[f + i] for i in range(3))
        tokens.append(linear(w, "audio.mix", F.silu(near)))
    return torch.stack(tokens)


def face_tokens(w: Mapping[str, Tensor], picture: Tensor) -> tuple[Tensor, Tensor]:
    """e(r): the whole face [context], and one token per place of the latent [context, s/4, s/4]."""
    h = F.silu(conv(w, "identity.layers.0", picture, 2))
    h = F.silu(conv(w, "identity.layers.2", h, 2))
    h = conv(w, "identity.layers.4", h)
    return linear(w, "identity.whole", F.avg_pool2d(F.silu(h), 2).flatten()), h


# --- the denoiser -------------------------------------------------------------------------------------------------------------


def attention(w: Mapping[str, Tensor], name: str, h: Tensor, tokens: Tensor) -> Tensor:
    """One frame h [width, s, s]; the softmax runs over the condition tokens [tokens, context]."""
    places = normed(w, f"{name}.norm", h, 1).flatten(1).T
    q, k, v = linear(w, f"{name}.q", places), linear(w, f"{name}.k", tokens), linear(w, f"{name}.v", tokens)
    seen = []
    for at in range(0, q.shape[1], HEAD):
        own = slice(at, at + HEAD)
        logits = (q[:, own] @ k[:, own].T / math.sqrt(HEAD)).exp()
        seen.append(logits / logits.sum(1, keepdim=True) @ v[:, own])
    return h + linear(w, f"{name}.out", torch.cat(seen, 1)).T.reshape(h.shape)


def block(w: Mapping[str, Tensor], name: str, frames: Sequence[Tensor], film: Tensor) -> list[Tensor]:
    out = []
    for x, condition in zip(frames, film, strict=True):
        scale, shift = linear(w, f"{name}.film", condition)[:, None, None].chunk(2)
        y = conv(w, f"{name}.conv1", F.silu(normed(w, f"{name}.norm1", x, 8)))
        y = conv(w, f"{name}.conv2", F.silu(normed(w, f"{name}.norm2", y, 8) * (1 + scale) + shift))
        out.append(y + (conv(w, f"{name}.skip", x, padding=0) if f"{name}.skip.weight" in w else x))
    nothing, everything = torch.zeros_like(out[0]), sum(out) / len(out)
    beside = [nothing, *out, nothing]
    return [
        x + conv(w, f"{name}.frames", F.silu(torch.cat([beside[f], x, beside[f + 2], everything])), padding=0)
        for f, x in enumerate(out)
    ]


def velocity(w: Mapping[str, Tensor], z: Tensor, t: int, audio: Tensor, ref: Tensor) -> Tensor:
    """v of one clip z [frames, channels, s, s] at time t."""
    sound, (who, where) = sound_tokens(w, audio), face_tokens(w, ref)
    w = {name.removeprefix("unet."): value for name, value in w.items()}
    half = len(who) // 2
    angles = [t * math.exp(-i * math.log(1000) / half) for i in range(half)]
    time = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=z.dtype)
    time = linear(w, "time.2", F.silu(linear(w, "time.0", time)))
    film = torch.stack([F.silu(linear(w, "token", torch.cat([s, who])) + time) for s in sound])
    tokens = [torch.stack([s + w["kind"][0], who + w["kind"][1]]) for s in sound]
    looks = linear(w, "appearance", where.flatten(1).T).T.reshape(-1, *where.shape[1:])
    h = [conv(w, "into", torch.cat([frame, z.mean(0)])) + w["place"] + looks for frame in z]

    def looked(name: str, frames: Sequence[Tensor]) -> list[Tensor]:
        return [attention(w, name, frame, heard) for frame, heard in zip(frames, tokens, strict=True)]

    first = looked("attn1", block(w, "down", h, film))
    h = [F.avg_pool2d(frame, 2) for frame in first]
    h = block(w, "mid2", looked("attn2", block(w, "mid1", h, film)), film)
    h = [torch.cat([frame.repeat_interleave(2, 1).repeat_interleave(2, 2), f]) for frame, f in zip(h, first, strict=True)]
    h = looked("attn3", block(w, "up", h, film))
    return torch.stack([conv(w, "final", F.silu(normed(w, "norm", frame, 8))) for frame in h])


def noise_of(w: Mapping[str, Tensor], z: Tensor, eps: Tensor, t: int, audio: Tensor, ref: Tensor) -> Tensor:
    """eps_theta at z_t, with z_t = sqrt(abar) z + sqrt(1 - abar) eps and v = (eps - sqrt(1 - abar) z_t) / sqrt(abar)."""
    abar = float(w["schedule.abar"][t])
    z_t = math.sqrt(abar) * z + math.sqrt(1 - abar) * eps
    return math.sqrt(abar) * velocity(w, z_t, t, audio, ref) + math.sqrt(1 - abar) * z_t


def merged(w: Mapping[str, Tensor], phi: Mapping[str, Tensor], scale: float) -> Weights:
    """W + scale B A."""
    layers = {name[:-2] for name in phi}
    return {**w, **{f"{layer}.weight": w[f"{layer}.weight"] + scale * phi[f"{layer}.B"] @ phi[f"{layer}.A"] for layer in layers}}


def velocity_loss(w: Mapping[str, Tensor], z: Tensor, eps: Tensor, t: int, audio: Tensor, ref: Tensor) -> Tensor:
    """Mean of (v - v_theta)^2 with v = sqrt(abar) eps - sqrt(1 - abar) z."""
    signal, rest = math.sqrt(float(w["schedule.abar"][t])), math.sqrt(1 - float(w["schedule.abar"][t]))
    return ((signal * eps - rest * z - velocity(w, signal * z + rest * eps, t, audio, ref)) ** 2).mean()


def picture_loss(w: Mapping[str, Tensor], picture: Tensor) -> Tensor:
    """Absolute error plus 5 times squared error of one reconstructed frame; latents are not standardised."""
    raw = {**w, "latents.mean": torch.zeros(1, dtype=picture.dtype), "latents.std": torch.ones(1, dtype=picture.dtype)}
    wrong = decode(raw, encode(raw, picture[None]), clamp=False)[0] - picture
    return wrong.abs().mean() + 5 * (wrong**2).mean()


def clip_loss(
    w: Mapping[str, Tensor], z: Tensor, eps: Tensor, t: int, audio: Tensor, ref: Tensor, tdc: float
) -> Tensor:
    """(6) + tdc (8), both means over elements."""
    wrong = eps - noise_of(w, z, eps, t, audio, ref)
    moves = [(wrong[f] - wrong[f - 1]).abs().mean() for f in range(1, len(z))]
    return (wrong**2).mean() + tdc * sum(moves) / len(moves)


# --- a client's round ---------------------------------------------------------------------------------------------------------


def adamw(
    phi: Weights, losses: Iterable[Callable[[Weights], Tensor]], lr: float, decay: float, clip: float, tiny: float = 1e-8
) -> Weights:
    """AdamW with the gradient clipped to norm `clip`, one step for each of `losses`."""
    first = {name: torch.zeros_like(value) for name, value in phi.items()}
    second = {name: torch.zeros_like(value) for name, value in phi.items()}
    for step, loss in enumerate(losses, 1):
        leaves = {name: value.clone().requires_grad_() for name, value in phi.items()}
        g = dict(zip(leaves, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))
        length = math.sqrt(sum(float((value**2).sum()) for value in g.values()))
        new = {}
        for name, value in phi.items():
            own = g[name] * min(1.0, clip / length)
            first[name] = 0.9 * first[name] + 0.1 * own
            second[name] = 0.999 * second[name] + 0.001 * own**2
            unbiased = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
            new[name] = value - lr * decay * value - lr * unbiased[0] / (unbiased[1].sqrt() + tiny)
        phi = new
    return phi


def generated(w: Mapping[str, Tensor], start: Tensor, audio: Tensor, ref: Tensor, steps: int) -> Tensor:
    """A clip by deterministic DDIM in `steps` steps, evenly over the schedule, with z_0 kept within 4."""
    abar = w["schedule.abar"].tolist()
    last = len(abar) - 1
    times = [round(last - i * last / (steps - 1)) for i in range(steps)]
    z = start
    for i, t in enumerate(times):
        v = velocity(w, z, t, audio, ref)
        clean = (math.sqrt(abar[t]) * z - math.sqrt(1 - abar[t]) * v).clamp(-4, 4)
        eps = (z - math.sqrt(abar[t]) * clean) / math.sqrt(1 - abar[t])
        if i + 1 < steps:
            z = math.sqrt(abar[times[i + 1]]) * clean + math.sqrt(1 - abar[times[i + 1]]) * eps
    return decode(w, clean)


def score(theta: Mapping[str, Tensor], video: Tensor, truth: Tensor, ref: Tensor, alpha: float) -> float:
    """alpha (1 + cos) / 2 + (1 - alpha) / (1 + |jitter ratio - 1|)."""
    face, _ = face_tokens(theta, ref)
    cosines = []
    for frame in video:
        token, _ = face_tokens(theta, frame)
        cosines.append(float(token @ face) / math.sqrt(float(token @ token) * float(face @ face)))
    ratio = float((video[1:] - video[:-1]).abs().mean()) / float((truth[1:] - truth[:-1]).abs().mean())
    return alpha * (1 + sum(cosines) / len(cosines)) / 2 + (1 - alpha) / (1 + abs(ratio - 1))
