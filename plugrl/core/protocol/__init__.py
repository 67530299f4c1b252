"""The table of turns: who speaks when and where, who decides, and what it is worth."""
