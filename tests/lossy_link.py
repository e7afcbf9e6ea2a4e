"""Two network namespaces connected by a slow link that loses packets.

Each end is a TUN device with whole IP packets, so that TCP retransmits lost packets. As a program,
`lossy_link.py FD FD LOSS DELAY SEED` is the link. It reads packets from each device and writes them to the other after
DELAY seconds, except a fraction LOSS of them.
"""

import collections
import contextlib
import fcntl
import json
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time

NEAR, FAR = "10.77.0.1", "10.77.0.2"
# Command prefix for new network, process and mount namespaces, whose processes end with the command.
PRIVATE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# Constants of <linux/if_tun.h>, for packets without an additional header.
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# Largest number of bytes of a packet.
_LONGEST_PACKET = 65536


def is_allowed():
    """Whether this process may create network namespaces and TUN devices."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    trial = [*PRIVATE, "ip", "tuntap", "add", "dev", "trial", "mode", "tun"]
    return subprocess.run(trial, capture_output=True).returncode == 0


class Link:
    """A link from this process' namespace, started with `PRIVATE`, to a new one.

    Parameters
    ----------
    loss
        Fraction of lost packets, in each direction.
    delay
        Seconds of delay of a packet, in each direction.
    seed
        Seed for the choice of lost packets.

    Attributes
    ----------
    there
        Command prefix for the far end.
    """

    def __init__(self, loss=0.05, delay=0.1, seed=0):
        # both end with this process, through their pipes
        self._far = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._far.stdout.readline()
        self.there = ["nsenter", "-t", str(self._far.pid), "--net", "--mount"]
        ends = [_device("near", NEAR, []), _device("far", FAR, self.there, self._far.pid)]
        self._relay = subprocess.Popen(
            [sys.executable, __file__, *map(str, (*ends, loss, delay, seed))],
            pass_fds=ends, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        for end in ends:
            os.close(end)

    def cut(self):
        """Lose all packets, including those in transit."""
        self._request("cut")

    def mend(self):
        """End the cut."""
        self._request("mend")

    def counts(self):
        """The numbers of sent and of lost packets."""
        return self._request("count")

    def _request(self, word):
        self._relay.stdin.write(word.encode() + b"\n")
        self._relay.stdin.flush()
        return json.loads(self._relay.stdout.readline())

    def close(self):
        """End the link and the namespace, whose processes stay with loopback only."""
        for process in (self._relay, self._far):
            process.stdin.close()
            process.wait()
            process.stdout.close()


def _device(name, address, there, owner=None):
    """Create a TUN device, in the namespace of a process if given, and return its file descriptor."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    if owner is not None:
        subprocess.run(["ip", "link", "set", name, "netns", str(owner)], check=True)
    for words in ("link set lo up", f"addr add {address}/24 dev {name}", f"link set {name} mtu 1400 up"):
        subprocess.run([*there, "ip", *words.split()], check=True)
    return file


class Relay:
    """Carries packets between two devices, `ends` are their file descriptors. Other parameters as in `Link`."""

    def __init__(self, ends, loss, delay, seed):
        self.others = dict(zip(ends, reversed(ends), strict=True))
        self.loss, self.delay, self.random = loss, delay, random.Random(seed)
        # (time, device, content) of packets in transit, in order as all delays are equal
        self.due = collections.deque()
        self.sent, self.lost, self.is_cut = 0, 0, False

    def run(self, commands):
        """Carry packets until the end of `commands`, one word per line."""
        while True:
            left = max(0.0, self.due[0][0] - time.monotonic()) if self.due else None
            ready, _, _ = select.select([*self.others, commands], [], [], left)
            if commands in ready:
                word = commands.readline().strip()
                if not word:
                    return
                self.obey(word)
            for end in self.others.keys() & set(ready):
                self.take(end)
            while self.due and self.due[0][0] <= time.monotonic():
                _, end, packet = self.due.popleft()
                # a full or closed device loses the packet
                with contextlib.suppress(OSError):
                    os.write(end, packet)

    def obey(self, word):
        if word == b"cut":
            self.is_cut = True
            self.lost += len(self.due)
            self.due.clear()
        elif word == b"mend":
            self.is_cut = False
        print(json.dumps([self.sent, self.lost]), flush=True)

    def take(self, end):
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(end, _LONGEST_PACKET)
                self.sent += 1
                if self.is_cut or self.random.random() < self.loss:
                    self.lost += 1
                else:
                    self.due.append((time.monotonic() + self.delay, self.others[end], packet))


def main():
    ends, (loss, delay) = [int(word) for word in sys.argv[1:3]], [float(word) for word in sys.argv[3:5]]
    # unbuffered, because select does not see buffered lines
    with open(0, "rb", buffering=0) as commands:
        Relay(ends, loss, delay, int(sys.argv[5])).run(commands)


if __name__ == "__main__":
    main()
