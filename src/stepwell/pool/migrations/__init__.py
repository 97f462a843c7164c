"""How the schema grew, one file per revision; `stepwell.pool.schema_version` runs them."""
