"""The link of lossy_link.py has the given loss and delay, and delivers whole packets."""

import json
import socket
import subprocess
import sys
import time

import pytest
from lossy_link import FAR, NEAR, PRIVATE, Link, is_allowed
from several import HERE

pytestmark = pytest.mark.skipif(not is_allowed(), reason="needs network namespaces and TUN devices")

# Script of the far end, which sends each datagram back.
ECHO = f"""
import socket
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.bind(({FAR!r}, 5000))
print(flush=True)
while True:
    out.sendto(*out.recvfrom(100))
"""


def seen(loss, delay, count=200):
    """Numbers of returned datagrams, the seconds of the first, and counts during and after a cut."""
    link = Link(loss, delay, seed=3)
    with subprocess.Popen([*link.there, sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as echo:
        echo.stdout.readline()
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        here.bind((NEAR, 0))
        here.settimeout(2 * delay + 0.3)
        came, seconds = [], []

        def send(numbers):
            began, back = time.monotonic(), 0
            for number in numbers:
                here.sendto(str(number).encode(), (FAR, 5000))
            while True:
                try:
                    came.append(int(here.recv(100)))
                except TimeoutError:
                    return back
                seconds.append(time.monotonic() - began)
                back += 1

        send(range(count))
        whole = list(came)
        link.cut()
        while_cut = send(range(count, count + 10))
        link.mend()
        after = send(range(2 * count, 2 * count + 10))
        sent, lost = link.counts()
        echo.kill()
    link.close()
    return {"came": whole, "seconds": seconds[0], "while_cut": while_cut, "after": after, "sent": sent, "lost": lost}


def in_private(loss, delay):
    command = [*PRIVATE, sys.executable, __file__, str(loss), str(delay)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.long
def test_packets_have_the_loss_and_the_delay():
    found = in_private(0.1, 0.2)
    # 1 - 0.9**2 of 200 round trips are lost, standard deviation 5.5
    assert 15 < 200 - len(found["came"]) < 65
    assert found["came"] == sorted(found["came"]) and 0.4 <= found["seconds"] < 1.0
    assert found["while_cut"] == 0 and found["after"] > 0
    assert found["lost"] >= 15 + 10


def test_a_link_without_loss_delivers_all_packets():
    found = in_private(0.0, 0.0)
    assert found["came"] == list(range(200)) and found["seconds"] < 0.4
    assert found["while_cut"] == 0 and found["after"] == 10 and found["lost"] == 10


@pytest.mark.slow
def test_a_silo_over_the_link_has_the_draws_of_one_process():
    pytest.importorskip("ray")
    script = [sys.executable, HERE / "two_networks.py", "silo"]
    found = subprocess.run(script, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0 and "draws are" in found.stdout, found.stdout[-2000:] + found.stderr[-2000:]


if __name__ == "__main__":
    print(json.dumps(seen(*map(float, sys.argv[1:]))))
