"""--launcher: what starts `pagewire ranks` on the other hosts of a group.

prepared() is for `pagewire serve`, before anything starts; the supervisor then has a process that runs
`pagewire ranks --launcher NAME`, which is a Launcher.
"""

WHAT = "cannot use the Ray cluster"
"""Of errors."""
