"""A mistake on the command line as one line in our words, where click would draw a box."""

import difflib

import click


def usage_line(error: click.ClickException) -> str:
    """What was typed wrongly, and where to look."""
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "fedcopl"
    what = _what(error, command)
    return what if what.endswith("?") else f"{what}; see {command} --help"


def _what(error: click.ClickException, command: str) -> str:
    match error:
        case click.NoSuchOption():
            near = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
            return f"{error.option_name}: there is no such option of {command}{near}"
        case click.MissingParameter():
            return f"{_name(error)}: is missing"
        case click.BadParameter() if error.param is not None or error.param_hint:
            return f"{_name(error)}: {_range(error) or _lower(error.message)}"
        case click.UsageError() if error.ctx is not None and error.message.startswith("No such command"):
            return _no_command(error.message.split("'")[1], error.ctx)
    return _lower(error.format_message())


def _name(error: click.BadParameter) -> str:
    """An option by its longest name, an argument as the help calls it."""
    param = error.param
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.make_metavar(error.ctx).strip("[]") if param and error.ctx else str(error.param_hint).strip("'")


def _range(error: click.BadParameter) -> str:
    """Of a number that is out of its range: what it should be."""
    kind = error.param.type if error.param else None
    if not isinstance(kind, click.IntRange | click.FloatRange) or "range" not in error.message:
        return ""
    limits = [f"at least {kind.min:g}"] if kind.min is not None else []
    limits += [f"at most {kind.max:g}"] if kind.max is not None else []
    return f"should be {' and '.join(limits)}, not {error.message.split()[0]}"


def _no_command(typed: str, context: click.Context) -> str:
    known = context.command.list_commands(context) if isinstance(context.command, click.Group) else []
    near = difflib.get_close_matches(typed, known, n=1)
    return f"{typed}: there is no such command" + (f"; did you mean {near[0]}?" if near else "")


def _lower(message: str) -> str:
    """As the other messages: no capital, no full stop, one line."""
    plain = " ".join(message.split()).rstrip(".")
    return plain[:1].lower() + plain[1:]
