"""Areas of tests/interop/conformance.py: each compares czero with a peer on random material."""
