"""`python -m specdemo draft ...`: make a draft for the embedded target, step by step."""

import random
from pathlib import Path
from typing import Annotated, Any

import typer

from specdemo import options
from specdemo.draft import inputs
from specdemo.models.pairs import WEIGHTS

app = typer.Typer(no_args_is_help=True, help="Make the embedded target's draft and n-gram table.")

ANSWERS = Path("data/answers.jsonl")
ORDER, LEAST, MOST = 3, 2, 6  # of the n-gram table: longest context, texts that must have a follower, followers kept
SAID = 200  # steps between two lines of a training run
Answers = Annotated[
    list[Path], typer.Argument(exists=True, dir_okay=False, help="Files of answers (.jsonl or .jsonl.gz).")
]

RowCost = Annotated[float, typer.Option(min=0, help="Of a further row, in target passes; measured on two cores.")]


@app.command()
def data(
    out: Annotated[Path, typer.Option(help="File of answers; an existing one is continued.")] = ANSWERS,
    tokens: Annotated[int, typer.Option(min=1, help="Answer tokens in the file at the end.")] = 2_000_000,
    slots: Annotated[int, typer.Option(min=1, help="Sequences written at once.")] = 128,
    seed: Annotated[int, typer.Option(help="Of the sampling; a continued file goes on with another stream.")] = 1,
    states: Annotated[bool, typer.Option(help="Keep the hidden states too, for training a head.")] = True,
    exclude: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help=".jsonl with a prompt in each line: never trained on.", show_default=False
        ),
    ] = None,
) -> None:
    """Let the target write messages and answer them."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from specdemo.draft.answers import write
    from specdemo.draft.writer import Writer
    from specdemo.text import encode

    loaded = inputs.bare()
    prompts = inputs.prompts(exclude, "prompt") if exclude else []
    excluded = {tuple(encode(loaded.tokenizer, prompt["prompt"], chat=False)) for prompt in prompts}
    out.parent.mkdir(parents=True, exist_ok=True)
    size = out.stat().st_size if out.exists() else 0
    writer = Writer(loaded.target, loaded.tokenizer, slots, seed + size)
    with Progress(*Progress.get_default_columns()[:1], BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("Answer tokens", total=tokens)
        for done in write(out, writer, writer.states.shape[-1], len(writer.turn), tokens, excluded, states):
            bar.update(task, completed=done)


@app.command()
def states(answers: Answers) -> None:
    """Add the target's hidden states to answers that were written without, for training a head."""
    from rich.progress import track

    from specdemo.draft.answers import opening_of, read, write_states

    loaded = inputs.bare()
    opening, _ = opening_of(loaded.tokenizer)
    for path in answers:
        rows = sum(1 for _ in read(path))
        for _ in track(write_states(path, loaded.target, opening), f"{path}", total=rows):
            pass


@app.command()
def ngram(
    answers: Answers,
    out: Annotated[Path, typer.Option(help="The table.")] = WEIGHTS / "embedded-ngram.safetensors",
    order: Annotated[int, typer.Option(min=1, max=3, help="Ids of the longest context.")] = ORDER,
    least: Annotated[int, typer.Option(min=1, help="Answers that must have a follower of two ids or more.")] = LEAST,
    most: Annotated[int, typer.Option(min=1, help="Followers kept of a context of two ids or more.")] = MOST,
) -> None:
    """Count the n-gram table over the answers."""
    from rich.progress import track

    from specdemo.engine.ngram import NgramTable

    rows = inputs.rows(answers)
    table = NgramTable.count(((row.ids, row.message) for row in track(rows, "Counting")), order, least, most)
    out.parent.mkdir(parents=True, exist_ok=True)
    tokens = sum(len(row.ids) - row.message for row in rows)
    table.write(out, inputs.provenance(answers, order=order, least=least, most=most, tokens=tokens))
    sizes = [len(level.keys) for level in table.levels]
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB, contexts by length: {sizes}")


@app.command()
def train(
    answers: Answers,
    out: Annotated[Path, typer.Option(help="The head's weights.")] = WEIGHTS / "embedded-head.safetensors",
    start: Annotated[
        Path | None, typer.Option(help="Weights to go on from; a new head by default.", show_default=False)
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="Ids that a new head can draft.")] = 4096,
    epochs: Annotated[int, typer.Option(min=1, help="Times that all answers are read.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Sequences a batch.")] = 8,
    rate: Annotated[float, typer.Option(help="Learning rate at its highest.")] = 1e-3,
    passes: Annotated[int, typer.Option(min=1, help="Positions drafted in training.")] = 2,
    held_out: Annotated[int, typer.Option(min=1, help="Sequences that are only looked at, to judge by.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the order.")] = 1,
) -> None:
    """Train the feature head on answers that were written with their states; a killed run is gone on with."""
    from rich.progress import track

    from specdemo import device
    from specdemo.draft import train as training
    from specdemo.draft.optimize import Schedule
    from specdemo.engine.head import read_head, write_head

    made = inputs.provenance(
        answers, start=start, vocabulary=vocabulary, epochs=epochs, batch=batch, rate=rate, passes=passes,
        held_out=held_out, seed=seed,
    )  # fmt: skip
    schedule, checkpoint = Schedule(epochs, batch, rate, seed), inputs.checkpoint(out, made)
    loaded = inputs.bare()
    data, judged = inputs.split(loaded, answers, held_out, seed)
    head = (
        read_head(start, loaded.target)
        if start
        else training.new_head(loaded.target, training.vocabulary(answers, vocabulary))
    )
    head.to(device.pick())
    steps = schedule.steps(len(data))
    done = training.train(head, data, schedule, passes, checkpoint)
    for step, loss, agreed in track(done, "Training", total=steps, completed=checkpoint.step):
        if step % SAID == 0 or step == steps:
            print(f"step {step} of {steps}: loss {loss:.3f}, agreement {[round(a, 3) for a in agreed]}", flush=True)
    write_head(head, out, made)
    checkpoint.end()
    print("held out, agreement by position:", [round(a, 3) for a in training.agreement(head, judged, batch, passes)])


@app.command()
def eval(
    prompts: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help=".jsonl with id, kind and prompt in each line.")
    ],
    modes: Annotated[str, typer.Option(help="As of `bench`, by comma.")] = "ngram,chain,tree,auto",
    draft: options.Draft = None,
    max_new_tokens: options.Tokens = 96,
    nodes: Annotated[
        str | None, typer.Option(help="Node budgets, by comma.", show_default="what suits each mode")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Take every n-th prompt only.")] = 1,
    dtype: options.Dtype = "auto",
    out: Annotated[Path | None, typer.Option(help="Rows as they come; gone on with.", show_default=False)] = None,
) -> None:
    """Print tokens per step, speed-up and acceptance by position, by mode and by kind of prompt: `bench`, shorter."""
    from specdemo.measure.commands import bench

    bench(
        prompts=str(prompts),
        modes=modes,
        draft=draft,
        max_new_tokens=max_new_tokens,
        draft_lengths=nodes,
        every=every,
        dtypes=dtype,
        out=out,
    )


@app.command()
def simulate(
    prompts: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help=".jsonl with kind and prompt in each line.")
    ],
    modes: Annotated[
        str, typer.Option(help="By comma: ngram, chain, tree, auto; tree:4 for a length.")
    ] = "ngram,chain,tree,auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")] = 96,
    row_cost: RowCost = 0.05,
    head_cost: Annotated[float, typer.Option(min=0, help="Of a pass of the head, likewise.")] = 0.06,
) -> None:
    """Print what the drafters of the embedded pair bring at given costs: as `eval`, without the noise of a machine."""
    from statistics import geometric_mean, mean

    from rich.progress import track

    from specdemo.draft.evaluate import PACED, Prices, paces
    from specdemo.measure.results import way

    named = tuple(dict.fromkeys(modes.split(",")))
    if unknown := [name for name in named if way(name)[0] not in PACED]:
        raise typer.BadParameter(f"there is no {unknown[0]!r}; choose {', '.join(PACED)}", param_hint="--modes")
    asked, prices, loaded = inputs.prompts(prompts, "kind", "prompt"), Prices(row_cost, head_cost), inputs.pair()
    tasks = [(prompt["kind"], inputs.task(loaded, prompt["prompt"], max_new_tokens)) for prompt in asked]
    found = [(kind, paces(loaded, task, named, prices)) for kind, task in track(tasks, "Answering")]
    for mode in named:
        kinds: dict[str, list[float]] = {}
        for kind, paced in found:
            kinds.setdefault(kind, []).append(paced[mode].tokens / paced[mode].time)
        speeds = [speed for own in kinds.values() for speed in own]
        print(
            f"{mode}: {mean(paced[mode].tokens / paced[mode].steps for _, paced in found):.2f} tokens per step, "
            f"{geometric_mean(speeds):.3f} per time of a target pass (lowest {min(speeds):.2f}); by kind:",
            ", ".join(f"{kind} {geometric_mean(own):.2f}" for kind, own in kinds.items()),
        )


@app.command()
def curve(
    answers: Answers,
    nodes: Annotated[str, typer.Option(help="Node budgets, by comma.")] = "4,8,16",
    held_out: Annotated[int, typer.Option(help="Greedy answers that are not counted, to judge by.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the choice of held-out answers.")] = 1,
    least: Annotated[int, typer.Option(help="As of `ngram`.")] = LEAST,
    row_cost: RowCost = 0.05,
) -> None:
    """Print tokens per step of the n-gram trees, and per time of a target pass, against the answers that were counted.

    No model runs.
    """
    from specdemo.draft.evaluate import simulate
    from specdemo.engine.drafters import NgramDraft
    from specdemo.engine.ngram import NgramModel, NgramTable

    budgets = options.numbers(nodes, "--nodes")
    rows = [(row.greedy, row.ids, row.message) for row in inputs.rows(answers)]
    random.Random(seed).shuffle(rows)
    greedy = [i for i, row in enumerate(rows) if row[0]][:held_out]
    judged = [rows[i][1:] for i in greedy]
    counted = [row[1:] for i, row in enumerate(rows) if i not in set(greedy)]
    for part in (0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1):
        own = counted[: int(part * len(counted))]
        model = NgramModel(NgramTable.count(own, ORDER, least, MOST))
        found = []
        for budget in budgets:
            drafter, ends = NgramDraft(model), [(ids, start, len(ids) - start) for ids, start in judged]
            taken = [simulate(drafter, ids, start, budget, most) for ids, start, most in ends]
            tokens = sum(most for _, _, most in ends)
            steps, read = (sum(part) for part in zip(*taken, strict=True))
            found.append(f"{budget} nodes {tokens / steps:.2f} ({tokens / (steps + row_cost * read):.2f})")
        print(f"{sum(len(ids) - start for ids, start in own):>9,} answer tokens:", ", ".join(found), flush=True)


@app.command()
def distil(
    answers: Answers,
    out: Annotated[Path, typer.Option(help="The layers' weights.")] = WEIGHTS / "embedded-draft.safetensors",
    layers: Annotated[str, typer.Option(help="Layers of the target to keep, by comma.")] = "0,1,2,29",
    vocabulary: Annotated[int, typer.Option(help="Ids whose probabilities are learnt.")] = 4096,
    epochs: Annotated[int, typer.Option(min=1, help="Times that all answers are read.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Sequences a batch.")] = 8,
    rate: Annotated[float, typer.Option(help="Learning rate at its highest.")] = 1e-3,
    held_out: Annotated[int, typer.Option(min=1, help="Sequences that are only looked at, to judge by.")] = 64,
    every: Annotated[int, typer.Option(min=1, help="Train on every n-th answer only.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the order.")] = 1,
) -> None:
    """Distil an ordinary draft model cut from the target, on the same answers; a killed run is gone on with."""
    from rich.progress import track

    from specdemo import device
    from specdemo.draft import distil as distillation
    from specdemo.draft.optimize import Schedule
    from specdemo.draft.train import vocabulary as most_used
    from specdemo.models import embedded_draft
    from specdemo.models import load as loading

    made = inputs.provenance(
        answers, layers=layers, vocabulary=vocabulary, epochs=epochs, batch=batch, rate=rate, held_out=held_out,
        every=every, seed=seed,
    )  # fmt: skip
    schedule, checkpoint = Schedule(epochs, batch, rate, seed), inputs.checkpoint(out, made)
    loaded = inputs.bare()
    data, judged = inputs.split(loaded, answers, held_out, seed)
    data = data[::every]
    ids = most_used(answers, vocabulary)
    small: Any = embedded_draft.cut(loading.unpacked("embedded"), [int(i) for i in layers.split(",")])
    small.to(device.pick())
    steps = schedule.steps(len(data))
    done = distillation.distil(small, data, ids, schedule, checkpoint)
    for step, loss, agreed in track(done, "Distilling", total=steps, completed=checkpoint.step):
        if step % SAID == 0 or step == steps:
            print(f"step {step} of {steps}: loss {loss:.3f}, agreement {agreed:.3f}", flush=True)
    embedded_draft.write_layers(small, out, made)
    checkpoint.end()
    print(f"held out, agreement: {distillation.agreement(small, judged, ids, batch):.3f}")


@app.command()
def export(
    out: Annotated[Path, typer.Argument(help="Directory of the checkpoint.")],
    layers: Annotated[Path, typer.Option(help="Weights that `distil` wrote.")] = WEIGHTS / "embedded-draft.safetensors",
) -> None:
    """Write the distilled draft model as an ordinary checkpoint, for --draft or as an assistant_model."""
    from specdemo.models import load as loading
    from specdemo.models.embedded_draft import read_layers

    read_layers(layers, loading.unpacked("embedded")).save_pretrained(out)
    loading.tokenizer_of("embedded").save_pretrained(out)
    print(out)
