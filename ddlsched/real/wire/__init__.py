"""How processes of several hosts talk: one channel of JSON lines, one listener, one handshake, one HMAC."""
