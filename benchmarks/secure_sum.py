"""One secure sum from keys to result: seconds and bytes of the real protocol, with all clients and the server in one process.

    python benchmarks/secure_sum.py [--clients 100] [--parameters 1000000] [--dropout 0.1] [--neighbours 40] [--bits 32] [--json FILE]

Clients that drop out fall silent after they shared their keys, which is the dearest case: their masks have to be recovered. Every client
encodes a random vector with a clip of 1 (so that a mean and its weight are summed, parameters + 1 numbers); the result is
compared with the sum of the encoded vectors, number by number, and with the sum of the real ones.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np

from coterie.privacy.noise import NoiseSource
from coterie.privacy.secure_sum import FixedPoint, InProcess, SecureSum
from coterie.privacy.secure_sum.in_process import Step

KEY_TRAFFIC: tuple[Step, ...] = ("keys", "shares", "unmask")


def measure(clients: int, parameters: int, dropout: float, neighbours: int | None, bits: int) -> dict[str, float | bool | None]:
    settings, code = SecureSum(neighbours=neighbours, bits=bits), FixedPoint(clients, 1.0, bits)
    silent: dict[int, Step] = {client: "vector" for client in range(int(dropout * clients))}
    rng, rounding, length = np.random.default_rng(0), NoiseSource(), parameters + 1
    encoded_sum, real_sum = np.zeros(length, code.encode(np.zeros(1), np.zeros(1))[0].dtype), np.zeros(length, np.longdouble)
    cpu = {"keys_and_shares": 0.0, "encode": 0.0, "mask_and_add": 0.0, "unmask": 0.0}
    wall = 0.0

    def now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def timed(what: str, since: tuple[float, float]) -> None:
        nonlocal wall
        wall += time.perf_counter() - since[0]
        cpu[what] += time.process_time() - since[1]

    start = now()
    protocol = InProcess(settings, 0, tuple(range(clients)), length, silent)
    protocol.open()
    timed("keys_and_shares", start)
    for client in range(clients):
        if not protocol.sends(client):
            continue
        real = rng.uniform(-1, 1, length)
        start = now()
        encoded, _ = code.encode(real, rounding.uniform(length))
        timed("encode", start)
        encoded_sum += encoded
        real_sum += real
        start = now()
        protocol.add(client, encoded)
        timed("mask_and_add", start)
    start = now()
    total = protocol.close()
    timed("unmask", start)
    came = clients - len(silent)
    traffic, holders = protocol.traffic, settings.holders(clients)
    plain, masked = came * (4 * parameters + 8), traffic.total("up", ("vector",))
    keys_up, keys_down = traffic.total("up", KEY_TRAFFIC), traffic.total("down", KEY_TRAFFIC)
    return {
        "clients": clients, "dropped": len(silent), "parameters": parameters, "bits": bits, "neighbours": neighbours,
        "threshold": protocol.server.threshold, "seconds": wall, "cpu_seconds": sum(cpu.values()),
        **{f"cpu_seconds_{name}": value for name, value in cpu.items()},
        "plain_upload_bytes": plain, "masked_upload_bytes": masked, "masked_over_plain": masked / plain,
        "key_traffic_up_bytes": keys_up, "key_traffic_up_by_formula": by_formula(64, 100, 40, settings, clients, came),
        "key_traffic_down_bytes": keys_down, "key_traffic_down_by_formula": by_formula(64 * holders, 100, 8, settings, clients, came),
        "key_traffic_up_per_client": keys_up / clients,
        "upload_with_keys_over_plain": (masked + keys_up) / plain, "peak_resident_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "equals_fixed_point_sum": bool((total == encoded_sum).all()),
        "largest_error": float(np.abs(code.decode(total) - real_sum).max()), "stated_error": code.error + 2.0**-53 * float(np.abs(real_sum).max()),
    }  # fmt: skip


def by_formula(keys: int, pair: int, share: int, settings: SecureSum, clients: int, came: int) -> int:
    """SA_up or SA_down: keys and sealed pairs of everybody, one share for each neighbour (and itself) of those who came.

    Down, the real messages hold more: 8 bytes beside each key that say whose it is, and a count of 4 in every request.
    """
    holders = settings.holders(clients)
    return clients * (keys + pair * (holders - 1)) + came * share * holders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--neighbours", type=int, help="mask with so many others only (default: all)")
    parser.add_argument("--bits", type=int, choices=(32, 64), default=32)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = measure(chosen.clients, chosen.parameters, chosen.dropout, chosen.neighbours, chosen.bits)
    for name, value in found.items():
        print(f"{name:34} {value:,.4g}" if isinstance(value, float) else f"{name:34} {value}" if value is None or isinstance(value, bool) else f"{name:34} {value:,}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
