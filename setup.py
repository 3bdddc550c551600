"""Where the packages go in a wheel; everything else is in pyproject.toml.

The repository has its rooms (frontend, engine_core, worker, kernels) at the top level. In site-packages such
names would collide with other distributions, so a wheel has them in pagewire/_rooms, which pagewire.rooms
puts on the import path of our own processes. An editable install leaves them where they are.
"""

import sys

from setuptools import find_packages, setup

ROOMS = ("frontend", "engine_core", "worker", "kernels")
FOLDER = "pagewire._rooms"

package = find_packages(include=["pagewire", "pagewire.*"])
rooms = find_packages(include=[pattern for room in ROOMS for pattern in (room, f"{room}.*")])

if "editable_wheel" in sys.argv:
    setup(packages=[*package, *rooms])
else:
    setup(
        packages=[*package, *(f"{FOLDER}.{name}" for name in rooms)],
        package_dir={f"{FOLDER}.{room}": room for room in ROOMS},
    )
