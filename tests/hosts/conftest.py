"""Clusters of hosts with their own addresses, processes and files, on this machine.

Simulated by the tool in ``../shared/sparkhosts`` beside the repository, or where the
variable ``SPARKHOSTS`` says; without it these tests are left out.
"""

import base64
import configparser
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import sparkray

REPO = Path(__file__).resolve().parents[2]
INIT_SCRIPT = REPO / "init_scripts" / "sparkray.sh"
TOKEN = "5ec12e7" * 9 + "0"
TOOL = (
    Path(os.environ.get("SPARKHOSTS", REPO.parent / "shared" / "sparkhosts"))
    / "sparkhosts.py"
)


def _why_not() -> str:
    """Return why there can be no hosts here, "" if there can."""
    if not TOOL.exists():
        return f"no {TOOL}; SPARKHOSTS may name its folder"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"no {', '.join(missing)}"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "the kernel has no overlayfs"
    return ""


#: Whether the hosts can have Spark as well.
HAS_SPARK = importlib.util.find_spec("pyspark") is not None and (
    shutil.which("java") is not None or "JAVA_HOME" in os.environ
)

#: What all tests on hosts need.
NEEDS_HOSTS = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(_why_not()), reason=_why_not()),
]


def _load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("sparkhosts", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sparkhosts"] = module
    spec.loader.exec_module(module)
    return module


class Hosts:
    """A cluster of hosts on which the init script ran.

    Attributes:
        tool: the `sparkhosts.SparkHosts`.
    """

    def __init__(self, tool: Any) -> None:
        self.tool = tool

    @property
    def names(self) -> list[str]:
        return list(self.tool.hosts)

    def run(self, host: str, command: Any, **options: Any) -> Any:
        return self.tool.run(host, command, **{"timeout": 120, **options})

    def at_once(self, work: dict[str, tuple[str, dict[str, str]]]) -> list[str]:
        """Run a command on each of several hosts, with more of an environment; return
        what they wrote, each host's output and errors together."""
        running = [
            self.tool.popen(
                host,
                command,
                env=env,
                cwd="/root",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for host, (command, env) in work.items()
        ]
        texts = [process.communicate(timeout=240)[0] for process in running]
        for process, text in zip(running, texts, strict=True):
            assert process.returncode == 0, text
        return texts

    def agents(self, host: str) -> list[dict[str, Any]]:
        """Return the discovery files on a host."""
        shown = self.run(host, "cat /tmp/sparkray-0/*/agent.json")
        return [
            json.loads(line)
            for line in shown.stdout.replace("}{", "}\n{").split("\n")
            if line
        ]

    def notebook(self, code: str, env: dict[str, str] | None = None) -> "Notebook":
        return Notebook(self.tool, code, env)


class Notebook:
    """A Python program on a host, as a notebook's interpreter: it tells lines of JSON,
    and reads a line of its input where it waits."""

    HEADER = """
import json, os, socket, sys, time
import sparkray, sparkray.util.scheduling_strategies

def tell(**fields):
    print(json.dumps(fields), flush=True)

def wait_for_line():
    sys.stdin.readline()

def alive():
    return {n["NodeID"]: n for n in sparkray.nodes() if n["Alive"]}

def await_nodes(count):
    deadline = time.monotonic() + 60
    while len(alive()) != count:
        assert time.monotonic() < deadline, sparkray.nodes()
        time.sleep(0.05)
    return alive()

def place_of(node_id):
    deadline = time.monotonic() + 60
    while True:
        try:
            return sparkray.get(sparkray.remote(host).options(**on(node_id)).remote())
        except sparkray.exceptions.UnschedulableError:  # this host knows it in a moment
            assert time.monotonic() < deadline
            time.sleep(0.05)

def on(node_id):
    place = sparkray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    return {"scheduling_strategy": place(node_id, soft=False)}

def host(*_):
    return socket.gethostname()
"""

    def __init__(self, tool: Any, code: str, env: dict[str, str] | None) -> None:
        self.process = tool.popen(
            "driver",
            ["python", "-c", self.HEADER + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env=env,
        )

    def __enter__(self) -> "Notebook":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def next(self) -> dict[str, Any]:
        """Return what it tells next."""
        for line in self.process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                return told
        raise AssertionError(
            f"the notebook ended: {self.process.stderr.read()[-4000:]}"
        )

    def go_on(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Wait for its end; return what it wrote to its error output."""
        _, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors[-4000:]
        return str(errors)


Bring = Callable[..., Any]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this sparkray, of a version that counts as newer than one which is
    installed already."""
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@contextmanager
def hosts_up(
    wheel: Path, *scripts: Path, env: dict[str, str], **options: Any
) -> Iterator[Hosts]:
    """Bring up hosts on each of which the scripts run, in this order."""
    given = {"SPARKRAY_REQUIREMENT": str(wheel), "SPARKRAY_NUM_CPUS": "2", **env}
    with _load_tool().SparkHosts(
        init_script=list(scripts),
        env=given,
        python=sys.executable,
        share=[f"{wheel.parent}:{wheel.parent}:ro"],
        **options,
    ) as tool:
        yield Hosts(tool)


def make_wheel(folder: Path, more: Mapping[str, bytes] | None = None) -> Path:
    """Pack the working tree as `pip wheel` would, without a network.

    Args:
        more: what to add at the end of files, by their names.
    """
    setup = configparser.ConfigParser()
    setup.read(REPO / "setup.cfg")
    needs = setup["options"]["install_requires"].split("\n")
    version = f"{sparkray.__version__}+hosts"
    info = f"sparkray-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        "Name: sparkray",
        f"Version: {version}",
        *(f"Requires-Dist: {line.strip()}" for line in needs if line.strip()),
    ]
    tags = ["Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any"]
    texts = {f"{info}/METADATA": metadata, f"{info}/WHEEL": tags}
    files = {name: "\n".join(lines).encode() + b"\n" for name, lines in texts.items()}
    for path in sorted((REPO / "sparkray").rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            files[str(path.relative_to(REPO))] = path.read_bytes()
    for name, end in (more or {}).items():
        files[name] += end
    record = [f"{name},{_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    made = folder / f"sparkray-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.decode().rstrip('=')}"
