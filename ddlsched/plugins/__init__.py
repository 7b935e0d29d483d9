"""From a name, a specification or a user's file to an instance."""
