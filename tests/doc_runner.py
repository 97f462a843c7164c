"""A reader with time: every command of a page is run to its end, none is only planned, parsed or looked up.

Training, studies, evaluations and forecasts are processes of their own, made small by `doc_sizes.py`. What
needs a GPU runs on the cores. What stands for another machine is a service of this one: workers, an inference
server, a Ray cluster of two nodes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import pytest
from tests.doc_pages import ROOT
from tests.doc_reader import MODEL, Reader, Services
from tests.doc_sizes import list_study_files, shrink_study, shrink_training
from tests.doc_terminal import run_main
from tests.engines.completions_server import serving
from tests.engines.model_server import ModelServer
from tests.processes import start_module

from stepwell.cli.main import build_parser
from stepwell.core.child_process import ChildProcess
from stepwell.policies.model_resolver import resolve_model

LIMIT_S = 1200.0  # of one command
MOST_RUNS = 3  # of a study
PROBES = ("engine.server.num_probes=1", "engine.server.probe_tokens=8", "engine.max_length=512")
SMALLER = {
    "plan": ("--seconds", "2"),
    "eval": ("--num-tasks", "1", "--samples", "1"),
    "orm train": ("--epochs", "1", "--validation", "0.5"),
}
BENCHMARK = "benchmarks/async_throughput.py"
SHORT_BENCHMARK = ("train.num_updates=8", "train.tasks_per_update=2", "workers.simulators.num_workers=2")
SHORT_BENCHMARK += ("workers.simulators.batch_size=2", "policy.vla.width=32", "policy.vla.layers=1")
SEEING_MODEL = "tiny-vlm-0.5m"
VAGEN = "runs/study-vagen-environments"


class Machines(Services):
    """Services, and what pages have on other machines: workers, inference servers, a Ray cluster."""

    @cached_property
    def workers(self) -> str:
        from stepwell.config.worker_service import WorkerServiceConfig
        from stepwell.services.worker_host import create_worker_host_app

        models = {Path(resolve_model(MODEL)).name: str(resolve_model(MODEL))}
        return self._serve(create_worker_host_app(WorkerServiceConfig(devices=("cpu",), models=models)))

    @cached_property
    def vllm(self) -> str:
        return self._serve_model("vllm")

    @cached_property
    def sglang(self) -> str:
        return self._serve_model("sglang")

    def _serve_model(self, kind: str) -> str:
        from stepwell.engines.runner_factory import open_model

        model, tokenizer = open_model(str(resolve_model(MODEL)), "float32")
        server = ModelServer(model, tokenizer, "processed", kind=kind, context=512)
        return self._stack.enter_context(serving(server)).url

    @cached_property
    def seeing_gateway(self) -> str:
        """A chat API whose model takes images."""
        return f"{self._serve_gateway(SEEING_MODEL)}/v1"

    @cached_property
    def ray(self) -> str:
        """The address of a cluster that began as `ray start --head` does."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets need a short path
        self._stack.callback(shutil.rmtree, place, ignore_errors=True)
        self.start_node("--head", "--port", str(port), "--temp-dir", place, "--include-dashboard", "false")
        return f"127.0.0.1:{port}"

    def start_node(self, *options: str) -> None:
        """One node, until the end of the tests."""
        room = ("--block", "--num-cpus", "4", "--object-store-memory", "100000000", "--disable-usage-stats")
        # no process for every CPU before it is asked for, and none that waits for all other tests
        lean = {"RAY_prestart_worker_first_driver": "0", "RAY_worker_niceness": "0"}
        command = [str(Path(sys.executable).with_name("ray")), "start", *options, *room]
        log = self.folder / f"node-{time.monotonic_ns()}.log"
        with log.open("w") as output:
            node = subprocess.Popen(
                [*command, "--no-monitor", "--include-log-monitor", "false"],
                env=os.environ | lean,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        self._stack.callback(_end_group, node)
        until = time.monotonic() + 180
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)


def _find_ports() -> int:
    """A free port whose successor is free too, below those that the system gives to connections."""
    for port in range(20_000, 30_000, 2):
        try:
            with (
                socket.create_server(("127.0.0.1", port)),
                socket.create_server(("127.0.0.1", port + 1)),
            ):
                return port
        except OSError:
            continue
    raise AssertionError("no two neighbouring ports are free")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Runner(Reader):
    """One reader with one page, in one folder, who waits for every command."""

    services: Machines

    def __init__(self, folder: Path, services: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, services, monkeypatch)
        (folder / "studies").unlink()
        shutil.copytree(ROOT / "studies", folder / "studies")
        for name, file in list_study_files(ROOT):
            (folder / name).write_text(shrink_study(file))
        self.num_logs = 0

    def type(self, words: list[str]) -> str:
        runner: Callable[[list[str]], str] | None = {
            "torchrun": self.run_torchrun,
            "ray": self.run_ray,
            "scripts/install_chromium.sh": lambda _: run_program(["bash", str(ROOT / words[0])]),
        }.get(words[0])
        if runner is not None:
            return runner(words[1:])
        while re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        return super().type(words)

    # --- stepwell -----------------------------------------------------------------------------

    def run_stepwell(self, words: list[str]) -> str:
        if "--do" in words:
            return self.steer_run(words)
        if "--endpoint" in words and "--table" in words:
            words = [self.services.seeing_gateway if word.startswith("https:") else word for word in words]
        words = [self.fill_in(word) for word in words]
        if words[0] == "demo":
            return self.watch_demo(words)
        if words[0] == "train":
            return self.run_process(self.shrink_training(words))
        if words[0] == "study" and not {"--list", "--join", "--dry-run"} & set(words):
            return self.run_process(self.shrink_study(words))
        if "--join" in words:  # the parts are those of the whole study
            words = [str(ROOT / word) if word.startswith("studies/") else word for word in words]
        if words[0] == "cluster" and "--host" not in words:
            self.monkeypatch.setenv("RAY_ADDRESS", self.services.ray)
        if words[:2] == ["serve", "gateway"] and "--backend" in words:
            words += ["--backend-model", "tiny"]  # as that server names it
        if words[0] == "plan" and "--profile" in words:
            words += ["--devices", "8"]  # a whole table is minutes of modelled runs
        if words[0] in ("plan", "orm", "cluster"):
            return self.run_process([*words, *SMALLER.get(" ".join(words[:2]), SMALLER.get(words[0], ()))])
        if words[0] == "eval" and not {"--compare", "--resume"} & set(words):
            if VAGEN in words:
                return self.run_process(self.make_table(words))
            return self.run_process([*words, *SMALLER["eval"]])
        return super().run_stepwell(words)

    def fill_in(self, word: str) -> str:
        machines = self.services
        if word.startswith("engine.urls="):
            return f'engine.urls=["{machines.sglang if "30000" in word else machines.vllm}"]'
        if word == "http://gpu:8000":
            return machines.vllm
        if word.startswith("workers.hosts="):
            return "workers.hosts={" + ", ".join(f'{n}="{machines.workers}"' for n in HOSTS) + "}"
        if word == "gpu1":
            return machines.workers
        return super().fill_in(word)

    def shrink_training(self, words: list[str]) -> list[str]:
        if "auto" in words:
            self.monkeypatch.setenv("RAY_ADDRESS", self.services.ray)
        more: tuple[str, ...] = ()
        if any(word.startswith("engine.urls=") for word in words):
            more = PROBES
        words = [re.sub(r'\["cpu"(, "cpu")+\]', _limit_devices, word) for word in words]
        if "workers.placement=disaggregated" in words:
            words = [re.sub(r"(generators\.devices=).*", r'\1["gpu1/cpu"]', word) for word in words]
            more = (
                f'workers.hosts={{gpu1="{self.services.workers}"}}',
                'workers.simulators.devices=["gpu1/cpu"]',
            )
        return [*shrink_training(words), *more]

    def shrink_study(self, words: list[str]) -> list[str]:
        """The study with its first runs alone, two side by side."""
        args = build_parser().parse_args(words)
        if args.only:
            return words
        from stepwell.studies.study import plan_study

        plan = plan_study(Path(args.study), quick=args.quick, select=args.select)
        names = [run.name for run in plan.runs[:MOST_RUNS]]
        fewer = ("--only", *names) if len(names) < len(plan.runs) and not args.select else ()
        return [*words, "--workers", "2", "--threads", "1", *fewer]

    def make_table(self, words: list[str]) -> list[str]:
        """The command, after the study whose results it shows."""
        if not (self.folder / VAGEN).exists():
            short = ("--quick", "--workers", "2", "--threads", "1", "--folder", VAGEN)
            self.run_process(["study", "studies/vagen_environments.toml", *short])
        return words

    def watch_demo(self, words: list[str]) -> str:
        """The demo until it shows that it learns, then Ctrl-C, as its page says."""
        process = self.start(words)
        until = time.monotonic() + LIMIT_S
        printed = ""
        assert process.stdout is not None
        while "warm start 10/" not in printed and time.monotonic() < until:
            line = process.stdout.readline().decode()
            assert line, f"{shlex.join(words)} ended:\n{printed}{process.log_tail()}"
            printed += line
        process.send_signal(signal.SIGINT)
        return printed + self.await_process(process, words, code=130)

    def steer_run(self, words: list[str]) -> str:
        """A command to a run that is under way."""
        run = self.start(["train", "--resume", "runs/NAME", "train.num_updates=100000"])
        try:
            until = time.monotonic() + LIMIT_S
            while True:
                try:
                    return run_main(words)
                except AssertionError:
                    assert not run.has_died() and time.monotonic() < until, run.log_tail()
                    time.sleep(1)
        finally:
            run.kill()

    # --- processes ----------------------------------------------------------------------------

    def start(self, words: list[str]) -> ChildProcess:
        self.num_logs += 1
        return start_module("stepwell", *words, log=self.folder / f"command-{self.num_logs}.log")

    def run_process(self, words: list[str]) -> str:
        return self.await_process(self.start(words), words)

    def await_process(self, process: ChildProcess, words: list[str], code: int = 0) -> str:
        assert process.stdout is not None
        limit = threading.Timer(LIMIT_S, process.kill_group)
        limit.start()
        try:
            printed = process.stdout.read().decode()
            process.wait(LIMIT_S)
        finally:
            limit.cancel()
            ended = process.kill()
        errors = (self.folder / f"command-{self.num_logs}.log").read_text()[-3000:]
        assert ended == code, f"stepwell {shlex.join(words)} ended with {ended}:\n{printed[-3000:]}\n{errors}"
        return printed

    # --- other programs -----------------------------------------------------------------------

    def run_python(self, words: list[str]) -> str:
        if words[0] != BENCHMARK:
            return super().run_python(words)
        words = [self.fill_in(word) for word in words]
        place = words.index("--real")
        words = [*words[:place], "--no-write", *words[place:], *SHORT_BENCHMARK]
        return run_program([sys.executable, str(ROOT / words[0]), *words[1:]])

    def run_make(self, words: list[str]) -> str:
        """What the target runs, here."""
        done = super().run_make(words)
        program, *rest = shlex.split(done.strip().splitlines()[-1])
        assert program.endswith("/stepwell"), done
        return self.run_stepwell(rest)

    def run_pip(self, words: list[str]) -> str:
        """All that pip does but the writing: every requirement is found, and they fit."""
        return run_program([sys.executable, "-m", "pip", *words, "--dry-run", "-q"], folder=ROOT)

    def run_torchrun(self, words: list[str]) -> str:
        """Two ranks of one machine."""
        place = words.index("stepwell")
        given = dict(zip(words[: place - 1 : 2], words[1 : place - 1 : 2], strict=True))
        endpoint = f"127.0.0.1:{_find_ports()}"
        given |= {"--nnodes": "1", "--nproc-per-node": "2", "--rdzv-endpoint": endpoint}
        launch = [
            str(Path(sys.executable).with_name("torchrun")),
            *(w for pair in given.items() for w in pair),
        ]
        return run_program([*launch, "-m", "stepwell", *shrink_training(words[place + 1 :])])

    def run_ray(self, words: list[str]) -> str:
        """A head, or a node that joins it."""
        address = self.services.ray
        if "--address" in words:
            self.services.start_node("--address", address)
        self.monkeypatch.setenv("RAY_ADDRESS", address)
        return address


HOSTS = ("gpu1", "sim1", "sim2")


def _limit_devices(found: re.Match[str]) -> str:
    """Several GPUs on the cores: two ranks of a trainer, one place of everything else."""
    return '["cpu", "cpu"]' if "trainers" in found.string else '["cpu"]'


def run_program(command: list[str], folder: Path | None = None) -> str:
    """A program in a process of its own; what it printed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    printed = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}:\n{printed}"
    return printed
