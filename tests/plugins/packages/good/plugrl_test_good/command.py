import typer

app = typer.Typer()


@app.command()
def greet(name: str = "world", times: int = 1, ask: bool = False, leave: int = 0) -> int:
    """Greet somebody; what it returns means nothing."""
    if ask:
        typer.confirm("really?", abort=True)
    if times < 1:
        raise typer.BadParameter("at least 1\nis needed", param_hint="--times")
    if leave:
        raise typer.Exit(leave)
    print(" ".join([f"hello {name}"] * times))
    return 5
