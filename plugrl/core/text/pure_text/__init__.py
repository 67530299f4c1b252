"""Staged training of text agents by fine-tune jobs: ``PureTextRlTrainer`` and its parts."""
