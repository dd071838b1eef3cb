"""The commands `flows adapters ...`: versions in the registry, signatures, mirror, export."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows import adapter_copies, adapter_trust, adapters, console
from flows.config import Settings, load_settings
from flows.console import print_json, print_table
from flows.options import Config, Home, Json, Limit

adapters_app = typer.Typer(no_args_is_help=True, help="Adapter versions in the registry.")

Slot = Annotated[str | None, typer.Option("--slot", help="Only of this slot, such as L2.")]
_WHICH = "A slot (its champion), a name like L2@3fa9c1d2e4b5, a digest or its beginning"
Which = Annotated[str, typer.Argument(metavar="ADAPTER", help=f"{_WHICH}.")]
Some = Annotated[
    list[str] | None, typer.Argument(metavar="[ADAPTER]...", help=f"{_WHICH}; several are fine.")
]


@adapters_app.command("list")
def list_adapters(
    slot: Slot = None, limit: Limit = 50, config: Config = None, home: Home = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List the versions, newest first: which serve, which were rolled back, who signed them."""
    _out(adapters.rows(_settings(config, home), slot, limit), as_json)


@adapters_app.command("show")
def show_adapter(
    adapter: Annotated[
        str,
        typer.Argument(
            help=f"{_WHICH}; or the id of a turn, response or hop: the version that answered."
        ),
    ],
    rows: Annotated[
        bool, typer.Option("--rows", help="List the rows it learned from, each with its turn.")
    ] = False,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show a version: origin, data, signature, gate reports, when it served, why it went."""
    settings = _settings(config, home)
    if rows:
        _out(adapters.lessons(settings, adapter), as_json)
        return
    found = adapters.details(settings, adapter)
    if as_json:
        print_json(found)
        return
    from flows.adapter_page import adapter_lines

    for line in adapter_lines(found):
        print(line)


@adapters_app.command("diff")
def diff_adapters(
    a: Which, b: Which, config: Config = None, home: Home = None, as_json: Json = False
) -> None:
    """Show in what two versions differ: settings, data, metrics, gate, weights by module."""
    found = adapters.difference(_settings(config, home), a, b)
    if as_json:
        print_json(found)
        return
    from flows.adapter_page import short

    table = [{**row, "a": short(row["a"]), "b": short(row["b"])} for row in found["differences"]]
    print_table(table, "Nothing but the weights differs.")
    print_table(found["weights"], "No module in common.")


@adapters_app.command("log")
def show_log(
    slot: Slot = None, limit: Limit = 50, config: Config = None, home: Home = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show the newest changes of the slots, oldest first: what served, by whom, and why."""
    _out(adapters.log(_settings(config, home), slot, limit), as_json)


@adapters_app.command("verify")
def verify_adapters(
    named: Some = None, config: Config = None, home: Home = None, as_json: Json = False
) -> None:
    """Check the log, and that what the slots serve is as it was signed; status 1 if not."""
    found = adapter_trust.verify(_settings(config, home), named or ())
    _out([row.model_dump() for row in found], as_json)
    if not all(row.ok for row in found):
        raise typer.Exit(1)


@adapters_app.command("sign")
def sign_adapters(
    named: Some = None, config: Config = None, home: Home = None, as_json: Json = False
) -> None:
    """Check and sign versions by this home's key; without a name, all that are unsigned."""
    _out(adapter_trust.sign(_settings(config, home), named or ()), as_json)


@adapters_app.command("keys")
def show_keys(
    add: Annotated[
        bool, typer.Option("--add", help="Accept what this home's key signs, from now on.")
    ] = False,
    remove: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Accept no more what this key signed."),
    ] = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List the keys whose signatures the registry accepts, and this home's own."""
    _out(adapter_trust.keys(_settings(config, home), add, remove), as_json)


@adapters_app.command("export")
def export_adapter(
    adapter: Which,
    folder: Annotated[Path, typer.Argument(help="Folder to write; new or empty.")],
    base_model: Annotated[
        str | None,
        typer.Option(help="What others call the base, such as org/name; its folder's name if not."),
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--license", help="Licence for the model card: apache-2.0, ...")
    ] = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Write a version in the Hugging Face layout: PEFT's files, a model card, a signature."""
    made = adapter_copies.export(_settings(config, home), adapter, folder, base_model, licence)
    _out([made], as_json)


@adapters_app.command("mirror")
def mirror_registry(
    uri: Annotated[
        str | None,
        typer.Argument(help="MLflow registry: http://host:5000, sqlite:///mlflow.db, ..."),
    ] = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Copy what the slots serve to an MLflow registry: versions, and aliases that follow."""
    rows = adapter_copies.mirror(_settings(config, home), uri)
    print_json(rows) if as_json else print_table(rows, "No slot has served a version yet.")


def _settings(config: Path | None, home: Path | None) -> Settings:
    return load_settings(config, overrides={"home": home})


def _out(rows: list[dict[str, Any]], as_json: bool) -> None:
    print_json(rows) if as_json else print_table(rows, console.NOTHING)
