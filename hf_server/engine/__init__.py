"""Everything that needs torch. Imported by the loading thread only, once the port is open."""
