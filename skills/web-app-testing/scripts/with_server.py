"""with_server.py --port N --serve COMMAND [--port N --serve COMMAND]… -- TEST…: run a test beside running servers."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time


def wait_for(port, process, seconds):
    """Return when the port accepts connections; stop when the server ends or the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError("the server for port %d ended with code %d" % (port, process.returncode))
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("port %d does not answer after %d s" % (port, seconds))


def stop(process):
    """End the server with everything it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=5)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, action="append", required=True)
    parser.add_argument("--serve", action="append", required=True)
    parser.add_argument("--wait", type=int, default=30, help="seconds that a server may take to start")
    parser.add_argument("test", nargs="+")
    options = parser.parse_args(arguments)
    if len(options.port) != len(options.serve):
        parser.error("every --serve needs a --port")
    servers = []
    code = 1
    log = tempfile.TemporaryFile()
    try:
        for port, command in zip(options.port, options.serve):
            process = subprocess.Popen(command, shell=True, stdout=log, stderr=log, start_new_session=True)
            servers.append(process)
            wait_for(port, process, options.wait)
        code = subprocess.run(options.test).returncode
    except RuntimeError as error:
        print("error: %s" % error, file=sys.stderr)
    finally:
        for process in reversed(servers):
            stop(process)
    if code:
        log.seek(0)
        print("--- server output (end) ---\n" + log.read().decode(errors="replace")[-4000:], file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
