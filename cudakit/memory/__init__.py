"""Device arrays and pinned memory: allocation, layout, copies and exchange with other libraries."""
