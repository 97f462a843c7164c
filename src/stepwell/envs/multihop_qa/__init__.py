"""Multi-hop QA: questions whose answer takes several searches, each needing what another found."""
