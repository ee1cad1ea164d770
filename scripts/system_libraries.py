"""Install the system libraries FlashScope needs on Debian-like systems, or print the command; runs before any set-up.

Only the standard library may be imported here: there is no environment yet.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

PACKAGES = [
    *("libegl1", "libgl1", "libxkbcommon0", "libdbus-1-3", "libfontconfig1", "libglib2.0-0", "fonts-dejavu-core"),  # Qt
    *("libxcb-cursor0", "libxcb-icccm4", "libxcb-image0", "libxcb-keysyms1", "libxcb-randr0"),  # a window under X
    *("libxcb-render-util0", "libxcb-shape0", "libxcb-xkb1", "libxkbcommon-x11-0"),
    *("libvulkan1", "mesa-vulkan-drivers"),  # wgpu, with software Vulkan where there is no GPU
]


def installed_packages() -> set[str]:
    """Return the names of all installed Debian packages and of what they provide (a renamed library keeps its name)."""
    listing = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status}\t${Package}, ${Provides}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = (line.partition("\t") for line in listing.splitlines())
    installed = ",".join(names for state, _, names in lines if state == "installed")
    return {name.split()[0] for name in installed.split(",") if name.strip()}


def missing_packages() -> list[str]:
    """Return the Debian packages to install; python3-venv only where this very Python cannot make environments."""
    have = installed_packages()
    missing = [name for name in PACKAGES if name not in have]
    return missing if importlib.util.find_spec("ensurepip") else ["python3-venv", *missing]


def install(packages: list[str]) -> bool:
    """Install the packages with apt-get, refreshing its lists first. Returns whether that worked."""
    print(f"Installing system libraries: {' '.join(packages)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-qq", *command], env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            return False
    return True


def main() -> int:
    """Bring the system up to what FlashScope needs as far as this user may; 1 only when nothing can work without."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what an older Python meets
        version = ".".join(map(str, sys.version_info[:3]))
        print(f"FlashScope needs Python 3.11 or newer, this is {version}; name another: make PYTHON=…", file=sys.stderr)
        return 1
    if not (shutil.which("dpkg-query") and shutil.which("apt-get")):
        return 0  # elsewhere `flashscope doctor` says what is missing
    missing = missing_packages()
    if not missing or (os.geteuid() == 0 and install(missing)):
        return 0
    print(f"System libraries are missing; install them with: sudo apt-get install {' '.join(missing)}", file=sys.stderr)
    return 1 if "python3-venv" in missing else 0


if __name__ == "__main__":
    sys.exit(main())
