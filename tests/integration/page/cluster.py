"""A cluster of local processes for the tests of the page and of the API's description."""
import signal
import subprocess
import urllib.error
import urllib.request


class Cluster:
    """`tandem up` with the hash engine on ports of its own, until stop()."""

    def __init__(self, build, *flags):
        self.process = subprocess.Popen(
            [f"{build}/bin/tandem", "up", "--engine=hash", "--grpc=127.0.0.1:0", "--http=0", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if line.startswith("ready: "):
                self.url = "http://" + line.split("HTTP on ")[1].split(";")[0].split(",")[0].strip()
                return
        raise RuntimeError("the cluster ended before it was ready")

    def fetch(self, path, method="GET", body=None, **headers):
        """Status, headers and body of one request; names of headers with _ for -."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, reply.headers, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    def stop(self):
        """Drains the cluster; returns its exit status, the same for a second call."""
        if self.process.stdout.closed:
            return self.process.returncode
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        return status
