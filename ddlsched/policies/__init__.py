"""The plug-in doors, what policies see, and how a policy's class is compiled."""
