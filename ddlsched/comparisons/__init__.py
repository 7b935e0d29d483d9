"""Many runs side by side: settings, sweeps that resume, reports and charts."""
