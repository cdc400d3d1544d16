"""A `libnvidia-ml.so.1` that answers from a scenario file, for tests of anything that reads NVML."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")


def build(dest: Path) -> Path:
    """Compile the library into the folder `dest` and give its path; skips the test where that is impossible."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: the fake libnvidia-ml.so.1 cannot be built")
    header = _header_folder()
    if header is None:
        pytest.skip("nvml.h not found: install nvidia-nvml-dev to build the fake libnvidia-ml.so.1")
    dest.mkdir(parents=True, exist_ok=True)
    library = dest / "libnvidia-ml.so.1"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wno-deprecated-declarations", "-shared", "-fPIC"]
    command = [compiler, *flags, "-Wl,-soname,libnvidia-ml.so.1", f"-I{header}", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return library


def environment(library: Path, scenario: Path, log: Path | None = None) -> dict[str, str]:
    """The environment of a child process whose NVML is this fake, reading `scenario`."""
    path = os.pathsep.join(filter(None, (str(library.parent), os.environ.get("LD_LIBRARY_PATH"))))
    extra = {} if log is None else {"FAKE_NVML_LOG": str(log)}
    return {**os.environ, "LD_LIBRARY_PATH": path, "FAKE_NVML": str(scenario), **extra}


def swap(scenario: Path, text: str) -> None:
    """Replace a scenario file in one step, as the fake expects while it is running."""
    fresh = scenario.with_name(scenario.name + ".new")
    fresh.write_text(text)
    fresh.replace(scenario)


def _header_folder() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    headers = [header for root in roots for header in sorted(root.glob("*/include/nvml.h"))]
    system = Path("/usr/local/cuda/include/nvml.h")
    return next((header.parent for header in [*headers, system] if header.is_file()), None)
