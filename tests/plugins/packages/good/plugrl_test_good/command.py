import typer

app = typer.Typer()


@app.command()
def greet(name: str = "world") -> None:
    """Greet somebody."""
    print(f"hello {name}")
