"""A command beside those of plugrl."""

import typer

app = typer.Typer()


@app.command()
def answer():
    """Print the answer."""
    print(42)
