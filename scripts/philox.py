"""Draws snug's random numbers (src/base/rng.h) for fixtures: Philox4x32-10 (Salmon et al., SC 2011)."""

import math

SEED, INITIALISATION, NOISE, MASK = 42, 2, 6, 2**32 - 1


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def bits(index, stream, purpose):
    """Element `index` of a stream."""
    block = index // 4
    return philox((block & MASK, block >> 32, stream, purpose), (SEED & MASK, SEED >> 32))[index % 4]


def normal(index, stream, purpose):
    even = index // 2 * 2
    radius = math.sqrt(-2 * math.log((bits(even, stream, purpose) + 0.5) / 2**32))
    angle = 2 * math.pi * bits(even + 1, stream, purpose) / 2**32
    return radius * (math.cos(angle) if index == even else math.sin(angle))
