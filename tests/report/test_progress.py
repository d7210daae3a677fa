"""Does the bar on a terminal leave it as it was?"""

from io import StringIO

import pytest

from outgrow.report.progress import narrator

_HIDDEN, _SHOWN = "\x1b[?25l", "\x1b[?25h"


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_the_cursor_is_there_while_a_bar_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed leaves the terminal as it is then."""
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    with narrator(terminal) as tell:
        tell.stage("step", 0.5)
        seen = terminal.getvalue()
    assert seen.rfind(_HIDDEN) < seen.rfind(_SHOWN)
