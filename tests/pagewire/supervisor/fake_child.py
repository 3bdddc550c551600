"""A child of the supervisor that does what its first argument says; started by fake_serve.py.

ready   reports loading, then ready; ends on SIGTERM
fails   reports a failed start
unlucky reports that its worker was killed while it started
dies    ends with exit code 3 without an event
killed  is killed while it starts
crashes reports ready and then ends with exit code 4
deaf    reports ready and ignores SIGTERM
stuck   never gets ready
hangs   reports ready, and then sends no heartbeat
leaves  is ready as the others, but ends with exit code 5 while it stands by
frozen  is stopped before its first event
"""

import os
import signal
import sys
import time

from pagewire.errors import StartupError
from pagewire.host.spawn import Status, die_with_parent
from pagewire.host.standby import serve_forks

die_with_parent()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
behaviour = sys.argv[1]
status = Status()
if behaviour == "fails":
    status.failed(StartupError("cannot load the model", "tensor x is missing", "look at the file"))
    os._exit(1)
if behaviour == "unlucky":
    status.failed(StartupError("the worker is gone", "killed by SIGKILL", "start again", may_pass=True))
    os._exit(1)
if behaviour == "dies":
    os._exit(3)
if behaviour == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if behaviour == "frozen":
    os.kill(os.getpid(), signal.SIGSTOP)
if "--standby" in sys.argv:
    if behaviour == "leaves":
        status.standing_by()
        os._exit(5)
    sys.argv[2:] = serve_forks(status)
status.loading("weights", 0.5)
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if behaviour != "stuck":
    own = {f"{sys.argv[2]}_pid": os.getpid()}
    status.ready(port=1234, pid=os.getpid(), arguments=" ".join(sys.argv[2:]), **own)
if behaviour == "crashes":
    os._exit(4)
while behaviour == "hangs":
    signal.pause()
while True:
    status.beat()
    time.sleep(0.2)
