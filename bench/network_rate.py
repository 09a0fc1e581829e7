#!/usr/bin/env python3
"""Measures what NCCL brings from other machines into each, for --network-rate, by torch's collectives.

    mpirun -n RANKS ... bench/network_rate.py [--address HOST:PORT]

Each process is a rank with a card, in the order of machines, the same number on each of two. What all ranks gather is
what snug gathers where it shards weights: NCCL's rings bring all of it, but for one rank's part, into every machine. Prints
the bytes a second of an all-gather and of an all-to-all, and what crosses the loopback, where both machines are one that
goes by two names (`unshare -u` and `hostname`).
"""

import argparse
import datetime
import os
import time

TIMES, SIZES = 10, (600_000_000, 100_000_000)


def loopback_bytes():
    for line in open("/proc/net/dev"):
        name, _, counts = line.strip().partition(":")
        if name == "lo":
            return int(counts.split()[0])
    return 0


def main():
    import torch
    import torch.distributed as dist

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:29511", help="where the first rank listens")
    options = parser.parse_args()
    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    card = rank % (ranks // 2)
    torch.cuda.set_device(card)
    dist.init_process_group("nccl", init_method=f"tcp://{options.address}", rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=60), device_id=torch.device("cuda", card))  # fmt: skip

    def together():
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    for size in SIZES:
        part = torch.empty(size // ranks, dtype=torch.uint8, device="cuda")
        whole, other = (torch.empty(size // ranks * ranks, dtype=torch.uint8, device="cuda") for _ in range(2))
        # Bytes that enter a machine: all but one part round the rings; of what each rank gets, the other machine's half.
        for name, entering, collective in [
            ("all-gather", size * (ranks - 1) / ranks, lambda: dist.all_gather_into_tensor(whole, part)),
            ("all-to-all", ranks / 2 * size / 2, lambda: dist.all_to_all_single(other, whole)),
        ]:
            for _ in range(TIMES):
                collective()
            together()
            crossed, begin = loopback_bytes(), time.monotonic()
            for _ in range(TIMES):
                collective()
            torch.cuda.synchronize()
            seconds = (time.monotonic() - begin) / TIMES
            together()
            crossed = (loopback_bytes() - crossed) / TIMES
            if rank == 0:
                print(f"{ranks} ranks, {name} of {size / 1e6:.0f} MB: {seconds * 1e3:.0f} ms, into each machine "
                      f"{entering / seconds / 1e9:.2f} GB/s; {crossed / size:.2f} of it over the loopback", flush=True)  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
