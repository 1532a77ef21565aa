"""A server as a process, and what it says about itself."""

import collections
import http.client
import json
import re
import time
from pathlib import Path

# Seconds that a client waits for the next bytes.
TIMEOUT = 300


class Server:
    def __init__(self, process, host, port):
        self.process, self.host, self.port = process, host, port

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT)

    def post(self, path, body):
        connection = self.connect()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def metrics(self):
        """The numbers by their names, those of all models together."""
        numbers = collections.Counter()
        for line in self.get("/metrics")[1].splitlines():
            if not line.startswith("#") and "le=" not in line:
                name, value = line.rsplit(" ", 1)
                numbers[name.split("{")[0]] += float(value)
        return dict(numbers)

    def rss_mib(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def what_is_left(self, seconds):
        """What is held although nobody asks any more, after so many seconds at most; a list of sentences."""
        patience = time.monotonic() + seconds
        metrics = self.metrics()
        while metrics["realizar_running"] + metrics["realizar_waiting"] > 0 and time.monotonic() < patience:
            time.sleep(0.1)
            metrics = self.metrics()
        left = []
        for name in ["running", "waiting", "paused", "kv_blocks_in_use", "state_slots_in_use"]:
            if metrics[f"realizar_{name}"] != 0:
                left.append(f"afterwards, {name} is {metrics[f'realizar_{name}']:.0f}")
        rest = metrics["realizar_kv_blocks_free"] + metrics["realizar_kv_blocks_cached"]
        if rest != metrics["realizar_kv_blocks"]:
            left.append(f"of {metrics['realizar_kv_blocks']:.0f} blocks, {rest:.0f} are free or cached")
        return left


def error_of(text):
    """The code and the message of an error's body."""
    try:
        error = json.loads(text)["error"]
        return error.get("code"), error.get("message", "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, text[:200]
