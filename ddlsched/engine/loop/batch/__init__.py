"""Many runs at once whose decisions are taken outside, in compiled code: what all doors share, and one file each."""
