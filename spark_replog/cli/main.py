"""Entry point: the command tree, and the exit code of each failure."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import os
import re
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Any, NoReturn

import click

from spark_replog.cli.completion import answer_shell
from spark_replog.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PIPE_CLOSED,
    EXIT_USAGE,
    OutputError,
    emit,
    error_item,
    exit_code_of,
    note,
    show,
)
from spark_replog.cli.settings import ReplogGroup, Settings, current_settings
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, shortened
from spark_replog.logs import log_no_more

_COMMANDS = {
    "status": "Show on one page whether the store is healthy.",
    "top": "Watch brokers, topics and readers on a terminal.",
    "init": "Make a new, empty store.",
    "topic": "Create, list, describe, grow and delete topics.",
    "produce": "Append lines, JSON, CSV, Parquet or Arrow to a topic.",
    "consume": "Print the records of topics.",
    "tail": "Follow several topics, one line a record.",
    "copy": "Copy a range of a topic into another, across stores too.",
    "table": "Fill Delta and Iceberg tables from typed topics.",
    "group": "Show consumer groups and their lag; reset or delete offsets.",
    "query": "Show streaming queries and their lag, by their checkpoints.",
    "mirror": "Mirror topics of Kafka, with the same offsets.",
    "gateway": "Serve the store to Kafka's clients.",
    "user": "Keep the file of a gateway's users.",
    "metrics": "Serve the metrics of a store to Prometheus.",
    "ui": "Open a console of the store in the browser.",
    "store": "Show, verify and repair the store and its roots.",
    "broker": "List, fence and unfence brokers.",
    "coordinator": "Catch up followers and restore leaders between commits.",
    "acl": "Grant and deny operations to principals.",
    "quota": "Limit how fast clients write and read.",
    "checkpoint": "Move streaming queries between Kafka and a store.",
    "doctor": "Check this machine and the store, and name the fix.",
    "debug": "Collect what support needs, without rows and credentials.",
    "explain": "Explain an error code: meaning, state, remedy.",
    "completion": "Print the completion script of a shell.",
    "demo": "Stream a table into a store of three brokers and read it back.",
}
_ELSEWHERE = {
    "init": "spark_replog.cli.store",
    "ui": "spark_replog.ui.command",
    "quota": "spark_replog.cli.acl",
}
"""Commands that are not in the module of their name."""


class _LazyGroup(ReplogGroup):
    """Imports a noun's module when it is used, so that ``--help`` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_ELSEWHERE.get(cmd_name, f"spark_replog.cli.{cmd_name}"))
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        show(f"replog {version('spark-replog')}")
    except PackageNotFoundError:
        show("replog (not installed; running from source)")
    context.exit(0)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
              help="Show the version and exit.")  # fmt: skip
def cli() -> None:
    """Kafka's log without Kafka's servers, for Spark 4.

    Global flags work before and after the sub-command.
    """


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; never raises."""
    try:
        return _run(arguments)
    except OutputError as error:
        note(f"replog: {error}")
        return EXIT_FAILED
    except BrokenPipeError:
        return EXIT_PIPE_CLOSED
    finally:
        _drop_unwritten()
        log_no_more()


def _drop_unwritten() -> None:
    """Drop what stdout did not take, which was reported: Python would flush it again at exit, and exit with 120."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with contextlib.suppress(io.UnsupportedOperation):  # a stream of a program that calls `run`, without a number
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    settings = Settings()
    try:
        with cli.make_context("replog", list(arguments)) as context:
            settings = current_settings()
            settings.arguments = arguments
            result: Any = cli.invoke(context)
            return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return int(done.exit_code)
    except click.UsageError as error:
        return _usage(error, settings, arguments)
    except click.Abort:
        note("replog: stopped")
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return EXIT_FAILED
    except OutputError:
        raise
    except ReplogError as error:
        return _failure(error, settings)
    except KeyboardInterrupt:
        note("replog: stopped")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        if settings.verbose:
            traceback.print_exc()
        wrapped = ReplogError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"{type(error).__name__}: {error}. Run the command again with -v and report the output.",
        )
        return _failure(wrapped, settings)


def _failure(error: ReplogError, settings: Settings) -> int:
    if settings.verbose:
        traceback.print_exception(error)
    if settings.format == "text":
        note("replog: " + " ".join(str(error).split()))  # one line, even if a file system's message has several
    else:
        emit([error_item(error)], settings=settings)
    return exit_code_of(error)


_FORMAT_TYPED = re.compile(r"(?:^|\0)(?:-f\0?|--format[\0=])(text|jsonl?)(?=\0|$)")


def _usage(error: click.UsageError, settings: Settings, arguments: list[str]) -> int:
    error = click.UsageError(shortened(error.format_message()), error.ctx)  # it repeats what the user typed
    wanted = _FORMAT_TYPED.findall("\0".join(arguments))
    if settings.format == "text" and wanted:
        settings.format = wanted[-1]  # the failure came before the flag was parsed
    if settings.format == "text":
        error.show()
        return EXIT_USAGE
    if error.ctx is not None:
        settings.command = error.ctx.command_path.partition(" ")[2] or settings.command
    message = error.format_message()
    message += "" if message.endswith((".", "?")) else "."
    wrapped = InvalidConfigError(ErrorCode.INVALID_REQUEST, f"{message} See 'replog --help'.")
    return _failure(wrapped, settings)


_GC_THRESHOLD = 50_000
"""New objects before Python collects cycles: imports and folds make many that stay; collecting took a tenth."""


def main() -> None:
    """Run ``replog`` as a program, or answer its completion script."""
    gc.set_threshold(_GC_THRESHOLD)
    is_terminated = False

    def terminate(number: int, _frame: FrameType | None) -> None:
        nonlocal is_terminated
        is_terminated = True
        signal.signal(number, signal.SIG_DFL)  # the second one ends the process at once
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)
    answer = answer_shell(cli)
    exit_code = run(sys.argv[1:]) if answer is None else answer
    _end(-signal.SIGTERM if is_terminated else exit_code)


def _end(exit_code: int) -> NoReturn:
    """End the process as ``sys.exit`` does, but let the system free its memory: Python would take 50 ms.

    A code below 0 ends it by this signal, so that whoever sent it sees that it was obeyed.
    """
    if exit_code < 0 or threading.active_count() == sum(thread.daemon for thread in threading.enumerate()) + 1:
        try:
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except (OSError, ValueError):
            sys.exit(exit_code if exit_code >= 0 else 128 - exit_code)  # reports the error
        if exit_code < 0:
            os.kill(os.getpid(), -exit_code)
        os._exit(exit_code)
    sys.exit(exit_code)
