"""Start a real ComfyUI server without a GPU, with this pack in it, and stop it again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from .comfy_client import DIRECT
from .places import DEMO_OUTPUT, PACK_NAME, ROOT, shown
from .problem import Problem

MODEL_FOLDERS = (
    *("checkpoints", "text_encoders", "clip_vision", "style_models", "controlnet", "diffusion_models", "vae"),
)
# Nothing that a user of the pack would not have is copied where symbolic links do not work.
NOT_PACK = (".git", ".venv", ".cache", "tests", "bench", "demo_output", "browser_output", "__pycache__")
SECONDS_TO_START = 240
THIS_PACK: Mapping[str, Path] = {PACK_NAME: ROOT}
# Used as far as the tree knows them.
OPTIONS = (
    ("--cpu",),
    ("--disable-auto-launch",),
    ("--disable-api-nodes",),
    ("--disable-all-custom-nodes",),
)


# glibc would keep a freed model's memory for later (1.1 GB in the demo), and a second run's peak would contain
# the first run's models. Blocks of 1 MiB and more go back to the system at once; other systems ignore this.
MEMORY_RETURNED = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}


class ComfyServer:
    """A ComfyUI server process in its own temporary base directory; use it as a context manager.

    Args:
        python: interpreter of the environment that has ComfyUI's requirements.
        tree: the ComfyUI tree.
        models: folder with the demo models, laid out like ComfyUI's `models`.
        port: TCP port, or None for a free one.
        frontend: folder of the frontend to serve, or None for the one of ComfyUI's own requirements.
        packs: the custom nodes that are installed, by the name of their folder: this pack, if nothing is said.
    """

    def __init__(
        self,
        python: Path,
        tree: Path,
        models: Path,
        port: int | None = None,
        frontend: Path | None = None,
        packs: Mapping[str, Path] = THIS_PACK,
    ) -> None:
        self.port = claim_port(port)
        self.url = f"http://127.0.0.1:{self.port}"
        self._python, self._tree, self._models = python, tree, models
        self._frontend, self._packs = frontend, packs
        self._process: subprocess.Popen[bytes] | None = None
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> ComfyServer:
        with self._cleanup:  # closed at once unless everything below succeeds
            self.base = Path(
                self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="layerwise-comfyui-"))
            )
            self.log = self.base / "server.log"
            command = self._prepare()
            output = self._cleanup.enter_context(self.log.open("wb"))
            # Its own session: Ctrl-C reaches us only, and we stop the server in order.
            self._process = subprocess.Popen(
                command,
                cwd=self._tree,
                env={**MEMORY_RETURNED, **os.environ},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._cleanup.callback(self._stop)
            self._wait_until_ready()
            self._cleanup = self._cleanup.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def has_died(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def log_text(self) -> str:
        """The log so far, without the colours that newer versions print."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(encoding="utf-8", errors="replace"))

    def tracebacks(self, but: re.Pattern[str]) -> list[str]:
        """The tracebacks in the log so far, without those whose last line begins with a pattern."""
        found = re.findall(r"^Traceback.*\n(?:(?:[ \t].*)?\n)*.*", self.log_text(), re.MULTILINE)
        return [trace for trace in found if not but.match(trace.splitlines()[-1])]

    def keep_log(self) -> Path:
        """Copy the log out of the temporary folder; returns where it is."""
        DEMO_OUTPUT.mkdir(exist_ok=True)
        return Path(shutil.copyfile(self.log, DEMO_OUTPUT / "server.log"))

    def _prepare(self) -> list[str]:
        """Lay out the base directory and return the command line."""
        for folder in ("custom_nodes", "input", "output", "temp", "user", "models"):
            (self.base / folder).mkdir()
        for name, folder in self._packs.items():
            place_pack(folder, self.base / "custom_nodes" / name)
        example = self._tree / "input" / "example.png"
        if example.is_file():
            shutil.copyfile(example, self.base / "input" / example.name)
        paths = self.base / "demo_model_paths.yaml"
        # JSON strings are YAML strings, and keep a path with a colon or a backslash whole.
        lines = [f"  {folder}: {folder}/" for folder in MODEL_FOLDERS]
        paths.write_text(
            "\n".join(["demo:", f"  base_path: {json.dumps(str(self._models))}", *lines, ""]),
            encoding="utf-8",
        )
        # A file, because ComfyUI's threads would share the one connection to a database in memory, and trip over it.
        options = (*OPTIONS, ("--database-url", f"sqlite:///{self.base / 'comfyui.db'}"))
        known = (self._tree / "comfy" / "cli_args.py").read_text(encoding="utf-8")
        command = [
            str(self._python),
            "-u",
            "main.py",
            "--port",
            str(self.port),
            "--base-directory",
            str(self.base),
        ]
        command += ["--extra-model-paths-config", str(paths)]
        if self._frontend:
            command += ["--front-end-root", str(self._frontend)]
        if self._packs:
            command += ["--whitelist-custom-nodes", *self._packs]
        return command + [part for option in options if f'"{option[0]}"' in known for part in option]

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=0.2)
                raise self._failure(f"ComfyUI stopped while starting (exit code {code})")
            with contextlib.suppress(OSError, urllib.error.URLError):
                DIRECT.open(f"{self.url}/system_stats", timeout=5).close()
                break
        else:
            raise self._failure(f"ComfyUI did not answer on port {self.port} within {SECONDS_TO_START} s")
        if "IMPORT FAILED" in self.log_text():
            raise self._failure("ComfyUI started, but could not import the pack")

    def _failure(self, what: str) -> Problem:
        tail = "\n".join(self.log_text().splitlines()[-25:])
        print(f"--- the last lines of ComfyUI's log\n{tail}\n---", flush=True)
        return Problem(f"{what}; its last lines are above, the whole log is {shown(self.keep_log())}.")

    def _stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def claim_port(port: int | None) -> int:
    """A port that can be bound now: the one asked for, or any free one."""
    with socket.socket() as probe:
        if os.name != "nt":  # a port in TIME_WAIT counts as free; on Windows this would mean any port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
        except OverflowError as error:
            raise Problem(f"port {port} does not exist; choose one from 1024 to 65535.") from error
        except OSError as error:
            raise Problem(
                f"port {port} is in use or not allowed ({error.strerror}); "
                "choose another with PORT=…, or leave PORT unset for a free one."
            ) from error
        return probe.getsockname()[1]


def place_pack(folder: Path, target: Path) -> None:
    """Make a folder appear as an installed pack: a link, or a copy where links are not allowed."""
    try:
        target.symlink_to(folder, target_is_directory=True)
    except OSError:
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*NOT_PACK))
