"""Compares `npformer serve` under load with the same model in ONNX Runtime and in fastembed behind starlette.

    python -m tests.benchmarks.service [--onnx FOLDER] [--seconds N] [--soak MINUTES]

The figures are requests per second, latencies, and processor time per request. `wrk` (apt-get install wrk) sends the
requests over loopback, on the same cores as the server. Each request sends one of 64 texts of 6 to 60 words to /embed.
The servers take turns, and each figure is from a server's best turn. `--export FOLDER` only makes the ONNX file; for
this step, torch and transformers may be in another environment. `--soak` sends requests to one server with two workers
for this many minutes, kills a worker each minute, and shows memory and errors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import npformer
from npformer.checkpoint.convert import convert
from tests.benchmarks import measure, table
from tests.support.service import Server

CONNECTIONS = (1, 8, 64)
SENTENCE = "what i love most about this film is how it never takes itself too seriously and yet it breaks your heart"
WORDS = SENTENCE.split()
ROUNDS = 2
PEERS = {"ONNX Runtime": "onnxruntime", "fastembed": "fastembed"}


def texts(count: int = 64) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(6, 60))) for _ in range(count)]


def script(path: Path) -> Path:
    """Returns wrk's script, which sends the texts in turn."""
    bodies = ",\n".join(json.dumps(json.dumps({"inputs": each})) for each in texts())
    path.write_text(
        f'bodies = {{{bodies}}}\ni = 0\nwrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\n'
        "function request()\n  i = i % #bodies + 1\n  return wrk.format(nil, nil, nil, bodies[i])\nend\n"
        "function done(summary, latency)\n"
        '  print("FIGURES", summary.requests, summary.requests / summary.duration * 1e6, latency:percentile(50) / 1e3,'
        " latency:percentile(99) / 1e3, summary.errors.status + summary.errors.timeout + summary.errors.read)\nend\n"
    )
    return path


def load(url: str, lua: Path, connections: int, seconds: int) -> dict[str, float]:
    """Returns requests per second, and the median and 99th percentile of the latencies in milliseconds."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(lua), f"{url}/embed"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    requests, rate, p50, p99, errors = map(float, re.search(r"FIGURES\s+(.*)", printed)[1].split())
    assert not errors, printed
    return {"requests": requests, "rate": rate, "p50": p50, "p99": p99}


def processor_time(server: Server) -> float:
    """Returns the CPU time of the server and its workers in seconds; it depends little on other load."""
    ticks = 0
    for pid in (server.process.pid, *server.workers()):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def export(folder: Path) -> Path:
    """Writes the bundled model's encoder as ONNX, fused by ONNX Runtime's own tool, and its tokenizer."""
    import torch
    from onnxruntime.transformers import optimizer
    from transformers import DistilBertModel

    source = npformer.load("distilbert-sst2").folder
    with tempfile.TemporaryDirectory() as home:
        stored = convert(source, Path(home) / "torch", to="torch", dtype="float32")
        model = DistilBertModel.from_pretrained(stored, attn_implementation="eager").eval()
        folder.mkdir(parents=True, exist_ok=True)
        example = torch.ones(2, 8, dtype=torch.long)
        names = ["input_ids", "attention_mask"]
        axes = {name: {0: "texts", 1: "tokens"} for name in (*names, "hidden")}
        torch.onnx.export(
            model, (example, example), folder / "plain.onnx", input_names=names, output_names=["hidden"],
            dynamic_axes=axes, opset_version=17, dynamo=False,
        )  # fmt: skip
        tool = optimizer.optimize_model(
            str(folder / "plain.onnx"), model_type="bert", num_heads=12, hidden_size=384, opt_level=1
        )
        tool.save_model_to_file(str(folder / "model.onnx"))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((source / name).read_bytes())
    return folder


def peer(engine: str, folder: Path) -> Server:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Server(program=[sys.executable, "-m", "tests.benchmarks.onnx_service", engine, str(folder), str(port)])


def ready(server: Server) -> np.ndarray:
    """Returns the answers to the first texts, retrying until the server listens."""
    for _ in range(100):
        try:
            return np.array([server.post("/embed", {"inputs": each})[1][0] for each in texts()[:8]])
        except OSError:
            time.sleep(0.1)
    raise AssertionError(server.log)


def race(folder: Path | None, seconds: int) -> dict[str, Any]:
    """Returns the best figures of each server at each number of connections."""
    servers = {"npformer": Server("distilbert-sst2"), "npformer, 2 workers": Server("distilbert-sst2", "--workers", 2)}
    if folder is not None:
        servers |= {name: peer(engine, folder) for name, engine in PEERS.items()}
    found: dict[str, Any] = {name: {} for name in servers}
    spent = {name: {count: [0.0, 0.0] for count in CONNECTIONS} for name in servers}  # processor seconds, requests
    try:
        answers = {name: ready(server) for name, server in servers.items()}
        for name, answer in answers.items():
            np.testing.assert_allclose(answer, answers["npformer"], atol=2e-6, err_msg=name)
        with tempfile.TemporaryDirectory() as home:
            lua = script(Path(home) / "load.lua")
            for connections in CONNECTIONS:
                for _ in range(ROUNDS):
                    for name, server in servers.items():
                        before = processor_time(server)
                        got = load(server.url, lua, connections, seconds)
                        spent[name][connections][0] += processor_time(server) - before
                        spent[name][connections][1] += got.pop("requests")
                        best = found[name].setdefault(connections, got)
                        found[name][connections] = {
                            "rate": max(best["rate"], got["rate"]),
                            **{each: min(best[each], got[each]) for each in ("p50", "p99")},
                            "processor": spent[name][connections][0] / spent[name][connections][1] * 1e3,
                        }
    finally:
        for server in servers.values():
            server.__exit__()
    return found


def shown(found: dict[str, Any]) -> str:
    rows = []
    for connections in CONNECTIONS:
        for name, figures in found.items():
            each = figures[connections]
            rows.append(
                [f"{connections}, {name}", f"{each['rate']:.1f}", f"{each['p50']:.0f} ms", f"{each['p99']:.0f} ms",
                 f"{each['processor']:.1f} ms"]
            )  # fmt: skip
    return table.markdown(["connections", "requests per second", "p50", "p99", "processor time per request"], rows)


# --- for a long time -------------------------------------------------------------------------------------------------


def memory(server: Server) -> float:
    """Returns the memory of the server and its workers in megabytes, counting shared pages once."""
    total = 0
    for pid in (server.process.pid, *server.workers()):
        rollup = Path(f"/proc/{pid}/smaps_rollup")
        if rollup.exists():
            total += int(re.search(r"^Pss:\s+(\d+)", rollup.read_text(), re.M)[1])
    return total / 1e3


def soak(minutes: float, clients: int = 8) -> dict[str, Any]:
    """Sends requests to two workers from several threads for this many minutes, and kills a worker each minute."""
    statuses: Counter[str] = Counter()
    end = time.monotonic() + minutes * 60
    curve = []
    with Server("distilbert-sst2", "--workers", 2) as server:
        expected = {text: server.post("/embed", {"inputs": text})[1] for text in texts()}

        def ask(seed: int) -> None:
            draw = random.Random(seed)
            while time.monotonic() < end:
                text = draw.choice(list(expected))
                try:
                    status, answer, _ = server.post("/embed", {"inputs": text})
                    statuses[str(status) if answer == expected[text] else f"{status}, other bits"] += 1
                except OSError as error:  # connections to the killed worker break
                    statuses[type(error).__name__] += 1

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(clients)]
        for each in threads:
            each.start()
        killed = 0
        while time.monotonic() < end:
            time.sleep(min(30, max(0, end - time.monotonic())))
            curve.append(round(memory(server), 1))
            print(f"{memory(server):.0f} MB, {dict(statuses)}", flush=True)
            if len(curve) % 2 == 0 and time.monotonic() < end - 20:
                os.kill(server.workers()[0], signal.SIGKILL)
                killed += 1
        for each in threads:
            each.join()
        time.sleep(3)
        alive = len(server.workers())
        server.process.terminate()
        code = server.process.wait(60)
        log = server.log
    return {"minutes": minutes, "statuses": statuses, "memory": curve, "killed": killed, "workers": alive,
            "exit code": code, "tracebacks": log.count("Traceback")}  # fmt: skip


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.service", description=__doc__)
    parser.add_argument(
        "--onnx", type=Path, metavar="FOLDER", help="the output of --export; without it, only npformer is measured"
    )
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="make the ONNX file there, and exit")
    parser.add_argument("--seconds", type=int, default=10, help="length of a turn (%(default)s)")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="send requests for this long instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    arguments = parser.parse_args()
    if arguments.export:
        print(export(arguments.export))
        return
    machine = measure.machine()
    print(f"{measure.described(machine)}\n", flush=True)
    found = soak(arguments.soak) if arguments.soak else race(arguments.onnx, arguments.seconds)
    print(json.dumps(found, indent=2) if arguments.soak else shown(found))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "found": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
