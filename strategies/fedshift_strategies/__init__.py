"""The server side: how weights and knowledge of many nodes become one. NumPy only, no torch."""
