"""``report.html``: one self-contained page about a run, also while it goes on."""
