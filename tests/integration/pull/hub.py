"""A hub of models on loopback for the tests of `tandem pull`, which misbehaves as it is told."""
import hashlib
import http.server
import json
import threading

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves `files` (name to bytes) as the repository org/name, until stop()."""

    def __init__(self, files, lfs=(".safetensors", ".gguf")):
        self.files = dict(files)
        self.lfs = lfs
        self.listed = {}          # name to what the list says of it instead
        self.extra_siblings = []  # further entries of the list
        self.statuses = []        # answered first, one for each request: (status, headers); None: as else
        self.break_after = []     # bytes of a file after which the connection ends, one for each request
        self.ranges = True
        self.checks_if_range = True
        self.etags = "strong"     # or "weak", or "" for none
        self.modified = ""        # Last-Modified of all files
        self.token = None         # that requests must carry
        self.file_host = None     # "http://host:port" to which files are redirected
        self.seen = []            # (method and path, headers)
        self.lock = threading.Lock()
        self.asked = threading.Event()  # the first request has come
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def sibling(self, name):
        data = self.files[name]
        entry = {"rfilename": name, "size": len(data),
                 "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
        if name.endswith(self.lfs):
            entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        entry.update(self.listed.get(name, {}))
        return entry

    def requests(self, part):
        return [headers for path, headers in self.seen if part in path]

    def handler(hub):
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def reply(self, status, body=b"", headers=()):
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                with hub.lock:
                    hub.seen.append((self.path, dict(self.headers)))
                    hub.asked.set()
                    status = hub.statuses.pop(0) if hub.statuses else None
                if status:
                    # These have no body.
                    return self.reply(status[0], b"" if status[0] in (204, 304) else b"no", status[1])
                if hub.token and self.headers["authorization"] != f"Bearer {hub.token}":
                    return self.reply(401, b"no")
                if self.path.startswith("/api/models/org/name/revision/"):
                    siblings = [hub.sibling(name) for name in hub.files] + hub.extra_siblings
                    return self.reply(200, json.dumps({"sha": COMMIT, "siblings": siblings}).encode())
                name = self.path.split("?")[0].rsplit("/", 1)[-1]
                if name not in hub.files:
                    return self.reply(404, b"no")
                if hub.file_host:
                    return self.reply(302, b"", [("location", hub.file_host + self.path)])
                self.send_file(hub.files[name])

            def send_file(self, data):
                etag = '"' + hashlib.md5(data).hexdigest() + '"'
                validators = {"": {}, "weak": {"etag": "W/" + etag}, "strong": {"etag": etag}}[hub.etags]
                if hub.modified:
                    validators["last-modified"] = hub.modified
                if "" != self.headers.get("if-none-match", "") == validators.get("etag") or \
                        "" != self.headers.get("if-modified-since", "") == hub.modified:
                    return self.reply(304, headers=validators.items())
                begin, status = 0, 200
                wanted, if_range = self.headers["range"], self.headers["if-range"]
                current = if_range in (None, *validators.values()) and not (if_range or "").startswith("W/")
                if wanted and hub.ranges and (current or not hub.checks_if_range):
                    begin, status = int(wanted.split("=")[1].split("-")[0]), 206
                    if begin >= len(data):
                        return self.reply(416)
                with hub.lock:
                    end = hub.break_after.pop(0) if hub.break_after else None
                self.send_response(status)
                self.send_header("content-length", str(len(data) - begin))
                if status == 206:
                    self.send_header("content-range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
                for header in validators.items():
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(data[begin:] if end is None else data[begin:begin + end])
                if end is not None:
                    self.close_connection = True

        return Handler
