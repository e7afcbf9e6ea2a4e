"""What is shown in a terminal of some width, and what another program reads."""

import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios

_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    def isatty(self):
        return True


def shown(monkeypatch, columns, function, *arguments):
    """What a function prints in a terminal that wide."""
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm")
        function(*arguments)
    return _plain(screen.getvalue(), columns)


def in_terminal(columns, *arguments):
    """What `accord` with these arguments shows in a real terminal that wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "accord", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        output = b""
        try:
            while part := os.read(ours, 65536):
                output += part
        except OSError:
            # Linux's way to say that the other end is closed
            pass
        assert process.wait() == 0
    os.close(ours)
    return _plain(output.decode(), columns)


def piped(*arguments):
    """What another program reads of `accord` with these arguments, in a narrow terminal's environment."""
    command = f"{shlex.join([sys.executable, '-m', 'accord', *arguments])} | cat"
    environment = {**os.environ, "COLUMNS": "40"}
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True, env=environment).stdout


def _plain(text, columns):
    lines = _STYLES.sub("", text).splitlines()
    assert max(map(len, lines)) <= columns
    return lines


def rows(text):
    """The cells of a table whose columns are two or more spaces apart, a list for each line."""
    return [re.split(" {2,}", line.strip()) for line in text.splitlines()]


def unfolded(lines, headings):
    """The text of each column of a table without its spaces, folded cells put together again."""
    starts = [lines[0].index(heading) for heading in headings]
    ends = [*starts[1:], None]
    return ["".join("".join(line[a:b] for line in lines).split()) for a, b in zip(starts, ends, strict=True)]
