"""Every request a client can send, and that it is answered as one engine alone would answer it."""
