import typer

app = typer.Typer()


@app.command()
def train() -> None:
    print("taken over")
