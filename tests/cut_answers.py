"""A controller that dies in the middle of its answers: the headers arrive, the body does not."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit


class CuttingProxy:
    """Passes requests on to `url`. Cuts off the answer to each request after its headers, and
    answers in full when the same request comes again."""

    def __init__(self, url: str) -> None:
        self.cut: set[bytes] = set()  # bodies of requests with a cut answer
        proxy, netloc = self, urlsplit(url).netloc

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                controller = http.client.HTTPConnection(netloc, timeout=60)
                controller.request("POST", self.path, body, dict(self.headers))
                answer = controller.getresponse()
                data = answer.read()
                controller.close()
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if body in proxy.cut:
                    self.wfile.write(data)
                proxy.cut.add(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # the worker or the controller has ended

        self._http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
