"""Two network namespaces and a link between them that is slow and loses packets.

Each end is a TUN device, so what crosses are whole IP packets: one that is lost is lost to TCP, which sends it again.
Run as a program, `lossy_link.py FD FD LOSS DELAY SEED` is the link itself: it reads packets at one device, holds them
for DELAY seconds, and writes them to the other, except the part LOSS of them.
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
# A network, processes and mounts of its own: whatever is begun there ends with it.
PRIVATE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# From <linux/if_tun.h>: packets as they are, without a header before them.
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_LONGEST_PACKET = 65536


def is_allowed():
    """Whether this process may make network namespaces and TUN devices."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    trial = [*PRIVATE, "ip", "tuntap", "add", "dev", "trial", "mode", "tun"]
    return subprocess.run(trial, capture_output=True).returncode == 0


class Link:
    """A link from the namespace of this process, which must be its own (`PRIVATE`), to a new one.

    Parameters
    ----------
    loss
        The part of the packets that is lost, in each direction.
    delay
        Seconds that a packet takes, in each direction.
    seed
        Of the generator that chooses which are lost.

    Attributes
    ----------
    there
        What a command begins with that runs at the far end.
    """

    def __init__(self, loss=0.05, delay=0.1, seed=0):
        # both end with this process, which holds the other ends of their pipes
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
        """Lose everything from now on, what is on its way too."""
        self._tell("cut")

    def mend(self):
        """Be as before the cut."""
        self._tell("mend")

    def counts(self):
        """Packets that were sent, and that were lost, so far."""
        return self._tell("count")

    def _tell(self, word):
        self._relay.stdin.write(word.encode() + b"\n")
        self._relay.stdin.flush()
        return json.loads(self._relay.stdout.readline())

    def close(self):
        """End the link and the namespace; its processes stay, with nothing but loopback."""
        for process in (self._relay, self._far):
            process.stdin.close()
            process.wait()
            process.stdout.close()


def _device(name, address, there, owner=None):
    """A TUN device, in the namespace of a process if one is given; its file descriptor."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    if owner is not None:
        subprocess.run(["ip", "link", "set", name, "netns", str(owner)], check=True)
    for words in ("link set lo up", f"addr add {address}/24 dev {name}", f"link set {name} mtu 1400 up"):
        subprocess.run([*there, "ip", *words.split()], check=True)
    return file


class Relay:
    """What carries packets between two devices; parameters as in `Link`, and the devices' file descriptors."""

    def __init__(self, ends, loss, delay, seed):
        self.others = dict(zip(ends, reversed(ends), strict=True))
        self.loss, self.delay, self.random = loss, delay, random.Random(seed)
        # when each is due, where, and what; all take equally long, so they leave as they came
        self.due = collections.deque()
        self.sent, self.lost, self.is_cut = 0, 0, False

    def run(self, commands):
        """Carry packets until there are no more commands, a word a line."""
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
                # a device that is full or gone loses it, as others do
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
    # unbuffered: a line that is read ahead is none that select sees
    with open(0, "rb", buffering=0) as commands:
        Relay(ends, loss, delay, int(sys.argv[5])).run(commands)


if __name__ == "__main__":
    main()
