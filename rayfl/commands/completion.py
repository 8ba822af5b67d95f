"""`rayfl completion`: the lines that make a shell complete rayfl's commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import (
    CompletionItem,
    ShellComplete,
    add_completion_class,
    split_arg_string,
)

VARIABLE = "_RAYFL_COMPLETE"
"""Set when a shell asks what can come next."""

BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' line response
    COMPREPLY=()
    response=$(env COMP_WORDS="${COMP_LINE:0:COMP_POINT}" BREAKS="$COMP_WORDBREAKS" \
%(complete_var)s=bash_complete "$1")
    for line in $response; do
        COMPREPLY+=("$line")
        case $line in *[=./]) compopt -o nospace ;; esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

ZSH = """\
#compdef %(prog_name)s
%(complete_func)s() {
    local -a open whole
    local line
    for line in "${(@f)$(env COMP_WORDS="${words[1,CURRENT]}" \
%(complete_var)s=zsh_complete %(prog_name)s)}"; do
        case $line in
            '') ;;
            *[=./]) open+=("$line") ;;
            *) whole+=("$line") ;;
        esac
    done
    (( $#open )) && compadd -U -S '' -V open -a open
    (( $#whole )) && compadd -U -V whole -a whole
}
compdef %(complete_func)s %(prog_name)s
"""

FISH = """\
function %(complete_func)s
    env COMP_WORDS=(commandline -cp) %(complete_var)s=fish_complete %(prog_name)s
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _WholeLine(ShellComplete):
    """The line up to the cursor says what has been written, and what is to be completed."""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return str(item.value)


class _Bash(_WholeLine):
    name = "bash"
    source_template = BASH

    def format_completion(self, item: CompletionItem[Any]) -> str:
        # Bash takes `=` and `:` for the end of a word, and puts in what comes after.
        _, incomplete = self.get_completion_args()
        breaks = [mark for mark in "=:" if mark in os.environ.get("BREAKS", "=:")]
        start = max((incomplete.rfind(mark) + 1 for mark in breaks), default=0)
        return str(item.value)[start:]


class _Zsh(_WholeLine):
    name = "zsh"
    source_template = ZSH


class _Fish(_WholeLine):
    name = "fish"
    source_template = FISH


SHELLS: Mapping[str, type[_WholeLine]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}
INSTALL = {
    "bash": '~/.bashrc:  eval "$(rayfl completion bash)"',
    "zsh": '~/.zshrc, after compinit:  eval "$(rayfl completion zsh)"',
    "fish": "~/.config/fish/config.fish:  rayfl completion fish | source",
}


def register_shells() -> None:
    """Answer shells that ask what can come next as these scripts expect it."""
    for cls in SHELLS.values():
        add_completion_class(cls)


HELP = """Print what makes SHELL complete commands, files, keys and values.

\b
"""


@click.command("completion", help=HELP + "\n".join(INSTALL.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    made = SHELLS[shell](ctx.find_root().command, {}, "rayfl", VARIABLE)
    click.echo(made.source(), nl=False)
