"""A server with the OpenAI API and without a model: `fake_server.py PORT`.

The output that is asked for says what it does, as of fake_peer.py. Its last message alone counts tokens:
one more than messages with text.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DIES, HANGS = 1002, 1003


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._begin("application/json")
        self.wfile.write(b'{"data": [{"id": "fake"}]}')

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert request["ignore_eos"] and request["temperature"] == 0 and request["stream"]
        output = request["max_tokens"]
        if output == DIES:
            print("no memory", flush=True)
            os._exit(3)
        if output == HANGS:
            time.sleep(1000)
        if request["model"] != "fake":
            os.write(1, f"asked for {request['model']} {output}\n".encode())  # whole, beside other threads
        self._begin("text/event-stream")
        for _ in range(max(1, output - 1)):
            self._send(choices=[{"text": "a"}])
        usage = {"prompt_tokens": len(request["prompt"]), "completion_tokens": output}
        self._send(choices=[{"text": "", "finish_reason": "length"}], usage=usage)

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()

    def _send(self, **event: Any) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())


if __name__ == "__main__":
    if sys.argv[1] == "none":
        sys.exit("no such model")
    print("serving in", os.getpid(), flush=True)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
