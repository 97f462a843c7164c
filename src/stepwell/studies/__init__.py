"""Many runs compared: their processes, results, tables and pages."""
