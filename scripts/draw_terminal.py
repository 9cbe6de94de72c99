#!/usr/bin/env python3
"""Draws what a program shows on a terminal, as an SVG for the documents. Needs the Python package pyte.

    scripts/draw_terminal.py --out docs/pictures/terminal/top.svg --seconds 5 -- build/bin/tandem top
    scripts/draw_terminal.py --out docs/pictures/terminal/chat.svg --type 'Name a colour.\\r' -- build/bin/tandem chat

Keys are typed one second after the start, each --type after the one before has been answered for --seconds.
"""
import argparse
import fcntl
import os
import pathlib
import pty
import select
import signal
import struct
import sys
import termios
import time
from xml.sax.saxutils import escape

import pyte

CELL = (8.4, 18)
MARGIN = 12
BACKGROUND, TEXT = "#16181d", "#d7dae0"
COLOURS = {"black": "#5c6370", "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b", "blue": "#61afef",
           "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#ffffff", "default": TEXT}


def show(command, columns, rows, typed, seconds):
    """The screen after the program was run and typed to, for so long after each."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "linux"  # xterm has sequences that pyte lacks
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.kill(pid, signal.SIGWINCH)
    for keys, wait in [(None, 1 if typed else seconds), *((keys, seconds) for keys in typed)]:
        if keys is not None:
            os.write(terminal, keys.encode().decode("unicode_escape").encode())
        end = time.monotonic() + wait
        while (left := end - time.monotonic()) > 0:
            if not select.select([terminal], [], [], left)[0]:
                break
            try:
                stream.feed(os.read(terminal, 65536))
            except OSError:
                break
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return screen


def runs(line, columns):
    """Neighbouring cells of equal style: (first column, text, style)."""
    begin, text, style = 0, "", None
    for column in range(columns):
        cell = line[column]
        of_cell = (cell.fg, cell.bg, cell.bold, cell.reverse)
        if of_cell != style and text:
            yield begin, text, style
            begin, text = column, ""
        style = of_cell
        text += cell.data
    yield begin, text, style


def draw(screen, title):
    used = max((row for row in range(screen.lines) if screen.display[row].strip()), default=0) + 1
    width, height = screen.columns * CELL[0] + 2 * MARGIN, used * CELL[1] + 2 * MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
           f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">',
           f"<title>{escape(title)}</title>",
           f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>']
    for row in range(used):
        for column, text, (front, back, bold, reverse) in runs(screen.buffer[row], screen.columns):
            x, y = MARGIN + column * CELL[0], MARGIN + row * CELL[1]
            colours = [COLOURS.get(front, TEXT), COLOURS.get(back) if back != "default" else None]
            if reverse:
                colours = [BACKGROUND, colours[0]]
            if colours[1]:
                out.append(f'<rect x="{x:.1f}" y="{y}" width="{len(text) * CELL[0]:.1f}" height="{CELL[1]}" '
                           f'fill="{colours[1]}"/>')
            if text.strip():
                weight = ' font-weight="bold"' if bold else ""
                out.append(f'<text x="{x:.1f}" y="{y + 14}" xml:space="preserve" fill="{colours[0]}"{weight} '
                           f'textLength="{len(text) * CELL[0]:.1f}">{escape(text)}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--title", help="for readers who do not see the picture; default: the command")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--rows", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--type", action="append", default=[], metavar="KEYS", help="with escapes such as \\r")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    screen = show(options.command, options.columns, options.rows, options.type, options.seconds)
    path = pathlib.Path(options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(screen, options.title or " ".join(options.command)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
