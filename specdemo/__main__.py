"""The command line: `python -m specdemo fetch | race | bench | record | serve | preflight | draft | deploy`."""

import json
import sys
from pathlib import Path
from threading import Event
from typing import Annotated, Any, NoReturn

import typer

from specdemo import options
from specdemo.config import UNLIMITED, ConfigError, Settings, read
from specdemo.draft import commands as draft_commands
from specdemo.measure import commands as measure_commands
from specdemo.models import commands as model_commands
from specdemo.models.pairs import PAIRS
from specdemo.space import Target

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__import__("specdemo").__doc__)

app.add_typer(draft_commands.app, name="draft")
app.command()(model_commands.preflight)
app.command()(measure_commands.bench)


@app.command()
def fetch() -> None:
    """Fetch the embedded target and make it and its draft ready; does nothing if they are."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from specdemo.models import embedded, embedded_draft

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("Looking for the weights", total=1.0)
        try:
            folder = embedded.fetch(lambda stage, done: bar.update(task, description=stage, completed=done))
            embedded_draft.fetch()
        except embedded.FetchError as error:
            bar.stop()
            _refuse(error, 1)
        bar.update(task, description="Weights ready", completed=1.0)
    print(folder)


@app.command()
def race(
    prompt: Annotated[str, typer.Argument(help="What both paths answer.", show_default=False)],
    pair: options.Pair = "embedded",
    mode: options.Mode = "tree",
    target: options.Target = None,
    draft: options.Draft = None,
    max_new_tokens: options.Tokens = 128,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "none",
    quantize: options.Quantize = "target",
    double_quantization: options.DoubleQuantization = False,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    repetition_penalty: options.Penalty = 1.0,
    stop: options.Stop = None,
    exact: options.Exact = False,
    seed: options.Seed = 42,
    draft_length: options.DraftLength = None,
    chat_template: options.ChatTemplate = True,
    trace: options.Trace = None,
    as_json: options.AsJson = False,
) -> None:
    """Race the plain and the speculative path over one prompt."""
    fields = {name: value for name, value in locals().items() if name not in ("trace", "as_json")}
    from specdemo.request import RequestError, checked
    from specdemo.run import Run, load_for

    try:
        request = checked(UNLIMITED, PAIRS, **fields)
        run = Run(request, load_for(request), Event())
    except RequestError as error:
        _refuse(error, 2)
    if as_json:
        for _ in run:
            pass
    else:
        from specdemo.terminal import show

        show(run)
    if as_json:
        print(json.dumps(run.result()), flush=True)
    if trace is not None:
        from specdemo.measure.trace import MAX_BYTES, write

        try:
            size = write(run.trace, trace)
        except OSError as error:
            _refuse(f"cannot write the trace: {error}", 2)
        if size > MAX_BYTES:
            words = f"the trace has {size / 1e6:.1f} MB; Replay takes {MAX_BYTES / 1e6:g}: ask for fewer tokens"
            print(f"specdemo: {words}", file=sys.stderr)
    if run.failure is not None:
        _refuse(f"a path broke: {run.failure}", 1)


@app.command()
def record(
    names: Annotated[list[str] | None, typer.Argument(help="Which of them; all if none is named.")] = None,
) -> None:
    """Record the races that the Replay tab ships again, on this machine."""
    from specdemo import shipped
    from specdemo.models.embedded import FetchError

    names = names or list(shipped.RACES)
    for name in names:
        if name not in shipped.RACES:
            _refuse(f"there is no shipped race {name!r}; choose from {', '.join(shipped.RACES)}", 2)
    for name in names:
        try:
            result = shipped.record(name)
        except (FetchError, OSError) as error:
            _refuse(error, 1)
        print(f"{shipped.path(name)}: {result['speculative']['tokens']} tokens, {result['speed_up']:.2f}×")


@app.command()
def serve(
    host: Annotated[str, typer.Option(envvar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="PORT", help="Port to listen on.")] = 7860,
    draft: options.Draft = None,
    own_models: Annotated[
        bool, typer.Option("--own-models", help="Offer every listed pair, and fields for models of your own.")
    ] = False,
) -> None:
    """Serve the page."""
    from specdemo.ui.build import launch

    settings = _settings()
    if own_models:
        settings = settings.model_copy(update={"own_models": True, "pairs": list(PAIRS)})
    launch(settings, host, port, draft)


@app.command()
def deploy(
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The Space.", show_default=False)],
    target: Annotated[Target, typer.Option(help="What the Space is built as.")] = "gradio",
    dry_run: Annotated[
        Path | None,
        typer.Option(help="Only write what would be uploaded to this new folder, and check it.", show_default=False),
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Replace the files of a Space that exists.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Show the Space to its owner only.")] = False,
) -> None:
    """Make a Space of this folder, or update it; docs/deploy.md has the details."""
    from specdemo import deploy as deployment
    from specdemo.staging import DeployError, stage

    def tell(words: str) -> None:
        print(words, file=sys.stderr)

    try:
        order = deployment.Order(repo, target, _settings(), update, private)
        if dry_run is None:
            print(deployment.deploy(order, tell))
            return
        for name in stage(order.settings, target, dry_run):
            print(name)
        tell(f"these files are in {dry_run}; nothing was uploaded")
    except DeployError as error:
        _refuse(error, 2)


def _settings() -> Settings:
    try:
        return read()
    except ConfigError as error:
        _refuse(error, 2)


def _refuse(reason: Any, status: int) -> NoReturn:
    """One line on standard error, and the exit status."""
    print(f"specdemo: {reason}", file=sys.stderr)
    raise SystemExit(status)


if __name__ == "__main__":
    app(prog_name="specdemo")
