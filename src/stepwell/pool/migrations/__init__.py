"""How the schema grew, one file per revision; `stepwell.pool.migrating` runs them."""
