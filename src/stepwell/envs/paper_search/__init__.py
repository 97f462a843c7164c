"""Paper search: collect what answers a request, by searching and by following citations."""
