"""The discrete-event engine: records, compiled event loop, and the face that asks Python policies."""
