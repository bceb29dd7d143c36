#!/usr/bin/env python3
"""Requests per second, latencies and CPU time of HTTP servers, with wrk, in turns: see ../README.md.

usage: compare.py [--seconds N] [--rounds N] [--connections N] [--pinned] [--go PROGRAM] [row ...]
"""
import argparse
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time

SERVERS = {
    "nothing": ["socknotify", "by-hand", "hyper", "axum", "axum-spawn-blocking", "tiny_http", "rouille", "may_minihttp", "go"],
    "row": ["socknotify", "axum", "axum-spawn-blocking"],
    "sleep": ["socknotify", "axum", "axum-spawn-blocking", "tiny_http", "rouille", "may_minihttp", "may_minihttp-parks", "go"],
    "compute": ["socknotify", "axum-spawn-blocking", "go"],
    "park": ["socknotify", "go"],
}
MILLISECONDS = {"us": 1e-3, "ms": 1, "s": 1e3, "m": 6e4}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def ticks(process):
    with open(f"/proc/{process.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def measure(options, here, database, kind, row):
    """Requests per second, the 99th percentile in ms, and CPU time of the server per request in us."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [options.go, address] if kind == "go" else [f"{here}/target/release/http-servers", kind, address, database]
    server, client = (["taskset", "-c", cpu] if options.pinned else [] for cpu in ("0", "1"))
    # What Go parks, others block for.
    path = "sleep" if row == "park" and kind != "go" else row
    process = subprocess.Popen(server + command, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        before = ticks(process)
        threads = 1 if options.pinned or options.connections == 1 else 2
        wrk = ["wrk", f"-t{threads}", f"-c{options.connections}", f"-d{options.seconds}s", "--latency"]
        output = subprocess.run(client + wrk + [f"http://{address}/{path}"], capture_output=True, text=True, check=True).stdout
        cpu = ticks(process) - before
    finally:
        process.kill()
        process.wait()
    requests = int(re.search(r"(\d+) requests in", output)[1])
    late, unit = re.search(r"99%\s+([\d.]+)(us|ms|s|m)\b", output).groups()
    failed = re.search(r"Non-2xx.*|Socket errors.*", output)
    if failed:
        print(f"{kind}: {failed[0]}")
    return requests / options.seconds, float(late) * MILLISECONDS[unit], cpu * 1e6 / os.sysconf("SC_CLK_TCK") / requests


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--pinned", action="store_true", help="server and client on a processor each")
    parser.add_argument("--go", help="the program that `go build` makes of go/main.go")
    parser.add_argument("rows", nargs="*", metavar="row", help=f"all of them, or some of {', '.join(SERVERS)}")
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in SERVERS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}")
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as directory:
        for row in options.rows or SERVERS:
            kinds = [kind for kind in SERVERS[row] if kind != "go" or options.go]
            found = {kind: [] for kind in kinds}
            for _ in range(options.rounds):
                for kind in kinds:
                    found[kind].append(measure(options, here, f"{directory}/database", kind, row))
            print(f"\n| /{row} | requests/s | least to most | ours to it | p99, ms | CPU, us | ours to it |\n|---|---|---|---|---|---|---|")
            ours = [statistics.median(figures) for figures in zip(*found["socknotify"])]
            for kind in kinds:
                rates = [rate for rate, _, _ in found[kind]]
                rate, late, cpu = (statistics.median(figures) for figures in zip(*found[kind]))
                print(
                    f"| {kind} | {rate:,.0f} | {min(rates):,.0f} to {max(rates):,.0f} | {ours[0] / rate:.2f} |"
                    f" {late:.2f} | {cpu:.1f} | {ours[2] / cpu:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
