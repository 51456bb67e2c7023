"""`hsfl cost`: what every cut of a model costs, as a table, as JSON or as a file for `hsfl plan --cost`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hsfl.commands.console import Json, Options, Plugins, one_line_errors, out_console, print_json
from hsfl.errors import InputError
from hsfl.formats import significant

commands = typer.Typer()


@commands.command(
    "cost",
    epilog="Examples:\n\n- `hsfl cost resnet18 --input 3,32,32`\n"
    "- `hsfl cost my_file.py:build --input 3,224,224`\n"
    "- `hsfl cost mobilenet_v2 --input 3,224,224 --classes 1000 --save mobilenet.json`",
)
def cost_command(
    model: Annotated[
        str,
        typer.Argument(
            help="resnet18, cnn, mlp, vgg11_bn, mobilenet_v2, gpt, vit, hf:PATH, a name that a plugin registers, or FILE.py:FUNCTION of yours."
        ),
    ] = "resnet18",
    input: Annotated[
        str,
        typer.Option(
            help="A sample's shape: channels, height and width of an image, one number for vectors, two for series."
        ),
    ] = "3,32,32",
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    batch_size: Annotated[int, typer.Option(help="The size of the mini-batch for which memory is counted.")] = 256,
    norm: Annotated[str, typer.Option(help="The norm layers: batch, group or none.")] = "batch",
    stem: Annotated[str, typer.Option(help="imagenet, or cifar, which keeps small images large.")] = "imagenet",
    changes: Options = None,
    plugin: Plugins = None,
    save: Annotated[Path | None, typer.Option(help="Write the table to this file, for hsfl plan --cost.")] = None,
    as_json: Json = False,
) -> None:
    """Show what every cut of a model costs: FLOPs, bits on the links, memory."""
    with one_line_errors():
        from hsfl.api.model_calls import cost_with_model

        codecs = [change for change in changes or () if change.strip().startswith("link")]
        if save is not None and codecs:
            raise InputError(
                f"--save {save} keeps the costs of uncoded messages, so {codecs[0]} has no effect in it; leave it out here, and give it to hsfl plan"
            )

        settings = (norm, stem, changes or (), plugin or ())
        table, split_model = cost_with_model(model, read_shape(input), classes, batch_size, *settings)
        if save is not None:
            table.save(save)
    if as_json:
        print_json(table.to_dict())
        return
    screen = table.screen()
    title = f"{model} at {input}: per sample, forward and backward; memory for a batch of {batch_size}"
    rows = Table("cut", "client ends with", *screen.header[1:], title=title, title_justify="left")
    for cut, *numbers in screen.rows:
        rows.add_row(str(cut), split_model.unit_names[cut - 1] if cut else "-", *map(significant, numbers))
    out_console.print(rows)
    if save is not None:
        out_console.print(f"wrote {save}", soft_wrap=True)


def read_shape(text: str) -> tuple[int, ...]:
    """The shape of a sample from a text: 3,32,32 or 3x32x32 for images; other samples have one number or more."""
    try:
        sizes = tuple(int(side) for side in text.replace("x", ",").split(","))
    except ValueError:
        raise InputError(f"--input is {text!r}; give channels, height and width, such as 3,32,32") from None
    from hsfl.models.cost_table import check_sample_shape

    check_sample_shape(sizes)
    return sizes
