"""The machinery of a round: who takes part, what travels, what is averaged, who scores what."""
